//! Keeps a connection to one peer while it is in the view.
//!
//! A peer that is away is tried again, with pauses of up to half a second. A peer that answers and is unwanted (it is
//! this node itself, it is connected at another address, or a newer process of its name is) is not tried again until
//! that changes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_core::Instant;
use callboard_identity::quoted;
use quinn::Connection;

use super::generations::{ConnectedNodes, NodeInstance, Registration, UnwantedPeer};
use super::index::StageIndex;
use super::member::KnownMember;
use super::peer::Peer;
use crate::client::{ConnectFailure, NodeConnection, OwnHello};
use crate::endpoint::{Transport, is_port_closed, peer_member};
use crate::metrics::PeerMetrics;
use crate::offers::OfferScreening;
use crate::refusal::RefusalReason;
use crate::server::DialBack;
use crate::stream::close_reason;
use crate::view::ClusterView;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A node that is back gets calls within this. A try costs a packet or two where there is no process.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The pause after a peer that refuses this node.
const UNWANTED_PAUSE: Duration = Duration::from_secs(5);

/// The longest time of a handshake on a busy machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A node that is connected to this one is told that it cannot be reached, after this time of tries: a restart is over.
const DIAL_BACK_AFTER: Duration = Duration::from_secs(5);

/// How often an unwanted peer is reported to the view, which may forget it.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The pauses between tries to connect a peer, from the last connection on.
#[derive(Clone, Copy, Debug)]
struct RetryPauses {
    longest: Duration,
}

impl Default for RetryPauses {
    fn default() -> Self {
        Self { longest: FIRST_PAUSE }
    }
}

impl RetryPauses {
    /// The peer refuses this node: one long pause.
    fn unwanted(&mut self) {
        self.longest = UNWANTED_PAUSE;
    }

    /// The next pause. `random` from 0 to 1 is the jitter, so that the peers of a restarted node do not connect
    /// together.
    fn pause(&mut self, random: f64) -> Duration {
        let pause = self.longest.mul_f64(0.5 + random / 2.0);
        self.longest = (self.longest * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// The settings of all connections to peers.
#[derive(Clone, Debug)]
pub(super) struct PeerConnector {
    pub(super) transport: Arc<Transport>,
    pub(super) hello: OwnHello,
    pub(super) screening: OfferScreening,
    pub(super) metrics: PeerMetrics,
    /// Receives reports of peers that cannot be connected.
    pub(super) view: Arc<dyn ClusterView>,
    /// Tells nodes that they cannot be connected.
    pub(super) dial_back: DialBack,
    pub(super) nodes: Arc<ConnectedNodes>,
    pub(super) index: Arc<StageIndex>,
}

impl Peer {
    /// Keeps a connection to the peer while it is polled.
    pub(super) async fn keep_connected(self: Arc<Self>, with: PeerConnector) {
        let address = self.address();
        let set = |connection| with.set_connection(&self, connection);
        let (mut pauses, mut missing_since) = (RetryPauses::default(), Instant::now());
        let (mut counted, mut registration) = (None, None);
        let mut was_logged = false;
        // The member that was here. A port that was never connected says nothing: its address may be made up.
        let mut answered = None;
        loop {
            let introduction = (&with.hello, &with.screening);
            match NodeConnection::open(&with.transport, address, introduction, CONNECT_TIMEOUT).await {
                Ok(node) => match with.register(&self, &node) {
                    Ok((registered, member)) => {
                        (pauses, was_logged) = (RetryPauses::default(), false);
                        tracing::info!(peer = %address, node = %quoted(&node.welcome().node), "connected to a peer");
                        answered = node.gossip_name().map(Arc::<str>::from).or(answered);
                        let connection = node.connection().clone();
                        set(Some((Arc::clone(&node), member)));
                        counted.get_or_insert_with(|| with.metrics.connected());
                        let registered = registration.insert(registered);
                        let reason = tokio::select! {
                            ended = connection.closed() => close_reason(&node.link().cause(ended)),
                            // Its calls finish on the old connection.
                            () = registered.replaced() => "a newer process of its name is connected".to_owned(),
                            // The connection stays in use until the next one is made, and ends with its last call.
                            () = node.retired() => continue,
                        };
                        set(None);
                        (counted, registration, missing_since) = (None, None, Instant::now());
                        tracing::info!(peer = %address, "the connection to a peer ended: {reason}");
                    }
                    Err(unwanted) => {
                        set(None);
                        if counted.take().is_some() {
                            (registration, missing_since) = (None, Instant::now());
                        }
                        if matches!(unwanted, UnwantedPeer::Ourselves) {
                            self.is_ourselves.store(true, Ordering::Release);
                        }
                        self.was_missed.store(true, Ordering::Release);
                        with.reject(&self, &node, &unwanted, std::mem::replace(&mut was_logged, true));
                        drop(node);
                        with.wait_until_wanted(&self, unwanted, missing_since).await;
                    }
                },
                Err(failure) => {
                    tracing::debug!("not connected: {failure}");
                    self.was_missed.store(true, Ordering::Release);
                    if let Some(member) = &answered {
                        with.report_port(member, address).await;
                    }
                    let remedy = match &failure {
                        ConnectFailure::Stale { .. } => {
                            with.metrics.name_conflict();
                            pauses.unwanted();
                            Some(RefusalReason::StaleGeneration.advice())
                        }
                        ConnectFailure::Refused { reason, .. } => Some(&**reason),
                        ConnectFailure::Absent { .. } | ConnectFailure::Closed => None,
                    };
                    if let Some(remedy) = remedy.filter(|_| !was_logged) {
                        was_logged = true;
                        let text = format_args!("a peer cannot be connected, and waiting does not help: {remedy}");
                        tracing::warn!(peer = %address, "{text}");
                    }
                    // The connection that was to be replaced may have ended meanwhile.
                    if counted.is_some() && !self.is_connected() {
                        set(None);
                        (counted, registration, missing_since) = (None, None, Instant::now());
                    }
                    if counted.is_none() {
                        with.view.missing(address, missing_since.elapsed());
                        if missing_since.elapsed() >= DIAL_BACK_AFTER
                            && let Some(reason) = failure.of_address()
                        {
                            with.dial_back.failed(address, reason);
                        }
                    }
                }
            }
            tokio::time::sleep(pauses.pause(fastrand::f64())).await;
        }
    }
}

impl PeerConnector {
    /// Sets the connection of a peer for new calls.
    fn set_connection(&self, peer: &Peer, connection: Option<(Arc<NodeConnection>, Arc<KnownMember>)>) {
        peer.set_connection(connection, Instant::now());
        self.index.invalidate();
    }

    /// Registers the node that has answered under its name.
    fn register(&self, peer: &Peer, node: &NodeConnection) -> Result<(Registration, Arc<KnownMember>), UnwantedPeer> {
        let connection = node.connection();
        let member = peer_member(connection).map(|member| member.name).unwrap_or_default();
        let (name, generation) = (node.welcome().node.clone(), node.welcome().generation);
        let instance = NodeInstance { member, node: name, generation };
        let known_name = instance.known_name().unwrap_or_else(|| peer.address().to_string());
        let registration = self.nodes.register(instance, peer.address(), connection)?;
        Ok((registration, self.index.members().get(&known_name)))
    }

    /// Tells the cluster if no process has the port at which this node was connected to the member.
    async fn report_port(&self, member: &Arc<str>, address: SocketAddr) {
        let Some(gossip) = self.hello.gossip.as_ref().filter(|gossip| gossip.is_up(address)) else { return };
        if is_port_closed(address).await {
            gossip.refused(Arc::clone(member), address);
        }
    }

    /// Reports the reason to both sides. The log has one line until the next connection.
    fn reject(&self, peer: &Peer, node: &NodeConnection, unwanted: &UnwantedPeer, was_logged: bool) {
        let (peer, name) = (peer.address(), quoted(&node.welcome().node));
        if matches!(unwanted, UnwantedPeer::Stale(..) | UnwantedPeer::OurName) {
            self.metrics.name_conflict();
            RefusalReason::StaleGeneration.close(node.connection());
        }
        if was_logged {
            return;
        }
        match unwanted {
            UnwantedPeer::Ourselves => tracing::info!(%peer, "this peer is the node itself: not connected"),
            UnwantedPeer::Duplicate(at, _) => {
                tracing::info!(%peer, node = %name, "this peer is connected at {at} already");
            }
            UnwantedPeer::Stale(at, _) => tracing::warn!(
                %peer, node = %name,
                "this peer is not connected: a node of its name that began later is at {at}; use one identity per node"
            ),
            UnwantedPeer::OurName => {
                tracing::warn!(
                    %peer, node = %name,
                    "this peer is not connected: it has this node's name; use one identity per node"
                );
            }
        }
    }

    /// Waits until the peer may be connected again.
    async fn wait_until_wanted(&self, peer: &Peer, unwanted: UnwantedPeer, missing_since: Instant) {
        match unwanted {
            UnwantedPeer::Ourselves => std::future::pending().await,
            UnwantedPeer::Duplicate(_, other) | UnwantedPeer::Stale(_, other) => {
                self.wait_closed(peer, other, missing_since).await;
            }
            UnwantedPeer::OurName => tokio::time::sleep(UNWANTED_PAUSE).await,
        }
    }

    async fn wait_closed(&self, peer: &Peer, other: Connection, missing_since: Instant) {
        while tokio::time::timeout(REPORT_EVERY, other.closed()).await.is_err() {
            self.view.missing(peer.address(), missing_since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users are promised these times, whatever the constants are.
    #[test]
    fn a_lost_peer_is_tried_again_within_half_a_second_and_then_at_least_as_often() {
        for seed in 0..1_000 {
            let (mut random, mut pauses) = (fastrand::Rng::with_seed(seed), RetryPauses::default());
            for attempt in 0..20 {
                let pause = pauses.pause(random.f64());
                let allowed = Duration::from_millis(50)..=Duration::from_millis(500);
                assert!(allowed.contains(&pause), "seed {seed}, attempt {attempt}: {pause:?}");
            }
        }
    }

    #[test]
    fn the_pauses_of_two_peers_differ() {
        let pauses = |random| {
            let mut pauses = RetryPauses::default();
            [0; 8].map(|_| pauses.pause(random))
        };
        let (early, late) = (pauses(0.0), pauses(1.0));
        assert!(early.iter().zip(&late).all(|(early, late)| *late >= *early * 3 / 2), "{early:?} {late:?}");
    }

    #[test]
    fn a_peer_that_refuses_this_node_is_left_alone_once() {
        let mut pauses = RetryPauses::default();
        pauses.unwanted();
        assert!(pauses.pause(0.5) >= Duration::from_secs(2));
        assert!(pauses.pause(0.5) <= Duration::from_millis(500));
    }
}
