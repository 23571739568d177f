//! What the edge counts of its own: who was let in, who was refused and why. Calls are counted by the node.

use callboard_core::ErrorKind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of one edge.
#[derive(Debug)]
pub(super) struct EdgeMetrics {
    registry: Registry,
    pub(super) open: Gauge,
    pub(super) accepted: Counter,
    refused: Family<Reason, Counter>,
    streams_refused: Family<Reason, Counter>,
    calls_refused: Family<Kind, Counter>,
    pub(super) streams: Counter,
    pub(super) cancelled: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

impl EdgeMetrics {
    pub(super) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("callboard_net"),
            open: Gauge::default(),
            accepted: Counter::default(),
            refused: Family::default(),
            streams_refused: Family::default(),
            calls_refused: Family::default(),
            streams: Counter::default(),
            cancelled: Counter::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("connections_open", "Connections being served", metrics.open.clone());
        registry.register("connections_accepted", "Connections whose hello was answered", metrics.accepted.clone());
        registry.register("connections_refused", "Connections that were refused, by reason", metrics.refused.clone());
        registry.register("streams", "Streams with calls", metrics.streams.clone());
        let refused = metrics.streams_refused.clone();
        registry.register("streams_refused", "Streams given up by the node, by reason", refused);
        let refused = metrics.calls_refused.clone();
        registry.register("calls_refused", "Calls that were refused before they were run, by kind", refused);
        registry.register(
            "streams_cancelled",
            "Streams that were given up by their callers",
            metrics.cancelled.clone(),
        );
        metrics
    }

    /// Counts a connection that was not let in.
    pub(super) fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a stream that was not understood.
    pub(super) fn refuse_stream(&self, reason: &'static str) {
        self.streams_refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a call that was answered and not run.
    pub(super) fn refuse_call(&self, kind: ErrorKind) {
        self.calls_refused.get_or_create(&Kind { kind: kind.as_str() }).inc();
    }

    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        // Writing into a text does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        text
    }
}
