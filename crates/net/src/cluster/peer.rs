//! One peer, and its statistics. `reconnect.rs` keeps the connection to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use callboard_core::Instant;
use callboard_core::remote::PeerDescription;
use parking_lot::Mutex;

use super::load_balance::PeerLoad;
use super::peer_stats::PeerStats;
use crate::client::NodeConnection;

/// How long calls wait for a peer after its connection was lost: enough for its process to be started again.
const RETURN_WAIT: Duration = Duration::from_secs(3);

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    key: u64,
    connection: ArcSwapOption<NodeConnection>,
    /// The begin of the uninterrupted connection.
    connected_since: Mutex<Option<Instant>>,
    /// When the last connection was lost, and the stages that the peer offered on it.
    lost: Mutex<Option<(Instant, Vec<String>)>>,
    /// Whether it is this node, at an address that the node does not know as its own.
    pub(super) is_ourselves: AtomicBool,
    /// The statistics of each stage that this node calls.
    stages: Mutex<HashMap<String, PeerStats>>,
}

/// A peer that may be called for a stage.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) peer: Arc<Peer>,
    pub(super) connection: Arc<NodeConnection>,
    pub(super) load: PeerLoad,
    /// Whether the stage may run again, according to the peer.
    pub(super) is_idempotent: bool,
    pub(super) revision: u64,
    /// The end of the open breaker, if calls failed recently.
    pub(super) open_until: Option<Instant>,
}

impl Candidate {
    /// The peer's name, or its address.
    pub(super) fn name(&self) -> String {
        match self.connection.welcome().node.as_str() {
            "" => self.peer.address().to_string(),
            name => name.to_owned(),
        }
    }

    /// Whether it does not answer the calls that it has.
    pub(super) fn is_silent(&self) -> bool {
        self.connection.link().is_silent()
    }
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        let key = (u64::from(address.port()) << 32) ^ address_bits(address);
        Self {
            address,
            key,
            connection: ArcSwapOption::empty(),
            connected_since: Mutex::default(),
            lost: Mutex::default(),
            is_ourselves: AtomicBool::new(false),
            stages: Mutex::default(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The peer as a candidate for a stage, if it offers the stage, in the given form of answer.
    pub(super) fn candidate(
        self: &Arc<Self>,
        stage: &str,
        is_streaming: Option<bool>,
        now: Instant,
    ) -> Option<Candidate> {
        let connection = self.connection.load_full().filter(|connection| connection.is_usable())?;
        let offer = connection.stage_offer(stage)?;
        if is_streaming.is_some_and(|is_streaming| offer.is_streaming != is_streaming) {
            return None;
        }
        let stages = self.stages.lock();
        let unknown = PeerStats::default();
        let stats = stages.get(stage).unwrap_or(&unknown);
        let (in_flight, latency_micros) = (stats.in_flight(now), stats.latency_micros(now));
        let load = PeerLoad { in_flight, latency_micros, key: self.key };
        let open_until = stats.breaker.open_until(now);
        drop(stages);
        let (is_idempotent, revision) = (offer.is_idempotent, offer.revision);
        Some(Candidate { peer: Arc::clone(self), connection, load, is_idempotent, revision, open_until })
    }

    /// Whether it is connected and offers the stage.
    pub(super) fn offers(&self, stage: &str) -> bool {
        let connection = self.connection.load();
        connection.as_ref().is_some_and(|node| node.is_usable() && node.stage_offer(stage).is_some())
    }

    /// Whether it offered the stage until a moment ago, and so may be back soon.
    pub(super) fn may_return(&self, stage: &str, now: Instant) -> bool {
        let connection = self.connection.load();
        if let Some(node) = connection.as_ref() {
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
        self.connection.load().as_ref().map_or((0, 0), |connection| connection.in_flight())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.load().as_ref().is_some_and(|connection| connection.is_usable())
    }

    /// Sets the connection for new calls.
    pub(super) fn set_connection(&self, connection: Option<Arc<NodeConnection>>, now: Instant) {
        let mut since = self.connected_since.lock();
        *since = connection.as_ref().map(|_| since.unwrap_or(now));
        let is_lost = connection.is_none();
        let previous = self.connection.swap(connection);
        if let Some(previous) = previous.filter(|_| is_lost) {
            *self.lost.lock() = Some((now, previous.offered_stages()));
        }
    }

    /// Its description. `None` for this node itself.
    pub(super) fn describe(&self, now: Instant) -> Option<PeerDescription> {
        if self.is_ourselves.load(Ordering::Acquire) {
            return None;
        }
        let disconnected = PeerDescription::disconnected(self.address.to_string());
        let usable = self.connection.load_full().filter(|connection| connection.is_usable());
        let (Some(node), Some(since)) = (usable, *self.connected_since.lock()) else { return Some(disconnected) };
        let connected_for = now.saturating_duration_since(since);
        Some(disconnected.connected(node.welcome().node.clone(), connected_for, node.offered_stages()))
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, stage: &str, now: Instant) -> InFlight {
        self.record(stage, |stats| stats.began(now));
        InFlight { peer: Arc::clone(self), stage: stage.to_owned(), is_streaming: false }
    }

    /// Updates the statistics of a stage.
    pub(super) fn record(&self, stage: &str, record: impl FnOnce(&mut PeerStats)) {
        let mut stages = self.stages.lock();
        match stages.get_mut(stage) {
            Some(stats) => record(stats),
            // Bounded by the stages that this node calls.
            None => record(stages.entry(stage.to_owned()).or_default()),
        }
    }
}

/// A call that a peer is working on.
#[derive(Debug)]
pub(super) struct InFlight {
    peer: Arc<Peer>,
    stage: String,
    /// Whether its stream of outputs began.
    is_streaming: bool,
}

impl InFlight {
    /// Marks it as a stream whose first output has arrived.
    pub(super) fn stream_began(&mut self) {
        self.is_streaming = true;
        self.peer.record(&self.stage, |stats| stats.stream_began(Instant::now()));
    }

    /// Marks progress of the stream.
    pub(super) fn progressed(&self) {
        self.peer.record(&self.stage, |stats| stats.progressed(Instant::now()));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.peer.record(&self.stage, |stats| stats.ended(self.is_streaming));
    }
}

fn address_bits(address: SocketAddr) -> u64 {
    match address.ip() {
        std::net::IpAddr::V4(ip) => u64::from(u32::from(ip)),
        std::net::IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            (bits >> 64) as u64 ^ bits as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failing_stage_opens_its_own_breaker_only() {
        let (peer, now) = (Arc::new(Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)))), Instant::now());
        for _ in 0..10 {
            let in_flight = [peer.begin("bad", now), peer.begin("good", now)];
            peer.record("bad", |stats| stats.lost(now));
            peer.record("good", |stats| stats.answered(now, Duration::from_millis(1), None));
            drop(in_flight);
        }
        peer.record("bad", |stats| assert!(stats.breaker.open_until(now).is_some()));
        peer.record("good", |stats| assert!(stats.breaker.open_until(now).is_none()));
    }
}
