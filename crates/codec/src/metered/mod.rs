//! Wraps a deserializer to count depth and charge memory while serde builds a Rust type.
//!
//! serde's formats bound neither: rmp-serde does not count the levels of newtype variants and options, and a list of
//! empty lists becomes 24 bytes for each byte of input. This wrapper sees every value that a format passes to a type,
//! so the rules are in one place:
//!
//! * Lists, maps, structs and the data of enum variants are levels; they are counted, and levels beyond the limit are
//!   refused. Options and newtypes are no levels, but at most [`MAX_WRAPPERS`] of them may be nested directly: a type
//!   that contains itself only through them would recurse without end on a single byte.
//! * An item of a list costs twice its size (a vector doubles). The first entry of a map costs as much as a node of a
//!   B-tree, which has room for eleven; later entries cost three times their size. Text and bytes cost their length,
//!   and every structure costs its own size once more, because it may be boxed.
//! * A length that the input announces reserves almost nothing ([`MAX_RESERVED`](access::MAX_RESERVED)).
//!
//! serde's errors carry only messages, so the refusal is kept separately and read by [`refusal`].

mod access;
#[cfg(test)]
mod tests;
mod visitor;

use std::cell::Cell;

use serde::de::{Deserializer, Error, Visitor};

use self::visitor::MeteredVisitor;
use crate::account::{self, charge};
use crate::error::DecodeError;
use crate::limits::MAX_DEPTH;
use crate::quoting::{KindVisitor, NUMBERS_ARE_SHOWN, RequestedKind, ShortError};

/// The most options and newtypes without a level between them.
const MAX_WRAPPERS: u8 = 32;

/// A growing vector has at most this many times the room it needs.
const GROWTH: usize = 2;

thread_local! {
    static TOO_DEEP: Cell<bool> = const { Cell::new(false) };
}

/// The limit that ended the last reading with a metered deserializer, if any: serde's error has only a message.
pub(crate) fn refusal(max_depth: usize) -> Option<DecodeError> {
    let fault = account::take_fault();
    if TOO_DEEP.take() { Some(DecodeError::too_deep(max_depth)) } else { fault.map(DecodeError::from) }
}

/// The levels that a value may still have, and how it is read.
#[derive(Clone, Copy)]
struct Nesting {
    left: u16,
    wrappers: u8,
    /// The value is not kept, so it costs nothing.
    is_free: bool,
    /// serde_json would quote an unexpected text here.
    may_be_quoted: bool,
}

impl Nesting {
    fn enter<E: Error>(self) -> Result<Self, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Self { left, wrappers: MAX_WRAPPERS, ..self }),
            None => Err(too_deep()),
        }
    }

    fn wrap<E: Error>(self) -> Result<Self, E> {
        match self.wrappers.checked_sub(1) {
            Some(wrappers) => Ok(Self { wrappers, ..self }),
            None => Err(too_deep()),
        }
    }

    fn pay<E: Error>(self, bytes: usize) -> Result<(), E> {
        if self.is_free { Ok(()) } else { charge(bytes).map_err(E::custom) }
    }
}

#[cold]
fn too_deep<E: Error>() -> E {
    TOO_DEEP.set(true);
    E::custom("nested too deep")
}

/// A deserializer that counts and charges its values.
pub(crate) struct Metered<D> {
    inner: D,
    nesting: Nesting,
}

impl<D> Metered<D> {
    /// Allows `max_depth` levels, at most [`MAX_DEPTH`](crate::MAX_DEPTH).
    pub(crate) fn new(inner: D, max_depth: usize) -> Self {
        TOO_DEEP.set(false);
        let left = u16::try_from(max_depth.min(MAX_DEPTH)).unwrap_or(u16::MAX);
        Self { inner, nesting: Nesting { left, wrappers: MAX_WRAPPERS, is_free: false, may_be_quoted: false } }
    }

    /// The same for serde_json.
    pub(crate) fn json(inner: D, max_depth: usize) -> Self {
        let mut metered = Self::new(inner, max_depth);
        metered.nesting.may_be_quoted = true;
        metered
    }

    fn counted<V>(&self, visitor: V, growth: usize) -> MeteredVisitor<V> {
        MeteredVisitor { visitor, nesting: self.nesting, growth }
    }
}

/// Methods that count this growth.
macro_rules! counted {
    ($($growth:expr => $($method:ident $(($argument:ident: $type:ty))?)*;)*) => {$($(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)? visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.counted(visitor, $growth);
            self.inner.$method($($argument,)? visitor).map_err(ShortError)
        }
    )*)*};
}

/// serde_json is asked for any type, so that it does not quote an unexpected text.
macro_rules! requested {
    ($($requested:ident($growth:expr): $($method:ident $(($($argument:ident: $type:ty),*))?)*;)*) => {$($(
        fn $method<V: Visitor<'de>>(self, $($($argument: $type,)*)? visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.counted(visitor, $growth);
            let requested = RequestedKind::$requested;
            if self.asks_for_anything(requested) {
                self.inner.deserialize_any(KindVisitor { visitor, requested })
            } else {
                self.inner.$method($($($argument,)*)? visitor)
            }
            .map_err(ShortError)
        }
    )*)*};
}

impl<D> Metered<D> {
    fn asks_for_anything(&self, requested: RequestedKind) -> bool {
        self.nesting.may_be_quoted && is_shown(requested, NUMBERS_ARE_SHOWN)
    }
}

/// Whether serde_json visits a value of this kind as what it is.
fn is_shown(requested: RequestedKind, numbers: bool) -> bool {
    numbers || requested != RequestedKind::Number
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<D> {
    type Error = ShortError<D::Error>;

    counted! {
        // serde_json quotes nothing where it expects these.
        0 => deserialize_i128 deserialize_u128 deserialize_char;
        GROWTH => deserialize_any deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
            deserialize_option deserialize_newtype_struct(name: &'static str);
    }

    requested! {
        Bool(0): deserialize_bool;
        Number(0): deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
            deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64;
        Unit(0): deserialize_unit deserialize_unit_struct(name: &'static str);
        List(GROWTH): deserialize_seq;
        Map(GROWTH): deserialize_map;
        // The parts of a tuple or struct lie in it: they cost no more than it does.
        List(0): deserialize_tuple(len: usize) deserialize_tuple_struct(name: &'static str, len: usize);
        ListOrMap(0): deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        Enum(0): deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    /// A name is compared and not kept.
    fn deserialize_identifier<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Self::Error> {
        self.nesting.is_free = true;
        let visitor = self.counted(visitor, 0);
        self.inner.deserialize_identifier(visitor).map_err(ShortError)
    }

    /// Ignored values are read like others: serde_json would skip any number of levels, and keep a note of each.
    fn deserialize_ignored_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Self::Error> {
        self.nesting.is_free = true;
        let visitor = self.counted(visitor, 0);
        self.inner.deserialize_any(visitor).map_err(ShortError)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}
