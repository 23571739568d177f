//! Keeps a connection to one peer while it is in the view.
//!
//! A peer that is away is tried again, with pauses of up to half a second. A peer that answers and is unwanted (it is
//! this node itself, it is connected at another address, or a newer process of its name is) is not tried again until
//! that changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_core::Instant;
use callboard_identity::quoted;
use quinn::Connection;

use super::generations::{ConnectedNodes, NodeInstance, Registration, UnwantedPeer};
use super::peer::Peer;
use crate::client::{ConnectFailure, NodeConnection, OwnHello};
use crate::endpoint::{Transport, peer_member};
use crate::metrics::PeerMetrics;
use crate::offers::OfferScreening;
use crate::refusal::RefusalReason;
use crate::stream::close_reason;
use crate::view::ClusterView;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A node that is back gets calls within this. A try costs a packet or two where there is no process.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The pause after a peer that refuses this node.
const UNWANTED_PAUSE: Duration = Duration::from_secs(5);

/// The longest time of a handshake on a busy machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How often an unwanted peer is reported to the view, which may forget it.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The settings of all connections to peers.
#[derive(Clone, Debug)]
pub(super) struct PeerConnector {
    pub(super) transport: Arc<Transport>,
    pub(super) hello: OwnHello,
    pub(super) screening: OfferScreening,
    pub(super) metrics: PeerMetrics,
    /// Receives reports of peers that cannot be connected.
    pub(super) view: Arc<dyn ClusterView>,
    pub(super) nodes: Arc<ConnectedNodes>,
}

impl Peer {
    /// Keeps a connection to the peer while it is polled.
    pub(super) async fn keep_connected(self: Arc<Self>, with: PeerConnector) {
        let address = self.address();
        let (mut pause, mut missing_since) = (FIRST_PAUSE, Instant::now());
        let (mut counted, mut registration) = (None, None);
        let mut was_logged = false;
        loop {
            let introduction = (&with.hello, &with.screening);
            match NodeConnection::open(&with.transport, address, introduction, CONNECT_TIMEOUT).await {
                Ok(node) => match with.register(&self, &node) {
                    Ok(registered) => {
                        (pause, was_logged) = (FIRST_PAUSE, false);
                        tracing::info!(peer = %address, node = %quoted(&node.welcome().node), "connected to a peer");
                        let connection = node.connection().clone();
                        self.set_connection(Some(Arc::clone(&node)), Instant::now());
                        counted.get_or_insert_with(|| with.metrics.connected());
                        let registered = registration.insert(registered);
                        let reason = tokio::select! {
                            ended = connection.closed() => close_reason(&ended),
                            // Its calls finish on the old connection.
                            () = registered.replaced() => "a newer process of its name is connected".to_owned(),
                            // The connection stays in use until the next one is made, and ends with its last call.
                            () = node.retired() => continue,
                        };
                        self.set_connection(None, Instant::now());
                        (counted, registration, missing_since) = (None, None, Instant::now());
                        tracing::info!(peer = %address, "the connection to a peer ended: {reason}");
                    }
                    Err(unwanted) => {
                        self.set_connection(None, Instant::now());
                        if counted.take().is_some() {
                            (registration, missing_since) = (None, Instant::now());
                        }
                        if matches!(unwanted, UnwantedPeer::Ourselves) {
                            self.is_ourselves.store(true, Ordering::Release);
                        }
                        with.reject(&self, &node, &unwanted, std::mem::replace(&mut was_logged, true));
                        drop(node);
                        with.wait_until_wanted(&self, unwanted, missing_since).await;
                    }
                },
                Err(failure) => {
                    tracing::debug!("not connected: {failure}");
                    if let ConnectFailure::Stale { .. } = failure {
                        with.metrics.name_conflict();
                        pause = UNWANTED_PAUSE;
                        if !std::mem::replace(&mut was_logged, true) {
                            let advice = RefusalReason::StaleGeneration.advice();
                            tracing::warn!(peer = %address, "a peer refuses this node: {advice}");
                        }
                    }
                    // The connection that was to be replaced may have ended meanwhile.
                    if counted.is_some() && !self.is_connected() {
                        self.set_connection(None, Instant::now());
                        (counted, registration, missing_since) = (None, None, Instant::now());
                    }
                    if counted.is_none() {
                        with.view.missing(address, missing_since.elapsed());
                    }
                }
            }
            // Jitter, so that the peers of a restarted node do not connect together.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl PeerConnector {
    /// Registers the node that has answered under its name.
    fn register(&self, peer: &Peer, node: &NodeConnection) -> Result<Registration, UnwantedPeer> {
        let connection = node.connection();
        let member = peer_member(connection).map(|member| member.name).unwrap_or_default();
        let (name, generation) = (node.welcome().node.clone(), node.welcome().generation);
        self.nodes.register(NodeInstance { member, node: name, generation }, peer.address(), connection)
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
