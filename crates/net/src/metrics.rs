//! A node's metrics about the peers that it calls. The cluster counts, and the server shows them with its own metrics.

use callboard_core::families;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

families! {
    /// The counters of a cluster. Clones share them.
    pub(crate) struct PeerMetrics {
        connected: Gauge = "peers_connected", "Connected peers that may be called";
        calls: Family<PeerCallLabels, Counter> = "peer_calls", "Calls to peers, by outcome";
        name_conflicts: Counter = "peer_name_conflicts", "Duplicate node names: connections refused";
        offers_refused: Counter = "offers_refused", "Stages that peers offered without permission";
        retries: Counter = "peer_retries", "Calls retried on another peer";
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerCallLabels {
    outcome: &'static str,
}

/// The outcome of a call to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerOutcome {
    Answered,
    Overloaded,
    NotStarted,
    Lost,
}

impl PeerMetrics {
    /// Counts a call to a peer. A streaming call counts when its stream begins.
    pub(crate) fn called(&self, outcome: PeerOutcome) {
        let outcome = match outcome {
            PeerOutcome::Answered => "answered",
            PeerOutcome::Overloaded => "overloaded",
            PeerOutcome::NotStarted => "not_started",
            PeerOutcome::Lost => "lost",
        };
        self.calls.get_or_create(&PeerCallLabels { outcome }).inc();
    }

    /// Counts stages that peers may not offer.
    pub(crate) fn offers_refused(&self) -> Counter {
        self.offers_refused.clone()
    }

    /// Counts a call that goes to another peer.
    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    /// Counts a second node under the name of this node or of a peer.
    pub(crate) fn name_conflict(&self) {
        self.name_conflicts.inc();
    }

    /// Counts a connected peer until the guard is dropped.
    pub(crate) fn connected(&self) -> ConnectedPeerGuard {
        self.connected.inc();
        ConnectedPeerGuard(self.connected.clone())
    }
}

/// Counts a connected peer.
pub(crate) struct ConnectedPeerGuard(Gauge);

impl Drop for ConnectedPeerGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
