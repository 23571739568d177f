//! What a decoder or encoder costs for each byte of the worst input known for it, to be counted by callgrind.
//!
//! ```text
//! cargo build --release -p callboard-codec --example cost
//! valgrind --tool=callgrind --toggle-collect='*cost::measured*' --callgrind-out-file=/dev/null \
//!     target/release/examples/cost json-lists
//! ```
//!
//! prints the instructions; they are divided by the bytes that the example prints. Without a name it prints all names.
//! The figures are in `docs/testing.md`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints, and stops when something is wrong")]

use std::hint::black_box;
use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, NullArray, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_ipc::writer::StreamWriter;
use bytes::Bytes;
use callboard_codec::{DataType, DecodeLimits, Format, Map, StrTensor, Tensor, Value};

/// Bytes of an input.
const LEN: usize = 1 << 18;

/// What is measured: a name, and the input or value that it is measured on.
type Case = (&'static str, fn() -> Work);

enum Work {
    Decode(Format, Bytes),
    /// The same for a reader in another process.
    Keep(Format, Bytes),
    /// Counted by the bytes that are written.
    Encode(Format, Value),
}

const CASES: [Case; 26] = [
    ("json-lists", || json("[", "[],", "[]]")),
    ("json-numbers", || json("[", "0,", "0]")),
    ("json-floats", || json("[", "1.2345678901234567e-300,", "0]")),
    ("json-escapes", || json("\"", "\\u00e9", "\"")),
    ("json-maps", || json("[", "{\"\":0},", "0]")),
    ("json-keys", || json_keys()),
    ("json-lists-encoded", || encoded(json("[", "[],", "[]]"))),
    ("json-floats-encoded", || encoded(json("[", "1.2345678901234567e-300,", "0]"))),
    ("json-escapes-encoded", || encoded(json("\"", "\\u00e9", "\""))),
    ("json-keys-encoded", || encoded(json_keys())),
    ("msgpack-maps-encoded", || encoded(msgpack(&[0x81, 0xa0, 0x80]))),
    ("msgpack-lists", || msgpack(&[0x90])),
    ("msgpack-maps", || msgpack(&[0x81, 0xa0, 0x80])),
    ("msgpack-nils", || msgpack(&[0xc0])),
    ("msgpack-tensors", || msgpack(&[0xc7, 16, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
    ("npy-fortran", || npy(fortran("|u1", 18), 1 << 18)),
    ("npy-fortran-texts", || npy(fortran("|S1", 18), 1 << 18)),
    ("npz-members", npz),
    ("npy-texts", || npy(format!("{{'descr': '<U1', 'fortran_order': False, 'shape': ({},), }}", LEN / 4), LEN)),
    ("arrow-columns", || arrow(&wide(1000), 1)),
    ("arrow-batches", || arrow(&narrow(), 1000)),
    ("arrow-dictionaries", || arrow(&dictionaries(1000), 1)),
    ("arrow-views", || arrow(&views(4000, 1 << 16), 1)),
    ("to-json-numbers", || Work::Encode(Format::Json, tensor().into())),
    ("to-json-nulls", || Work::Encode(Format::Json, frame(&nulls()))),
    ("to-npy-texts", || Work::Encode(Format::Npy, texts().into())),
];

fn main() {
    let Some(name) = std::env::args().nth(1) else {
        CASES.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, make) = CASES.iter().find(|case| case.0 == name).expect("one of the names");
    let work = make();
    let bytes = measured(&work);
    println!("{name}: {bytes} bytes");
}

/// Refusals count as well: they come after the work.
#[inline(never)]
fn measured(work: &Work) -> usize {
    match work {
        Work::Decode(format, input) => {
            let _decoded = black_box(Value::decode(*format, input, &DecodeLimits::default()));
            input.len()
        }
        Work::Keep(format, input) => {
            let kind = DataType::value().kept_encoded();
            let _kept = black_box(kind.decode(*format, input, &DecodeLimits::default()));
            input.len()
        }
        Work::Encode(format, value) => black_box(value.encode(*format)).unwrap().len(),
    }
}

fn encoded(work: Work) -> Work {
    match work {
        Work::Decode(format, input) => Work::Keep(format, input),
        other => other,
    }
}

fn json(start: &str, item: &str, end: &str) -> Work {
    let text = format!("{start}{}{end}", item.repeat(LEN / item.len()));
    Work::Decode(Format::Json, text.into())
}

fn json_keys() -> Work {
    let keys: String = (0..LEN / 8).map(|n| format!("\"{n:x}\":0,")).collect();
    Work::Decode(Format::Json, format!("{{{keys}\"\":0}}").into())
}

fn msgpack(item: &[u8]) -> Work {
    let count = LEN / item.len();
    let mut input = vec![0xdd];
    input.extend_from_slice(&u32::try_from(count).unwrap().to_be_bytes());
    (0..count).for_each(|_| input.extend_from_slice(item));
    Work::Decode(Format::Msgpack, input.into())
}

/// Axes of length 2, in Fortran order.
fn fortran(descr: &str, axes: usize) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': ({}), }}", "2, ".repeat(axes))
}

fn npy(mut header: String, data: usize) -> Work {
    header.push('\n');
    let mut input = b"\x93NUMPY\x01\x00".to_vec();
    input.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
    input.extend_from_slice(header.as_bytes());
    input.extend(b"a\0\0\0".iter().cycle().take(data));
    Work::Decode(Format::Npy, input.into())
}

/// Arrays of no elements.
fn npz() -> Work {
    let empty = Value::from(Tensor::from_vec::<u8>(&[0], vec![]).unwrap());
    let arrays: Map = (0..LEN / 320).map(|n| (format!("{n:x}"), empty.clone())).collect();
    Work::Decode(Format::Npz, Value::from(arrays).encode(Format::Npz).unwrap())
}

fn arrow(batch: &RecordBatch, times: usize) -> Work {
    Work::Decode(Format::ArrowStream, stream(batch, times))
}

fn stream(batch: &RecordBatch, times: usize) -> Bytes {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    (0..times).for_each(|_| writer.write(batch).unwrap());
    writer.into_inner().unwrap().into()
}

fn frame(batch: &RecordBatch) -> Value {
    Value::decode(Format::ArrowStream, &stream(batch, 1), &DecodeLimits::default()).unwrap()
}

fn columns(count: usize, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable((0..count).map(|n| (format!("{n:x}"), Arc::clone(&column), true))).unwrap()
}

fn wide(count: usize) -> RecordBatch {
    columns(count, Arc::new(StringArray::from(vec!["a", "a", "a", "a"])))
}

fn narrow() -> RecordBatch {
    columns(1, Arc::new(StringArray::from(vec!["a"])))
}

fn nulls() -> RecordBatch {
    columns(1, Arc::new(NullArray::new(LEN)))
}

fn dictionaries(count: usize) -> RecordBatch {
    columns(count, Arc::new(["a"].into_iter().collect::<DictionaryArray<Int32Type>>()) as ArrayRef)
}

fn views(rows: usize, len: u32) -> RecordBatch {
    let mut views = StringViewBuilder::new();
    let block = views.append_block(Buffer::from_vec(vec![b'x'; len as usize]));
    (0..rows).for_each(|_| views.try_append_view(block, 0, len).unwrap());
    let views = views.finish();
    assert_eq!(views.len(), rows);
    columns(1, Arc::new(views))
}

fn tensor() -> Tensor {
    Tensor::from_vec(&[LEN / 8, 8], (0..LEN).map(|n| n as f64 / 7.0).collect()).unwrap()
}

fn texts() -> StrTensor {
    StrTensor::from_texts(&[1000], (0..1000).map(|n| if n == 0 { "x".repeat(250) } else { String::new() })).unwrap()
}
