//! The connections that are open: whose they are, how many there may be, and which of several nodes under one name is the living one.
//!
//! A node that is started again says a higher generation than before, so that the highest of a name is its living one. What is open of
//! lower ones is closed when it comes, and a lower one that comes while it is there is refused: two nodes that live under one identity
//! do not take turns. Only what is open counts. A node whose clock was set back while it was down is let in again as soon as the
//! connections of its earlier process are gone, which takes the idle timeout at most. Who has no name, or says no generation, is not
//! compared: clients, and all of the development identity.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use callboard_codec::wire::ResetCode;
use quinn::{Connection, VarInt};

use super::offers::Told;
use super::{NetConfig, Serving};
use crate::endpoint::code;
use crate::identity::{Member, Role};

/// Clients leave this part of all connections to nodes: an eighth.
const NODES_PART: usize = 8;

/// It was removed from the cluster.
pub(super) const REMOVED: &str = "removed_member";

/// A younger node of the same name is there.
pub(super) const STALE: &str = "stale_generation";

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: Connection,
    /// What it knows of what is offered.
    pub(super) told: Told,
    /// Whose it is; empty under the development identity.
    name: String,
    /// Which of those that ever had the name.
    id: String,
    pub(super) role: Role,
    /// Which incarnation of a node it is of; zero where that was not said.
    generation: u64,
}

/// Why a connection is none of them, although its hello was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotLetIn {
    /// There are as many as there may be, of all, of this member, or of clients.
    Full,
    /// A younger node of its name is there.
    Stale,
    /// It was removed from the cluster meanwhile.
    Removed,
}

impl NotLetIn {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Full => "too_many",
            Self::Stale => STALE,
            Self::Removed => REMOVED,
        }
    }

    pub(super) fn code(self) -> ResetCode {
        match self {
            Self::Full | Self::Removed => ResetCode::Refused,
            Self::Stale => ResetCode::StaleGeneration,
        }
    }
}

impl Open {
    /// `told` is what it knows of what is offered.
    pub(super) fn new(connection: &Connection, member: &Member, generation: u64, told: Bytes) -> Self {
        let (name, role, generation) = (member.name.clone(), member.role, compared(member, generation));
        let id = member.id.clone();
        Self { connection: connection.clone(), told: Told::new(told), name, id, role, generation }
    }

    /// How it stands to another incarnation of a node; `None` where it is no other's.
    fn than(&self, name: &str, generation: u64) -> Option<std::cmp::Ordering> {
        let is_compared = !name.is_empty() && self.name == name && self.generation > 0 && generation > 0;
        is_compared.then(|| self.generation.cmp(&generation))
    }
}

impl Serving {
    /// Whether a younger node of this member is there, so that this one is none any more.
    pub(super) fn is_outlived(&self, member: &Member, generation: u64) -> bool {
        let generation = compared(member, generation);
        self.is_older_than_this(&member.name, generation)
            || self.connections.lock().iter().any(|open| is_younger(open, &member.name, generation))
    }

    /// Whether who says this is this node itself, reached by an address that it does not know for its own.
    pub(super) fn is_ourselves(&self, node: &str, generation: u64) -> bool {
        self.generation == generation && self.config.node == node
    }

    /// Whether it is this node's name, and was given to somebody else before.
    fn is_older_than_this(&self, name: &str, generation: u64) -> bool {
        !name.is_empty() && generation > 0 && generation < self.generation && self.identity.name() == name
    }
}

/// What a member's generation is worth: a client may be many processes at once.
fn compared(member: &Member, generation: u64) -> u64 {
    if member.role == Role::Node { generation } else { 0 }
}

fn is_younger(open: &Open, name: &str, generation: u64) -> bool {
    open.than(name, generation).is_some_and(std::cmp::Ordering::is_gt)
}

/// A connection among those that are open.
pub(super) struct OpenGuard<'a> {
    serving: &'a Serving,
    connection: Connection,
}

impl<'a> OpenGuard<'a> {
    /// Lets it in, if there is room and it is no older node's. What is open of older ones of its name is closed.
    pub(super) fn try_new(serving: &'a Serving, caller: Open) -> Result<Self, NotLetIn> {
        let mut open = serving.connections.lock();
        let (name, generation) = (caller.name.as_str(), caller.generation);
        // Its hello may have been answered before the younger one was let in.
        if open.iter().any(|open| is_younger(open, name, generation)) {
            return Err(NotLetIn::Stale);
        }
        // Else it is among those that are cut when the list is read.
        if serving.identity.removed().contains(&caller.id) {
            return Err(NotLetIn::Removed);
        }
        let outlived = open.extract_if(.., |open| open.than(name, generation).is_some_and(std::cmp::Ordering::is_lt));
        let outlived = outlived.map(|older| serving.close_outlived(&older)).count();
        if outlived > 0 {
            tracing::info!(
                member = name,
                connections = outlived,
                "closed what was open of an earlier process of a member"
            );
        }
        let NetConfig { max_connections: limit, max_connections_per_member: share, .. } = serving.config;
        let of_member = || open.iter().filter(|open| open.name == caller.name).count();
        let of_clients = || open.iter().filter(|open| open.role == Role::Client).count();
        // Under the development identity nobody has a name, and all are one user.
        let is_full = open.len() >= limit
            || !caller.name.is_empty() && of_member() >= share
            || caller.role == Role::Client && of_clients() >= limit - limit / NODES_PART;
        if is_full {
            return Err(NotLetIn::Full);
        }
        let connection = caller.connection.clone();
        open.push(caller);
        serving.metrics.accepted.inc();
        serving.metrics.open.inc();
        Ok(Self { serving, connection })
    }
}

/// Cuts what is open of members that were removed, whenever the node hears of some.
pub(super) async fn cut_removed(serving: Weak<Serving>) {
    let Some(mut changes) = serving.upgrade().map(|serving| serving.identity.removals()) else { return };
    while changes.changed().await.is_ok() {
        let Some(serving) = serving.upgrade() else { return };
        let removed = Arc::clone(&changes.borrow_and_update());
        for open in serving.connections.lock().iter().filter(|open| removed.contains(&open.id)) {
            serving.metrics.refuse(REMOVED);
            open.connection.close(code(ResetCode::Refused), REMOVED.as_bytes());
        }
    }
}

impl Serving {
    /// The node that it is of was started again: nobody there waits for its calls any more.
    fn close_outlived(&self, open: &Open) {
        self.metrics.refuse(STALE);
        open.connection.close(code(ResetCode::StaleGeneration), STALE.as_bytes());
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        let id = self.connection.stable_id();
        self.serving.connections.lock().retain(|open| open.connection.stable_id() != id);
        self.serving.metrics.open.dec();
        self.connection.close(VarInt::from_u32(ResetCode::Done.number()), b"");
    }
}
