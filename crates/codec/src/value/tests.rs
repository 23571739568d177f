//! Values across serde and back, their accessors and their sizes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ::serde::{Deserialize, Serialize};
use ndarray::array;

use super::*;
use crate::{DecodeError, DecodeErrorKind, DecodeLimits, Format, Payload};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    flag: bool,
    small: i8,
    large: u64,
    ratio: f32,
    letter: char,
    text: String,
    missing: Option<u8>,
    pair: (u8, String),
    unit: (),
    list: Vec<Shape>,
    numbered: BTreeMap<u16, IpAddr>,
    image: Tensor,
    width: Scalar,
    anything: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Empty,
    Circle(f64),
    Line(i32, i32),
    Rect { width: u32, height: u32 },
}

fn everything() -> Everything {
    let odd =
        [Value::Tuple(vec![1.into(), Value::Tuple(vec![])]), Value::Bytes(Bytes::from_static(b"\0\xff")), Value::Null];
    let shapes = vec![Shape::Empty, Shape::Circle(0.5), Shape::Line(-1, 2), Shape::Rect { width: 3, height: 4 }];
    Everything {
        flag: true,
        small: -5,
        large: u64::MAX,
        ratio: 0.1,
        letter: 'ß',
        text: "Ünïcode".to_owned(),
        missing: None,
        pair: (7, "seven".to_owned()),
        unit: (),
        list: shapes,
        numbered: BTreeMap::from([(80, [127, 0, 0, 1].into()), (443, [0_u16; 8].into())]),
        image: Tensor::from_array(array![[half::f16::from_f32(1.5)], [half::f16::NEG_INFINITY]]),
        width: Scalar::F32(0.1),
        anything: Value::List(odd.to_vec()),
    }
}

#[test]
fn any_serde_type_survives_the_bridge() {
    let original = everything();
    let value = Value::from_serialize(&original).unwrap();
    assert_eq!(value.deserialize::<Everything>().unwrap(), original);
    assert_eq!(value.get("image").and_then(Value::as_tensor), Some(&original.image));
    assert_eq!(value.get("width"), Some(&Value::Scalar(original.width)));
    assert_eq!(value.get("anything"), Some(&original.anything));
    assert_eq!(value.get("pair"), Some(&Value::Tuple(vec![7.into(), "seven".into()])));
    assert_eq!(value.get("numbered").and_then(|map| map.get("80")), Some(&"127.0.0.1".into()));
}

#[test]
fn a_value_survives_the_bridge_as_itself() {
    let value = Value::from_serialize(&everything()).unwrap();
    assert_eq!(Value::from_serialize(&value).unwrap(), value);
    assert_eq!(value.deserialize::<Value>().unwrap(), value);
}

#[test]
fn the_bridge_names_the_field_at_fault() {
    let mut value = Value::from_serialize(&everything()).unwrap();
    let rect = Value::from(Map::from_iter([("Rect", Map::from_iter([("width", "wide")]))]));
    value.as_map_mut().unwrap().insert("list", vec![Value::from("Empty"), rect]);
    let error = value.deserialize::<Everything>().unwrap_err();
    assert_eq!((error.kind(), error.path()), (DecodeErrorKind::Mismatch, "$.list[1].Rect.width"));
    assert_eq!(error.message(), "invalid type: string \"wide\", expected u32");

    value.as_map_mut().unwrap().remove("flag");
    value.as_map_mut().unwrap().remove("list");
    assert_eq!(value.deserialize::<Everything>().unwrap_err().message(), "missing field `flag`");
}

#[test]
fn a_tuple_takes_no_more_items_than_it_has() {
    let three: Value = [1, 2, 3].into_iter().collect();
    assert_eq!(three.deserialize::<(u8, u8)>().unwrap_err().message(), "3 items where 2 are expected");
}

#[test]
fn tensors_and_bytes_fit_fields_that_do_not_know_them() {
    let tensor = Value::from(Tensor::from_array(array![[1.5_f32, 2.0], [3.0, 4.0]]));
    assert_eq!(tensor.deserialize::<Vec<Vec<f64>>>().unwrap(), [[1.5, 2.0], [3.0, 4.0]]);
    let upload = Value::Bytes(Bytes::from_static(b"\x89PNG"));
    assert_eq!(upload.deserialize::<Vec<u8>>().unwrap(), b"\x89PNG");
}

#[test]
fn a_type_without_a_form_is_refused_by_type_and_place() {
    let error = Value::from_serialize(&vec![1_u128, u128::MAX]).unwrap_err();
    assert_eq!((error.type_name(), error.path()), ("u128", "$[1]"));
    let error = Value::from_serialize(&BTreeMap::from([((1, 2), 3)])).unwrap_err();
    assert_eq!(error.type_name(), "(i32, i32)");
}

#[test]
fn integers_have_one_form() {
    assert_eq!(Value::from(7_u64), Value::Int(7));
    assert_eq!(Value::from(u64::MAX), Value::UInt(u64::MAX));
    assert_eq!(Value::from(u64::MAX).as_i64(), None);
    assert_eq!(Value::from(-1).as_u64(), None);
    assert_eq!(Value::from(true).as_i64(), None);
    assert_eq!(Value::from(Scalar::Bool(true)).as_i64(), None);
}

#[test]
fn a_map_keeps_order_from_a_few_keys_to_many() {
    let mut map: Map = (0..100).rev().map(|key| (key.to_string(), key)).collect();
    assert_eq!(map.insert("50", 0), Some(Value::Int(50)));
    assert_eq!(map.remove("99"), Some(Value::Int(99)));
    assert_eq!(map.remove("99"), None);
    let expected: Vec<String> = (0..99).rev().map(|key| key.to_string()).collect();
    assert_eq!(map.keys().collect::<Vec<_>>(), expected);
    assert_eq!(map.clone().into_iter().count(), 99);
    let other_order: Map = map.clone().into_iter().collect::<Vec<_>>().into_iter().rev().collect();
    assert_eq!(map, other_order);
}

#[test]
fn a_value_is_small() {
    assert!(size_of::<Value>() <= 40, "{}", size_of::<Value>());
    assert_eq!(size_of::<DecodeError>(), size_of::<usize>());
}

#[test]
fn resident_bytes_count_the_memory_of_a_value() {
    let value = Value::from(Map::from_iter([("image", Tensor::from_array(ndarray::Array1::<u8>::zeros(1000)))]));
    assert!((1000..1200).contains(&value.resident_bytes()));
}

#[test]
fn a_size_is_computed_up_to_a_bound() {
    let text = Map::from_iter([("text", Value::from("words"))]);
    let values =
        [Value::Null, Value::from("a text"), Value::List(vec![Value::List(vec![Value::Null; 10]), Value::from(text)])];
    for value in values {
        let all = value.resident_bytes();
        let payload = Payload::new(value);
        for most in [0, 1, all / 2, all - 1, all, all + 1, usize::MAX] {
            assert_eq!(payload.size_up_to(most), all.min(most), "{payload:?} {most}");
        }
    }
}

#[test]
fn the_parts_of_a_request_share_its_limits() {
    let limits = DecodeLimits::default();
    let value = Value::decode(Format::Json, &r#"{"a": [1, 2], "b": "text"}"#.into(), &limits).unwrap();
    let (left, taken) = (limits.left_after(&value), value.structure());
    assert!(taken.elements > 0 && taken.bytes > 0);
    assert_eq!(left.max_elements, limits.max_elements - taken.elements);
    assert_eq!(left.max_tree_bytes, limits.max_tree_bytes - taken.bytes);
    assert_eq!(left.max_bytes, limits.max_bytes, "a limit of each part");
    let nothing = DecodeLimits { max_elements: 0, max_tree_bytes: 0, ..limits }.left_after(&value);
    assert_eq!((nothing.max_elements, nothing.max_tree_bytes), (0, 0));
}
