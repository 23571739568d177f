//! Arrow streams with far more rows, cells or columns than bytes.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, MapBuilder, StringBuilder, StringViewBuilder};
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, NullArray, RecordBatch, RecordBatchOptions, RunArray,
    StringArray, StructArray, UInt8Array, UInt64Array, new_empty_array,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Fields, Schema};

use super::MIB;

/// The media type of a stream.
pub(crate) const STREAM: &str = "application/vnd.apache.arrow.stream";

/// The most rows of a batch without bytes that a reader accepts.
const ROWS: usize = 1 << 20;

/// A stream of the same batch repeated, with or without compression.
fn stream(columns: Vec<(String, ArrayRef)>, times: usize, is_zstd: bool) -> Vec<u8> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let arrays: Vec<ArrayRef> = columns.into_iter().map(|(_, column)| column).collect();
    let rows = RecordBatchOptions::new().with_row_count(arrays.first().map(|column| column.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &rows).expect("columns of one length");
    let compression = is_zstd.then_some(CompressionType::ZSTD);
    let options = IpcWriteOptions::default().try_with_compression(compression).expect("the feature is on");
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).expect("a vector takes all");
    (0..times).for_each(|_| writer.write(&batch).expect("a vector takes all"));
    writer.finish().and_then(|()| writer.into_inner()).expect("a vector takes all")
}

fn one_column(column: ArrayRef, times: usize) -> Vec<u8> {
    stream(vec![("x".to_owned(), column)], times, false)
}

/// Rows without data: 2^20 in each batch.
pub(crate) fn null_rows(batches: usize) -> Vec<u8> {
    one_column(Arc::new(NullArray::new(ROWS)), batches)
}

/// The same as cells of a struct.
pub(crate) fn null_structs(batches: usize) -> Vec<u8> {
    let fields = Fields::from(vec![Field::new("n", DataType::Null, true)]);
    one_column(Arc::new(StructArray::new(fields, vec![Arc::new(NullArray::new(ROWS))], None)), batches)
}

/// One cell that is a list of 2^20 nulls, in each batch.
pub(crate) fn lists_of_nulls(batches: usize) -> Vec<u8> {
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([ROWS]), Arc::new(NullArray::new(ROWS)), None);
    one_column(Arc::new(list), batches)
}

/// `columns` columns of zeros, each of some MiB, which zstd compresses to almost nothing.
pub(crate) fn zstd_zeros(columns: usize, mib: usize) -> Vec<u8> {
    let zeros: ArrayRef = Arc::new(UInt64Array::from(vec![0; mib * MIB / 8]));
    stream((0..columns).map(|index| (format!("c{index}"), Arc::clone(&zeros))).collect(), 1, true)
}

/// The same with single bytes: a cell of 40 bytes for each.
pub(crate) fn zstd_bytes(columns: usize, mib: usize) -> Vec<u8> {
    let zeros: ArrayRef = Arc::new(UInt8Array::from(vec![0; mib * MIB]));
    stream((0..columns).map(|index| (format!("c{index}"), Arc::clone(&zeros))).collect(), 1, true)
}

/// One text of 1 MiB, and rows that all point to it.
pub(crate) fn one_text_many_rows(rows: usize) -> Vec<u8> {
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(MIB)]));
    one_column(Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0; rows]), values)), 1)
}

/// The same as views of one buffer.
pub(crate) fn views_of_one_text(rows: usize) -> Vec<u8> {
    let mut views = StringViewBuilder::new();
    let block = views.append_block(Buffer::from(vec![b'a'; MIB]));
    (0..rows).for_each(|_| views.try_append_view(block, 0, MIB as u32).expect("the view lies in its block"));
    one_column(Arc::new(views.finish()), 1)
}

/// A type of nested lists. Building it recurses once per level.
pub(crate) fn nested_lists(levels: usize) -> Vec<u8> {
    with_large_stack(move || {
        let wrap = |inner, _| DataType::List(Arc::new(Field::new("item", inner, true)));
        let data_type = (0..levels).fold(DataType::Int8, wrap);
        one_column(new_empty_array(&data_type), 1)
    })
}

/// The same of structs.
pub(crate) fn nested_structs(levels: usize) -> Vec<u8> {
    with_large_stack(move || {
        let wrap = |inner, _| DataType::Struct(vec![Field::new("s", inner, true)].into());
        let data_type = (0..levels).fold(DataType::Int8, wrap);
        one_column(new_empty_array(&data_type), 1)
    })
}

/// One run whose end is the largest number of a row.
pub(crate) fn endless_run() -> Vec<u8> {
    let ends = arrow_array::PrimitiveArray::<Int64Type>::from(vec![i64::MAX / 2]);
    one_column(Arc::new(RunArray::try_new(&ends, &Int64Array::from(vec![7])).expect("one run")), 1)
}

/// A map column. All its entries have the same key.
pub(crate) fn maps_of_equal_keys(rows: usize, entries: usize) -> Vec<u8> {
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for _ in 0..rows {
        for number in 0..entries {
            maps.keys().append_value("k");
            maps.values().append_value(number as i64);
        }
        maps.append(true).expect("as many keys as values");
    }
    one_column(Arc::new(maps.finish()), 1)
}

/// Many columns, and one dictionary repeated before the only batch.
pub(crate) fn dictionaries_and_columns(dictionaries: usize, columns: usize) -> Vec<u8> {
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0]), values));
    let null: ArrayRef = Arc::new(NullArray::new(1));
    let mut fields = vec![("d".to_owned(), dictionary)];
    fields.extend((1..columns).map(|index| (format!("{index}"), Arc::clone(&null))));
    let stream = stream(fields, 1, false);
    let ends = message_ends(&stream);
    // The schema, the dictionary, the batch and the end.
    [&stream[..ends[0]], &stream[ends[0]..ends[1]].repeat(dictionaries), &stream[ends[1]..]].concat()
}

/// The end of each message of a stream.
fn message_ends(stream: &[u8]) -> Vec<usize> {
    let (mut ends, mut position) = (Vec::new(), 0);
    while let Some(head) = stream.get(position + 4..position + 8) {
        let length = u32::from_le_bytes(head.try_into().expect("four bytes")) as usize;
        let Some(message) = stream.get(position + 8..position + 8 + length).filter(|message| !message.is_empty())
        else {
            break;
        };
        let options = flat(message.len());
        let message = arrow_ipc::root_as_message_with_opts(&options, message).expect("what was written here");
        position += 8 + length + message.bodyLength() as usize;
        ends.push(position);
    }
    ends
}

fn flat(bytes: usize) -> flatbuffers::VerifierOptions {
    flatbuffers::VerifierOptions { max_tables: bytes, max_apparent_size: bytes * 8, ..Default::default() }
}

/// Runs on a stack that is large enough for all depths of this file.
fn with_large_stack<T: Send + 'static>(build: impl FnOnce() -> T + Send + 'static) -> T {
    let builder = std::thread::Builder::new().stack_size(512 * MIB);
    builder.spawn(build).expect("a thread").join().expect("the stack is large enough")
}
