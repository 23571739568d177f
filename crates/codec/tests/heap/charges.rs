//! Decoding and encoding charge the call's account before they allocate.
//!
//! The inputs are small and would take gigabytes. Each ends in an error that names its cause, with the heap below the
//! charge.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Float64Array, Int32Array, ListArray, MapArray, NullArray, RecordBatch,
    RecordBatchOptions, StringArray, StructArray,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use callboard_codec::{
    DecodeError, DecodeErrorKind, DecodeLimits, EncodeError, EncodeErrorKind, Format, Map, StrTensor, Tensor, Value,
};
use serde::de::IgnoredAny;

use crate::heap;
use crate::ledger::{LIMIT, charged};

const MIB: usize = 1 << 20;
const SLACK: usize = 64 * 1024;

/// Runs `work` on an account of `max` bytes and compares the heap with the charges.
fn within<T>(max: usize, input: usize, work: impl FnOnce() -> T) -> T {
    let ((made, charged), peak, _) = heap::measured(|| charged(max, work));
    let allowed = charged.peak + 2 * input + SLACK;
    assert!(peak <= allowed, "{peak} bytes of heap, {} charged, {input} of input", charged.peak);
    assert!(charged.peak <= max);
    made
}

fn decode(format: Format, input: &Bytes) -> Result<Value, DecodeError> {
    Value::decode(format, input, &DecodeLimits::default())
}

#[track_caller]
fn names_the_account<T: std::fmt::Debug>(refused: Result<T, EncodeError>) {
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), EncodeErrorKind::LimitExceeded, "{error}");
    assert_eq!(error.limit().map(|limit| limit.name), Some(LIMIT));
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let rows = columns.first().map_or(0, |(_, array)| array.len());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options).unwrap()
}

fn stream(batch: &RecordBatch, times: usize, compression: Option<CompressionType>) -> Bytes {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    (0..times).for_each(|_| writer.write(batch).unwrap());
    writer.into_inner().unwrap().into()
}

/// Decodes a frame of one column from its stream, on its own account.
fn frame(column: ArrayRef) -> Value {
    let input = stream(&batch(vec![("x", column)]), 1, None);
    within(256 * MIB, input.len(), || decode(Format::ArrowStream, &input).unwrap())
}

fn one_text_for_each_row(rows: usize) -> ArrayRef {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(MIB)]));
    Arc::new(DictionaryArray::new(Int32Array::from(vec![0; rows]), texts))
}

#[test]
fn rows_without_bytes_are_counted_over_all_batches() {
    let _turn = heap::turn();
    let input = stream(&batch(vec![("x", Arc::new(NullArray::new(MIB)))]), 5000, None);
    let mut wrapped = vec![0xc9];
    wrapped.extend_from_slice(&u32::try_from(input.len()).unwrap().to_be_bytes());
    wrapped.push(5); // A data frame.
    wrapped.extend_from_slice(&input);
    for (format, input) in [(Format::ArrowStream, input), (Format::Msgpack, wrapped.into())] {
        let error = within(16 * MIB, input.len(), || decode(format, &input).unwrap_err());
        assert_eq!(error.kind(), DecodeErrorKind::Malformed);
        assert!(error.to_string().contains("rows without bytes"), "{error}");
    }
    // One limit: a single batch may reach it, and all batches share it.
    let input = stream(&batch(vec![("x", Arc::new(NullArray::new(MIB / 4)))]), 4, None);
    let value = decode(Format::ArrowStream, &input).unwrap();
    assert_eq!(value.as_data_frame().unwrap().num_rows(), MIB);
}

#[test]
fn rows_without_columns_are_counted_over_all_batches() {
    let _turn = heap::turn();
    let options = RecordBatchOptions::new().with_row_count(Some(MIB / 2));
    let empty = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    assert!(decode(Format::ArrowStream, &stream(&empty, 2, None)).is_ok());
    let error = decode(Format::ArrowStream, &stream(&empty, 3, None)).unwrap_err();
    assert!(error.to_string().contains("rows without bytes"), "{error}");
}

#[test]
fn columns_of_nulls_are_as_long_as_the_other_columns() {
    let _turn = heap::turn();
    let rows = 3 * MIB;
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![0.5; rows]));
    let columns = vec![("a", numbers), ("b", Arc::new(NullArray::new(rows)) as ArrayRef)];
    assert!(decode(Format::ArrowStream, &stream(&batch(columns), 1, None)).is_ok());
}

#[test]
fn cells_of_zeros_that_were_packed_are_charged() {
    let _turn = heap::turn();
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0; 15 * MIB / 8]));
    let columns = ["a", "b", "c", "d"].map(|name| (name, Arc::clone(&zeros))).to_vec();
    let input = stream(&batch(columns), 1, Some(CompressionType::ZSTD));
    assert!(input.len() < 16 * 1024, "{}", input.len());
    drop(zeros);
    let refused = within(75 * MIB, input.len(), || {
        let value = decode(Format::ArrowStream, &input).unwrap();
        let typed = value.deserialize::<BTreeMap<String, Vec<f64>>>().map(drop);
        (value.encode(Format::Json), typed)
    });
    names_the_account(refused.0);
    assert!(refused.1.is_err());
    // Without room for the unpacked bytes, nothing is unpacked.
    let refused = within(25 * MIB, input.len(), || decode(Format::ArrowStream, &input).unwrap_err());
    assert_eq!(refused.limit().map(|limit| limit.name), Some(LIMIT));
}

/// Rows that are all views of one text.
fn views(rows: usize, len: usize) -> ArrayRef {
    let mut views = StringViewBuilder::new();
    let block = views.append_block(Buffer::from_vec(vec![b'x'; len]));
    (0..rows).for_each(|_| views.try_append_view(block, 0, len as u32).unwrap());
    Arc::new(views.finish())
}

#[test]
fn views_of_the_same_text_are_counted_before_it_is_read() {
    let _turn = heap::turn();
    for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
        let input = stream(&batch(vec![("x", views(4100, MIB))]), 1, compression);
        let error = within(64 * MIB, input.len(), || decode(Format::ArrowStream, &input).unwrap_err());
        assert!(error.to_string().contains("views of 4299161600 bytes of text"), "{error}");
        let few = stream(&batch(vec![("x", views(4, MIB))]), 1, compression);
        let value = within(64 * MIB, few.len(), || decode(Format::ArrowStream, &few).unwrap());
        assert_eq!(value.as_data_frame().unwrap().batches()[0].column(0), &views(4, MIB), "{compression:?}");
    }
}

#[test]
fn a_text_that_many_rows_share_is_charged_for_each_row() {
    let _turn = heap::turn();
    let nested = {
        let rows = one_text_for_each_row(60_000);
        let field = Arc::new(Field::new("item", rows.data_type().clone(), true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths([30_000, 30_000]), rows, None))
    };
    let inside = one_text_for_each_row(60_000);
    let inside = StructArray::from(vec![(Arc::new(Field::new("t", inside.data_type().clone(), true)), inside)]);
    let columns: [ArrayRef; 4] = [one_text_for_each_row(60_000), nested, Arc::new(inside), views(200, MIB)];
    for column in columns {
        let shown = column.data_type().clone();
        let value = frame(column);
        names_the_account(within(8 * MIB, 0, || value.encode(Format::Json)));
        let error = within(8 * MIB, 0, || value.deserialize::<BTreeMap<String, IgnoredAny>>().map(drop).unwrap_err());
        assert!(error.to_string().contains(LIMIT), "{shown}: {error}");
    }
}

/// A column is written within the room of its answer: no tree of all its cells is built.
#[test]
fn a_frame_is_written_as_json_in_slices() {
    let _turn = heap::turn();
    let rows = 50_000;
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![0.5; rows]));
    let texts: ArrayRef = Arc::new((0..rows).map(|row| Some(format!("row {row}"))).collect::<StringArray>());
    let value = frame(Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("n", DataType::Float64, true)), numbers),
        (Arc::new(Field::new("t", DataType::Utf8, true)), texts),
    ])));
    let written = within(5 * MIB, 0, || value.encode(Format::Json).unwrap());
    assert!(written.len() > MIB && written.ends_with(b"{\"n\":0.5,\"t\":\"row 49999\"}]}"), "{}", written.len());
    // The same as a field of a type.
    let frame = value.as_data_frame().unwrap();
    assert_eq!(serde_json::to_vec(frame).unwrap(), written);
}

#[test]
fn nested_columns_are_charged() {
    let _turn = heap::turn();
    let rows = 100_000;
    let keys: ArrayRef = Arc::new(StringArray::from(vec!["same"; rows]));
    let values: ArrayRef = Arc::new(Int32Array::from(vec![1; rows]));
    let entries = StructArray::from(vec![
        (Arc::new(Field::new("keys", DataType::Utf8, false)), Arc::clone(&keys)),
        (Arc::new(Field::new("values", DataType::Int32, true)), values),
    ]);
    let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = MapArray::new(field, OffsetBuffer::from_lengths([rows]), entries, None, false);
    let empties = ListArray::new(
        Arc::new(Field::new("item", DataType::Int32, true)),
        OffsetBuffer::from_lengths(vec![0; rows]),
        Arc::new(Int32Array::from(Vec::<i32>::new())),
        None,
    );
    for column in [Arc::new(map) as ArrayRef, Arc::new(empties)] {
        let value = frame(column);
        within(64 * MIB, 0, || value.deserialize::<BTreeMap<String, IgnoredAny>>().unwrap());
        within(64 * MIB, 0, || value.encode(Format::Json).unwrap());
        assert!(within(2 * MIB, 0, || value.deserialize::<BTreeMap<String, IgnoredAny>>()).is_err());
    }
}

#[test]
fn a_dictionary_message_for_each_of_many_columns_is_refused() {
    let _turn = heap::turn();
    let words: ArrayRef = Arc::new(["a"].into_iter().collect::<DictionaryArray<arrow_array::types::Int32Type>>());
    let names: Vec<String> = (0..4_000).map(|n| n.to_string()).collect();
    let columns = names.iter().map(|name| (name.as_str(), Arc::clone(&words))).collect();
    let input = stream(&batch(columns), 1, None);
    let error = within(256 * MIB, input.len(), || decode(Format::ArrowStream, &input).unwrap_err());
    assert!(error.to_string().contains("dictionary messages × columns"), "{error}");
    let columns = names[..200].iter().map(|name| (name.as_str(), Arc::clone(&words))).collect();
    assert!(decode(Format::ArrowStream, &stream(&batch(columns), 2, None)).is_ok());
}

#[test]
fn members_are_unpacked_after_all_of_them_are_charged() {
    let _turn = heap::turn();
    let input = archive(5, 10 * MIB);
    assert!(input.len() < 60_000, "{}", input.len());
    let error = within(26 * MIB, input.len(), || decode(Format::Npz, &input).unwrap_err());
    assert_eq!(error.limit().map(|limit| limit.name), Some(LIMIT), "{error}");
    let (error, peak, _) = heap::measured(|| charged(26 * MIB, || decode(Format::Npz, &input).unwrap_err()));
    assert!(peak < MIB, "{peak} bytes of heap for {}", error.0);
    let value = within(51 * MIB, input.len(), || decode(Format::Npz, &input).unwrap());
    assert_eq!(value.as_map().map(Map::len), Some(5));
}

/// A zip archive of deflated members, each an array of zeros.
fn archive(members: usize, zeros: usize) -> Bytes {
    let array = Value::from(Tensor::from_vec(&[zeros], vec![0_u8; zeros]).unwrap()).encode(Format::Npy).unwrap();
    let packed = miniz_oxide::deflate::compress_to_vec(&array, 9);
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for name in 0..members as u8 {
        let at = u32::try_from(out.len()).unwrap();
        let mut common = Vec::new();
        [20_u16, 0, 8, 0, 0x21].iter().for_each(|field| common.extend_from_slice(&field.to_le_bytes()));
        let sizes = [crc32fast::hash(&array), packed.len() as u32, array.len() as u32];
        sizes.iter().for_each(|field| common.extend_from_slice(&field.to_le_bytes()));
        [1_u16, 0].iter().for_each(|field| common.extend_from_slice(&field.to_le_bytes()));
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&common);
        out.push(b'a' + name);
        out.extend_from_slice(&packed);
        directory.extend_from_slice(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&at.to_le_bytes());
        directory.push(b'a' + name);
    }
    let at = u32::try_from(out.len()).unwrap();
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\x00\x00\x00\x00");
    [members as u16; 2].iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
    out.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    out.extend_from_slice(&at.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.into()
}

#[test]
fn empty_axes_count_every_bracket() {
    let _turn = heap::turn();
    let mut shape = vec![1; 31];
    (shape[0], shape[30]) = (MIB, 0);
    assert!(Tensor::from_vec::<f64>(&shape, vec![]).unwrap_err().to_string().contains("larger than memory"));
    assert!(StrTensor::from_texts::<&str>(&shape, []).is_err());
    let flat = Tensor::from_vec::<f64>(&[MIB, 0], vec![]).unwrap();
    assert!(flat.reshape(&shape).is_err());
    assert_eq!(flat.reshape(&[1024, 1022, 0]).unwrap().shape(), [1024, 1022, 0]);
    let rows = Tensor::from_vec::<f64>(&[512, 0], vec![]).unwrap();
    assert_eq!(Tensor::stack(&[&rows; 3]).unwrap().shape(), [3, 512, 0]);
    let written = within(16 * MIB, 0, || Value::from(flat).encode(Format::Json).unwrap());
    assert_eq!(written.len(), 3 * MIB + 1);
}

/// serde_json buffers the digits of a long number and records the nesting of ignored values.
#[test]
fn the_buffers_of_serde_json_are_charged() {
    let _turn = heap::turn();
    #[derive(Debug, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    #[serde(default)]
    struct Number {
        x: f64,
    }
    for input in [format!("{{\"x\":1{}}}", "0".repeat(4 * MIB)), format!("{{\"y\":{}", "[".repeat(4 * MIB))] {
        let input = Bytes::from(input);
        let numbers = callboard_codec::DataType::for_type::<Number>();
        let (_, peak, _) = heap::measured(|| numbers.decode(Format::Json, &input, &DecodeLimits::default()).is_ok());
        let ((_, charged), again, _) = heap::measured(|| {
            charged(64 * MIB, || numbers.decode(Format::Json, &input, &DecodeLimits::default()).is_ok())
        });
        assert!(peak.max(again) <= charged.peak + SLACK, "{peak} bytes of heap, {} charged", charged.peak);
    }
}

/// serde's formats quote the whole text of a wrong type, and escape each of these bytes as six.
#[test]
fn a_long_text_in_the_wrong_place_is_not_quoted() {
    let _turn = heap::turn();
    let text = Value::from("\u{7f}".repeat(8 * MIB));
    let value = Value::from(Map::from_iter([("x", text)]));
    let numbers = callboard_codec::DataType::for_type::<BTreeMap<String, f64>>();
    for format in [Format::Json, Format::Msgpack, Format::Envelope] {
        let input = value.encode(format).unwrap();
        let limits = DecodeLimits::default();
        let error = within(64 * MIB, 0, || numbers.decode(format, &input, &limits).unwrap_err());
        assert_eq!((error.kind(), error.path()), (DecodeErrorKind::Mismatch, "$.x"), "{format}");
        assert!(error.to_string().len() < 5000, "{}", error.to_string().len());
    }
}

#[derive(Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
enum Choice {
    Plain,
    Number(u8),
    Pair(u8, u8),
    Named { x: u8 },
}

#[derive(Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Named {
    x: Option<u8>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
enum Untagged {
    Number(u8),
    Named(Named),
}

/// A short input is charged little, and its text is 64 KB: a quoted copy would show.
#[test]
fn no_type_quotes_a_long_text() {
    let _turn = heap::turn();
    fn refused<T>(what: &str, around: impl Fn(Value) -> Value)
    where
        T: std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned
            + schemars::JsonSchema
            + Send
            + Sync
            + 'static,
    {
        let value = around(Value::from("\u{7f}".repeat(64 << 10)));
        let of_type = callboard_codec::DataType::for_type::<T>();
        for format in [Format::Json, Format::Msgpack] {
            let input = value.encode(format).unwrap();
            let limits = DecodeLimits::default();
            let error = within(64 * MIB, input.len(), || of_type.decode(format, &input, &limits).unwrap_err());
            assert_eq!(error.kind(), DecodeErrorKind::Mismatch, "{what} in {format}: {error}");
            assert!(error.to_string().len() < 5000, "{what} in {format}: {} bytes", error.to_string().len());
        }
    }
    let plain = |text| text;
    let in_map = |key: &'static str| move |text| Value::from(Map::from_iter([(key, text)]));
    let as_key = |text: Value| Value::from(Map::from_iter([(text.as_str().unwrap(), Value::from(1))]));
    refused::<bool>("bool", plain);
    refused::<u8>("u8", plain);
    refused::<i64>("i64", plain);
    refused::<f32>("f32", plain);
    refused::<f64>("f64", plain);
    refused::<char>("char", plain);
    refused::<()>("unit", plain);
    refused::<Vec<u8>>("list", plain);
    refused::<Vec<u8>>("item", |text| Value::List(vec![text]));
    refused::<(u8, u8)>("tuple", plain);
    refused::<BTreeMap<String, u8>>("map", plain);
    refused::<Named>("struct", plain);
    refused::<Named>("field", in_map("x"));
    refused::<Named>("name of a field", as_key);
    refused::<Option<u8>>("option", plain);
    refused::<Choice>("name of a variant", plain);
    refused::<Choice>("key of a variant", as_key);
    for variant in ["Plain", "Number", "Pair", "Named"] {
        refused::<Choice>(variant, in_map(variant));
    }
    refused::<Untagged>("untagged", in_map("x"));
    refused::<std::net::IpAddr>("address", plain);
}

#[test]
fn a_long_text_among_many_short_ones_is_refused_as_npy() {
    let _turn = heap::turn();
    let texts = |long: usize, short: usize| {
        let long = "x".repeat(long);
        let texts = std::iter::once(long.as_str()).chain(std::iter::repeat_n("", short));
        Value::from(StrTensor::from_texts(&[short + 1], texts).unwrap())
    };
    let hostile = texts(5000, 20_000);
    let error = within(512 * MIB, 0, || hostile.encode(Format::Npy).unwrap_err());
    assert_eq!(error.limit().map(|limit| limit.name), Some("max_decompressed_bytes"), "{error}");
    let archive = Value::from(Map::from_iter([("texts", hostile)]));
    let error = within(512 * MIB, 0, || archive.encode(Format::Npz).unwrap_err());
    assert_eq!((error.limit().map(|limit| limit.name), error.path()), (Some("max_decompressed_bytes"), "$.texts"));
    // Below that, the account decides.
    let padded = texts(3000, 10_000);
    names_the_account(within(64 * MIB, 0, || padded.encode(Format::Npy)));
    assert_eq!(within(128 * MIB, 0, || padded.encode(Format::Npy).unwrap()).len(), 128 + 4 * 3000 * 10_001);
}

#[test]
fn trees_are_charged() {
    let _turn = heap::turn();
    let mut maps = vec![0xdd, 0, 0x04, 0, 0];
    maps.extend(std::iter::repeat_n(0x80, MIB / 4));
    let keys: String = (0..50_000).map(|n| format!("\"{n}\":[],")).collect();
    let keys = format!("{{{}}}", keys.trim_end_matches(','));
    for (format, input) in [(Format::Msgpack, Bytes::from(maps)), (Format::Json, keys.into())] {
        let error = within(4 * MIB, input.len(), || decode(format, &input).unwrap_err());
        assert_eq!(error.limit().map(|limit| limit.name), Some(LIMIT), "{error}");
        let value = within(64 * MIB, input.len(), || decode(format, &input).unwrap());
        // The same holds for the written form.
        for format in [Format::Json, Format::Msgpack, Format::Envelope] {
            within(16 * MIB, 0, || value.encode(format).unwrap());
            names_the_account(within(MIB / 8, 0, || value.encode(format)));
        }
    }
}

#[test]
fn copies_into_order_are_charged() {
    let _turn = heap::turn();
    let elements: Vec<f64> = (0..MIB).map(|n| n as f64).collect();
    let plain = Value::from(Tensor::from_vec(&[1024, 1024], elements).unwrap()).encode(Format::Npy).unwrap();
    let at = plain.windows(5).position(|window| window == b"False").unwrap();
    let (mut fortran, mut big_endian) = (plain.to_vec(), plain.to_vec());
    fortran[at..at + 5].copy_from_slice(b"True ");
    let at = plain.windows(3).position(|window| window == b"<f8").unwrap();
    big_endian[at] = b'>';
    for input in [fortran, big_endian] {
        let input = Bytes::from(input);
        let decoded = within(9 * MIB, 0, || decode(Format::Npy, &input).map(drop));
        assert!(decoded.is_ok());
        let error = within(4 * MIB, 0, || decode(Format::Npy, &input).unwrap_err());
        assert_eq!(error.limit().map(|limit| limit.name), Some(LIMIT), "{error}");
    }
    // A misaligned array is copied too.
    let mut askew = vec![0; 1];
    askew.extend_from_slice(&plain);
    let askew = Bytes::from(askew).slice(1..);
    let error = within(4 * MIB, 0, || decode(Format::Npy, &askew).unwrap_err());
    assert_eq!(error.limit().map(|limit| limit.name), Some(LIMIT), "{error}");
}

/// Arrays in Fortran order decode correctly for any shape, also with axes of length 1.
#[test]
fn fortran_order_decodes_correctly_for_any_axes() {
    let _turn = heap::turn();
    for shape in [vec![2; 12], vec![1, 3, 1, 2, 1], vec![4, 1, 1, 5], vec![7], vec![3, 2, 4], vec![1; 32], vec![]] {
        let len: usize = shape.iter().product();
        let value = Value::from(Tensor::from_vec(&shape, (0..len as u32).collect()).unwrap());
        let mut file = value.encode(Format::Npy).unwrap().to_vec();
        let at = file.windows(5).position(|window| window == b"False").unwrap();
        file[at..at + 5].copy_from_slice(b"True ");
        let read = decode(Format::Npy, &file.into()).unwrap();
        let read = read.as_tensor().unwrap().view::<u32>().unwrap().to_owned();
        for (index, element) in read.indexed_iter() {
            let strides = shape.iter().scan(1, |stride, len| Some(std::mem::replace(stride, *stride * len)));
            let place: usize = strides.enumerate().map(|(axis, stride)| index[axis] * stride).sum();
            assert_eq!(*element as usize, place, "{shape:?} at {index:?}");
        }
    }
}

/// A map of one entry has room for eleven, and a growing map allocates ahead.
#[test]
fn small_and_growing_maps_of_rust_types_are_charged() {
    type Small = Vec<BTreeMap<String, u8>>;
    let _turn = heap::turn();
    fn held<T: callboard_codec::Data + schemars::JsonSchema>(input: String) {
        let (input, kind) = (Bytes::from(input), callboard_codec::DataType::for_type::<T>());
        let decoded = within(usize::MAX, input.len(), || kind.decode(Format::Json, &input, &DecodeLimits::default()));
        decoded.unwrap();
    }
    let small = "{\"a\":1},".repeat(20_000);
    held::<Small>(format!("[{}]", small.trim_end_matches(',')));
    for entries in [500, 3585, 28_673, 50_000] {
        let growing: String = (0..entries).map(|n| format!("\"{n:05}\":{n},")).collect();
        let growing = format!("{{{}}}", growing.trim_end_matches(','));
        held::<BTreeMap<String, u64>>(growing.clone());
        held::<HashMap<String, u64>>(growing);
    }
}

/// Lists of Rust types that are larger than their text, and maps of few entries, which must not be charged for many.
#[test]
fn lists_of_rust_types_are_charged_and_small_maps_are_not_overcharged() {
    let _turn = heap::turn();
    fn charged_of<T: callboard_codec::Data + schemars::JsonSchema>(item: &str, items: usize) -> f64 {
        let (input, kind) = (
            Bytes::from(format!("[{item}{}]", format!(",{item}").repeat(items - 1))),
            callboard_codec::DataType::for_type::<T>(),
        );
        let read = || kind.decode(Format::Json, &input, &DecodeLimits::default()).unwrap();
        let ((payload, charged), peak, _) = heap::measured(|| charged(usize::MAX, read));
        assert!(payload.is::<T>());
        assert!(peak <= charged.peak + SLACK, "{peak} bytes of heap, {} charged for {item}", charged.peak);
        charged.peak as f64 / peak as f64
    }
    let wide = "{\"a\":[0,0,0,0,0,0,0,0],\"b\":[0,0,0,0,0,0,0,0],\"c\":[0,0,0,0,0,0,0,0]}";
    let ratios = [
        charged_of::<Vec<u64>>("1", 500_000),
        charged_of::<Vec<[u64; 4]>>("[1,2,3,4]", 100_000),
        charged_of::<Vec<Option<u128>>>("1", 200_000),
        charged_of::<Vec<HashMap<String, [u64; 8]>>>(wide, 20_000),
    ];
    let most = [2.0, 2.0, 2.0, 3.5];
    let is_fair = ratios.iter().zip(most).all(|(ratio, most)| *ratio < most);
    assert!(is_fair, "charged as multiples of the heap: {ratios:?}");
}

/// A row of a tensor is a tensor, larger than an element.
#[test]
fn rows_of_arrays_that_decode_as_lists_are_charged_or_made_one_by_one() {
    let _turn = heap::turn();
    let rows = MIB / 4;
    let bytes = Value::from(Tensor::from_vec(&[rows, 1], vec![7_u8; rows]).unwrap());
    within(usize::MAX, rows, || bytes.deserialize::<Vec<IgnoredAny>>().unwrap());
    let texts = StrTensor::from_texts(&[rows, 1], vec!["a"; rows]).unwrap();
    let texts = Value::from(texts);
    within(usize::MAX, 0, || texts.deserialize::<Vec<IgnoredAny>>().unwrap());
    assert!(within(4 * MIB, 0, || texts.deserialize::<Vec<IgnoredAny>>()).is_err());
}

#[test]
fn a_value_that_a_rust_type_takes_from_another_is_charged() {
    let _turn = heap::turn();
    let list = Value::List(vec![Value::from(1); 100_000]);
    let map = Value::Map((0..1000).map(|n| (n.to_string(), list_of(n))).collect());
    let both = Value::Map(Map::from_iter([("list", list), ("map", map)]));
    within(usize::MAX, 0, || both.deserialize::<BTreeMap<String, Value>>().unwrap());
    assert!(within(MIB, 0, || both.deserialize::<BTreeMap<String, Value>>()).is_err());
}

fn list_of(n: i64) -> Value {
    Value::List(vec![Value::from(n), Value::from("text")])
}

/// An envelope in one piece copies its segments.
#[test]
fn an_envelope_of_a_rust_type_in_one_piece_is_charged() {
    let _turn = heap::turn();
    let tensor = Tensor::from_vec(&[MIB], vec![0.5_f64; MIB]).unwrap();
    let payload = callboard_codec::Payload::new(BTreeMap::from([("x".to_owned(), tensor)]));
    within(9 * MIB, 0, || payload.encode(Format::Envelope).unwrap());
    names_the_account(within(4 * MIB, 0, || payload.encode(Format::Envelope)));
}

#[test]
fn a_refused_encoding_returns_its_charges() {
    let _turn = heap::turn();
    let tensor = Value::from(Tensor::from_vec(&[MIB], vec![0.5_f64; MIB]).unwrap());
    let (refused, charged) = charged(8 * MIB, || tensor.encode(Format::Json));
    names_the_account(refused);
    assert_eq!(charged.left, 0);
}

/// Its value would take far more memory than the account has left, and says nothing about the input.
#[test]
fn malformed_json_that_goes_on_encoded_is_refused_for_its_place() {
    let _turn = heap::turn();
    let body = Bytes::from(format!("[0{}", ",0".repeat(1 << 20)));
    let limits = DecodeLimits { max_elements: usize::MAX, max_tree_bytes: usize::MAX, ..DecodeLimits::default() };
    let kind = callboard_codec::DataType::value().kept_encoded();
    let (read, _) = charged(8 << 20, || kind.decode(Format::Json, &body, &limits));
    let error = read.unwrap_err();
    assert_eq!(error.kind(), DecodeErrorKind::Malformed, "{error}");
    assert!(error.to_string().contains("ends inside a list"), "{error}");
}
