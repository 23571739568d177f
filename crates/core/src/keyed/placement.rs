//! Which node has a key: the highest score of its name among the nodes that have the kind (rendezvous hashing: Thaler
//! and Ravishankar, "Using name-based mappings to increase hit rates", 1998). It follows from names, never from
//! addresses, so nodes with the same view agree, and a node that leaves moves its own keys only.

use crate::call::SessionKey;
use crate::remote::{KINDS_PREFIX, splitmix64};

/// The name under which other nodes find a kind.
pub(crate) fn published_name(kind: &str) -> String {
    format!("{KINDS_PREFIX}{kind}")
}

/// The number of a key, which decides its node.
pub(super) fn place_of(kind: &str, key: &str) -> u64 {
    splitmix64(SessionKey::new(key).number() ^ splitmix64(SessionKey::new(kind).number()))
}
