//! One form for a Rust type in every format: a serializer between a type and its format.
//!
//! serde leaves choices to each format, and serde_json, rmp-serde and the serializer to [`Value`] choose differently.
//! The form of a type must not depend on the path of a call, so all of them write the form of the value:
//!
//! * A type writes its form for people: a `Uuid` is text, also in MessagePack. Our own types keep their exact form
//!   there.
//! * A map key is text; an integer, float, bool or char stands for its text. Any other key is refused.
//! * A unit struct is null. An integer beyond 64 bits is refused, except in JSON, which writes its digits.
//! * NaN and infinities are refused in JSON, and are themselves elsewhere.
//! * Nesting beyond [`MAX_DEPTH`] is refused.
//!
//! The sender refuses, and [`located`] finds the place. Nothing is allocated except for keys that are not text.

use std::fmt::Display;

use serde::Serialize;
use serde::ser::{
    Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use crate::error::EncodeError;
use crate::limits::MAX_DEPTH;
use crate::serde_impls::exact;
use crate::value::Value;

/// The error for a key without a text form.
pub(crate) const BAD_KEY: &str = "a map key must be text, a number or a bool";

/// Why JSON has no form for a float.
const NOT_FINITE: &str = "NaN and infinities have no JSON";

/// Writes one node of a type to `inner`.
pub(crate) struct UniformSerializer<S, const JSON: bool> {
    inner: S,
    depth: usize,
    /// Whether the next value is one of our own types, in its exact form.
    is_exact: bool,
}

/// A part of a type, one level deeper.
struct UniformPart<'a, T: ?Sized, const JSON: bool> {
    value: &'a T,
    depth: usize,
    is_exact: bool,
}

impl<S> UniformSerializer<S, true> {
    pub(crate) fn json(inner: S) -> Self {
        Self { inner, depth: 0, is_exact: false }
    }
}

impl<S> UniformSerializer<S, false> {
    pub(crate) fn msgpack(inner: S) -> Self {
        Self { inner, depth: 0, is_exact: false }
    }
}

/// The error of a type that could not be written, with its place: the type is written again through a value. `first` is
/// the error of the format.
pub(crate) fn located<T: Serialize, W>(
    value: &T,
    first: &impl Display,
    again: impl FnOnce(&Value) -> Result<W, EncodeError>,
) -> EncodeError {
    let again = Value::from_payload(value).and_then(|value| again(&value));
    again.err().unwrap_or_else(|| EncodeError::new("", first.to_string())).with_type(std::any::type_name::<T>())
}

impl<S: Serializer, const JSON: bool> UniformSerializer<S, JSON> {
    fn deeper(&self) -> Result<usize, S::Error> {
        if self.depth < MAX_DEPTH {
            Ok(self.depth + 1)
        } else {
            Err(S::Error::custom(format_args!("nested deeper than {MAX_DEPTH} levels")))
        }
    }

    fn same<'a, T: ?Sized>(&self, value: &'a T) -> UniformPart<'a, T, JSON> {
        UniformPart { value, depth: self.depth, is_exact: self.is_exact }
    }
}

impl<T: Serialize + ?Sized, const JSON: bool> Serialize for UniformPart<'_, T, JSON> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(UniformSerializer::<S, JSON> { inner, depth: self.depth, is_exact: self.is_exact })
    }
}

macro_rules! as_it_is {
    ($($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        #[inline]
        fn $method(self, $($argument: $type),*) -> Result<S::Ok, S::Error> {
            self.inner.$method($($argument),*)
        }
    )*};
}

/// Each begins a list, tuple, map or struct: one level deeper.
macro_rules! compounds {
    ($($method:ident($($argument:ident: $type:ty),*) -> $compound:ident;)*) => {$(
        #[inline]
        fn $method(self, $($argument: $type),*) -> Result<Self::$compound, S::Error> {
            Ok(UniformCompound { depth: self.deeper()?, inner: self.inner.$method($($argument),*)? })
        }
    )*};
}

impl<S: Serializer, const JSON: bool> Serializer for UniformSerializer<S, JSON> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = UniformCompound<S::SerializeSeq, JSON>;
    type SerializeTuple = UniformCompound<S::SerializeTuple, JSON>;
    type SerializeTupleStruct = UniformCompound<S::SerializeTupleStruct, JSON>;
    type SerializeTupleVariant = UniformCompound<S::SerializeTupleVariant, JSON>;
    type SerializeMap = UniformCompound<S::SerializeMap, JSON>;
    type SerializeStruct = UniformCompound<S::SerializeStruct, JSON>;
    type SerializeStructVariant = UniformCompound<S::SerializeStructVariant, JSON>;

    fn is_human_readable(&self) -> bool {
        !self.is_exact
    }

    as_it_is! {
        serialize_bool(value: bool), serialize_char(value: char), serialize_str(value: &str),
        serialize_bytes(value: &[u8]), serialize_i8(value: i8), serialize_i16(value: i16), serialize_i32(value: i32),
        serialize_i64(value: i64), serialize_u8(value: u8), serialize_u16(value: u16), serialize_u32(value: u32),
        serialize_u64(value: u64), serialize_none(), serialize_unit(),
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str),
    }

    compounds! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeStructVariant;
    }

    fn serialize_i128(self, value: i128) -> Result<S::Ok, S::Error> {
        match (i64::try_from(value), u64::try_from(value)) {
            _ if JSON => self.inner.serialize_i128(value),
            (Ok(value), _) => self.inner.serialize_i64(value),
            (_, Ok(value)) => self.inner.serialize_u64(value),
            _ => Err(S::Error::custom(format_args!("{value} does not fit 64 bits"))),
        }
    }

    fn serialize_u128(self, value: u128) -> Result<S::Ok, S::Error> {
        match u64::try_from(value) {
            _ if JSON => self.inner.serialize_u128(value),
            Ok(value) => self.inner.serialize_u64(value),
            Err(_) => Err(S::Error::custom(format_args!("{value} does not fit 64 bits"))),
        }
    }

    #[inline]
    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        if JSON && !value.is_finite() { Err(S::Error::custom(NOT_FINITE)) } else { self.inner.serialize_f32(value) }
    }

    #[inline]
    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        if JSON && !value.is_finite() { Err(S::Error::custom(NOT_FINITE)) } else { self.inner.serialize_f64(value) }
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let value = self.same(value);
        self.inner.serialize_some(&value)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        match name {
            exact::EXACT if !JSON => {
                let value = UniformPart::<T, JSON> { value, depth: self.depth, is_exact: true };
                self.inner.serialize_newtype_struct(name, &value)
            }
            // A code and bytes, in the shape that rmp-serde expects.
            exact::EXTENSION if !JSON => self.inner.serialize_newtype_struct(name, value),
            _ => {
                let value = self.same(value);
                self.inner.serialize_newtype_struct(name, &value)
            }
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let value = UniformPart::<T, JSON> { value, depth: self.deeper()?, is_exact: false };
        self.inner.serialize_newtype_variant(name, index, variant, &value)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }
}

/// A list, tuple, map or struct that is being written.
pub(crate) struct UniformCompound<C, const JSON: bool> {
    inner: C,
    depth: usize,
}

impl<C, const JSON: bool> UniformCompound<C, JSON> {
    fn part<'a, T: ?Sized>(&self, value: &'a T) -> UniformPart<'a, T, JSON> {
        UniformPart { value, depth: self.depth, is_exact: false }
    }
}

macro_rules! items {
    ($($compound:ident :: $method:ident),*) => {$(
        impl<C: $compound, const JSON: bool> $compound for UniformCompound<C, JSON> {
            type Ok = C::Ok;
            type Error = C::Error;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
                let value = self.part(value);
                self.inner.$method(&value)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
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

macro_rules! fields {
    ($($compound:ident),*) => {$(
        impl<C: $compound, const JSON: bool> $compound for UniformCompound<C, JSON> {
            type Ok = C::Ok;
            type Error = C::Error;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), C::Error> {
                let value = self.part(value);
                self.inner.serialize_field(key, &value)
            }

            #[inline]
            fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
                self.inner.skip_field(key)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

impl<C: SerializeMap, const JSON: bool> SerializeMap for UniformCompound<C, JSON> {
    type Ok = C::Ok;
    type Error = C::Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), C::Error> {
        // serde_json takes the same keys, without memory for them.
        if JSON { self.inner.serialize_key(key) } else { self.inner.serialize_key(&TextKey(key)) }
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        let value = self.part(value);
        self.inner.serialize_value(&value)
    }

    #[inline]
    fn end(self) -> Result<C::Ok, C::Error> {
        self.inner.end()
    }
}

/// A map key, which becomes text.
struct TextKey<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for TextKey<'_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(KeyText(inner))
    }
}

/// Writes a key to `S` as its text, as JSON has it.
pub(crate) struct KeyText<S>(pub(crate) S);

macro_rules! as_text {
    ($($method:ident: $type:ty => |$value:ident| $text:expr),* $(,)?) => {$(
        fn $method(self, $value: $type) -> Result<S::Ok, S::Error> {
            self.0.serialize_str(&$text)
        }
    )*};
}

macro_rules! no_key {
    ($($method:ident($($argument:ty),*) -> $ok:ty),* $(,)?) => {$(
        fn $method(self, $(_: $argument),*) -> Result<$ok, S::Error> {
            Err(S::Error::custom(BAD_KEY))
        }
    )*};
}

impl<S: Serializer> Serializer for KeyText<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Impossible<S::Ok, S::Error>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeMap = Impossible<S::Ok, S::Error>;
    type SerializeStruct = Impossible<S::Ok, S::Error>;
    type SerializeStructVariant = Impossible<S::Ok, S::Error>;

    #[inline]
    fn serialize_str(self, value: &str) -> Result<S::Ok, S::Error> {
        self.0.serialize_str(value)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    as_text! {
        serialize_bool: bool => |value| value.to_string(),
        serialize_char: char => |value| value.encode_utf8(&mut [0; 4]),
        serialize_i8: i8 => |value| value.to_string(),
        serialize_i16: i16 => |value| value.to_string(),
        serialize_i32: i32 => |value| value.to_string(),
        serialize_i64: i64 => |value| value.to_string(),
        serialize_i128: i128 => |value| value.to_string(),
        serialize_u8: u8 => |value| value.to_string(),
        serialize_u16: u16 => |value| value.to_string(),
        serialize_u32: u32 => |value| value.to_string(),
        serialize_u64: u64 => |value| value.to_string(),
        serialize_u128: u128 => |value| value.to_string(),
        serialize_f32: f32 => |value| format!("{value:?}"),
        serialize_f64: f64 => |value| format!("{value:?}"),
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        self.0.serialize_str(variant)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        match name {
            exact::EXACT => Err(S::Error::custom(BAD_KEY)),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(BAD_KEY))
    }

    no_key! {
        serialize_bytes(&[u8]) -> S::Ok,
        serialize_none() -> S::Ok,
        serialize_unit() -> S::Ok,
        serialize_unit_struct(&'static str) -> S::Ok,
        serialize_seq(Option<usize>) -> Self::SerializeSeq,
        serialize_tuple(usize) -> Self::SerializeTuple,
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant,
        serialize_map(Option<usize>) -> Self::SerializeMap,
        serialize_struct(&'static str, usize) -> Self::SerializeStruct,
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant,
    }
}
