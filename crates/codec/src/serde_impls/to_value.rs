//! The serializer whose output is a [`Value`].

use ::serde::Serialize;
use ::serde::ser::{self, Serializer};
use bytes::Bytes;

use crate::account::charge;
use crate::error::EncodeError;
use crate::limits::{DecodeLimits, MAX_DEPTH};
use crate::msgpack::ext;
use crate::serde_impls::uniform::{BAD_KEY, KeyText};
use crate::serde_impls::{exact, handover};
use crate::value::{Map, Value};

/// Builds the value of one node; its children get a serializer one level deeper.
#[derive(Clone, Copy)]
pub(super) struct ValueSerializer {
    depth: usize,
    /// Whether the next value takes its exact form, because it is inside our own wrapper.
    is_exact: bool,
    /// The kind of value for a tuple.
    tuple: fn(Vec<Value>) -> Value,
}

impl ValueSerializer {
    pub(super) fn new() -> Self {
        Self { depth: 0, is_exact: false, tuple: Value::Tuple }
    }

    /// Makes tuples into lists, as every format does.
    pub(super) fn from_payload() -> Self {
        Self { tuple: Value::List, ..Self::new() }
    }

    fn deeper(self) -> Result<Self, EncodeError> {
        if self.depth < MAX_DEPTH {
            Ok(Self { depth: self.depth + 1, is_exact: false, ..self })
        } else {
            Err(EncodeError::too_deep("", MAX_DEPTH))
        }
    }

    fn list(
        self,
        len: Option<usize>,
        tag: Option<&'static str>,
        finish: fn(Vec<Value>) -> Value,
    ) -> Result<ListSerializer, EncodeError> {
        let len = len.unwrap_or(0);
        charge(len.saturating_mul(size_of::<Value>()))?;
        let items = Vec::with_capacity(len);
        Ok(ListSerializer { items, inner: self.deeper()?, tag, finish })
    }

    fn map(self, len: Option<usize>, tag: Option<&'static str>) -> Result<MapSerializer, EncodeError> {
        let len = len.unwrap_or(0);
        charge(len.saturating_mul(size_of::<(String, Value)>()))?;
        let map = Map::with_capacity(len);
        Ok(MapSerializer { map, key: None, inner: self.deeper()?, tag })
    }
}

/// An enum's data under the name of its variant.
fn tagged(tag: Option<&'static str>, value: Value) -> Value {
    match tag {
        Some(variant) => Value::Map(Map::from_iter([(variant, value)])),
        None => value,
    }
}

macro_rules! converted {
    ($($method:ident: $type:ty),* $(,)?) => {$(
        fn $method(self, value: $type) -> Result<Value, EncodeError> {
            Ok(value.into())
        }
    )*};
}

impl Serializer for ValueSerializer {
    type Ok = Value;
    type Error = EncodeError;
    type SerializeSeq = ListSerializer;
    type SerializeTuple = ListSerializer;
    type SerializeTupleStruct = ListSerializer;
    type SerializeTupleVariant = ListSerializer;
    type SerializeMap = MapSerializer;
    type SerializeStruct = MapSerializer;
    type SerializeStructVariant = MapSerializer;

    fn is_human_readable(&self) -> bool {
        !self.is_exact
    }

    converted! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32,
        serialize_f64: f64,
    }

    fn serialize_i128(self, value: i128) -> Result<Value, EncodeError> {
        let narrow = i64::try_from(value).map(Value::from).or_else(|_| u64::try_from(value).map(Value::from));
        narrow.map_err(|_| EncodeError::new("i128", format!("{value} does not fit 64 bits")))
    }

    fn serialize_u128(self, value: u128) -> Result<Value, EncodeError> {
        let narrow = u64::try_from(value).map(Value::from);
        narrow.map_err(|_| EncodeError::new("u128", format!("{value} does not fit 64 bits")))
    }

    fn serialize_char(self, value: char) -> Result<Value, EncodeError> {
        Ok(value.to_string().into())
    }

    fn serialize_str(self, value: &str) -> Result<Value, EncodeError> {
        charge(value.len())?;
        Ok(value.into())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Value, EncodeError> {
        charge(value.len())?;
        Ok(Bytes::copy_from_slice(value).into())
    }

    fn serialize_none(self) -> Result<Value, EncodeError> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, EncodeError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, EncodeError> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, EncodeError> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, EncodeError> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Value, EncodeError> {
        match name {
            exact::EXACT => {
                let (written, shared) = handover::ask(|| value.serialize(Self { is_exact: true, ..self }));
                written.map(|written| shared.unwrap_or(written))
            }
            exact::EXTENSION => from_extension(value.serialize(self)?),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, EncodeError> {
        let inner = value.serialize(self.deeper()?).map_err(|error| error.in_key(variant))?;
        Ok(tagged(Some(variant), inner))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<ListSerializer, EncodeError> {
        self.list(len, None, Value::List)
    }

    fn serialize_tuple(self, len: usize) -> Result<ListSerializer, EncodeError> {
        self.list(Some(len), None, self.tuple)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<ListSerializer, EncodeError> {
        self.list(Some(len), None, self.tuple)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<ListSerializer, EncodeError> {
        self.list(Some(len), Some(variant), self.tuple)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<MapSerializer, EncodeError> {
        self.map(len, None)
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<MapSerializer, EncodeError> {
        self.map(Some(len), None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<MapSerializer, EncodeError> {
        self.map(Some(len), Some(variant))
    }
}

/// The pair of code and bytes that our own types (and rmp-serde's users) write under the extension's name.
fn from_extension(pair: Value) -> Result<Value, EncodeError> {
    let Some([Value::Int(code), Value::Bytes(payload)]) = pair.as_list() else {
        return Err(EncodeError::new(exact::EXTENSION, "an extension is a code and bytes"));
    };
    // Bytes of this process: only an unknown code can be wrong with them.
    let limits = DecodeLimits { max_bytes: usize::MAX, ..DecodeLimits::default() };
    let code = i8::try_from(*code).map_err(|_| EncodeError::new(exact::EXTENSION, "an extension code is an i8"))?;
    ext::decode(code, payload, &limits).map_err(|error| EncodeError::new(exact::EXTENSION, error.to_string()))
}

/// A list, tuple or tuple variant that is being built.
pub(super) struct ListSerializer {
    items: Vec<Value>,
    inner: ValueSerializer,
    tag: Option<&'static str>,
    finish: fn(Vec<Value>) -> Value,
}

impl ListSerializer {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let item = value.serialize(self.inner).map_err(|error| error.in_index(self.items.len()))?;
        self.items.push(item);
        Ok(())
    }

    fn done(self) -> Value {
        tagged(self.tag, (self.finish)(self.items))
    }
}

macro_rules! items {
    ($($compound:ident :: $method:ident),*) => {$(
        impl ser::$compound for ListSerializer {
            type Ok = Value;
            type Error = EncodeError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
                self.push(value)
            }

            fn end(self) -> Result<Value, EncodeError> {
                Ok(self.done())
            }
        }
    )*};
}

items!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

/// A map, struct or struct variant that is being built.
pub(super) struct MapSerializer {
    map: Map,
    key: Option<String>,
    inner: ValueSerializer,
    tag: Option<&'static str>,
}

impl MapSerializer {
    fn put<T: Serialize + ?Sized>(&mut self, key: String, value: &T) -> Result<(), EncodeError> {
        let value = value.serialize(self.inner).map_err(|error| error.in_key(&key))?;
        self.map.insert(key, value);
        Ok(())
    }

    fn done(self) -> Value {
        tagged(self.tag, Value::Map(self.map))
    }
}

impl ser::SerializeMap for MapSerializer {
    type Ok = Value;
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        match key.serialize(KeyText(self.inner)) {
            Ok(Value::Str(text)) => {
                self.key = Some(text);
                Ok(())
            }
            // Maps lend their keys.
            _ => Err(EncodeError::new(std::any::type_name::<T>().trim_start_matches('&'), BAD_KEY)),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let key = self.key.take().ok_or_else(|| EncodeError::new("", "a map value without a key"))?;
        self.put(key, value)
    }

    fn end(self) -> Result<Value, EncodeError> {
        Ok(self.done())
    }
}

macro_rules! fields {
    ($($compound:ident),*) => {$(
        impl ser::$compound for MapSerializer {
            type Ok = Value;
            type Error = EncodeError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), EncodeError> {
                self.put(key.to_owned(), value)
            }

            fn end(self) -> Result<Value, EncodeError> {
                Ok(self.done())
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);
