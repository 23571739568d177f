//! Connection ids that are never reused, and that a restarted process recognises as its own.
//!
//! ```text
//!   10 bytes              6 bytes
//!   never the same again  an HMAC of them, under a key that survives a restart
//! ```
//!
//! A peer receives the token that resets its connection, and the key of these tokens survives a restart. If ids were
//! reused (RFC 9000, 10.3.2), strangers could collect the tokens of future connections. The tag marks packets for
//! connections from before a restart, which are answered with a reset token; other unknown packets are not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::hmac;

/// The unique part. The chance that two of a billion are equal is one in two million.
const UNIQUE_BYTES: usize = 10;

/// The tag. One forgery in 2^48 is answered, with 40 bytes.
const TAG_BYTES: usize = 6;

const ID_BYTES: usize = UNIQUE_BYTES + TAG_BYTES;

/// Makes ids and recognises them. Clones share the count, so that ids stay unique.
#[derive(Clone, Debug)]
pub(super) struct ConnectionIds {
    own: hmac::Key,
    /// Random for this process, so that ids cannot be predicted.
    fresh: hmac::Key,
    count: Arc<AtomicU64>,
}

impl ConnectionIds {
    /// With the key that survives restarts, and a new random key.
    pub(super) fn new(own: hmac::Key, fresh: hmac::Key) -> Self {
        Self { own, fresh, count: Arc::default() }
    }

    fn tag(&self, unique: &[u8]) -> [u8; TAG_BYTES] {
        first_bytes(&hmac::sign(&self.own, unique))
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let unique: [u8; UNIQUE_BYTES] = first_bytes(&hmac::sign(&self.fresh, &count.to_le_bytes()));
        let mut id = [0; ID_BYTES];
        id[..UNIQUE_BYTES].copy_from_slice(&unique);
        id[UNIQUE_BYTES..].copy_from_slice(&self.tag(&unique));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        // Other versions of QUIC use other lengths.
        let (unique, tag) = id.split_at_checked(UNIQUE_BYTES).ok_or(InvalidCid)?;
        if self.tag(unique) == tag { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// The first N of 32 bytes.
fn first_bytes<const N: usize>(tag: &hmac::Tag) -> [u8; N] {
    std::array::from_fn(|at| tag.as_ref()[at])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ids(own: &[u8], fresh: &[u8]) -> ConnectionIds {
        let key = |bytes| hmac::Key::new(hmac::HMAC_SHA256, bytes);
        ConnectionIds::new(key(own), key(fresh))
    }

    #[test]
    fn ids_are_unique_across_clones_and_restarts() {
        let mut before = ids(b"own", b"first");
        let (mut second, mut restarted) = (before.clone(), ids(b"own", b"second"));
        let mut all = HashSet::new();
        for _ in 0..1000 {
            for generator in [&mut before, &mut second, &mut restarted] {
                assert!(all.insert(generator.generate_cid().to_vec()));
            }
        }
    }

    #[test]
    fn ids_are_recognised_after_a_restart_and_forgeries_are_not() {
        let id = ids(b"own", b"first").generate_cid();
        assert_eq!(id.len(), 16);
        assert!(ids(b"own", b"second").validate(&id).is_ok());
        assert!(ids(b"another", b"first").validate(&id).is_err());
        for at in 0..ID_BYTES {
            let mut other = id.to_vec();
            other[at] ^= 1;
            assert!(ids(b"own", b"first").validate(&ConnectionId::new(&other)).is_err(), "{at}");
        }
        for length in [0, 1, 8, 10, 15, 20] {
            assert!(ids(b"own", b"first").validate(&ConnectionId::new(&[7; 20][..length])).is_err(), "{length}");
        }
    }
}
