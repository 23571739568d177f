//! Rust types through payloads and data types: the encoded form, refused types, and the errors of bad requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use callboard_codec::{
    DataType, DecodeError, DecodeErrorKind, DecodeLimits, Format, Map, Payload, RawBody, Tensor, Value,
};
use ndarray::array;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Request {
    name: String,
    sizes: Vec<u32>,
    #[serde(default)]
    image: Option<Tensor>,
    #[serde(default)]
    origin: Option<Origin>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Origin {
    address: IpAddr,
}

fn request() -> Request {
    let origin = Some(Origin { address: [10, 0, 0, 1].into() });
    Request { name: "Ada".to_owned(), sizes: vec![1, 2], image: Some(Tensor::from_array(array![[1_i64, 2]])), origin }
}

fn decode(format: Format, input: impl Into<Bytes>, limits: &DecodeLimits) -> Result<Request, DecodeError> {
    DataType::for_type::<Request>().decode(format, &input.into(), limits)?.into_inner()
}

#[test]
fn a_type_round_trips_through_every_format() {
    for format in [Format::Json, Format::Msgpack] {
        let bytes = Payload::new(request()).encode(format).unwrap();
        assert_eq!(decode(format, bytes, &DecodeLimits::default()).unwrap(), request());
    }
}

#[test]
fn a_bad_json_field_is_named_with_its_byte() {
    let limits = DecodeLimits::default();
    let error_of = |input: &'static str| {
        let error = decode(Format::Json, input, &limits).unwrap_err();
        (error.kind(), error.to_string())
    };
    use DecodeErrorKind::{LimitExceeded, Malformed, Mismatch};
    let wrong = "invalid type: string \"x\", expected u32 at $.sizes[1] (byte 32)";
    assert_eq!(error_of(r#"{"name": "Ada", "sizes": [1, "x"]}"#), (Mismatch, wrong.to_owned()));
    assert_eq!(error_of(r#"{"name": "Ada"}"#), (Mismatch, "missing field `sizes` (byte 15)".to_owned()));
    assert_eq!(error_of("[]").0, Mismatch);
    let nan = "NaN and Infinity are not JSON: send null or a string at $.sizes[0] (byte 11)";
    assert_eq!(error_of(r#"{"sizes": [NaN]}"#), (Malformed, nan.to_owned()));
    let marked = "a byte order mark is not JSON: send UTF-8 without one (byte 0)";
    assert_eq!(error_of("\u{feff}{}"), (Malformed, marked.to_owned()));
    assert_eq!(error_of(r#"{"name": "Ada", "sizes": []} x"#).0, Malformed);
    assert_eq!(error_of(r#"{"name": "Ada", "sizes": [1"#).0, Malformed);
    let ragged = "a row of 1 where others have 2 at $[1] at $.image";
    assert!(error_of(r#"{"name": "Ada", "sizes": [], "image": [[1, 2], [3]]}"#).1.starts_with(ragged));
    let deep = Box::leak(format!("{{\"image\": {}", "[".repeat(10_000)).into_boxed_str());
    assert_eq!(error_of(deep).0, LimitExceeded);
}

#[test]
fn a_bad_msgpack_field_is_named() {
    let value =
        Value::from(Map::from_iter([("name", Value::from("Ada")), ("sizes", vec![1.into(), (-1).into()].into())]));
    let error = decode(Format::Msgpack, value.encode(Format::Msgpack).unwrap(), &DecodeLimits::default()).unwrap_err();
    assert_eq!((error.kind(), error.path()), (DecodeErrorKind::Mismatch, "$.sizes[1]"));
    let error = decode(Format::Msgpack, vec![0x91; 10_000], &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.limit().map(|limit| limit.name), Some("max_depth"));
    let mut trailing = Payload::new(request()).encode(Format::Msgpack).unwrap().to_vec();
    trailing.push(0xc0);
    let error = decode(Format::Msgpack, trailing, &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.message(), "more input after the value");
}

#[test]
fn msgpack_takes_a_type_in_the_form_of_its_schema() {
    let origin = Map::from_iter([("address", "10.0.0.1")]);
    let entries = [("name", Value::from("Ada")), ("sizes", vec![].into()), ("origin", origin.into())];
    let bytes = Value::from(Map::from_iter(entries)).encode(Format::Msgpack).unwrap();
    assert_eq!(decode(Format::Msgpack, bytes, &DecodeLimits::default()).unwrap().origin, request().origin);
}

#[test]
fn limits_hold_for_typed_input_too() {
    let body = |format| Payload::new(Request { sizes: vec![7; 50], ..request() }).encode(format).unwrap();
    let limits = DecodeLimits::default();
    for (limits, name) in [
        (DecodeLimits { max_bytes: 40, ..limits.clone() }, "max_bytes"),
        (DecodeLimits { max_elements: 40, ..limits.clone() }, "max_elements"),
        (DecodeLimits { max_string_bytes: 4, ..limits.clone() }, "max_string_bytes"),
        (DecodeLimits { max_depth: 1, ..limits }, "max_depth"),
    ] {
        for format in [Format::Json, Format::Msgpack] {
            let error = decode(format, body(format), &limits).unwrap_err();
            assert_eq!(error.limit().map(|limit| limit.name), Some(name), "{format}: {error}");
        }
    }
    let exact = DecodeLimits { max_elements: 59, max_string_bytes: 8, max_depth: 3, ..DecodeLimits::default() };
    assert_eq!(decode(Format::Json, body(Format::Json), &exact).unwrap().sizes.len(), 50);
}

/// rmp-serde reads this type, so a second reading as a value does not find the limit.
#[test]
fn limits_hold_for_a_type_that_is_read_once() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Plain {
        name: String,
        sizes: Vec<u32>,
    }
    let plain = Plain { name: "Ada".to_owned(), sizes: vec![7; 50] };
    let body = Payload::new(plain.clone()).encode(Format::Msgpack).unwrap();
    let read = |limits: &DecodeLimits| {
        DataType::for_type::<Plain>().decode(Format::Msgpack, &body, limits)?.into_inner::<Plain>()
    };
    assert_eq!(read(&DecodeLimits::default()).unwrap(), plain);
    for (limits, name) in [
        (DecodeLimits { max_elements: 49, ..DecodeLimits::default() }, "max_elements"),
        (DecodeLimits { max_string_bytes: 4, ..DecodeLimits::default() }, "max_string_bytes"),
    ] {
        assert_eq!(read(&limits).unwrap_err().limit().map(|limit| limit.name), Some(name));
    }
    let list = Payload::new(vec![7_u32; 50]).encode(Format::Msgpack).unwrap();
    let limits = DecodeLimits { max_elements: 49, ..DecodeLimits::default() };
    let error = DataType::for_type::<Vec<u32>>().decode(Format::Msgpack, &list, &limits).unwrap_err();
    assert_eq!(error.limit().map(|limit| limit.name), Some("max_elements"));
}

/// Counts how often it is serialized.
#[derive(Debug, Default, Deserialize)]
struct Counted {
    #[serde(skip)]
    writes: AtomicUsize,
}

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        serializer.collect_map([("n", 1)])
    }
}

#[test]
fn a_native_payload_is_passed_on_without_encoding() {
    let value = Arc::new(Counted::default());
    let payload = Payload::from_arc(value.clone());
    assert!(payload.is::<Counted>() && !payload.is::<Value>());
    assert!(payload.downcast_ref::<Counted>().is_some());
    let same = payload.clone().into_arc::<Counted>().unwrap();
    assert!(Arc::ptr_eq(&same, &value));
    assert_eq!(value.writes.load(Ordering::Relaxed), 0);
    assert_eq!(payload.encode(Format::Json).unwrap(), r#"{"n":1}"#);
    assert_eq!(value.writes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_sole_holder_gets_the_value_itself() {
    let name = "Ada".repeat(10);
    let address = name.as_ptr();
    let payload = Payload::new(Request { name, ..request() });
    assert_eq!(payload.into_inner::<Request>().unwrap().name.as_ptr(), address);
}

#[test]
fn payloads_of_other_types_are_converted_through_a_value() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Named {
        name: String,
    }

    let payload = Payload::new(request());
    assert_eq!(payload.clone().into_arc::<Named>().unwrap().name, "Ada");
    let value = payload.clone().into_inner::<Value>().unwrap();
    assert_eq!(value.get("image").and_then(Value::as_tensor), request().image.as_ref());
    assert_eq!(*Payload::new(value).into_arc::<Request>().unwrap(), request());
    let error = payload.into_arc::<Vec<u8>>().unwrap_err();
    assert_eq!(error.kind(), DecodeErrorKind::Mismatch);
}

#[test]
fn a_value_payload_is_encoded_as_the_value_it_is() {
    let value = Value::from(Map::from_iter([("image", Tensor::from_array(array![1.5_f32]))]));
    let payload = DataType::value().from_value(value.clone()).unwrap();
    for format in [Format::Json, Format::Msgpack] {
        assert_eq!(payload.encode(format).unwrap(), value.encode(format).unwrap());
    }
    assert_eq!(payload.to_value().unwrap(), value);
    assert_eq!(payload.into_inner::<Value>().unwrap(), value);
}

#[test]
fn size_hints_cover_the_known_types() {
    assert!(Payload::new(Tensor::from_array(ndarray::Array1::<u8>::zeros(1000))).size_hint() >= 1000);
    assert!(Payload::new(Value::from("x".repeat(1000))).size_hint() >= 1000);
    assert!(Payload::new("x".repeat(1000)).size_hint() >= 1000);
    assert_eq!(Payload::new(7_u32).size_hint(), 4);
}

#[test]
fn a_data_type_describes_itself() {
    let described = DataType::for_type::<Request>();
    assert_eq!(described.name(), "Request");
    assert_eq!(described.schema()["required"], serde_json::json!(["name", "sizes"]));
    assert!(described.schema()["$defs"]["Origin"].is_object());
    assert_eq!(described.schema().get("$schema"), None);
    assert_eq!(DataType::value().name(), "Value");

    let raw_body = RawBody { field: "image".to_owned(), media_types: vec!["image/*".to_owned()] };
    let other = described.clone().with_name("Digits").with_schema(true.into()).with_raw_body(raw_body.clone());
    assert_eq!((other.name(), other.schema(), other.raw_body()), ("Digits", &true.into(), Some(&raw_body)));
    assert_eq!((described.name(), described.raw_body()), ("Request", None));
}

/// Reading a part of a request follows the same rules next to any text.
#[test]
fn a_long_text_does_not_change_the_rules() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Prompt {
        text: String,
        #[serde(default)]
        id: u128,
        #[serde(default)]
        by_number: std::collections::BTreeMap<u32, bool>,
    }
    let decode = |format: Format, input: Vec<u8>| {
        let read = DataType::for_type::<Prompt>().decode(format, &input.into(), &DecodeLimits::default());
        read.and_then(Payload::into_inner::<Prompt>).map(|prompt| (prompt.id, prompt.by_number.len()))
    };
    let id = u128::from(u64::MAX) + 5;
    for length in [7, 70_000] {
        let text = "x".repeat(length);
        let json = |fields: &str| format!("{{\"text\":\"{text}\",{fields}}}").into_bytes();
        assert_eq!(decode(Format::Json, json(&format!("\"id\":{id}"))).unwrap(), (id, 0), "{length}");
        let repeated = decode(Format::Json, json("\"by_number\":{\"1\":true,\"1\":false}"));
        assert_eq!(repeated.unwrap(), (0, 1), "{length}");
        let repeated = decode(Format::Json, json("\"id\":1,\"id\":2")).unwrap_err();
        assert_eq!(repeated.message(), "duplicate field `id`", "{length}");
        let keys = std::collections::BTreeMap::from([(1, true), (2, false)]);
        let msgpack = rmp_serde::to_vec_named(&Prompt { text: text.clone(), id: 7, by_number: keys }).unwrap();
        assert_eq!(decode(Format::Msgpack, msgpack).unwrap(), (7, 2), "{length}");
    }
}

#[test]
fn an_error_names_the_expected_enum() {
    #[derive(Debug, Serialize, Deserialize, JsonSchema)]
    enum Choice {
        Plain,
        Pair(u8, u8),
    }
    let decoded = |input: &'static str| {
        let read = DataType::for_type::<Choice>().decode(Format::Json, &input.into(), &DecodeLimits::default());
        read.map(|_| ()).map_err(|error| (error.kind(), error.message().to_owned()))
    };
    for taken in ["\"Plain\"", "{\"Plain\":null}", "{\"Pair\":[1,2]}"] {
        assert_eq!(decoded(taken), Ok(()), "{taken}");
    }
    for refused in ["1", "[1]", "{\"Pair\":[1,2],\"Plain\":null}", "{\"Plain\":1}", "{}", "\"Pair\"", "null"] {
        assert!(decoded(refused).is_err(), "{refused}");
    }
    let wrong = "invalid type: integer `1`, expected enum Choice".to_owned();
    assert_eq!(decoded("1"), Err((DecodeErrorKind::Mismatch, wrong)));
}
