//! Access to the items, entries and data of a value: each part is read by a metered deserializer.

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::visitor::MeteredVisitor;
use super::{Metered, Nesting};
use crate::quoting::ShortError;

/// The most items that a type may reserve room for because the input announces them.
pub(super) const MAX_RESERVED: usize = 16;

/// A map has at most this many times the room it needs: nodes of B-trees may be half empty, and so may a hash table that
/// has just grown.
pub(super) const MAP_GROWTH: usize = 3;

/// The cost of the first entry, in entries: a node of a B-tree has room for 11 (in `std`) and some overhead.
pub(super) const FIRST_ENTRIES: usize = 12;

/// The room of the first entry suffices for this many: a full node is split in halves.
pub(super) const PREPAID_ENTRIES: usize = 5;

/// The items, entries or data of a value, one level deeper.
pub(super) struct MeteredAccess<A> {
    inner: A,
    nesting: Nesting,
    growth: usize,
    /// Keys of a map so far.
    entries: usize,
}

impl<A> MeteredAccess<A> {
    pub(super) fn new(inner: A, nesting: Nesting, growth: usize) -> Self {
        Self { inner, nesting, growth, entries: 0 }
    }

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
        let seed = self.inside(seed);
        let (name, data) = self.inner.variant_seed(seed).map_err(ShortError)?;
        Ok((name, MeteredAccess::new(data, self.nesting, 0)))
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
