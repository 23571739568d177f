//! Maps with string keys in insertion order.
//!
//! Most maps on a request have a handful of keys, so up to [`SMALL`] entries lie in one vector and are searched in
//! order; beyond that an index is built, with a hash that is keyed per process, so that chosen keys cannot make lookups
//! slow.

use std::fmt;

use indexmap::IndexMap;

use crate::error::DecodeError;
use crate::limits::Budget;
use crate::value::Value;

/// String keys to [`Value`]s, in insertion order.
///
/// ```
/// use callboard_codec::{Map, Value};
///
/// let mut map: Map = [("b", 1), ("a", 2)].into_iter().collect();
/// assert_eq!(map.insert("b", 3), Some(Value::Int(1))); // keeps its place
/// assert_eq!(map.keys().collect::<Vec<_>>(), ["b", "a"]);
/// assert_eq!(map.get("b").and_then(Value::as_i64), Some(3));
/// ```
#[derive(Clone)]
pub struct Map(Storage);

#[derive(Clone)]
enum Storage {
    Small(Vec<(String, Value)>),
    Large(Box<IndexMap<String, Value>>),
}

/// Comparing sixteen short keys takes no longer than hashing one.
const SMALL: usize = 16;

/// Memory of an indexed map with room for `capacity` entries: each with its hash, and an index that is at least half
/// full.
const fn large_bytes(capacity: usize) -> usize {
    capacity.saturating_mul(size_of::<(u64, String, Value)>() + 24).saturating_add(128)
}

impl Map {
    /// The most bytes that [`with_capacity`](Self::with_capacity) allocates.
    pub(crate) const fn room_bytes(capacity: usize) -> usize {
        if capacity <= SMALL { capacity * size_of::<(String, Value)>() } else { large_bytes(capacity) }
    }

    /// An empty map. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(Storage::Small(Vec::new()))
    }

    /// An empty map with room for `capacity` entries.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        if capacity <= SMALL {
            Self(Storage::Small(Vec::with_capacity(capacity)))
        } else {
            Self(Storage::Large(Box::new(IndexMap::with_capacity(capacity))))
        }
    }

    /// Puts a value under a key and returns the previous one. A known key keeps its place in the order.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        let entries = match &mut self.0 {
            Storage::Large(entries) => return entries.insert(key, value),
            Storage::Small(entries) => entries,
        };
        if let Some(entry) = entries.iter_mut().find(|entry| entry.0 == key) {
            return Some(std::mem::replace(&mut entry.1, value));
        }
        entries.push((key, value));
        if entries.len() > SMALL {
            let entries = std::mem::take(entries);
            self.0 = Storage::Large(Box::new(entries.into_iter().collect()));
        }
        None
    }

    /// Makes room for one more entry, or for `expected` of them, before any is allocated.
    pub(crate) fn make_room(&mut self, expected: usize, budget: &mut Budget<'_>) -> Result<(), DecodeError> {
        match &mut self.0 {
            Storage::Small(entries) if entries.len() < SMALL => {
                // Room for more than that is made when the index is.
                let room = expected.max(entries.capacity() * 2).clamp(2, SMALL);
                budget.make_room_for(entries, room)
            }
            Storage::Small(entries) => {
                budget.take_memory(large_bytes(SMALL * 2))?;
                let mut large = IndexMap::with_capacity(SMALL * 2);
                budget.give_memory(entries.capacity() * size_of::<(String, Value)>());
                large.extend(std::mem::take(entries));
                self.0 = Storage::Large(Box::new(large));
                Ok(())
            }
            Storage::Large(entries) if entries.len() < entries.capacity() => Ok(()),
            Storage::Large(entries) => {
                let len = entries.len();
                budget.take_memory(large_bytes(len * 2))?;
                entries.reserve_exact(len);
                budget.give_memory(large_bytes(len));
                Ok(())
            }
        }
    }

    /// Claims what [`make_room`](Self::make_room) would take for one more entry beside `len`, and returns the capacity.
    pub(crate) fn claim_room(
        (len, capacity): (usize, usize),
        expected: usize,
        budget: &mut Budget<'_>,
    ) -> Result<usize, DecodeError> {
        if len < SMALL {
            return budget.claim_room::<(String, Value)>((len, capacity), expected.max(capacity * 2).clamp(2, SMALL));
        }
        if len > SMALL && len < capacity {
            return Ok(capacity);
        }
        let before = if len == SMALL { capacity * size_of::<(String, Value)>() } else { large_bytes(len) };
        budget.claim(large_bytes(len * 2))?;
        budget.give_claimed(before);
        Ok(len * 2)
    }

    /// Removes a value. The other entries keep their order, so later entries are moved.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        match &mut self.0 {
            Storage::Small(entries) => {
                let index = entries.iter().position(|entry| entry.0 == key)?;
                Some(entries.remove(index).1)
            }
            Storage::Large(entries) => entries.shift_remove(key),
        }
    }

    /// The value of a key, mutable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        match &mut self.0 {
            Storage::Small(entries) => entries.iter_mut().find(|entry| entry.0 == key).map(|entry| &mut entry.1),
            Storage::Large(entries) => entries.get_mut(key),
        }
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        match &self.0 {
            Storage::Small(entries) => entries.iter().find(|entry| entry.0 == key).map(|entry| &entry.1),
            Storage::Large(entries) => entries.get(key),
        }
    }

    /// Whether the key is there.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Small(entries) => entries.len(),
            Storage::Large(entries) => entries.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries in insertion order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            Storage::Small(entries) => Iter(BorrowedEntries::Small(entries.iter())),
            Storage::Large(entries) => Iter(BorrowedEntries::Large(entries.iter())),
        }
    }

    /// The keys in insertion order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// The values in insertion order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.iter().map(|(_, value)| value)
    }
}

impl Default for Map {
    fn default() -> Self {
        Self::new()
    }
}

/// Maps are equal if the same keys have equal values. The order does not count.
impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Into<String>, V: Into<Value>> Extend<(K, V)> for Map {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a str, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl IntoIterator for Map {
    type Item = (String, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        match self.0 {
            Storage::Small(entries) => IntoIter(OwnedEntries::Small(entries.into_iter())),
            Storage::Large(entries) => IntoIter(OwnedEntries::Large(entries.into_iter())),
        }
    }
}

/// The entries of a [`Map`], borrowed, in insertion order.
#[derive(Debug, Clone)]
pub struct Iter<'a>(BorrowedEntries<'a>);

#[derive(Debug, Clone)]
enum BorrowedEntries<'a> {
    Small(std::slice::Iter<'a, (String, Value)>),
    Large(indexmap::map::Iter<'a, String, Value>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            BorrowedEntries::Small(entries) => entries.next().map(|(key, value)| (key.as_str(), value)),
            BorrowedEntries::Large(entries) => entries.next().map(|(key, value)| (key.as_str(), value)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            BorrowedEntries::Small(entries) => entries.size_hint(),
            BorrowedEntries::Large(entries) => entries.size_hint(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// The entries of a [`Map`], owned, in insertion order.
#[derive(Debug)]
pub struct IntoIter(OwnedEntries);

#[derive(Debug)]
enum OwnedEntries {
    Small(std::vec::IntoIter<(String, Value)>),
    Large(indexmap::map::IntoIter<String, Value>),
}

impl Iterator for IntoIter {
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            OwnedEntries::Small(entries) => entries.next(),
            OwnedEntries::Large(entries) => entries.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            OwnedEntries::Small(entries) => entries.size_hint(),
            OwnedEntries::Large(entries) => entries.size_hint(),
        }
    }
}

impl ExactSizeIterator for IntoIter {}
