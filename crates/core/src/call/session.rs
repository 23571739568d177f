//! The key of a session, and the replica that it selects: the same on every node and in every run.

use std::num::NonZeroU64;

use crate::splitmix64::splitmix64;

/// The key of a session, whose calls reach the same replica.
///
/// Equal texts have equal keys on every node. Only a hash is stored; the text is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey(NonZeroU64);

impl SessionKey {
    /// The key of this name: a user, a conversation, a document.
    #[must_use]
    pub fn new(name: &str) -> Self {
        // FNV-1a with a finisher, because FNV-1a mixes its last bytes poorly.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(NonZeroU64::new(splitmix64(hash)).unwrap_or(NonZeroU64::MIN))
    }

    /// The key with this number from another node; `None` for 0.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number that is sent instead of the name.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The score of a replica for this session: the highest wins.
    pub(crate) fn affinity(self, replica: usize) -> u64 {
        splitmix64(self.0.get() ^ splitmix64(replica as u64))
    }
}

impl From<&str> for SessionKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for SessionKey {
    fn from(name: String) -> Self {
        Self::new(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::SessionKey;

    #[test]
    fn a_key_crosses_the_network_as_its_number() {
        let key = SessionKey::new("a user");
        assert_eq!(SessionKey::from_number(key.number()), Some(key));
        assert_eq!(SessionKey::from_number(7).map(SessionKey::number), Some(7));
        assert_eq!(SessionKey::from_number(0), None);
    }

    #[test]
    fn keys_with_similar_numbers_are_spread_evenly() {
        let mut counts = [0; 5];
        for key in (1..=10_000).filter_map(SessionKey::from_number) {
            counts[(0..5).max_by_key(|replica| key.affinity(*replica)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }
}
