//! Compares docs/wire.md with the types that the code writes and reads.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use callboard_codec::{DType, DataFrame, DecodeLimits, Format, Map, Scalar, Series, StrTensor, Tensor, Value};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire.md");
    std::fs::read_to_string(path).expect("the page is in the repository")
}

/// The cells of the table with this start of its header.
fn rows(page: &str, header: &str) -> Vec<Vec<String>> {
    let lines = page.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The text between the first two backticks.
fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or_default()
}

/// One sample of each kind, in the order of the page.
fn samples() -> Vec<Value> {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("n", Arc::clone(&column))]).expect("one column");
    vec![
        Value::Null,
        true.into(),
        (-7).into(),
        0.5.into(),
        "a".into(),
        Bytes::from_static(&[0, 0xff]).into(),
        vec![1.into(), 2.into()].into(),
        Value::Tuple(vec![1.into(), 2.into()]),
        Map::from_iter([("k", 1)]).into(),
        Scalar::F32(1.5).into(),
        Tensor::from_vec(&[2, 2], vec![1_u8, 2, 3, 4]).expect("four").into(),
        StrTensor::from_texts(&[2], ["a", "b"]).expect("two").into(),
        DataFrame::from(batch).into(),
        Series::try_new("n", vec![column]).expect("one chunk").into(),
    ]
}

/// The family of a MessagePack marker, as the page names it.
fn family(bytes: &[u8]) -> String {
    let ext = |code: usize| format!("ext {}", bytes[code]);
    match bytes[0] {
        0xc0 => "nil".to_owned(),
        0xc2 | 0xc3 => "bool".to_owned(),
        0xca | 0xcb => "float".to_owned(),
        0xa0..=0xbf | 0xd9..=0xdb => "str".to_owned(),
        0xc4..=0xc6 => "bin".to_owned(),
        0x90..=0x9f | 0xdc | 0xdd => "array".to_owned(),
        0x80..=0x8f | 0xde | 0xdf => "map".to_owned(),
        0xd4..=0xd8 => ext(1),
        0xc7 => ext(2),
        0xc8 => ext(3),
        0xc9 => ext(5),
        _ => "int".to_owned(),
    }
}

#[test]
fn every_kind_has_the_forms_on_the_page() {
    let rows = rows(&page(), "| kind |");
    let samples = samples();
    let kinds: Vec<&str> = samples.iter().map(Value::kind).collect();
    assert_eq!(rows.iter().map(|row| code(&row[0])).collect::<Vec<_>>(), kinds);
    for (row, value) in rows.iter().zip(&samples) {
        assert_eq!(value.encode(Format::Json).expect("has a form"), code(&row[1]), "{}", row[0]);
        let msgpack = value.encode(Format::Msgpack).expect("has a form");
        assert!(row[2].starts_with(&family(&msgpack)), "{}: {} is not {}", row[0], row[2], family(&msgpack));
    }
}

#[test]
fn every_dtype_has_the_code_size_and_names_on_the_page() {
    let rows = rows(&page(), "| dtype |");
    let one = |dtype: DType| {
        let scalar =
            Tensor::from_value(&1.into(), Some(dtype)).or_else(|_| Tensor::from_value(&true.into(), Some(dtype)));
        Value::Scalar(scalar.expect("has a one").to_scalar().expect("one element"))
    };
    let expected = DType::all().map(|dtype| {
        let msgpack = one(dtype).encode(Format::Msgpack).expect("has a form");
        // The payload follows the marker, its length (if any) and the code of the extension.
        let payload = msgpack.len() - 1 - dtype.size_bytes();
        let json = one(dtype).encode(Format::Json).expect("has a form");
        let [name, numpy] = [dtype.name(), dtype.numpy_name()].map(str::to_owned);
        (
            name,
            msgpack[payload].to_string(),
            dtype.size_bytes().to_string(),
            numpy,
            String::from_utf8_lossy(&json).into(),
        )
    });
    let documented = rows.iter().map(|row| {
        (code(&row[0]).to_owned(), row[1].clone(), row[2].clone(), code(&row[3]).to_owned(), code(&row[5]).to_owned())
    });
    assert_eq!(documented.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// A tensor of one axis is a column of the Arrow type on the page, or of none.
#[test]
fn every_dtype_is_the_arrow_type_on_the_page() {
    for (row, dtype) in rows(&page(), "| dtype |").iter().zip(DType::all()) {
        let tensor = Tensor::try_new(dtype, &[2], vec![0; 2 * dtype.size_bytes()].into()).expect("two");
        let frame = DataFrame::from_value(&Map::from_iter([("x", tensor)]).into());
        let actual = frame.map_or_else(|_| String::new(), |frame| frame.schema().field(0).data_type().to_string());
        assert_eq!(actual, code(&row[4]), "{dtype}");
    }
}

#[test]
fn the_envelopes_on_the_page_are_valid() {
    let page = page();
    let dump = |title: &str| -> Bytes {
        let (_, rest) = page.split_once(title).unwrap_or_else(|| panic!("no {title:?} on the page"));
        let hex = rest.split("```").next().unwrap_or_default();
        let byte = |text: &str| u8::from_str_radix(text, 16).expect("two hex digits");
        hex.split_whitespace().map(byte).collect()
    };
    let small = Value::from(vec![1.into(), "a".into()]);
    let bytes = dump("[1, \"a\"], without segments\n");
    assert_eq!(small.encode(Format::Envelope).expect("has a form"), bytes);
    let bytes = dump("in a segment although they are few\n");
    let value = Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).expect("is one");
    assert_eq!(value, Bytes::from_static(&[7; 3]).into());
}
