//! The deserializer whose input is a [`Value`].
//!
//! Recursion is bounded by the value itself: every decoder stops at [`MAX_DEPTH`](crate::MAX_DEPTH).

use ::serde::de::value::{SeqDeserializer, StrDeserializer};
use ::serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use ::serde::forward_to_deserialize_any;

use crate::account::{TemporaryCharge, charge};
use crate::error::DecodeError;
use crate::serde_impls::{exact, handover};
use crate::value::tensor::{StrTensor, Tensor};
use crate::value::{MapIter, Scalar, Value};

#[derive(Clone, Copy)]
pub(super) struct ValueDeserializer<'v> {
    value: &'v Value,
    /// Whether the exact form was requested (see [`exact`]).
    is_exact: bool,
}

impl<'v> ValueDeserializer<'v> {
    pub(super) fn new(value: &'v Value) -> Self {
        Self { value, is_exact: false }
    }

    /// Hands over the value itself: the exact form is requested only by [`Value`]'s own `Deserialize`.
    fn visit_exact<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        charge(self.value.copied_bytes())?;
        handover::give(self.value.clone(), || visitor.visit_newtype_struct(Self::new(self.value)))
    }
}

/// Nothing is borrowed: the result outlives the value, so texts and bytes are copied.
impl<'de> Deserializer<'de> for ValueDeserializer<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.is_exact {
            return self.visit_exact(visitor);
        }
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::UInt(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Str(value) => visitor.visit_str(value),
            Value::Bytes(value) => visitor.visit_bytes(value),
            Value::List(items) | Value::Tuple(items) => visit_all(ListAccess(items.iter().enumerate()), visitor),
            Value::Map(map) => visitor.visit_map(EntryAccess { entries: map.iter(), entry: None }),
            Value::Scalar(scalar) => visit_scalar(*scalar, visitor),
            Value::Tensor(tensor) => visit_tensor(tensor, visitor),
            Value::StrTensor(tensor) => visit_texts(tensor, visitor),
            // For a type that does not know frames, a frame is a map of its columns.
            #[cfg(feature = "arrow")]
            Value::DataFrame(frame) => {
                let columns = frame.to_columns().map_err(|error| DecodeError::mismatch(error.to_string()))?;
                ValueDeserializer::new(&columns).deserialize_any(visitor)
            }
            #[cfg(feature = "arrow")]
            Value::Series(series) => {
                let items = series.to_list().map_err(|error| DecodeError::mismatch(error.to_string()))?;
                ValueDeserializer::new(&items).deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(Self { is_exact: name == exact::EXACT, ..self })
    }

    /// A byte string can be read as a list of its bytes: a `Vec<u8>` field takes an uploaded file.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Bytes(bytes) => {
                let items = SeqDeserializer::<_, DecodeError>::new(bytes.iter().copied());
                visit_all(items, visitor)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Str(variant) => visitor.visit_enum(EnumInput { variant, data: None }),
            Value::Map(map) if map.len() == 1 => {
                let (variant, data) = map.iter().next().expect("has one entry");
                visitor.visit_enum(EnumInput { variant, data: Some(data) })
            }
            other => {
                Err(DecodeError::invalid_type(unexpected(other), &"the name of a variant, or a map of it to its data"))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct map struct identifier ignored_any
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Map(_) => Unexpected::Map,
        Value::List(_) | Value::Tuple(_) => Unexpected::Seq,
        other => Unexpected::Other(other.kind()),
    }
}

fn visit_scalar<'de, V: Visitor<'de>>(scalar: Scalar, visitor: V) -> Result<V::Value, DecodeError> {
    match scalar {
        Scalar::F32(value) => visitor.visit_f32(value),
        other => match other.plain() {
            Value::Bool(value) => visitor.visit_bool(value),
            Value::UInt(value) => visitor.visit_u64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Tuple(parts) => visit_all(ListAccess(parts.iter().enumerate()), visitor),
            other => visitor.visit_i64(other.as_i64().expect("a scalar is a bool, an integer or a float")),
        },
    }
}

/// Overhead of a row of texts: an array, and a value that holds it.
const ROW_BYTES: usize = 192;

/// For a type that does not know tensors, a tensor is nested lists; a tensor without axes is its number.
fn visit_tensor<'de, V: Visitor<'de>>(tensor: &Tensor, visitor: V) -> Result<V::Value, DecodeError> {
    match tensor.rows() {
        Ok(rows) => visit_all(RowAccess(rows.enumerate()), visitor),
        Err(_) => visit_scalar(tensor.to_scalar().expect("a tensor without axes has one element"), visitor),
    }
}

fn visit_texts<'de, V: Visitor<'de>>(tensor: &StrTensor, visitor: V) -> Result<V::Value, DecodeError> {
    // All rows exist at once, and their texts are copies.
    let mut copies = TemporaryCharge::new();
    let rows = tensor.shape().first().copied().unwrap_or(0);
    copies.grow(tensor.data().len().saturating_mul(2).saturating_add(rows.saturating_mul(ROW_BYTES)))?;
    match tensor.split() {
        Ok(rows) => {
            let rows: Vec<Value> = rows.into_iter().map(Value::StrTensor).collect();
            visit_all(ListAccess(rows.iter().enumerate()), visitor)
        }
        Err(_) => visitor.visit_str(tensor.get(0).expect("an array without axes has one element")),
    }
}

/// Visits a sequence and refuses it if items are left: a tuple of two is not made of three items.
fn visit_all<'de, A, V>(mut items: A, visitor: V) -> Result<V::Value, DecodeError>
where
    A: SeqAccess<'de, Error = DecodeError>,
    V: Visitor<'de>,
{
    let total = items.size_hint().unwrap_or(0);
    let made = visitor.visit_seq(&mut items)?;
    match items.size_hint() {
        Some(left) if left > 0 => {
            Err(DecodeError::mismatch(format!("{total} items where {} are expected", total - left)))
        }
        _ => Ok(made),
    }
}

/// The items of a list, each under its index.
struct ListAccess<'v>(std::iter::Enumerate<std::slice::Iter<'v, Value>>);

impl<'de> SeqAccess<'de> for ListAccess<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, item)) = self.0.next() else {
            return Ok(None);
        };
        seed.deserialize(ValueDeserializer::new(item)).map(Some).map_err(|error| error.in_index(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The rows of a tensor, each a tensor of one axis less.
struct RowAccess<I>(std::iter::Enumerate<I>);

impl<'de, I: ExactSizeIterator<Item = Tensor>> SeqAccess<'de> for RowAccess<I> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, row)) = self.0.next() else {
            return Ok(None);
        };
        let row = Value::Tensor(row);
        seed.deserialize(ValueDeserializer::new(&row)).map(Some).map_err(|error| error.in_index(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The entries of a map, each under its key.
struct EntryAccess<'v> {
    entries: MapIter<'v>,
    entry: Option<(&'v str, &'v Value)>,
}

impl<'de> MapAccess<'de> for EntryAccess<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        self.entry = self.entries.next();
        self.entry.map(|(key, _)| seed.deserialize(KeyDeserializer(key)).map_err(|error| error.in_key(key))).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        let (key, value) =
            self.entry.take().ok_or_else(|| DecodeError::custom("a map value was asked for before its key"))?;
        seed.deserialize(ValueDeserializer::new(value)).map_err(|error| error.in_key(key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A map key: text, or the number or bool whose text it is, as in JSON.
#[derive(Clone, Copy)]
struct KeyDeserializer<'v>(&'v str);

impl<'v> KeyDeserializer<'v> {
    fn text(self) -> StrDeserializer<'v, DecodeError> {
        self.0.into_deserializer()
    }
}

macro_rules! parsed_keys {
    ($($method:ident => $visit:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match self.0.parse() {
                Ok(parsed) => visitor.$visit(parsed),
                Err(_) => self.text().deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for KeyDeserializer<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_str(self.0)
    }

    parsed_keys!(
        deserialize_bool => visit_bool,
        deserialize_i8 => visit_i64, deserialize_i16 => visit_i64,
        deserialize_i32 => visit_i64, deserialize_i64 => visit_i64,
        deserialize_u8 => visit_u64, deserialize_u16 => visit_u64,
        deserialize_u32 => visit_u64, deserialize_u64 => visit_u64,
        deserialize_i128 => visit_i128, deserialize_u128 => visit_u128,
        deserialize_f32 => visit_f64, deserialize_f64 => visit_f64
    );

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.text().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// An enum: the name of a variant, and its data unless it is a unit variant.
struct EnumInput<'v> {
    variant: &'v str,
    data: Option<&'v Value>,
}

impl<'de, 'v> EnumAccess<'de> for EnumInput<'v> {
    type Error = DecodeError;
    type Variant = VariantData<'v>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, VariantData<'v>), DecodeError> {
        let variant = seed.deserialize(KeyDeserializer(self.variant))?;
        Ok((variant, VariantData(self)))
    }
}

struct VariantData<'v>(EnumInput<'v>);

impl<'v> VariantData<'v> {
    fn data(&self) -> Result<ValueDeserializer<'v>, DecodeError> {
        let missing =
            || DecodeError::mismatch(format!("variant {:?} needs data: {{{:?}: …}}", self.0.variant, self.0.variant));
        self.0.data.map(ValueDeserializer::new).ok_or_else(missing)
    }
}

impl<'de> VariantAccess<'de> for VariantData<'_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        match self.0.data {
            None | Some(Value::Null) => Ok(()),
            Some(data) => {
                Err(DecodeError::invalid_type(unexpected(data), &"a variant without data").in_key(self.0.variant))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.data()?).map_err(|error| error.in_key(self.0.variant))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.data()?.deserialize_tuple(len, visitor).map_err(|error| error.in_key(self.0.variant))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.data()?.deserialize_struct("", fields, visitor).map_err(|error| error.in_key(self.0.variant))
    }
}
