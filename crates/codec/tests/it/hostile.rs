//! Hostile input ends in a typed error that names limit, place and byte, at a cost in proportion to its size.

use bytes::Bytes;
use callboard_codec::{DecodeError, DecodeErrorKind, DecodeLimits, Format, MAX_DEPTH, Value};
use proptest::prelude::*;

use crate::common;

use DecodeErrorKind::{LimitExceeded, Malformed, Unsupported};

fn refused(format: Format, input: impl Into<Bytes>, limits: &DecodeLimits) -> DecodeError {
    Value::decode(format, &input.into(), limits).expect_err("is refused")
}

fn json(input: impl Into<Bytes>) -> DecodeError {
    refused(Format::Json, input, &DecodeLimits::default())
}

fn msgpack(input: impl Into<Bytes>) -> DecodeError {
    refused(Format::Msgpack, input, &DecodeLimits::default())
}

fn limit(error: &DecodeError) -> Option<(&'static str, usize)> {
    error.limit().map(|limit| (limit.name, limit.max))
}

#[test]
fn json_nested_ten_thousand_deep_is_a_typed_error() {
    for input in ["[".repeat(10_000), "[".repeat(10_000) + &"]".repeat(10_000), r#"{"a":"#.repeat(10_000)] {
        let error = json(input);
        assert_eq!((error.kind(), limit(&error)), (LimitExceeded, Some(("max_depth", 128))));
        assert!(error.to_string().len() < 300, "{error}");
    }
}

#[test]
fn msgpack_nested_ten_thousand_deep_is_a_typed_error() {
    let tuples = (0..200).fold(Value::Null, |inner, _| Value::Tuple(vec![inner])).encode(Format::Msgpack).unwrap();
    for input in [vec![0x91; 10_000], b"\x81\xa1a".repeat(10_000), tuples.to_vec()] {
        let error = msgpack(input);
        assert_eq!((error.kind(), limit(&error)), (LimitExceeded, Some(("max_depth", 128))));
    }
}

#[test]
fn the_deepest_value_that_can_be_allowed_does_not_end_the_stack() {
    let limits = DecodeLimits { max_depth: usize::MAX, ..DecodeLimits::default() };
    let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(limit(&refused(Format::Json, deep(MAX_DEPTH + 1), &limits)), Some(("max_depth", MAX_DEPTH)));

    let value = Value::decode(Format::Json, &deep(MAX_DEPTH).into(), &limits).unwrap();
    assert_eq!(value.encode(Format::Json).unwrap(), deep(MAX_DEPTH));
    let bytes = value.encode(Format::Msgpack).unwrap();
    assert_eq!(Value::decode(Format::Msgpack, &bytes, &limits).unwrap(), value);
    assert_eq!(Value::from_serialize(&value).unwrap(), value);
    assert_eq!(value.deserialize::<Value>().unwrap(), value);
    assert!(!format!("{value:?}").is_empty());

    let too_deep = Value::List(vec![value]);
    let nested = Value::List(vec![too_deep]);
    assert!(nested.encode(Format::Json).is_err());
    assert!(nested.encode(Format::Msgpack).is_err());
    assert!(Value::from_serialize(&nested).is_err());
    assert!(serde_json::to_vec(&nested).is_err());
}

#[test]
fn invalid_json_is_malformed_at_its_byte() {
    let cases: &[(&[u8], usize)] = &[
        (b"", 0),
        (b"  ", 2),
        (b"NaN", 0),
        (b"-Infinity", 0),
        (b"[1, Infinity]", 4),
        (b"[1,]", 3),
        (b"[1 2]", 3),
        (b"[1", 2),
        (b"{\"a\":1,}", 7),
        (b"{\"a\" 1}", 5),
        (b"{a:1}", 1),
        (b"{\"a\":1", 6),
        (b"{\"a\":1,\"a\":2}", 7),
        (b"01", 0),
        (b"-", 0),
        (b"-.5", 0),
        (b"1.", 0),
        (b"1e", 0),
        (b"1e999", 0),
        (b"18446744073709551616", 0),
        (b"-9223372036854775809", 0),
        (b"+1", 0),
        (b".5", 0),
        (b"nul", 0),
        (b"true false", 5),
        (b"\"a", 0),
        (b"\"\n\"", 1),
        (b"\"\\x\"", 1),
        (b"\"\\u12\"", 1),
        (b"\"\\ud800\"", 1),
        (b"\"\\ud800\\u0041\"", 1),
        (b"\"\\udc00\"", 1),
        (b"\"\xff\"", 1),
        (b"/* */ 1", 0),
        (b"\xef\xbb\xbf1", 0),
    ];
    for (input, offset) in cases {
        let error = json(*input);
        let shown = String::from_utf8_lossy(input);
        assert_eq!((error.kind(), error.offset()), (Malformed, Some(*offset)), "{shown}: {error}");
    }
}

#[test]
fn invalid_msgpack_is_malformed_or_unsupported() {
    let cases: &[(&[u8], DecodeErrorKind)] = &[
        (b"", Malformed),
        (b"\xc1", Malformed),
        (b"\x01\x01", Malformed),
        (b"\x92\x01", Malformed),
        (b"\xa3ab", Malformed),
        (b"\xa1\xff", Malformed),
        (b"\xcb\0\0", Malformed),
        (b"\xc4\x05abc", Malformed),
        (b"\x82\xa1a\x01\xa1a\x02", Malformed),
        (b"\x81\x01\x02", Unsupported),
        (b"\xd6\xff\0\0\0\0", Unsupported), // a timestamp
        (b"\xd4\x2a\0", Unsupported),
        (b"\xc7\x00\x01", Malformed),                 // a tuple of no bytes
        (b"\xc7\x02\x01\x90\xc0", Malformed),         // more than the tuple's items
        (b"\xd4\x01\x91", Malformed),                 // fewer
        (b"\xd4\x02\x01", Malformed),                 // a scalar without its number
        (b"\xd5\x02\x01\x02", Malformed),             // a bool that is 2
        (b"\xd5\x02\x63\x00", Unsupported),           // dtype 99
        (b"\xd7\x03\x0c\x01\0\0\0\0\0\0", Malformed), // a tensor without its axes
        (b"\xc7\x10\x03\x0c\x01\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Malformed), // a lying shape
        (b"\xc7\x18\x03\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0", Malformed), // 2⁴⁰ empty rows
    ];
    for (input, kind) in cases {
        let error = msgpack(*input);
        assert_eq!(error.kind(), *kind, "{input:02x?}: {error}");
        assert!(error.offset().is_some(), "{input:02x?}: {error}");
    }
}

/// A `.npy` file of this header and these elements.
fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', (64 - (10 + header.len() + 1) % 64) % 64));
    header.push('\n');
    let len = u16::try_from(header.len()).expect("is short");
    [&b"\x93NUMPY\x01\0"[..], &len.to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn false_npy_headers_are_refused_at_their_byte() {
    let cases = [
        (npy("'<f8'", "False", "(4294967296, 4294967296)", b""), Malformed, "larger than memory"),
        (npy("'<f8'", "True", "(4294967296, 4294967296)", b""), Malformed, "larger than memory"),
        (npy("'<f8'", "False", "(0, 18446744073709551615)", b""), Malformed, "larger than memory"),
        (npy("'<f8'", "False", "(99999999999999999999,)", b""), Malformed, ""),
        (npy("'<f8'", "False", "(-1,)", b""), Malformed, ""),
        (npy("'<f8'", "False", "(2,)", &[0; 8]), Malformed, "needs 16 bytes, not 8"),
        (npy("'<f8'", "True", "(1,)", &[0; 16]), Malformed, "needs 8 bytes, not 16"),
        (npy("'|O'", "False", "(1,)", b"\x80\x04N."), Unsupported, "an object array"),
        (npy("[('a', '|O')]", "False", "(1,)", b""), Unsupported, "a structured array"),
        (npy("'<U1'", "False", "(1,)", &[0xff; 4]), Malformed, "a code point that is not a character"),
        (npy("'<U0'", "False", "(1000000,)", b""), Malformed, "no characters"),
        (npy("'|S2'", "False", "(1,)", b"\xff\xff"), Unsupported, "not UTF-8"),
        (npy("'|b1'", "False", "(2,)", &[1, 2]), Malformed, "neither 0 nor 1"),
        (npy("__import__('os')", "False", "(1,)", b""), Malformed, ""),
    ];
    for (input, kind, message) in cases {
        let error = refused(Format::Npy, input, &DecodeLimits::default());
        assert_eq!((error.kind(), error.offset().is_some()), (kind, true), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn false_lengths_are_refused_before_any_allocation() {
    for marker in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        let error = msgpack(vec![marker, 0x0f, 0xff, 0xff, 0xff, 0x01]);
        assert!(matches!(error.kind(), LimitExceeded | Malformed), "{marker:02x}: {error}");
    }
    for (input, message) in [
        (&b"\xdc\xff\xff\x01"[..], "65535 items are announced, but the input ends before (byte 3)"),
        (b"\x92\x01", "2 items are announced, but the input ends before (byte 1)"),
        (b"\x82\xa1a\x01", "2 items are announced, but the input ends before (byte 1)"),
        (b"\xa3ab", "3 bytes are needed, but the input ends before (byte 1)"),
        (b"\x91\xa4abc\xff", "invalid UTF-8 at $[0] (byte 5)"),
    ] {
        assert_eq!(msgpack(input).to_string(), message);
    }
}

#[test]
fn each_limit_is_named_with_its_setting_and_its_place() {
    let tight =
        DecodeLimits { max_bytes: 64, max_depth: 3, max_elements: 5, max_string_bytes: 4, ..DecodeLimits::default() };
    let cases: &[(Format, &[u8], &str, &str)] = &[
        (Format::Json, &[b' '; 65], "max_bytes", "$"),
        (Format::Json, b"{\"a\":[[[1]]]}", "max_depth", "$.a[0][0]"),
        (Format::Json, b"[1,2,[3,4,5]]", "max_elements", "$[2][2]"),
        (Format::Json, b"{\"a\":\"12345\"}", "max_string_bytes", "$.a"),
        (Format::Json, b"{\"a\":\"\\u0031\\u0032345\"}", "max_string_bytes", "$.a"),
        (Format::Json, b"{\"12345\":1}", "max_string_bytes", "$"),
        (Format::Msgpack, &[0xc0; 65], "max_bytes", "$"),
        (Format::Msgpack, b"\x81\xa1a\x91\x91\x91\x01", "max_depth", "$.a[0][0]"),
        (Format::Msgpack, b"\x93\x01\x02\x93\x03\x04\x05", "max_elements", "$[2]"),
        (Format::Msgpack, b"\x81\xa1a\xa512345", "max_string_bytes", "$.a"),
        (Format::Msgpack, b"\x81\xa512345\x01", "max_string_bytes", "$"),
    ];
    for (format, input, name, path) in cases {
        let error = refused(*format, *input, &tight);
        let shown = String::from_utf8_lossy(input);
        assert_eq!(limit(&error).map(|limit| limit.0), Some(*name), "{shown}: {error}");
        assert_eq!(error.path(), *path, "{shown}");
        assert!(error.to_string().contains(name));
    }
}

#[test]
fn input_at_the_limits_is_accepted() {
    let tight =
        DecodeLimits { max_bytes: 64, max_depth: 3, max_elements: 5, max_string_bytes: 4, ..DecodeLimits::default() };
    for input in ["[[[]]]", "[1,2,3,4,5]", r#"["\u0031234"]"#, "[[],[],[],[],[]]"] {
        Value::decode(Format::Json, &input.into(), &tight).unwrap();
    }
}

#[test]
fn a_key_of_a_megabyte_does_not_fill_the_message() {
    let error = json(format!("{{\"{}\": NaN}}", "k".repeat(1 << 20)));
    assert!(error.to_string().len() < 300);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for format in [Format::Json, Format::Msgpack] {
            let _outcome = Value::decode(format, &bytes.clone().into(), &DecodeLimits::default());
        }
    }

    #[test]
    fn almost_json_never_panics(text in r#"[\[\]{}":,0-9eE.+\-a-fntu\\ ]{0,60}"#) {
        let ours = Value::decode(Format::Json, &text.clone().into(), &DecodeLimits::default());
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        // serde_json accepts everything that this decoder accepts, and also duplicate keys and integers beyond 64 bits.
        prop_assert!(ours.is_err() || theirs.is_ok(), "{:?}", ours);
    }

    #[test]
    fn a_changed_byte_never_panics(
        value in common::tree(common::leaf(), true),
        at: proptest::sample::Index,
        byte: u8,
    ) {
        let mut bytes = value.encode(Format::Msgpack).unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(value) = Value::decode(Format::Msgpack, &bytes.into(), &DecodeLimits::default()) {
            value.encode(Format::Msgpack).unwrap();
        }
    }

    #[test]
    fn a_value_cut_short_is_refused(value in common::tree(common::leaf(), true), at: proptest::sample::Index) {
        let bytes = value.encode(Format::Msgpack).unwrap();
        let cut = bytes.slice(..at.index(bytes.len()));
        prop_assert!(Value::decode(Format::Msgpack, &cut, &DecodeLimits::default()).is_err());
    }
}

/// Streams with one false buffer, made by overwriting bytes of a good stream.
#[cfg(feature = "arrow")]
mod arrow {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, DictionaryArray, Int32Array, LargeStringArray, RecordBatch, StringArray};
    use callboard_codec::DataFrame;

    use super::*;

    fn stream(column: ArrayRef) -> Vec<u8> {
        let first: ArrayRef = Arc::new(Int32Array::from_iter_values(0..column.len() as i32));
        let batch = RecordBatch::try_from_iter([("first", first), ("second", column)]).expect("equally long");
        Value::from(DataFrame::from(batch)).encode(Format::ArrowStream).expect("has a form").to_vec()
    }

    /// Replaces these bytes, which must occur once.
    fn replaced(mut stream: Vec<u8>, old: &[u8], new: &[u8]) -> Bytes {
        let places: Vec<_> = (0..stream.len() - old.len()).filter(|at| stream[*at..].starts_with(old)).collect();
        assert_eq!(places.len(), 1, "{places:?}");
        stream[places[0]..places[0] + new.len()].copy_from_slice(new);
        stream.into()
    }

    fn words(numbers: &[i32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn longs(numbers: &[i64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn malformed(input: Bytes) -> String {
        let error = refused(Format::ArrowStream, input, &DecodeLimits::default());
        assert_eq!(error.kind(), Malformed, "{error}");
        assert!(error.offset().is_some(), "{error}");
        assert_eq!(error.path(), "$.second", "{error}");
        error.to_string()
    }

    #[test]
    fn indices_beyond_a_dictionary_are_refused() {
        let keys: [i32; 6] = [0, 1, 1, 0, 1, 0];
        let texts = ["x", "y", "y", "x", "y", "x"].into_iter().collect::<DictionaryArray<Int32Type>>();
        for bad in [2, -1, i32::MAX] {
            let mut changed = keys;
            changed[3] = bad;
            let input = replaced(stream(Arc::new(texts.clone())), &words(&keys), &words(&changed));
            let message = malformed(input);
            assert!(message.contains(&bad.to_string()), "{message}");
        }
    }

    #[test]
    fn invalid_utf8_is_refused() {
        let column: ArrayRef = Arc::new(StringArray::from(vec!["abcdefgh", "ijklmnop"]));
        assert!(malformed(replaced(stream(column), b"abcdefgh", b"abc\xffefgh")).contains("UTF"));
        let words: DictionaryArray<Int32Type> = ["abcdefgh", "ijklmnop"].into_iter().collect();
        assert!(malformed(replaced(stream(Arc::new(words)), b"abcdefgh", b"abc\xffefgh")).contains("UTF"));
        let column: ArrayRef = Arc::new(LargeStringArray::from(vec!["abcdefgh", "ijklmnop"]));
        assert!(malformed(replaced(stream(column), b"abcdefgh", b"abc\xffefgh")).contains("UTF"));
    }

    #[test]
    fn decreasing_or_excessive_offsets_are_refused() {
        let texts = vec!["abcdefg", "ijkl", "mnopqrs"];
        for bad in [5, 1000, -1] {
            let column: ArrayRef = Arc::new(StringArray::from(texts.clone()));
            malformed(replaced(stream(column), &words(&[0, 7, 11, 18]), &words(&[0, 7, bad, 18])));
            let column: ArrayRef = Arc::new(LargeStringArray::from(texts.clone()));
            malformed(replaced(stream(column), &longs(&[0, 7, 11, 18]), &longs(&[0, 7, bad.into(), 18])));
        }
    }

    #[test]
    fn a_count_of_buffers_of_views_that_is_too_large_is_refused() {
        let mut views = arrow_array::builder::StringViewBuilder::new();
        for _ in 0..7 {
            let block = views.append_block(b"a text of more than twelve bytes".into());
            views.try_append_view(block, 0, 32).expect("lies in its block");
        }
        views.append_value("short");
        views.append_value("short");
        let input = stream(Arc::new(views.finish()));
        Value::decode(Format::ArrowStream, &input.clone().into(), &DecodeLimits::default()).expect("is good");
        let message = malformed(replaced(input, &longs(&[7]), &longs(&[8])));
        assert!(message.contains("8 buffers of views where 7 are left"), "{message}");
    }

    #[test]
    fn offsets_inside_a_character_are_refused() {
        let column: ArrayRef = Arc::new(StringArray::from(vec!["aß", "ijkl", "mnopqrs"]));
        malformed(replaced(stream(column), &words(&[0, 3, 7, 14]), &words(&[0, 2, 7, 14])));
    }
}
