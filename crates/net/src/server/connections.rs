//! The open connections: their members, their limits, the newest process of each node, and which of them are called
//! back. A node may connect before this one is ready to call it; it is introduced to the view when there is one.
//!
//! A restarted node announces a higher generation, so the highest generation of a name is its live process. When it
//! connects, connections of lower generations are closed; while it is connected, lower ones are refused. So two nodes
//! that share one identity do not take turns. Only open connections count: a node whose clock was set back is accepted
//! again once the connections of its earlier process are gone: they are probed, and lost without an answer. Connections
//! without a name or a generation are not compared: clients, and the development identity.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::wire::{Hello, ResetCode};
use callboard_identity::{Member, Role, is_issuer};
use quinn::Connection;

use super::offers::LastOffers;
use super::{NetConfig, ServerState};
use crate::endpoint::{code, peer_chain};
use crate::link::Link;
use crate::membership::{FEATURE, GossipHandle};
use crate::refusal::RefusalReason;

/// Clients and operators leave this part of all connections to nodes: an eighth.
const NODES_PART: usize = 8;

/// The least time between two probes of a connection because a limit is full.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Whether an open connection counts for a limit of the caller's connection, the second one.
type CountsForLimit = fn(&OpenConnection, &OpenConnection) -> bool;

#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) connection: Connection,
    pub(super) link: Arc<Link>,
    /// The offers that it has received.
    pub(super) last_offers: LastOffers,
    /// The member's name; empty under the development identity.
    name: String,
    /// The member of its certificate.
    member: Member,
    pub(super) role: Role,
    /// The generation of its node; zero if it has none.
    generation: u64,
    /// The address that it claims to listen at.
    pub(super) claims: Option<SocketAddr>,
    /// The datagrams that had arrived when that address could not be connected the last time.
    pub(super) datagrams_at_last_failure: Option<u64>,
    /// When it was told that it cannot be connected there.
    pub(super) told_at: Option<Instant>,
    /// What this connection proves of that address.
    pub(super) announced: AnnouncedAddress,
    /// Whether it can be known by gossip.
    gossips: bool,
    /// When it was probed last because a limit was full.
    probed_at: Option<Instant>,
}

/// The address at which a node claims to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnouncedAddress {
    /// It claims none, or one of another machine, or it is this node.
    None,
    /// The address that it connected from, which the handshake has proven. Nodes connect from their listening port.
    Proven(SocketAddr),
    /// Another port than it connected from. No packets are sent there only because a peer has named it.
    Unproven(SocketAddr),
}

impl OpenConnection {
    pub(super) fn new(
        (connection, link): (&Connection, &Arc<Link>),
        member: &Member,
        hello: &Hello,
        (claims, announced): (Option<SocketAddr>, AnnouncedAddress),
        offers: Bytes,
    ) -> Self {
        Self {
            connection: connection.clone(),
            link: Arc::clone(link),
            last_offers: LastOffers::new(offers),
            name: member.name.clone(),
            member: member.clone(),
            role: member.role,
            generation: comparable_generation(member, hello.generation),
            claims,
            datagrams_at_last_failure: None,
            told_at: None,
            announced,
            gossips: hello.features.iter().any(|feature| feature == FEATURE),
            probed_at: None,
        }
    }

    /// What the view is told of it: the address, and whether its node gossips.
    pub(super) fn introduction(&self) -> (AnnouncedAddress, bool) {
        (self.announced, self.gossips)
    }

    /// Probes it, because it fills a limit and may be dead: a slot is then free after 3 s.
    fn probe(&mut self, now: Instant) {
        if self.probed_at.is_none_or(|at| now.saturating_duration_since(at) >= PROBE_EVERY) {
            self.probed_at = Some(now);
            self.link.probe();
        }
    }

    /// Compares it to another generation of the same node. `None`: they are not of the same node.
    fn compare(&self, name: &str, generation: u64) -> Option<Ordering> {
        let is_same_node = !name.is_empty() && self.name == name && self.generation > 0 && generation > 0;
        is_same_node.then(|| self.generation.cmp(&generation))
    }

    fn is_newer_than(&self, name: &str, generation: u64) -> bool {
        self.compare(name, generation).is_some_and(Ordering::is_gt)
    }

    fn is_older_than(&self, name: &str, generation: u64) -> bool {
        self.compare(name, generation).is_some_and(Ordering::is_lt)
    }
}

impl ServerState {
    /// Whether a newer process of this member's node is connected, or is this node.
    pub(super) fn is_stale(&self, member: &Member, generation: u64) -> bool {
        let generation = comparable_generation(member, generation);
        let is_older_than_this = !member.name.is_empty()
            && generation > 0
            && generation < self.generation
            && self.identity.name() == member.name;
        let open = self.connections.lock();
        let newer = open.iter().find(|open| open.is_newer_than(&member.name, generation));
        // It may be dead, and only not be noticed yet.
        if let Some(newer) = newer {
            newer.link.probe();
        }
        is_older_than_this || newer.is_some()
    }

    /// Whether a hello is of this node itself, reached by an address that it does not know as its own.
    pub(super) fn is_this_node(&self, node: &str, generation: u64) -> bool {
        self.generation == generation && self.config.node == node
    }
}

/// The generation that counts: a client may be many processes at once, so it has none.
fn comparable_generation(member: &Member, generation: u64) -> u64 {
    if member.role == Role::Node { generation } else { 0 }
}

/// Registers a connection until it is dropped.
pub(super) struct ConnectionGuard<'a> {
    server: &'a ServerState,
    connection: Connection,
}

impl<'a> ConnectionGuard<'a> {
    /// Registers a connection, if there is room and its node is not older. Connections of older processes of its node
    /// are closed.
    pub(super) fn try_new(server: &'a ServerState, caller: OpenConnection) -> Result<Self, RefusalReason> {
        let mut open = server.connections.lock();
        let (name, generation) = (caller.name.as_str(), caller.generation);
        // A newer process may have connected since the hello was answered.
        if open.iter().any(|open| open.is_newer_than(name, generation)) {
            return Err(RefusalReason::StaleGeneration);
        }
        // Checked under the lock: a member that is removed later is closed by `close_removed`.
        if server.identity.is_removed(&caller.member) {
            return Err(RefusalReason::RemovedMember);
        }
        let older = open.extract_if(.., |open| open.is_older_than(name, generation));
        let closed = older.map(|older| server.close(&older.connection, RefusalReason::StaleGeneration)).count();
        if closed > 0 {
            tracing::info!(member = name, connections = closed, "closed connections of an earlier process of a member");
        }
        let NetConfig { max_connections: limit, max_connections_per_member: member_limit, .. } = server.config;
        let limits: [(usize, CountsForLimit); 3] = [
            (limit, |_, _| true),
            // Under the development identity all members are one user without a name.
            (member_limit, |open, caller| !caller.name.is_empty() && open.name == caller.name),
            (limit - limit / NODES_PART, |open, caller| open.role != Role::Node && caller.role != Role::Node),
        ];
        for (limit, counts) in limits {
            if open.iter().filter(|open| counts(open, &caller)).count() >= limit {
                let now = Instant::now();
                open.iter_mut().filter(|open| counts(open, &caller)).for_each(|open| open.probe(now));
                return Err(RefusalReason::TooMany);
            }
        }
        let connection = caller.connection.clone();
        open.push(caller);
        server.metrics.counters.accepted.inc();
        server.metrics.counters.open.inc();
        Ok(Self { server, connection })
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let id = self.connection.stable_id();
        self.server.connections.lock().retain(|open| open.connection.stable_id() != id);
        self.server.metrics.counters.open.dec();
        self.connection.close(code(ResetCode::Done), b"");
    }
}

impl ServerState {
    /// Closes an open connection, and counts why.
    fn close(&self, connection: &Connection, reason: RefusalReason) {
        self.metrics.refuse(reason);
        reason.close(connection);
    }
}

impl ServerState {
    /// Adds the connected nodes to the view: they have connected before this node was ready to call them.
    pub(super) fn introduce_connected(&self) {
        let connected: Vec<_> = self
            .connections
            .lock()
            .iter()
            .map(|open| (open.introduction(), open.name.clone(), open.connection.remote_address()))
            .collect();
        for (introduction, member, peer) in connected {
            self.introduce(introduction, &member, peer);
        }
    }

    /// Adds a node that has connected to the view, if that is wanted. Nothing yet while there is no view.
    pub(super) fn introduce(&self, (announced, gossips): (AnnouncedAddress, bool), member: &str, peer: SocketAddr) {
        let Some(view) = self.view.get().filter(|_| self.config.calls_back) else { return };
        // Gossip calls it without a place in the view.
        let is_known = || gossips && self.gossip.as_ref().is_some_and(GossipHandle::has_room);
        match announced {
            AnnouncedAddress::Proven(address) if view.introduce(member, address) || is_known() => {}
            AnnouncedAddress::Proven(_) => {
                self.metrics.counters.peers_refused.inc();
                self.refusal_log.log_full_view(peer);
            }
            // Gossip tells its address to all nodes; one that cannot connect there reports it.
            AnnouncedAddress::Unproven(_) if is_known() => {}
            AnnouncedAddress::Unproven(claimed) => {
                self.metrics.counters.peers_refused.inc();
                self.refusal_log.log_unproven_port(peer, &claimed.to_string());
            }
            AnnouncedAddress::None => {}
        }
    }

    /// The addresses of the connected nodes that issue certificates.
    pub(super) fn connected_issuers(&self) -> Vec<SocketAddr> {
        let open = self.connections.lock();
        let issuing = |open: &&OpenConnection| peer_chain(&open.connection).first().is_some_and(is_issuer);
        open.iter().filter(issuing).map(|open| open.connection.remote_address()).collect()
    }
}

/// Closes the connections of removed members, whenever the list of removed members changes.
pub(super) async fn close_removed(server: Weak<ServerState>) {
    let Some(mut changes) = server.upgrade().map(|server| server.identity.watch_removed()) else { return };
    while changes.changed().await.is_ok() {
        let Some(server) = server.upgrade() else { return };
        let removed = Arc::clone(&changes.borrow_and_update());
        for open in server.connections.lock().iter().filter(|open| removed.excludes(&open.member)) {
            server.close(&open.connection, RefusalReason::RemovedMember);
        }
    }
}
