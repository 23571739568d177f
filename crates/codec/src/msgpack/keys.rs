//! Finds a key that a map has twice, where nothing else remembers its keys.

use crate::error::DecodeError;
use crate::msgpack::decode::same_key;
use crate::out::TemporaryList;

/// The keys of open maps, the innermost map last, each with its offset in the input.
#[derive(Debug)]
pub(crate) struct OpenKeys<K>(TemporaryList<(K, usize)>);

impl<K: Ord + AsRef<str>> OpenKeys<K> {
    /// Begins a map: the place of its first key.
    pub(crate) fn open(&self) -> usize {
        self.0.len()
    }

    /// Adds a key to the innermost map, which began at `first`.
    pub(crate) fn push(&mut self, first: usize, key: K, at: usize) -> Result<(), DecodeError> {
        let known = &self.0[first..];
        if known.len() < FEW_KEYS && known.iter().any(|(other, _)| *other == key) {
            return Err(same_key(key.as_ref(), at));
        }
        Ok(self.0.push((key, at))?)
    }

    /// Ends the innermost map, which began at `first`. The keys of a large map are compared when all of them are known,
    /// in order, so that no key costs a look at all others.
    pub(crate) fn close(&mut self, first: usize) -> Result<(), DecodeError> {
        let keys = &mut self.0[first..];
        let mut twice = Ok(());
        if keys.len() > FEW_KEYS {
            keys.sort_unstable();
            let again = keys.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| &pair[1]);
            let again = again.min_by_key(|(_, at)| *at);
            twice = again.map_or(Ok(()), |(key, at)| Err(same_key(key.as_ref(), *at)));
        }
        self.0.truncate(first);
        twice
    }
}

impl<K> Default for OpenKeys<K> {
    fn default() -> Self {
        Self(TemporaryList::default())
    }
}

/// Maps with at most this many keys are checked key by key.
const FEW_KEYS: usize = 16;
