//! The identity of a member: its name, and which life of that name.

use std::net::SocketAddr;
use std::sync::Arc;

/// The longest name of a member: a DNS label of a certificate, or the id of a development process.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// The most identities of one process: one a second for twelve days. The next one counts as another process.
pub(super) const MAX_BUMP: u32 = 1 << 20;

/// How far a process may have begun in the future: clocks differ. Threat: a member that makes up a life of another one
/// which no restart replaces.
const MAX_AHEAD_NANOS: u64 = 24 * 3_600 * 1_000_000_000;

/// One life of a member. Of two with one name, the one with the higher generation and bump counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemberId {
    /// The name in its certificate; under the development identity, an id of its process.
    pub(crate) name: Arc<str>,
    /// Where it listens. An unspecified IP address: it does not know its own yet.
    pub(crate) address: SocketAddr,
    /// When its process began, in nanoseconds since 1970.
    pub(crate) generation: u64,
    /// Counts the identities that this process took, because it was called dead.
    pub(crate) bump: u32,
}

impl MemberId {
    /// Whether it replaces `other`, of the same name. The address only makes the order total.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        let rank = |id: &Self| (id.generation, id.bump, id.address);
        rank(self) > rank(other)
    }

    /// Whether there can be such a life, at this time in nanoseconds since 1970.
    pub(super) fn is_plausible(&self, clock: u64) -> bool {
        self.generation <= clock.saturating_add(MAX_AHEAD_NANOS) && self.bump <= MAX_BUMP
    }

    /// The next identity of this process. `None`: there is no higher one.
    pub(super) fn next(&self) -> Option<Self> {
        let (generation, bump) = match self.bump {
            bump if bump < MAX_BUMP => (self.generation, bump + 1),
            _ => (self.generation.checked_add(1)?, 0),
        };
        Some(Self { generation, bump, ..self.clone() })
    }
}

impl foca::Identity for MemberId {
    type Addr = Arc<str>;

    fn renew(&self) -> Option<Self> {
        self.next()
    }

    fn addr(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.is_newer_than(adversary)
    }
}
