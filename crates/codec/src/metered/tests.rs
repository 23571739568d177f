//! Levels and charges of Rust types.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::access::{FIRST_ENTRIES, MAP_GROWTH, MAX_RESERVED, PREPAID_ENTRIES};
use super::*;
use crate::account::testing::charge_of;
use crate::{DataType, DecodeErrorKind, DecodeLimits, Format, Value};

#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
enum Chain {
    Leaf,
    N(Box<Self>),
}

/// Contains itself through nothing that takes a byte.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Endless(Option<Box<Self>>);

#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct List {
    next: Option<Box<Self>>,
}

fn chain(levels: usize) -> bytes::Bytes {
    [&b"\x81\xa1N".repeat(levels)[..], b"\xa4Leaf"].concat().into()
}

fn refused<T: Serialize + serde::de::DeserializeOwned + Send + Sync + schemars::JsonSchema + 'static>(
    format: Format,
    input: bytes::Bytes,
) -> String {
    let error = DataType::for_type::<T>().decode(format, &input, &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.kind(), DecodeErrorKind::LimitExceeded, "{error}");
    error.limit().unwrap().name.to_owned()
}

#[test]
fn variants_are_levels_in_every_format() {
    let limits = DecodeLimits::default();
    let chains = DataType::for_type::<Chain>();
    assert!(chains.decode(Format::Msgpack, &chain(128), &limits).is_ok());
    for levels in [129, 1000, 100_000] {
        assert_eq!(refused::<Chain>(Format::Msgpack, chain(levels)), "max_depth");
    }
    let error = chains.decode(Format::Msgpack, &chain(129), &limits).unwrap_err();
    assert!(error.offset().is_some() && error.path().len() > 1, "it names its place: {error}");
    let text = format!("{}\"Leaf\"{}", "{\"N\":".repeat(100_000), "}".repeat(100_000));
    assert_eq!(refused::<Chain>(Format::Json, text.into()), "max_depth");
}

#[test]
fn a_type_that_contains_itself_through_newtypes_is_refused() {
    for (format, input) in [(Format::Json, &b"1"[..]), (Format::Msgpack, b"\x01")] {
        assert_eq!(refused::<Endless>(format, bytes::Bytes::from_static(input)), "max_depth");
    }
    let from_value = DataType::for_type::<Endless>().from_value(Value::from(1)).unwrap_err();
    assert_eq!(from_value.limit().unwrap().name, "max_depth");
}

/// The charge for reading a type from this value.
fn charge_for<T: Serialize + serde::de::DeserializeOwned + Send + Sync + schemars::JsonSchema + 'static>(
    value: &T,
) -> usize {
    let input = Value::from_serialize(value).unwrap().encode(Format::Msgpack).unwrap();
    let of_type = DataType::for_type::<T>();
    charge_of(|| of_type.decode(Format::Msgpack, &input, &DecodeLimits::default()).unwrap())
}

#[test]
fn items_entries_and_texts_cost_the_memory_of_their_collections() {
    let list = |items: u64| charge_for(&(0..items).map(|item| 1000 + item).collect::<Vec<u64>>());
    assert_eq!(list(10) - list(9), 2 * 8);
    // Each key has one byte of text.
    let map = |entries: usize| {
        charge_for(&(0..entries).map(|key| (key.to_string(), 1_u64)).collect::<HashMap<String, u64>>()) - entries
    };
    assert_eq!(map(1) - map(0), FIRST_ENTRIES * (24 + 8));
    assert_eq!(map(PREPAID_ENTRIES), map(1));
    assert_eq!(map(PREPAID_ENTRIES + 1) - map(1), MAP_GROWTH * (24 + 8));
    let text = |len: usize| charge_for(&"x".repeat(len));
    assert_eq!(text(100) - text(50), 50);
    // Names are not kept.
    assert_eq!((charge_for(&List { next: None }), charge_for(&Chain::Leaf)), (size_of::<List>(), size_of::<Chain>()));
}

/// A list or map that notes how long it was said to be.
#[derive(Debug)]
struct Hinted(Option<usize>);

impl<'de> Visitor<'de> for Hinted {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or map")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        let hint = items.size_hint();
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self(hint))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let hint = entries.size_hint();
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self(hint))
    }
}

#[test]
fn an_announced_length_reserves_little_room() {
    let hint = |input: &[u8]| {
        let mut inner = rmp_serde::Deserializer::from_read_ref(input);
        Metered::new(&mut inner, 10).deserialize_any(Hinted(None)).unwrap().0
    };
    assert_eq!(hint(b"\x93\0\0\0"), Some(3));
    assert_eq!(hint(&[&b"\xdc\0\x11"[..], &[0; 17]].concat()), Some(MAX_RESERVED));
    assert_eq!(hint(b"\x82\0\0\x01\0"), Some(2));
    assert_eq!(hint(&[&b"\xde\0\x11"[..], &[0; 34]].concat()), Some(MAX_RESERVED));
}

#[test]
fn ignored_values_have_levels_too() {
    let ignored = |levels: usize| format!("{{\"other\":{}{}}}", "[".repeat(levels), "]".repeat(levels)).into();
    let limits = DecodeLimits { max_depth: 100, ..DecodeLimits::default() };
    let lists = DataType::for_type::<List>();
    assert!(lists.decode(Format::Json, &ignored(99), &limits).is_ok());
    for levels in [100, 200, 10_000] {
        let error = lists.decode(Format::Json, &ignored(levels), &limits).unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.name), Some("max_depth"), "{levels}: {error}");
        assert_eq!(refused::<List>(Format::Json, ignored(levels.max(128))), "max_depth");
    }
}

#[test]
fn options_between_structs_do_not_count_as_levels() {
    let mut value = Value::Null;
    for _ in 0..120 {
        value = Value::from(crate::Map::from_iter([("next", value)]));
    }
    let lists = DataType::for_type::<List>();
    for format in [Format::Json, Format::Msgpack, Format::Envelope] {
        let input = value.encode(format).unwrap();
        lists.decode(format, &input, &DecodeLimits::default()).unwrap();
    }
}

/// With its feature `arbitrary_precision`, serde_json visits a number as a map.
#[test]
fn numbers_are_requested_by_type_where_serde_json_hides_them() {
    let shown = |kind| [true, false].map(|numbers| is_shown(kind, numbers));
    assert_eq!((shown(RequestedKind::Number), shown(RequestedKind::Bool)), ([true, false], [true, true]));
}
