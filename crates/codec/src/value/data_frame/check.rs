//! Checks Arrow data before arrow-ipc reads it: which types may travel, and that each announced length is true and
//! within the limits.
//!
//! arrow-ipc validates the contents of arrays (offsets, UTF-8, indices of dictionaries); it trusts sizes: the
//! advertised size of a compressed buffer, the number of rows of columns without bytes, and that buffers do not
//! overlap. Rows without bytes are counted over all batches of a frame.

use arrow_ipc::{BodyCompressionMethod, CompressionType, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema};

use crate::error::DecodeError;
use crate::limits::Budget;
use crate::value::data_frame::views;
use crate::value::tensor::view;

/// The first type among the columns that may not travel, with its column.
pub(super) fn unsupported(schema: &Schema) -> Option<(&str, &DataType)> {
    schema.fields().iter().find_map(|field| unsupported_type(field.data_type()).map(|bad| (field.name().as_str(), bad)))
}

/// Unions, run ends and list views are refused: no data frame library writes them, and their readers check the least.
fn unsupported_type(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Union(..) | DataType::RunEndEncoded(..) | DataType::ListView(_) | DataType::LargeListView(_) => {
            Some(data_type)
        }
        DataType::List(field) | DataType::LargeList(field) | DataType::Map(field, _) => {
            unsupported_type(field.data_type())
        }
        DataType::FixedSizeList(field, size) if *size >= 0 => unsupported_type(field.data_type()),
        DataType::FixedSizeList(..) => Some(data_type),
        DataType::FixedSizeBinary(size) => (*size < 0).then_some(data_type),
        DataType::Struct(fields) => fields.iter().find_map(|field| unsupported_type(field.data_type())),
        DataType::Dictionary(keys, values) if keys.is_integer() => unsupported_type(values),
        DataType::Dictionary(..) => Some(data_type),
        _ => None,
    }
}

/// Memory of one column of one batch without its data: field, array, buffers and their counts. Measured at 350 to 700
/// bytes; nested columns are counted by themselves.
pub(crate) const COLUMN_BYTES: usize = 1024;

/// Allows one record or dictionary batch of columns `fields`, whose body is `body`. Returns the memory that reading the
/// batch takes and frees.
pub(super) fn admit(
    batch: &RecordBatch<'_>,
    fields: &[FieldRef],
    body: &[u8],
    budget: &mut Budget<'_>,
) -> Result<usize, DecodeError> {
    let compression = compression(batch)?;
    let BufferSizes { unpacked, working } = buffers(batch, compression, body, budget)?;
    let count = |count: i64, what: &str| {
        usize::try_from(count).map_err(|_| DecodeError::malformed(format!("{what} of {count}")))
    };
    let rows = count(batch.length(), "a number of rows")?;
    let nodes = batch.nodes().unwrap_or_default();
    budget.take_memory(nodes.len().saturating_mul(COLUMN_BYTES))?;
    // A row takes a bit at least. Each column may count all bytes of the batch, so that honest columns of nulls pass.
    let backed = unpacked.saturating_mul(8);
    if nodes.is_empty() {
        budget.frames.take_empty_rows(rows.saturating_sub(backed))?;
    }
    for node in nodes {
        let length = count(node.length(), "a column length")?;
        budget.frames.take_empty_rows(length.saturating_sub(backed))?;
        if count(node.null_count(), "a number of nulls")? > length {
            return Err(DecodeError::malformed("a column of more nulls than rows"));
        }
    }
    let mut walk = BufferWalk { batch, body, compression, working, next_buffer: 0, next_views: 0 };
    fields.iter().try_for_each(|field| walk.column(field, budget))?;
    Ok(working)
}

/// The unpacked size of the buffers of a batch, and the memory for unpacking.
struct BufferSizes {
    /// Bytes of all of them.
    unpacked: usize,
    /// Memory that is taken while one of them is unpacked, at most.
    working: usize,
}

fn compression(batch: &RecordBatch<'_>) -> Result<Option<CompressionType>, DecodeError> {
    match batch.compression() {
        None => Ok(None),
        Some(how) if how.method() != BodyCompressionMethod::BUFFER => {
            Err(DecodeError::unsupported("a compression that is not by buffer"))
        }
        Some(_) if cfg!(not(feature = "arrow-compression")) => Err(DecodeError::unsupported(
            "compressed Arrow data: this program was built without the feature `arrow-compression` of callboard-codec",
        )),
        Some(how) if [CompressionType::LZ4_FRAME, CompressionType::ZSTD].contains(&how.codec()) => {
            Ok(Some(how.codec()))
        }
        Some(how) => Err(DecodeError::unsupported(format!("compression {:?}", how.codec()))),
    }
}

/// Checks the sizes of the buffers.
fn buffers(
    batch: &RecordBatch<'_>,
    compression: Option<CompressionType>,
    body: &[u8],
    budget: &mut Budget<'_>,
) -> Result<BufferSizes, DecodeError> {
    let (mut total, mut unpacked, mut working) = (0_usize, 0_usize, 0_usize);
    for buffer in batch.buffers().unwrap_or_default() {
        let part = part_of(buffer, body)?;
        total = total.saturating_add(part.len());
        let (size, packed) = size_of_part(part, compression.is_some())?;
        if packed {
            budget.take_decompressed(size)?;
            if compression == Some(CompressionType::LZ4_FRAME) {
                let frame = lz4_working_bytes(&part[SIZE_BYTES..]);
                budget.check_decompressing(frame)?;
                budget.frames.take_blocks(frame)?;
                working = working.max(frame);
            }
        }
        unpacked = unpacked.saturating_add(size);
    }
    if total <= body.len() {
        Ok(BufferSizes { unpacked, working })
    } else {
        Err(DecodeError::malformed("buffers that overlap"))
    }
}

/// Walks columns and buffers in the order of the format, and checks the length of each buffer against its element type:
/// arrow-rs asserts that there is no partial element.
struct BufferWalk<'a> {
    batch: &'a RecordBatch<'a>,
    body: &'a [u8],
    compression: Option<CompressionType>,
    working: usize,
    next_buffer: usize,
    next_views: usize,
}

/// The first buffer of a column has a bit for each row: whether it is null.
const VALIDITY: usize = 1;

impl BufferWalk<'_> {
    fn column(&mut self, field: &Field, budget: &mut Budget<'_>) -> Result<(), DecodeError> {
        self.check_type(field.data_type(), budget).map_err(|error| error.in_key(field.name()))
    }

    /// Recurses as deep as the type is nested, which the verifier of the metadata bounds.
    fn check_type(&mut self, data_type: &DataType, budget: &mut Budget<'_>) -> Result<(), DecodeError> {
        match data_type {
            DataType::Null => Ok(()),
            DataType::Utf8 | DataType::Binary => self.buffers(&[VALIDITY, 4, 1]),
            DataType::LargeUtf8 | DataType::LargeBinary => self.buffers(&[VALIDITY, 8, 1]),
            DataType::Utf8View | DataType::BinaryView => {
                self.buffers(&[VALIDITY, views::VIEW_BYTES])?;
                if *data_type == DataType::Utf8View {
                    budget.frames.take_viewed(self.referred(self.next_buffer - 1)?)?;
                }
                let counts = self.batch.variadicBufferCounts();
                let count = counts.filter(|counts| self.next_views < counts.len()).map(|all| all.get(self.next_views));
                self.next_views += 1;
                let count = count.and_then(|count| usize::try_from(count).ok());
                let count = count.ok_or_else(|| DecodeError::malformed("a column of views without its count"))?;
                let left = self.batch.buffers().map_or(0, |buffers| buffers.len()) - self.next_buffer;
                if count > left {
                    return Err(DecodeError::malformed(format!("{count} buffers of views where {left} are left")));
                }
                self.next_buffer += count;
                Ok(())
            }
            DataType::List(item) | DataType::Map(item, _) => {
                self.buffers(&[VALIDITY, 4])?;
                self.check_type(item.data_type(), budget)
            }
            DataType::LargeList(item) => {
                self.buffers(&[VALIDITY, 8])?;
                self.check_type(item.data_type(), budget)
            }
            DataType::FixedSizeList(item, _) => {
                self.buffers(&[VALIDITY])?;
                self.check_type(item.data_type(), budget)
            }
            DataType::Struct(fields) => {
                self.buffers(&[VALIDITY])?;
                fields.iter().try_for_each(|field| self.column(field, budget))
            }
            DataType::Dictionary(keys, _) => self.buffers(&[VALIDITY, keys.primitive_width().unwrap_or(1)]),
            other => self.buffers(&[VALIDITY, other.primitive_width().unwrap_or(1)]),
        }
    }

    /// Bytes that the views in a buffer refer to.
    fn referred(&self, buffer: usize) -> Result<usize, DecodeError> {
        let part = part_of(self.batch.buffers().unwrap_or_default().get(buffer), self.body)?;
        let (size, packed) = size_of_part(part, self.compression.is_some())?;
        match self.compression.filter(|_| packed) {
            Some(how) => views::referred_in_packed(part, how, size, self.working),
            None => Ok(views::referred(&part[part.len() - size..])),
        }
    }

    /// Checks one buffer for each width of its elements in bytes.
    fn buffers(&mut self, widths: &[usize]) -> Result<(), DecodeError> {
        for width in widths {
            let buffers = self.batch.buffers().unwrap_or_default();
            let buffer = (self.next_buffer < buffers.len()).then(|| buffers.get(self.next_buffer));
            let buffer = buffer.ok_or_else(|| DecodeError::malformed("fewer buffers than the columns have"))?;
            self.next_buffer += 1;
            let part = part_of(buffer, self.body)?;
            let (size, packed) = size_of_part(part, self.compression.is_some())?;
            if !size.is_multiple_of(*width) {
                return Err(DecodeError::malformed(format!("a buffer of {size} bytes for elements of {width}")));
            }
            if !packed {
                // arrow-ipc copies a buffer that does not lie aligned for its elements.
                view::charge_aligned(&part[part.len() - size..], (*width).clamp(1, view::ALIGNMENT))?;
            }
        }
        Ok(())
    }
}

/// The length of the size before a compressed buffer.
const SIZE_BYTES: usize = 8;

/// The bytes that lz4_flex allocates while it unpacks a frame: one compressed and one unpacked block, of the size in
/// the frame's descriptor. If blocks refer to earlier blocks, also a second block and the window. Source: the LZ4 frame
/// format, 1.6.4.
fn lz4_working_bytes(frame: &[u8]) -> usize {
    const WINDOW: usize = 64 * 1024;
    const INDEPENDENT: u8 = 1 << 5;
    let linked = frame.get(4).is_none_or(|flags| flags & INDEPENDENT == 0);
    let block_size_id = frame.get(5).map_or(0, |descriptor| descriptor >> 4 & 7);
    let block = match block_size_id {
        id @ 4..=7 => 1_usize << (8 + 2 * id),
        _ => 8 << 20, // Not of this format, or the legacy one.
    };
    if linked { 3 * block + 2 * WINDOW } else { 2 * block + WINDOW }
}

/// The unpacked size of a buffer, and whether it is compressed. The first 8 bytes of a compressed buffer hold the size;
/// -1 means that it is not compressed.
fn size_of_part(part: &[u8], compressed: bool) -> Result<(usize, bool), DecodeError> {
    if !compressed || part.is_empty() {
        return Ok((part.len(), false));
    }
    let prefix = part.first_chunk().ok_or_else(|| DecodeError::malformed("a compressed buffer without its size"))?;
    match i64::from_le_bytes(*prefix) {
        -1 => Ok((part.len() - prefix.len(), false)),
        size => usize::try_from(size)
            .map(|size| (size, true))
            .map_err(|_| DecodeError::malformed("a compressed buffer of negative size")),
    }
}

fn part_of<'a>(buffer: &arrow_ipc::Buffer, body: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    span(buffer.offset(), buffer.length(), body)
        .ok_or_else(|| DecodeError::malformed("a buffer that lies outside its message"))
}

fn span(offset: i64, length: i64, body: &[u8]) -> Option<&[u8]> {
    let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
    body.get(offset..offset.checked_add(length)?)
}

/// Nodes of a schema, on all levels.
pub(super) fn fields(schema: &Schema) -> usize {
    schema.fields().iter().map(|field| nodes(field.data_type())).sum()
}

/// Nodes of a type: itself and all nested types.
pub(super) fn nodes(data_type: &DataType) -> usize {
    1 + match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => nodes(field.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| nodes(field.data_type())).sum(),
        DataType::Dictionary(_, values) => nodes(values),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_ipc::{BodyCompressionBuilder, FieldNode, RecordBatchBuilder};
    use arrow_schema::{Field, UnionFields, UnionMode};
    use flatbuffers::FlatBufferBuilder;

    use super::*;
    use crate::account::testing::charge_of;
    use crate::limits::DecodeLimits;

    fn field(data_type: DataType) -> Arc<Field> {
        Arc::new(Field::new("x", data_type, true))
    }

    #[test]
    fn a_forbidden_type_is_found_inside_every_other_type() {
        let bad = || DataType::Union(UnionFields::empty(), UnionMode::Sparse);
        let around: [fn(DataType) -> DataType; 6] = [
            |inner| DataType::List(field(inner)),
            |inner| DataType::LargeList(field(inner)),
            |inner| DataType::Map(field(inner), false),
            |inner| DataType::FixedSizeList(field(inner), 0),
            |inner| DataType::Struct(vec![field(DataType::Int8), field(inner)].into()),
            |inner| DataType::Dictionary(Box::new(DataType::Int8), Box::new(inner)),
        ];
        for around in around {
            assert_eq!(unsupported_type(&around(DataType::Utf8)), None, "{}", around(DataType::Utf8));
            assert_eq!(unsupported_type(&around(bad())), Some(&bad()), "{}", around(bad()));
        }
        let item = || field(DataType::Int8);
        for itself in [
            DataType::ListView(item()),
            DataType::LargeListView(item()),
            DataType::RunEndEncoded(item(), item()),
            DataType::FixedSizeList(item(), -1),
            DataType::FixedSizeBinary(-1),
            DataType::Dictionary(Box::new(DataType::Utf8), Box::new(DataType::Int8)),
        ] {
            assert_eq!(unsupported_type(&itself), Some(&itself));
        }
        for good in [DataType::FixedSizeBinary(0), DataType::FixedSizeBinary(1), DataType::FixedSizeList(item(), 1)] {
            assert_eq!(unsupported_type(&good), None);
        }
    }

    /// The metadata of a batch. Nodes are rows and nulls, buffers are offsets and lengths.
    fn metadata(
        rows: i64,
        nodes: &[(i64, i64)],
        buffers: &[(i64, i64)],
        views: &[i64],
        compression: Option<(BodyCompressionMethod, CompressionType)>,
    ) -> Vec<u8> {
        let mut message = FlatBufferBuilder::new();
        let nodes: Vec<_> = nodes.iter().map(|(rows, nulls)| FieldNode::new(*rows, *nulls)).collect();
        let buffers: Vec<_> = buffers.iter().map(|(at, len)| arrow_ipc::Buffer::new(*at, *len)).collect();
        let (nodes, buffers) = (message.create_vector(&nodes), message.create_vector(&buffers));
        let views = message.create_vector(views);
        let compression = compression.map(|(method, codec)| {
            let mut how = BodyCompressionBuilder::new(&mut message);
            how.add_method(method);
            how.add_codec(codec);
            how.finish()
        });
        let mut batch = RecordBatchBuilder::new(&mut message);
        batch.add_length(rows);
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        batch.add_variadicBufferCounts(views);
        compression.into_iter().for_each(|how| batch.add_compression(how));
        let batch = batch.finish();
        message.finish_minimal(batch);
        message.finished_data().to_vec()
    }

    fn read(metadata: &[u8]) -> RecordBatch<'_> {
        flatbuffers::root::<RecordBatch<'_>>(metadata).unwrap()
    }

    #[test]
    fn false_batches_are_refused_with_their_cause() {
        let cause = |column: DataType, node: (i64, i64), buffers: &[(i64, i64)], views: &[i64]| {
            let metadata = metadata(node.0, &[node], buffers, views, None);
            let limits = DecodeLimits::default();
            let admitted = admit(&read(&metadata), &[field(column)], &[0; 16], &mut Budget::new(&limits));
            admitted.map_or_else(|error| error.message().to_owned(), |_| String::new())
        };
        let numbers = |node, buffers: &[_]| cause(DataType::Int32, node, buffers, &[]);
        assert_eq!(numbers((2, 2), &[(0, 8), (8, 8)]), "");
        assert_eq!(numbers((2, 3), &[(0, 8), (8, 8)]), "a column of more nulls than rows");
        assert_eq!(numbers((-1, 0), &[(0, 8), (8, 8)]), "a number of rows of -1");
        assert_eq!(numbers((2, 0), &[(0, 8)]), "fewer buffers than the columns have");
        assert_eq!(numbers((2, 0), &[(0, 8), (8, 7)]), "a buffer of 7 bytes for elements of 4");
        assert_eq!(numbers((2, 0), &[(0, 9), (8, 8)]), "buffers that overlap");
        for (at, len) in [(8, 9), (17, 0), (-1, 8), (8, -1)] {
            assert_eq!(numbers((2, 0), &[(0, 8), (at, len)]), "a buffer that lies outside its message");
        }
        let views = |counts: &[_]| cause(DataType::Utf8View, (1, 0), &[(0, 0), (0, 16)], counts);
        assert_eq!(views(&[0]), "");
        assert_eq!(views(&[1]), "1 buffers of views where 0 are left");
        for counts in [&[][..], &[-1]] {
            assert_eq!(views(counts), "a column of views without its count");
        }
    }

    #[test]
    fn views_are_counted_in_packed_and_unpacked_parts() {
        let view = [20_u32, 0, 0, 0].map(u32::to_le_bytes).concat();
        let unpacked = [&(-1_i64).to_le_bytes()[..], &view].concat();
        let mut cases = vec![(view, None, 20), (unpacked, Some(CompressionType::ZSTD), 20)];
        if cfg!(feature = "arrow-compression") {
            cases.push((0_i64.to_le_bytes().to_vec(), Some(CompressionType::ZSTD), 0));
        }
        for (body, compression, bytes) in cases {
            let metadata = metadata(1, &[], &[(0, body.len() as i64)], &[], None);
            let batch = read(&metadata);
            let walk =
                BufferWalk { batch: &batch, body: &body, compression, working: 0, next_buffer: 0, next_views: 0 };
            assert_eq!(walk.referred(0).unwrap(), bytes);
        }
    }

    #[test]
    fn an_unaligned_buffer_is_charged_for_its_copy() {
        let words = [0_u64; 3];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let (metadata, limits) = (metadata(2, &[(2, 0)], &[(0, 8), (8, 8)], &[], None), DecodeLimits::default());
        let charged = |body: &[u8]| {
            let column = field(DataType::Int32);
            charge_of(|| admit(&read(&metadata), &[column], body, &mut Budget::new(&limits)).unwrap())
        };
        let copy = charge_of(|| view::charge_aligned(&bytes[9..17], 4).unwrap());
        assert!(copy >= 8);
        assert_eq!((charged(&bytes[..16]), charged(&bytes[1..17])), (COLUMN_BYTES, COLUMN_BYTES + copy));
    }

    #[test]
    fn only_known_compressions_of_buffers_are_read() {
        let read = |method, codec| {
            let metadata = metadata(0, &[], &[], &[], Some((method, codec)));
            compression(&read(&metadata)).ok()
        };
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let taken = cfg!(feature = "arrow-compression").then_some(Some(codec));
            assert_eq!(read(BodyCompressionMethod::BUFFER, codec), taken);
            assert_eq!(read(BodyCompressionMethod(1), codec), None);
        }
        assert_eq!(read(BodyCompressionMethod::BUFFER, CompressionType(2)), None);
    }

    #[test]
    fn all_nodes_of_a_nested_type_are_counted() {
        let list = DataType::List(field(DataType::Struct(vec![field(DataType::Int8), field(DataType::Utf8)].into())));
        assert_eq!((nodes(&DataType::Int8), nodes(&list)), (1, 4));
        let words = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        assert_eq!(nodes(&words), 2);
        assert_eq!(fields(&Schema::new(vec![field(list), field(words), field(DataType::Null)])), 7);
    }

    #[test]
    fn the_size_of_a_compressed_part_precedes_it() {
        let part = |size: i64, bytes: usize| [&size.to_le_bytes()[..], &vec![0; bytes]].concat();
        assert_eq!(size_of_part(&part(7, 5), true).unwrap(), (7, true));
        assert_eq!(size_of_part(&part(0, 5), true).unwrap(), (0, true));
        assert_eq!(size_of_part(&part(-1, 5), true).unwrap(), (5, false));
        assert_eq!(size_of_part(&part(7, 5), false).unwrap(), (13, false));
        assert_eq!(size_of_part(&[], true).unwrap(), (0, false));
        assert!(size_of_part(&part(-2, 5), true).is_err() && size_of_part(&[0; 7], true).is_err());
    }

    #[test]
    fn blocks_of_lz4_have_the_size_that_their_frame_says() {
        let frame = |flags: u8, descriptor: u8| lz4_working_bytes(&[4, 34, 77, 24, flags, descriptor]);
        let (window, independent) = (64 * 1024, 0x20);
        for (id, block) in [(4, 64 * 1024), (5, 256 * 1024), (6, 1 << 20), (7, 4 << 20), (0, 8 << 20), (3, 8 << 20)] {
            assert_eq!(frame(independent, id << 4), 2 * block + window, "{id}");
            assert_eq!(frame(0, id << 4), 3 * block + 2 * window, "{id}");
            // The other bits do not matter.
            assert_eq!(frame(independent | 0x40, id << 4 | 0x8f), 2 * block + window, "{id}");
        }
        assert_eq!(lz4_working_bytes(&[]), 3 * (8 << 20) + 2 * window, "an unknown size counts as the largest");
    }
}
