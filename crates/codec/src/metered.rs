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
//! * A length that the input announces reserves almost nothing ([`MAX_RESERVED`]).
//!
//! serde's errors carry only messages, so the refusal is kept separately and read by [`refusal`].

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

use crate::account::{self, charge};
use crate::error::DecodeError;
use crate::limits::MAX_DEPTH;
use crate::quoting::{EnumOfMap, KindVisitor, NUMBERS_ARE_SHOWN, RequestedKind, ShortError, enum_of_map};

/// The most options and newtypes without a level between them.
const MAX_WRAPPERS: u8 = 32;

/// The most items that a type may reserve room for because the input announces them.
const MAX_RESERVED: usize = 16;

/// A growing vector has at most this many times the room it needs.
const GROWTH: usize = 2;

/// The same for a map: nodes of B-trees may be half empty, and a hash table that has just grown is more than half
/// empty.
const MAP_GROWTH: usize = 3;

/// The cost of the first entry, in entries: a node of a B-tree has room for 11 (in `std`) and some overhead.
const FIRST_ENTRIES: usize = 12;

/// The room of the first entry suffices for this many: a full node is split in halves.
const PREPAID_ENTRIES: usize = 5;

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

macro_rules! plain {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.counted(visitor, 0);
            self.inner.$method(visitor).map_err(ShortError)
        }
    )*};
}

macro_rules! counted {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.counted(visitor, GROWTH);
            self.inner.$method(visitor).map_err(ShortError)
        }
    )*};
}

/// serde_json is asked for any type, so that it does not quote an unexpected text.
macro_rules! wanted {
    ($($wanted:ident($growth:expr): $($method:ident)*;)*) => {$($(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.counted(visitor, $growth);
            if self.asks_for_anything(RequestedKind::$wanted) { self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::$wanted }) } else { self.inner.$method(visitor) }
            .map_err(ShortError)
        }
    )*)*};
}

impl<D> Metered<D> {
    fn asks_for_anything(&self, wanted: RequestedKind) -> bool {
        self.nesting.may_be_quoted && (NUMBERS_ARE_SHOWN || wanted != RequestedKind::Number)
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<D> {
    type Error = ShortError<D::Error>;

    // serde_json quotes nothing where it expects these.
    plain! { deserialize_i128 deserialize_u128 deserialize_char }

    wanted! {
        Bool(0): deserialize_bool;
        Number(0): deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
            deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64;
        Unit(0): deserialize_unit;
        List(GROWTH): deserialize_seq;
        Map(GROWTH): deserialize_map;
    }

    counted! {
        deserialize_any deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_option
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

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, 0);
        if self.asks_for_anything(RequestedKind::Unit) {
            self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::Unit })
        } else {
            self.inner.deserialize_unit_struct(name, visitor)
        }
        .map_err(ShortError)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, GROWTH);
        self.inner.deserialize_newtype_struct(name, visitor).map_err(ShortError)
    }

    // The parts of a tuple or struct lie in it: they cost no more than it does.

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, 0);
        if self.asks_for_anything(RequestedKind::List) {
            self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::List })
        } else {
            self.inner.deserialize_tuple(len, visitor)
        }
        .map_err(ShortError)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, 0);
        if self.asks_for_anything(RequestedKind::List) {
            self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::List })
        } else {
            self.inner.deserialize_tuple_struct(name, len, visitor)
        }
        .map_err(ShortError)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, 0);
        if self.asks_for_anything(RequestedKind::ListOrMap) {
            self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::ListOrMap })
        } else {
            self.inner.deserialize_struct(name, fields, visitor)
        }
        .map_err(ShortError)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let visitor = self.counted(visitor, 0);
        if self.asks_for_anything(RequestedKind::Enum) {
            self.inner.deserialize_any(KindVisitor { visitor, wanted: RequestedKind::Enum })
        } else {
            self.inner.deserialize_enum(name, variants, visitor)
        }
        .map_err(ShortError)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A visitor that counts and charges its values.
struct MeteredVisitor<V> {
    visitor: V,
    nesting: Nesting,
    /// An item costs this many times its size.
    growth: usize,
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
            .visit_seq(MeteredAccess { inner: items, nesting: self.nesting.enter()?, growth: self.growth, entries: 0 })
            .map_err(ShortError::into_inner)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor
            .visit_map(MeteredAccess {
                inner: entries,
                nesting: self.nesting.enter()?,
                growth: self.growth,
                entries: 0,
            })
            .map_err(ShortError::into_inner)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        self.visitor
            .visit_enum(MeteredAccess { inner: data, nesting: self.nesting, growth: 0, entries: 0 })
            .map_err(ShortError::into_inner)
    }
}

impl<'de, V: Visitor<'de>> EnumOfMap<'de> for MeteredVisitor<V> {
    fn visit_enum_of_map<A: MapAccess<'de>>(self, entry: A) -> Result<V::Value, A::Error> {
        self.nesting.pay(size_of::<V::Value>())?;
        let entry = MeteredAccess { inner: entry, nesting: self.nesting.enter()?, growth: 0, entries: 0 };
        self.visitor.visit_enum(enum_of_map(entry)).map_err(ShortError::into_inner)
    }
}

/// The items, entries or data of a value, one level deeper.
struct MeteredAccess<A> {
    inner: A,
    nesting: Nesting,
    growth: usize,
    /// Keys of a map so far.
    entries: usize,
}

impl<A> MeteredAccess<A> {
    fn inside<S>(&self, seed: S) -> MeteredSeed<S> {
        MeteredSeed { seed, nesting: self.nesting }
    }

    /// Called for each item after it is read and before a list grows for it.
    fn pay_for<T, E: Error>(&self) -> Result<(), E> {
        self.nesting.pay(self.growth * size_of::<T>())
    }

    /// The same for a key or value of a map. Fields of a struct are part of the struct.
    fn pay_for_entry<T, E: Error>(&self) -> Result<(), E> {
        self.nesting.pay(match self.entries {
            _ if self.growth == 0 => 0,
            1 => FIRST_ENTRIES * size_of::<T>(),
            2..=PREPAID_ENTRIES => 0,
            _ => MAP_GROWTH * size_of::<T>(),
        })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for MeteredAccess<A> {
    type Error = ShortError<A::Error>;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Self::Error> {
        let seed = self.inside(seed);
        let item = self.inner.next_element_seed(seed).map_err(ShortError)?;
        self.pay_for::<T::Value, _>()?;
        Ok(item)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint().map(|items| items.min(MAX_RESERVED))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for MeteredAccess<A> {
    type Error = ShortError<A::Error>;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        // A key is a text to serde_json, and a number only to a type that asks for one.
        let seed = MeteredSeed { seed, nesting: Nesting { may_be_quoted: false, ..self.nesting } };
        let key = self.inner.next_key_seed(seed).map_err(ShortError)?;
        if key.is_some() {
            self.entries += 1;
            self.pay_for_entry::<K::Value, _>()?;
        }
        Ok(key)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Self::Error> {
        let seed = self.inside(seed);
        let value = self.inner.next_value_seed(seed).map_err(ShortError)?;
        self.pay_for_entry::<T::Value, _>()?;
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint().map(|entries| entries.min(MAX_RESERVED))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for MeteredAccess<A> {
    type Error = ShortError<A::Error>;
    type Variant = MeteredAccess<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), Self::Error> {
        let seed = MeteredSeed { seed, nesting: Nesting { is_free: true, may_be_quoted: false, ..self.nesting } };
        let (name, data) = self.inner.variant_seed(seed).map_err(ShortError)?;
        Ok((name, MeteredAccess { inner: data, nesting: self.nesting, growth: 0, entries: 0 }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for MeteredAccess<A> {
    type Error = ShortError<A::Error>;

    fn unit_variant(self) -> Result<(), Self::Error> {
        self.inner.unit_variant().map_err(ShortError)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Self::Error> {
        let nesting = self.nesting.enter()?;
        self.inner.newtype_variant_seed(MeteredSeed { seed, nesting }).map_err(ShortError)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Self::Error> {
        let nesting = self.nesting.enter()?;
        self.inner.tuple_variant(len, MeteredVisitor { visitor, nesting, growth: 0 }).map_err(ShortError)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let nesting = self.nesting.enter()?;
        self.inner.struct_variant(fields, MeteredVisitor { visitor, nesting, growth: 0 }).map_err(ShortError)
    }
}

/// The seed of a part, which is read by a metered deserializer, too.
struct MeteredSeed<S> {
    seed: S,
    nesting: Nesting,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for MeteredSeed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.seed.deserialize(Metered { inner: deserializer, nesting: self.nesting }).map_err(ShortError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::de::IgnoredAny;
    use serde::{Deserialize, Serialize};

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
        assert!(error.offset().is_some() && error.path().len() > 1, "it has its place: {error}");
        let text = format!("{}\"Leaf\"{}", "{\"N\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(refused::<Chain>(Format::Json, text.into()), "max_depth");
    }

    #[test]
    fn a_type_that_contains_itself_through_newtypes_ends() {
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
    fn items_entries_and_texts_cost_what_their_collections_take() {
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
    fn little_room_is_reserved_on_the_word_of_the_input() {
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
    fn what_is_ignored_has_levels_too() {
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
    fn options_between_structs_are_no_levels() {
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
}
