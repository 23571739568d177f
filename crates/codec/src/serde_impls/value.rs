//! [`Value`] as a serde type, so that a user's struct may have a field of it.
//!
//! A value is written in its plain form for people and in its exact form for programs (see [`exact`]), and read in any
//! form. Depth is counted in both directions: serde itself would follow a value until the stack overflows.

use std::borrow::Cow;
use std::fmt;

use ::serde::de::{self, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use ::serde::ser::{Error as _, SerializeMap, SerializeSeq, SerializeTuple};
use ::serde::{Deserialize, Serialize, Serializer};
use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::error::{DecodeError, EncodeError};
use crate::limits::{Budget, DecodeLimits, MAX_DEPTH};
use crate::msgpack::ext;
use crate::serde_impls::{exact, handover};
use crate::value::{Map, Value};

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        NestedValue { value: self, depth: 0 }.serialize(serializer)
    }
}

/// A value and how deep it lies.
struct NestedValue<'a> {
    value: &'a Value,
    depth: usize,
}

impl NestedValue<'_> {
    fn inner<'a>(&self, value: &'a Value) -> NestedValue<'a> {
        NestedValue { value, depth: self.depth + 1 }
    }
}

impl Serialize for NestedValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.depth > MAX_DEPTH {
            return Err(S::Error::custom(EncodeError::too_deep(self.value.kind(), MAX_DEPTH)));
        }
        match self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(value) => serializer.serialize_i64(*value),
            Value::UInt(value) => serializer.serialize_u64(*value),
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Str(value) => serializer.serialize_str(value),
            Value::Bytes(value) => exact::serialize_bytes(serializer, value),
            Value::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(&self.inner(item)))?;
                list.end()
            }
            Value::Tuple(items) => {
                let payload = || ext::tuple_payload(items, self.depth);
                let shared = || Value::Tuple(items.clone());
                let plain = &TupleItems(self, items);
                exact::serialize(serializer, exact::Forms { plain, code: ext::TUPLE, payload, shared, bytes: 0 })
            }
            Value::Map(map) => {
                let mut entries = serializer.serialize_map(Some(map.len()))?;
                map.iter().try_for_each(|(key, value)| entries.serialize_entry(key, &self.inner(value)))?;
                entries.end()
            }
            Value::Scalar(scalar) => scalar.serialize(serializer),
            Value::Tensor(tensor) => tensor.serialize(serializer),
            Value::StrTensor(tensor) => tensor.serialize(serializer),
            #[cfg(feature = "arrow")]
            Value::DataFrame(frame) => frame.serialize(serializer),
            #[cfg(feature = "arrow")]
            Value::Series(series) => series.serialize(serializer),
        }
    }
}

struct TupleItems<'a>(&'a NestedValue<'a>, &'a [Value]);

impl Serialize for TupleItems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.1.len())?;
        self.1.iter().try_for_each(|item| tuple.serialize_element(&self.0.inner(item)))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(exact::EXACT, ValueVisitor { is_wrapped: true })
    }
}

/// Takes any value. The first newtype is our own request for the exact form, a newtype inside it is an extension.
struct ValueVisitor {
    is_wrapped: bool,
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.is_wrapped {
            return deserializer.deserialize_any(Self { is_wrapped: false });
        }
        if let Some(value) = handover::take() {
            return Ok(value);
        }
        let (code, payload) = <(i8, ExtensionBytes)>::deserialize(deserializer)?;
        // The payload is in memory already, so only depth is left to be limited.
        let limits = DecodeLimits { max_bytes: usize::MAX, ..DecodeLimits::default() };
        ext::decode(code, &payload.0, &limits).map_err(D::Error::custom)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        <Value as Deserialize>::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        charge_text(value.len()).map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        charge_text(value.capacity()).map_err(E::custom)?;
        Ok(value.into())
    }

    fn visit_bytes<E: de::Error>(self, value: &[u8]) -> Result<Value, E> {
        charge_text(value.len()).map_err(E::custom)?;
        Ok(Bytes::copy_from_slice(value).into())
    }

    fn visit_byte_buf<E: de::Error>(self, value: Vec<u8>) -> Result<Value, E> {
        charge_text(value.capacity()).map_err(E::custom)?;
        Ok(Bytes::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut budget = Budget::new(&DecodeLimits::UNLIMITED);
        let (expected, mut list) = (items.size_hint().unwrap_or(0), Vec::new());
        while let Some(item) = items.next_element()? {
            budget.make_room(&mut list, expected).map_err(A::Error::custom)?;
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut budget = Budget::new(&DecodeLimits::UNLIMITED);
        let (expected, mut map) = (entries.size_hint().unwrap_or(0), Map::new());
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            charge_text(key.capacity()).map_err(A::Error::custom)?;
            map.make_room(expected, &mut budget).map_err(A::Error::custom)?;
            map.insert(key, entries.next_value::<Value>()?);
        }
        Ok(Value::Map(map))
    }
}

/// For a type with a field of [`Value`], the format enforces the limits; only charges bound it here.
fn charge_text(len: usize) -> Result<(), DecodeError> {
    Budget::new(&DecodeLimits::UNLIMITED).take_text(len)
}

struct ExtensionBytes(Bytes);

impl<'de> Deserialize<'de> for ExtensionBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExtensionBytesVisitor;

        impl Visitor<'_> for ExtensionBytesVisitor {
            type Value = ExtensionBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of an extension")
            }

            fn visit_bytes<E: de::Error>(self, value: &[u8]) -> Result<ExtensionBytes, E> {
                charge_text(value.len()).map_err(E::custom)?;
                Ok(ExtensionBytes(Bytes::copy_from_slice(value)))
            }

            fn visit_byte_buf<E: de::Error>(self, value: Vec<u8>) -> Result<ExtensionBytes, E> {
                charge_text(value.capacity()).map_err(E::custom)?;
                Ok(ExtensionBytes(value.into()))
            }
        }

        deserializer.deserialize_byte_buf(ExtensionBytesVisitor)
    }
}

/// A schema that allows anything.
impl JsonSchema for Value {
    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        true.into()
    }
}

/// As the [`Value::Map`] of it.
impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_map(Some(self.len()))?;
        let inner = |value| NestedValue { value, depth: 1 };
        self.iter().try_for_each(|(key, value)| entries.serialize_entry(key, &inner(value)))?;
        entries.end()
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match <Value as Deserialize>::deserialize(deserializer)? {
            Value::Map(map) => Ok(map),
            other => Err(D::Error::custom(format_args!("expected a map, got a value of kind {}", other.kind()))),
        }
    }
}

impl JsonSchema for Map {
    fn schema_name() -> Cow<'static, str> {
        "Map".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}
