//! Arrow IPC, stream and file, in and out.
//!
//! arrow-ipc reads message by message, and [`check`] admits each message first. Arrays share the memory of an aligned
//! input. The stream is written in pieces that share the memory of the columns. A file is read by its footer (polars
//! puts no stream between the magic numbers), whose blocks must not overlap.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_ipc::writer::{FileWriter, StreamEncoder};
use arrow_ipc::{Footer, Message, MessageHeader, MetadataVersion, root_as_footer_with_opts, root_as_message_with_opts};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, SchemaRef};
use bytes::Bytes;
use flatbuffers::VerifierOptions;

use crate::account::TemporaryCharge;
use crate::error::{DecodeError, EncodeError};
use crate::limits::Budget;
use crate::out::ChargedBuffer;
use crate::value::data_frame::check;
use crate::value::data_frame::{DataFrame, Series};
use crate::value::tensor::view;

/// Reads a frame out of an IPC stream, and nothing after it.
pub(crate) fn from_stream(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<DataFrame, DecodeError> {
    guarded(|| IpcReader::new(bytes, budget)?.frame())
}

/// Reads a series: a stream of one column.
pub(crate) fn series_from_stream(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<Series, DecodeError> {
    Series::from_frame(from_stream(bytes, budget)?).map_err(|error| DecodeError::malformed(error.to_string()))
}

const MAGIC: &[u8] = b"ARROW1";
/// The magic and its padding, before the stream.
const HEAD_BYTES: usize = 8;
/// The length of the footer and the magic, at the end.
const TAIL_BYTES: usize = 4 + MAGIC.len();

/// Reads a frame out of an IPC file.
pub(crate) fn from_file(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<DataFrame, DecodeError> {
    let (head, tail) = (bytes.get(..HEAD_BYTES), bytes.len().checked_sub(TAIL_BYTES));
    let (Some(head), Some(tail)) = (head, tail) else {
        return Err(DecodeError::malformed("too short for an Arrow file").at_offset(0));
    };
    if !head.starts_with(MAGIC) {
        return Err(DecodeError::malformed("not an Arrow file: it does not start with ARROW1").at_offset(0));
    }
    if &bytes[tail + 4..] != MAGIC {
        return Err(DecodeError::malformed("not a whole Arrow file: it does not end with ARROW1").at_offset(tail + 4));
    }
    let wrong = || DecodeError::malformed("a footer that lies outside the file").at_offset(tail);
    let len = bytes[tail..].first_chunk().map(|len| u32::from_le_bytes(*len)).unwrap_or_default();
    let footer_at = usize::try_from(len).ok().and_then(|len| tail.checked_sub(len)).ok_or_else(wrong)?;
    if footer_at < HEAD_BYTES {
        return Err(wrong());
    }
    let footer = &bytes[footer_at..tail];
    let footer = root_as_footer_with_opts(&bounds(footer.len()), footer).map_err(|error| {
        DecodeError::malformed(format!("a broken footer: {}", first_line(&error))).at_offset(footer_at)
    })?;
    guarded(|| {
        let mut reader = IpcReader::new(&bytes.slice(..footer_at), budget)?;
        reader.file(&footer).map_err(|error| error.at_offset(footer_at))
    })
}

/// arrow-rs treats a panic on malformed input as a bug, but does not promise that there is none. No input that passes
/// [`check`] is known to panic; if one does, the panic ends here and not in the worker.
fn guarded(read: impl FnOnce() -> Result<DataFrame, DecodeError>) -> Result<DataFrame, DecodeError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(DecodeError::malformed("Arrow data on which its reader panics").at_offset(0)))
}

struct IpcReader<'a, 'b> {
    bytes: Bytes,
    buffer: Buffer,
    at: usize,
    budget: &'a mut Budget<'b>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// For each dictionary, the first column that uses it, on any level.
    dictionary_fields: HashMap<i64, FieldRef>,
    /// Fields of the schema on all levels, which arrow-ipc looks through for each dictionary.
    fields: usize,
}

/// The prefix of a message, except in the oldest form.
const CONTINUATION: u32 = u32::MAX;

impl<'a, 'b> IpcReader<'a, 'b> {
    fn new(bytes: &Bytes, budget: &'a mut Budget<'b>) -> Result<Self, DecodeError> {
        // One copy of an unaligned input is cheaper than a copy of each buffer.
        view::charge_aligned(bytes, ALIGNMENT)?;
        let bytes = view::aligned(bytes.clone(), ALIGNMENT);
        let buffer = Buffer::from(bytes.clone());
        let (dictionaries, dictionary_fields) = (HashMap::new(), HashMap::new());
        Ok(Self { bytes, buffer, at: 0, budget, dictionaries, dictionary_fields, fields: 0 })
    }

    fn frame(&mut self) -> Result<DataFrame, DecodeError> {
        let mut schema: Option<SchemaRef> = None;
        let mut batches = Vec::new();
        let start = self.at;
        let bytes = self.bytes.clone();
        while let Some(message) = next_message(&bytes, self.at)? {
            let body = self.buffer.slice_with_length(message.body.start, message.body.len());
            self.part(&message.header, &body, &mut schema, &mut batches).map_err(|error| error.at_offset(self.at))?;
            self.at = message.body.end;
        }
        let schema = schema.ok_or_else(|| DecodeError::malformed("a stream without a schema").at_offset(start))?;
        DataFrame::try_new(schema, batches).map_err(|error| DecodeError::malformed(error.to_string()))
    }

    fn file(&mut self, footer: &Footer<'_>) -> Result<DataFrame, DecodeError> {
        let schema = footer.schema().ok_or_else(|| DecodeError::malformed("a footer without a schema"))?;
        let mut schema = Some(self.schema(schema)?);
        let mut batches = Vec::new();
        let bytes = self.bytes.clone();
        let blocks = footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten());
        let mut total = 0_usize;
        for block in blocks {
            let start = usize::try_from(block.offset()).ok().filter(|start| (HEAD_BYTES..bytes.len()).contains(start));
            let start = start.ok_or_else(|| DecodeError::malformed("a block that lies outside the file"))?;
            let message = next_message(&bytes, start)?;
            let message =
                message.ok_or_else(|| DecodeError::malformed("a block without a message").at_offset(start))?;
            total = total.saturating_add(message.body.len());
            if total > bytes.len() {
                return Err(DecodeError::malformed("blocks that overlap").at_offset(start));
            }
            let body = self.buffer.slice_with_length(message.body.start, message.body.len());
            self.part(&message.header, &body, &mut schema, &mut batches).map_err(|error| error.at_offset(start))?;
        }
        let schema = schema.expect("was there before");
        DataFrame::try_new(schema, batches).map_err(|error| DecodeError::malformed(error.to_string()))
    }

    fn part(
        &mut self,
        message: &Message<'_>,
        body: &Buffer,
        schema: &mut Option<SchemaRef>,
        batches: &mut Vec<RecordBatch>,
    ) -> Result<(), DecodeError> {
        let version = message.version();
        if ![MetadataVersion::V4, MetadataVersion::V5].contains(&version) {
            return Err(DecodeError::unsupported(format!("Arrow metadata version {version:?}")));
        }
        match (message.header_type(), &schema) {
            (MessageHeader::Schema, None) => {
                *schema = Some(self.schema(message.header_as_schema().ok_or_else(no_header)?)?);
            }
            (MessageHeader::Schema, Some(_)) => return Err(DecodeError::malformed("a second schema")),
            (MessageHeader::DictionaryBatch | MessageHeader::RecordBatch, None) => {
                return Err(DecodeError::malformed("data before the schema"));
            }
            (MessageHeader::DictionaryBatch, Some(schema)) => {
                let batch = message.header_as_dictionary_batch().ok_or_else(no_header)?;
                let data = batch.data().ok_or_else(no_header)?;
                if batch.isDelta() {
                    return Err(DecodeError::unsupported("a dictionary that adds to another one"));
                }
                self.budget.frames.take_lookups(self.fields)?;
                let of = self.dictionary_fields.get(&batch.id());
                let of = of.ok_or_else(|| DecodeError::malformed("a dictionary of no column"))?;
                let DataType::Dictionary(_, values) = of.data_type() else {
                    return Err(DecodeError::malformed("a dictionary of a column that has none").in_key(of.name()));
                };
                let values = [Arc::new(Field::new("", (**values).clone(), true))];
                let mut working = TemporaryCharge::new();
                check::admit(&data, &values, body, self.budget)
                    .and_then(|bytes| Ok(working.grow(bytes)?))
                    .map_err(|error| error.in_key(of.name()))?;
                let read = read_dictionary(body, batch, schema, &mut self.dictionaries, &version);
                read.map_err(|error| refused(error).in_key(of.name()))?;
            }
            (MessageHeader::RecordBatch, Some(schema)) => {
                let batch = message.header_as_record_batch().ok_or_else(no_header)?;
                let mut working = TemporaryCharge::new();
                working.grow(check::admit(&batch, schema.fields(), body, self.budget)?)?;
                let read = |columns: Option<&[usize]>| {
                    RecordBatchDecoder::try_new(body, batch, Arc::clone(schema), &self.dictionaries, &version)
                        .and_then(|decoder| decoder.with_projection(columns).read_record_batch())
                };
                let made = read(None);
                // Arrow does not name the column. A column that fails alone is at fault.
                let culprit = || (0..schema.fields().len().min(MAX_ASKED)).find(|index| read(Some(&[*index])).is_err());
                batches.push(made.map_err(|error| in_column(refused(error), culprit().map(|at| schema.field(at))))?);
            }
            (other, _) => return Err(DecodeError::unsupported(format!("an Arrow message of type {other:?}"))),
        }
        Ok(())
    }

    fn schema(&mut self, schema: arrow_ipc::Schema<'_>) -> Result<SchemaRef, DecodeError> {
        if schema.endianness() != arrow_ipc::Endianness::Little {
            return Err(DecodeError::unsupported("big-endian Arrow data"));
        }
        let columns = schema.fields().map_or(0, |fields| fields.len());
        self.budget.take_memory(columns.saturating_mul(check::COLUMN_BYTES))?;
        let schema = try_fb_to_schema(schema).map_err(refused)?;
        let nested = check::fields(&schema) - columns;
        self.budget.take_memory(nested.saturating_mul(check::COLUMN_BYTES))?;
        self.fields = schema.fields().iter().map(|field| note_dictionaries(field, &mut self.dictionary_fields)).sum();
        match check::unsupported(&schema) {
            None => Ok(Arc::new(schema)),
            Some((column, bad)) => Err(DecodeError::unsupported(format!("a column of type {bad}")).in_key(column)),
        }
    }
}

/// A message: its verified metadata, and where its body lies.
struct IpcMessage<'a> {
    header: Message<'a>,
    body: Range<usize>,
}

/// The message that starts at a byte; nothing at the end of the stream.
fn next_message(bytes: &[u8], start: usize) -> Result<Option<IpcMessage<'_>>, DecodeError> {
    let malformed = |message: &str, at: usize| DecodeError::malformed(message).at_offset(at);
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_le_bytes(*word));
    if start == bytes.len() {
        return Ok(None); // The end mark is optional.
    }
    let short = || malformed("the input ends inside a message", start);
    let (len, at) = match word(start).ok_or_else(short)? {
        CONTINUATION => (word(start + 4).ok_or_else(short)?, start + 8),
        len => (len, start + 4),
    };
    if len == 0 {
        return if at == bytes.len() { Ok(None) } else { Err(malformed("more input after the stream", at)) };
    }
    let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len)).ok_or_else(short)?;
    let metadata = bytes.get(at..end).ok_or_else(short)?;
    let header = root_as_message_with_opts(&bounds(metadata.len()), metadata)
        .map_err(|error| malformed(&format!("broken metadata: {}", first_line(&error)), at))?;
    let body_end = usize::try_from(header.bodyLength()).ok().and_then(|len| end.checked_add(len));
    let body_end =
        body_end.filter(|end| *end <= bytes.len()).ok_or_else(|| malformed("a body that is not all there", at))?;
    Ok(Some(IpcMessage { header, body: end..body_end }))
}

/// The alignment at which columns of 8 and 16 bytes are read in place.
const ALIGNMENT: usize = 16;

/// Metadata is a graph with shared nodes. Its unfolded size is bounded by its own length.
fn bounds(len: usize) -> VerifierOptions {
    VerifierOptions {
        max_depth: 64,
        max_tables: len / 8 + 16,
        max_apparent_size: len.saturating_mul(4).saturating_add(1024),
        ..VerifierOptions::default()
    }
}

fn first_line(error: &impl ToString) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// At most this many columns are read again to find the one at fault.
const MAX_ASKED: usize = 64;

fn in_column(error: DecodeError, field: Option<&Field>) -> DecodeError {
    match field {
        Some(field) => error.in_key(field.name()),
        None => error,
    }
}

/// Notes the field of each dictionary, in the order of arrow-ipc: a field before the ones inside it. Returns how many
/// fields there are.
fn note_dictionaries(field: &FieldRef, fields: &mut HashMap<i64, FieldRef>) -> usize {
    #[expect(deprecated, reason = "the wire has these numbers, and arrow-ipc itself asks so")]
    if let Some(id) = field.dict_id() {
        fields.entry(id).or_insert_with(|| Arc::clone(field));
    }
    1 + note_inner_dictionaries(field.data_type(), fields)
}

fn note_inner_dictionaries(data_type: &DataType, fields: &mut HashMap<i64, FieldRef>) -> usize {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => note_dictionaries(field, fields),
        DataType::Struct(inner) => inner.iter().map(|field| note_dictionaries(field, fields)).sum(),
        DataType::Dictionary(_, values) => note_inner_dictionaries(values, fields),
        _ => 0,
    }
}

fn no_header() -> DecodeError {
    DecodeError::malformed("a message without its header")
}

fn refused(error: ArrowError) -> DecodeError {
    DecodeError::malformed(error.to_string())
}

/// An Arrow buffer as bytes: shares its memory.
pub(super) struct ArrowBytes(pub(super) Buffer);

impl AsRef<[u8]> for ArrowBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

pub(super) fn to_stream_parts(frame: &DataFrame) -> Result<Vec<Bytes>, EncodeError> {
    check_types(frame)?;
    let mut encoder = StreamEncoder::try_new(frame.schema()).map_err(cannot)?;
    let mut buffers = Vec::new();
    for batch in frame.batches() {
        buffers.append(&mut encoder.encode(batch).map_err(cannot)?);
    }
    buffers.append(&mut encoder.finish().map_err(cannot)?);
    let parts = buffers.into_iter().filter(|buffer| !buffer.is_empty());
    Ok(parts.map(|buffer| Bytes::from_owner(ArrowBytes(buffer))).collect())
}

pub(super) fn to_file(frame: &DataFrame) -> Result<Bytes, EncodeError> {
    check_types(frame)?;
    let mut out = ChargedBuffer::new(1024);
    let written = write_file(&mut out, frame);
    out.check()?; // A refusal is why the writer could not go on.
    written.map_err(cannot)?;
    Ok(out.into_bytes()?)
}

fn write_file(out: &mut ChargedBuffer, frame: &DataFrame) -> Result<(), ArrowError> {
    let mut writer = FileWriter::try_new(out, frame.schema())?;
    frame.batches().iter().try_for_each(|batch| writer.write(batch))?;
    writer.finish()
}

fn check_types(frame: &DataFrame) -> Result<(), EncodeError> {
    match check::unsupported(frame.schema()) {
        None => Ok(()),
        Some((column, bad)) => {
            Err(EncodeError::new(bad.to_string(), "a column type that does not travel").in_key(column))
        }
    }
}

fn cannot(error: ArrowError) -> EncodeError {
    EncodeError::new("data_frame", error.to_string())
}
