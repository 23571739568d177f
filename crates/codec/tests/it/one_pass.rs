//! A body that goes on to another process becomes an envelope in one pass, which is that of its value.

use bytes::Bytes;
use callboard_codec::{DataType, DecodeError, DecodeLimits, Encoded, Format, Map, Tensor, Value};
use proptest::prelude::*;

use crate::common;

fn kept() -> DataType {
    DataType::value().kept_encoded()
}

/// The envelope that a body becomes, or the words of its error.
fn encoded(kind: &DataType, format: Format, body: &Bytes, limits: &DecodeLimits) -> Result<Bytes, String> {
    let words = |error: DecodeError| error.to_string();
    let payload = kind.decode(format, body, limits).map_err(words)?;
    assert!(payload.is::<Encoded>());
    Ok(payload.encode(Format::Envelope).unwrap())
}

/// The same through a value.
fn through_a_value(kind: &DataType, format: Format, body: &Bytes, limits: &DecodeLimits) -> Result<Bytes, String> {
    let payload = kind.decode(format, body, limits).map_err(|error| error.to_string())?;
    assert!(payload.is::<Value>());
    Ok(payload.encode(Format::Envelope).unwrap())
}

#[track_caller]
fn is_the_same(format: Format, body: &Bytes, limits: &DecodeLimits) {
    let expected = through_a_value(&DataType::value(), format, body, limits);
    assert_eq!(encoded(&kept(), format, body, limits), expected, "{body:?}");
}

#[track_caller]
fn json_is_the_same(text: impl Into<Bytes>) {
    is_the_same(Format::Json, &text.into(), &DecodeLimits::default());
}

/// JSON of the same meaning: some letters become escapes, and there is white space.
fn embellished(json: &[u8], every: usize) -> Vec<u8> {
    let text = std::str::from_utf8(json).unwrap();
    let (mut out, mut in_text, mut after_backslash) = (String::new(), false, false);
    for (index, letter) in text.chars().enumerate() {
        let escapes = in_text && !after_backslash && !matches!(letter, '"' | '\\') && index % every == 0;
        in_text ^= letter == '"' && !after_backslash;
        after_backslash = in_text && letter == '\\' && !after_backslash;
        if escapes {
            let mut units = [0; 2];
            letter.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(letter);
        }
        if !in_text && index % every == 0 && matches!(letter, ',' | ':' | '[' | '{' | ']' | '}') {
            out.push_str(" \n");
        }
    }
    out.into_bytes()
}

type Changes = Vec<(proptest::sample::Index, u8)>;

/// Bytes of an input that are replaced.
fn changes() -> impl Strategy<Value = Changes> {
    let byte = prop_oneof![any::<u8>(), proptest::sample::select(b"{}[]\",:\\0-.eE n".to_vec())];
    proptest::collection::vec((proptest::sample::Index::arbitrary(), byte), 0..3)
}

fn changed(mut bytes: Vec<u8>, changes: Changes) -> Bytes {
    for (at, byte) in changes {
        let at = at.index(bytes.len());
        bytes[at] = byte;
    }
    bytes.into()
}

fn narrow() -> impl Strategy<Value = DecodeLimits> {
    (0_usize..400, 0_usize..8, 0_usize..40, 0_usize..40, 0_usize..4000).prop_map(
        |(max_bytes, max_depth, max_elements, max_string_bytes, max_tree_bytes)| DecodeLimits {
            max_bytes,
            max_depth,
            max_elements,
            max_string_bytes,
            max_tree_bytes,
            ..DecodeLimits::default()
        },
    )
}

/// A map with many keys, some of them twice.
fn long_map() -> impl Strategy<Value = String> {
    proptest::collection::vec((0_u8..60, common::tree(common::json_leaf(), false)), 0..40).prop_map(|entries| {
        let json = |value: Value| String::from_utf8(value.encode(Format::Json).unwrap().to_vec()).unwrap();
        let entries = entries.into_iter().map(|(key, value)| format!("\"{key}\":{}", json(value)));
        format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
    })
}

proptest! {
    #[test]
    fn json_becomes_the_envelope_of_its_value_or_the_same_error(
        value in common::tree(common::json_leaf(), false), every in 1_usize..9, changes in changes(), narrow in narrow(),
    ) {
        let json = value.encode(Format::Json).unwrap();
        for json in [json.to_vec(), embellished(&json, every)] {
            is_the_same(Format::Json, &json.clone().into(), &DecodeLimits::default());
            is_the_same(Format::Json, &json.clone().into(), &narrow);
            is_the_same(Format::Json, &changed(json, changes.clone()), &DecodeLimits::default());
        }
    }

    #[test]
    fn a_key_twice_is_the_same_error_however_many_keys_there_are(
        json in long_map(), changes in changes(), narrow in narrow(),
    ) {
        for limits in [DecodeLimits::default(), narrow] {
            is_the_same(Format::Json, &json.clone().into(), &limits);
            is_the_same(Format::Json, &changed(json.clone().into_bytes(), changes.clone()), &limits);
        }
    }

    /// A leaf that is a segment in an envelope is read as a value.
    #[test]
    fn messagepack_becomes_the_envelope_of_its_value_or_the_same_error(
        value in common::tree(common::leaf(), true), changes in changes(), narrow in narrow(),
    ) {
        let body = value.encode(Format::Msgpack).unwrap();
        let payload = kept().decode(Format::Msgpack, &body, &DecodeLimits::default()).unwrap();
        prop_assert_eq!(payload.encode(Format::Envelope).unwrap(), value.encode(Format::Envelope).unwrap());
        let body = changed(body.to_vec(), changes);
        for limits in [DecodeLimits::default(), narrow] {
            let words = |error: DecodeError| error.to_string();
            let read = Value::decode(Format::Msgpack, &body, &limits).map_err(words);
            let kept = kept().decode(Format::Msgpack, &body, &limits).map_err(words);
            let kept = kept.map(|payload| payload.into_inner::<Value>().unwrap());
            prop_assert_eq!(format!("{kept:?}"), format!("{read:?}"));
        }
    }
}

/// Lengths about those at which a header takes another form, and what lies after and inside of a long header.
#[test]
fn each_length_has_its_shortest_header() {
    for length in [0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 65_535, 65_536, 65_537] {
        let letters = "x".repeat(length);
        json_is_the_same(format!(r#"["{letters}", "\n{letters}", {{"{letters}": 1, "\n{letters}": 2}}]"#));
        let items = vec!["7"; length].join(",");
        json_is_the_same(format!("[{items}]"));
        json_is_the_same(format!("[[{items}], {{\"a\": [[{items}], \"\\t{letters}\"]}}, 1.5]"));
        let entries: Vec<_> = (0..length).map(|key| format!("\"{key}\":[]")).collect();
        json_is_the_same(format!("[{{{}}}, 1]", entries.join(",")));
    }
}

/// Only floats take more than their source.
#[test]
fn numbers_that_are_longer_than_their_digits_are_written_whole() {
    for number in ["-0", "1e1", "0.5", "0", "-33", "128", "-9223372036854775808", "18446744073709551615"] {
        for count in [1, 20, 70_000] {
            let numbers = vec![number; count].join(",");
            json_is_the_same(format!("[{numbers}]"));
            json_is_the_same(format!(r#"{{"text": "{}", "numbers": [{numbers}], "a": "\r"}}"#, "x".repeat(count)));
        }
    }
}

#[test]
fn json_is_as_deep_as_the_limit_allows() {
    for depth in [127, 128, 129, 511, 512, 513, 100_000] {
        for limits in [DecodeLimits::default(), DecodeLimits::UNLIMITED] {
            let lists = "[".repeat(depth) + &"]".repeat(depth);
            let maps = r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth);
            is_the_same(Format::Json, &lists.into(), &limits);
            is_the_same(Format::Json, &maps.into(), &limits);
        }
    }
}

#[test]
fn a_decimal_keeps_its_digits_on_its_way_to_another_process() {
    let decimal = serde_json::json!({ "type": "string", "format": "decimal" });
    let schema = serde_json::json!({ "properties": {
        "a": decimal, "b": { "type": "number" }, "c": { "items": { "additionalProperties": decimal } },
    } });
    let value = DataType::value().with_schema(schema);
    let limits = DecodeLimits { max_string_bytes: 30, ..DecodeLimits::default() };
    for text in [
        r#"{"a": 1.10, "b": 1.10, "c": [{"x": 1.10, "\u0079": 7}], "d": 1.10}"#,
        r#"{"a": 12345678901234567890.123}"#,
        r#"{"a": 0.1234567890123456789012345678901}"#,
        r#"{"b": 12345678901234567890123}"#,
        r#"{"a": 1.}"#,
    ] {
        let expected = through_a_value(&value, Format::Json, &text.into(), &limits);
        assert_eq!(encoded(&value.clone().kept_encoded(), Format::Json, &text.into(), &limits), expected, "{text}");
    }
}

/// They are shared with the body instead of being copied.
#[test]
fn messagepack_with_a_large_leaf_is_read_as_a_value() {
    let tensor = Value::from(Tensor::from_vec(&[200], vec![0.5_f64; 200]).unwrap());
    for leaf in [tensor, Value::Bytes(vec![7; 5000].into())] {
        let value = Value::Tuple(vec![Value::from(Map::from_iter([("leaf", leaf)])), Value::from(1)]);
        let body = value.encode(Format::Msgpack).unwrap();
        let payload = kept().decode(Format::Msgpack, &body, &DecodeLimits::default()).unwrap();
        assert!(payload.is::<Value>());
        assert_eq!(payload.to_envelope().unwrap().parts().len(), 2);
    }
}
