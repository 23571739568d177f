//! The details and headers of errors from a child: as much of them is read as a node keeps.
//!
//! A value takes many times the bytes that say it: four million empty lists fit into a head, and take 130 MB. Details
//! beyond the limit of one error, or of all errors of one head, are left out, and the error stays. serde passes no
//! context to a type, so the rest of a head's budget is a variable of the thread that reads it.

use std::cell::Cell;
use std::fmt;

use callboard_codec::{Map, Value};
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most bytes of memory of one error's details, and of those of all errors of a head.
const MAX_BYTES: usize = 256 * 1024;
const MAX_BYTES_OF_HEAD: usize = 16 * 1024 * 1024;

/// The cost of a value beside its text, and of an entry of a map.
const VALUE_BYTES: usize = size_of::<Value>();

/// More headers are ignored: a reply has room for fewer.
const MAX_HEADERS: usize = 64;

thread_local! {
    static LEFT_OF_HEAD: Cell<usize> = const { Cell::new(MAX_BYTES_OF_HEAD) };
}

pub(crate) fn begin_head() {
    LEFT_OF_HEAD.set(MAX_BYTES_OF_HEAD);
}

/// Reads details. `None` if there are none, or too many.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let left = Cell::new(MAX_BYTES.min(LEFT_OF_HEAD.get()));
    let most = left.get();
    let value = Details(&left).deserialize(deserializer)?;
    LEFT_OF_HEAD.set(LEFT_OF_HEAD.get() - (most - left.get()));
    Ok(value.filter(|value| !matches!(value, Value::Null)))
}

/// Reads the first headers.
pub(crate) fn read_headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    struct Headers;

    impl<'de> Visitor<'de> for Headers {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("pairs of names and values")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut headers = Vec::new();
            while headers.len() < MAX_HEADERS {
                let Some(header) = sequence.next_element()? else { return Ok(headers) };
                headers.push(header);
            }
            while sequence.next_element::<IgnoredAny>()?.is_some() {}
            Ok(headers)
        }
    }

    deserializer.deserialize_seq(Headers)
}

/// Reads a value, whose cost it takes from what is left. `None`: the value is not kept.
#[derive(Clone, Copy)]
struct Details<'l>(&'l Cell<usize>);

impl Details<'_> {
    /// Whether there is room for a value with this much text. Without, nothing that follows is kept either.
    fn pays(self, text: usize) -> bool {
        let left = self.0.get().checked_sub(VALUE_BYTES.saturating_add(text));
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }

    fn kept<E>(self, text: usize, value: impl FnOnce() -> Value) -> Result<Option<Value>, E> {
        Ok(self.pays(text).then(value))
    }
}

impl<'de> DeserializeSeed<'de> for Details<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Details<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        self.kept(0, || Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<Value>, E> {
        self.kept(0, || value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Value>, E> {
        self.kept(0, || value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Value>, E> {
        self.kept(0, || value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Value>, E> {
        self.kept(0, || value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Value>, E> {
        self.kept(value.len(), || value.into())
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<Option<Value>, E> {
        self.kept(value.len(), || Value::Bytes(value.to_vec().into()))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, extension: D) -> Result<Option<Value>, D::Error> {
        // An array or the like: it is no text for people.
        self.0.set(0);
        extension.deserialize_any(IgnoredAny).map(|_| None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let mut list = self.pays(0).then(Vec::new);
        while let Some(kept) = &mut list {
            match items.next_element_seed(self)? {
                None => break,
                Some(Some(item)) => kept.push(item),
                Some(None) => list = None,
            }
        }
        if list.is_none() {
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(list.map(Value::List))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<Value>, A::Error> {
        let mut map = self.pays(0).then(Map::new);
        while let Some(kept) = &mut map {
            let Some(key) = entries.next_key::<String>()? else { break };
            // A node of the map has more room than entries.
            let is_paid = self.pays(key.len() + 3 * VALUE_BYTES);
            match entries.next_value_seed(self)?.filter(|_| is_paid) {
                Some(value) => _ = kept.insert(key, value),
                None => map = None,
            }
        }
        if map.is_none() {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        }
        Ok(map.map(Value::Map))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Deserialize)]
    struct Read {
        #[serde(deserialize_with = "read")]
        details: Option<Value>,
        message: String,
    }

    #[derive(Serialize)]
    struct Written<D> {
        details: D,
        message: &'static str,
    }

    /// The details as they are read, and how much they cost. What follows them is read in any case.
    fn read_in_head(details: impl Serialize) -> (Option<Value>, usize) {
        let before = LEFT_OF_HEAD.get();
        let written = rmp_serde::to_vec_named(&Written { details, message: "m" }).unwrap();
        let read: Read = rmp_serde::from_slice(&written).unwrap();
        assert_eq!(read.message, "m");
        (read.details, before - LEFT_OF_HEAD.get())
    }

    fn in_new_head(details: impl Serialize) -> (Option<Value>, usize) {
        begin_head();
        assert_eq!(LEFT_OF_HEAD.get(), MAX_BYTES_OF_HEAD);
        read_in_head(details)
    }

    #[test]
    fn a_value_costs_its_text_and_its_place() {
        let map = |entries: [(&str, Value); 1]| Value::Map(entries.into_iter().collect());
        for (details, cost) in [
            (Value::from(true), VALUE_BYTES),
            (Value::from(-7), VALUE_BYTES),
            (Value::from(u64::MAX), VALUE_BYTES),
            (Value::Float(0.5), VALUE_BYTES),
            (Value::from("abc"), VALUE_BYTES + 3),
            (Value::Bytes(vec![7; 5].into()), VALUE_BYTES + 5),
            (Value::List(vec![Value::Null, Value::from("x")]), 3 * VALUE_BYTES + 1),
            (map([("key", Value::from("x"))]), 6 * VALUE_BYTES + 4),
        ] {
            assert_eq!(in_new_head(&details), (Some(details), cost));
        }
        assert_eq!(in_new_head(Value::Null), (None, VALUE_BYTES));
    }

    #[test]
    fn details_may_cost_their_limit_and_no_byte_more() {
        let text = |bytes: usize| Value::from("x".repeat(bytes));
        let (most, of_entry) = (MAX_BYTES - VALUE_BYTES, MAX_BYTES - 6 * VALUE_BYTES);
        for (bytes, is_kept) in [(most, true), (most + 1, false)] {
            let (kept, cost) = in_new_head(text(bytes));
            assert_eq!((kept.is_some(), cost), (is_kept, MAX_BYTES));
        }
        for (key, value, is_kept) in [
            (of_entry, 0, true),
            (0, of_entry, true),
            (of_entry + 1, 0, false),
            (1, of_entry, false),
            (MAX_BYTES, 0, false),
        ] {
            let map = Value::Map([("k".repeat(key), text(value))].into_iter().collect());
            let (kept, cost) = in_new_head(&map);
            assert_eq!((kept.is_some(), cost), (is_kept, MAX_BYTES), "{key} {value}");
        }
        let first_of_three = Value::List(vec![text(most), Value::Null, Value::Null]);
        assert_eq!(in_new_head(first_of_three), (None, MAX_BYTES));
    }

    #[test]
    fn the_rest_of_a_head_is_the_limit_of_its_last_errors() {
        begin_head();
        let text = |bytes: usize| Value::from("x".repeat(bytes));
        LEFT_OF_HEAD.set(2 * VALUE_BYTES + 10);
        assert_eq!(read_in_head(text(4)).1, VALUE_BYTES + 4);
        assert_eq!(LEFT_OF_HEAD.get(), VALUE_BYTES + 6);
        assert_eq!(read_in_head(text(7)), (None, VALUE_BYTES + 6));
        assert_eq!((read_in_head(true), LEFT_OF_HEAD.get()), ((None, 0), 0));
    }

    #[test]
    fn an_extension_is_left_out_with_all_details() {
        for details in [&b"\xd4\x05\x00"[..], b"\x93\xc3\xd4\x05\x00\xc3", b"\x81\xa1k\xd4\x05\x00"] {
            begin_head();
            let written = [b"\x82\xa7details", details, b"\xa7message\xa1m"].concat();
            let read: Read = rmp_serde::from_slice(&written).unwrap();
            assert_eq!((read.details, &*read.message), (None, "m"));
            assert_eq!(LEFT_OF_HEAD.get(), MAX_BYTES_OF_HEAD - MAX_BYTES);
        }
    }

    #[test]
    fn a_value_that_no_message_has_is_refused() {
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, U128Deserializer};
        let number: U128Deserializer<Error> = 7_u128.into_deserializer();
        let error = Details(&Cell::new(MAX_BYTES)).deserialize(number).unwrap_err().to_string();
        assert!(error.ends_with("expected any value"), "{error}");
    }

    #[test]
    fn sixty_four_headers_are_read() {
        #[derive(Deserialize)]
        struct Read {
            #[serde(deserialize_with = "read_headers")]
            headers: Vec<(String, String)>,
            message: String,
        }
        for (sent, kept) in [(0, 0), (63, 63), (64, 64), (65, 64), (1000, 64)] {
            let headers = vec![("name", "value"); sent];
            let written = rmp_serde::to_vec_named(&serde_json::json!({ "headers": headers, "message": "m" })).unwrap();
            let read: Read = rmp_serde::from_slice(&written).unwrap();
            assert_eq!((read.headers.len(), &*read.message), (kept, "m"));
        }
    }
}
