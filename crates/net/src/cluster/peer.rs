//! The address of another node, and the connection to the member there. `reconnect.rs` keeps it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use callboard_core::Instant;
use callboard_core::remote::PeerDescription;
use parking_lot::Mutex;

use super::join::PeerStanding;
use super::member::KnownMember;
use crate::client::NodeConnection;

/// How long calls wait for a peer after its connection was lost: enough for its process to be started again.
const RETURN_WAIT: Duration = Duration::from_secs(3);

/// The features that a description has, and the longest name of one. Threat: a peer with thousands of them.
const MAX_FEATURES: usize = 32;
const MAX_FEATURE_BYTES: usize = 32;

/// An address of the view.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    connection: ArcSwapOption<MemberConnection>,
    /// The start of the uninterrupted connection.
    connected_since: Mutex<Option<Instant>>,
    /// When the last connection was lost, and the stages that the peer offered on it.
    lost: Mutex<Option<(Instant, Vec<String>)>>,
    /// Whether it is this node, at an address that the node does not know as its own.
    pub(super) is_ourselves: AtomicBool,
    /// Whether a try to connect it has ended without a connection.
    pub(super) was_missed: AtomicBool,
}

/// A connection, and the member that has answered.
#[derive(Debug)]
struct MemberConnection {
    node: Arc<NodeConnection>,
    member: Arc<KnownMember>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: ArcSwapOption::empty(),
            connected_since: Mutex::default(),
            lost: Mutex::default(),
            is_ourselves: AtomicBool::new(false),
            was_missed: AtomicBool::new(false),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connection and its member, if there is one. It may take no calls now.
    pub(super) fn connected(&self) -> Option<(Arc<NodeConnection>, Arc<KnownMember>)> {
        let connection = self.connection.load();
        connection.as_ref().map(|connection| (Arc::clone(&connection.node), Arc::clone(&connection.member)))
    }

    /// Whether it offered the stage until a moment ago, and so may be back soon.
    pub(super) fn may_return(&self, stage: &str, now: Instant) -> bool {
        let connection = self.connection.load();
        if let Some(MemberConnection { node, .. }) = connection.as_deref() {
            return node.is_closed() && node.stage_offer(stage).is_some();
        }
        let lost = self.lost.lock();
        lost.as_ref().is_some_and(|(at, stages)| {
            now.saturating_duration_since(*at) < RETURN_WAIT && stages.iter().any(|offered| offered == stage)
        })
    }

    /// The number of calls that wait to be sent, and of open streams.
    #[cfg(feature = "testing")]
    pub(super) fn in_flight(&self) -> (usize, usize) {
        self.connection.load().as_ref().map_or((0, 0), |connection| connection.node.in_flight())
    }

    /// What is known of it while this node joins.
    pub(super) fn standing(&self) -> PeerStanding {
        match self.connection.load().as_deref() {
            Some(MemberConnection { node, .. }) if !node.is_closed() => {
                PeerStanding::Connected { gossips: node.gossip_name().is_some() }
            }
            _ if self.is_ourselves.load(Ordering::Acquire) => PeerStanding::Ourselves,
            _ if self.was_missed.load(Ordering::Acquire) => PeerStanding::Missed,
            _ => PeerStanding::Connecting,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.load().as_ref().is_some_and(|connection| connection.node.is_usable())
    }

    /// Sets the connection for new calls.
    pub(super) fn set_connection(&self, connection: Option<(Arc<NodeConnection>, Arc<KnownMember>)>, now: Instant) {
        let connection = connection.map(|(node, member)| Arc::new(MemberConnection { node, member }));
        let mut since = self.connected_since.lock();
        *since = connection.as_ref().map(|_| since.unwrap_or(now));
        let is_lost = connection.is_none();
        let previous = self.connection.swap(connection);
        if let Some(previous) = previous.filter(|_| is_lost) {
            *self.lost.lock() = Some((now, previous.node.offered_stages()));
        }
    }

    /// Its description. `None` for this node itself.
    pub(super) fn describe(&self, now: Instant) -> Option<PeerDescription> {
        if self.is_ourselves.load(Ordering::Acquire) {
            return None;
        }
        let disconnected = PeerDescription::disconnected(self.address.to_string());
        let usable = self.connected().map(|(node, _)| node).filter(|node| node.is_usable());
        let (Some(node), Some(since)) = (usable, *self.connected_since.lock()) else { return Some(disconnected) };
        let connected_for = now.saturating_duration_since(since);
        let connected = disconnected.connected(node.welcome().node.clone(), connected_for, node.offered_stages());
        let features = node.welcome().features.iter().filter(|feature| feature.len() <= MAX_FEATURE_BYTES);
        Some(connected.silent(node.link().is_silent()).features(features.take(MAX_FEATURES)))
    }
}
