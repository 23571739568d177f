//! A visitor that counts and charges the values that a format passes to a type.

use std::fmt;

use serde::de::{Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};

use super::access::MeteredAccess;
use super::{Metered, Nesting};
use crate::quoting::{EnumOfMap, ShortError, enum_of_map};

/// A visitor that counts and charges its values.
pub(super) struct MeteredVisitor<V> {
    pub(super) visitor: V,
    pub(super) nesting: Nesting,
    /// An item costs this many times its size.
    pub(super) growth: usize,
}

macro_rules! numbers {
    ($($method:ident: $t:ty)*) => {$(
        fn $method<E: Error>(self, value: $t) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

macro_rules! texts {
    ($($method:ident: $t:ty)*) => {$(
        fn $method<E: Error>(self, value: $t) -> Result<V::Value, E> {
            self.nesting.pay(value.len())?;
            self.visitor.$method::<ShortError<E>>(value).map_err(ShortError::into_inner)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for MeteredVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    numbers! {
        visit_bool: bool visit_i8: i8 visit_i16: i16 visit_i32: i32 visit_i64: i64 visit_i128: i128
        visit_u8: u8 visit_u16: u16 visit_u32: u32 visit_u64: u64 visit_u128: u128 visit_f32: f32 visit_f64: f64 visit_char: char
    }

    texts! {
        visit_str: &str visit_borrowed_str: &'de str visit_string: String
        visit_bytes: &[u8] visit_borrowed_bytes: &'de [u8] visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor
            .visit_some(Metered { inner: deserializer, nesting: self.nesting.wrap()? })
            .map_err(ShortError::into_inner)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor
            .visit_newtype_struct(Metered { inner: deserializer, nesting: self.nesting.wrap()? })
            .map_err(ShortError::into_inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor
            .visit_seq(MeteredAccess::new(items, self.nesting.enter()?, self.growth))
            .map_err(ShortError::into_inner)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor
            .visit_map(MeteredAccess::new(entries, self.nesting.enter()?, self.growth))
            .map_err(ShortError::into_inner)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor.visit_enum(MeteredAccess::new(data, self.nesting, 0)).map_err(ShortError::into_inner)
    }
}

impl<'de, V: Visitor<'de>> EnumOfMap<'de> for MeteredVisitor<V> {
    fn visit_enum_of_map<A: MapAccess<'de>>(self, entry: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        let entry = MeteredAccess::new(entry, self.nesting.enter()?, 0);
        self.visitor.visit_enum(enum_of_map(entry)).map_err(ShortError::into_inner)
    }
}
