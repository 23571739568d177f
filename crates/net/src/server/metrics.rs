//! The metrics of the server: connections, streams and refusals. The node counts calls.

use std::sync::Arc;

use callboard_core::ErrorKind;
use callboard_identity::Identity;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::fault::StreamRefusal;
use crate::endpoint::NodeWindows;
use crate::metrics::PeerMetrics;
use crate::refusal::RefusalReason;

/// The counters of one server.
#[derive(Debug)]
pub(super) struct ServerMetrics {
    registry: Registry,
    pub(super) open: Gauge,
    pub(super) accepted: Counter,
    refused: Family<ReasonLabel, Counter>,
    streams_refused: Family<ReasonLabel, Counter>,
    calls_refused: Family<KindLabel, Counter>,
    pub(super) streams: Counter,
    pub(super) cancelled: Counter,
    pub(super) calls_cancelled: Counter,
    /// Callers that first had to prove their address.
    pub(super) retried: Counter,
    /// Calls to peers.
    pub(super) peers: PeerMetrics,
    /// Nodes that connected and are not called.
    pub(super) peers_refused: Counter,
    pub(super) joined: Counter,
    pub(super) renewed: Counter,
    identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl ServerMetrics {
    pub(super) fn new(identity: Identity, windows: Arc<NodeWindows>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("callboard_net"),
            open: Gauge::default(),
            accepted: Counter::default(),
            refused: Family::default(),
            streams_refused: Family::default(),
            calls_refused: Family::default(),
            streams: Counter::default(),
            cancelled: Counter::default(),
            calls_cancelled: Counter::default(),
            retried: Counter::default(),
            peers: PeerMetrics::default(),
            peers_refused: Counter::default(),
            joined: Counter::default(),
            renewed: Counter::default(),
            identity,
        };
        let registry = &mut metrics.registry;
        registry.register("connections_open", "Connections being served", metrics.open.clone());
        registry.register("connections_accepted", "Connections whose hello was answered", metrics.accepted.clone());
        registry.register("connections_refused", "Refused connections, by reason", metrics.refused.clone());
        registry.register("streams", "Streams with calls", metrics.streams.clone());
        let refused = metrics.streams_refused.clone();
        registry.register("streams_refused", "Streams reset by the node, by reason", refused);
        let refused = metrics.calls_refused.clone();
        registry.register("calls_refused", "Calls refused before they ran, by kind", refused);
        registry.register("streams_cancelled", "Streams reset by their callers", metrics.cancelled.clone());
        let cancelled = metrics.calls_cancelled.clone();
        registry.register("calls_cancelled", "Calls cancelled one by one, on streams that went on", cancelled);
        let retried = metrics.retried.clone();
        registry.register("connections_retried", "Callers that first had to prove their address", retried);
        metrics.peers.register(registry);
        let refused = metrics.peers_refused.clone();
        registry.register("peers_refused", "Nodes that connected but were not added as peers", refused);
        registry.register("members_joined", "Certificates issued for tokens", metrics.joined.clone());
        registry.register("members_renewed", "Certificates renewed", metrics.renewed.clone());
        registry.register_collector(Box::new(OwnCertificate(metrics.identity.clone())));
        registry.register_collector(Box::new(WindowGauge(windows)));
        metrics
    }

    /// Counts a refused connection.
    pub(super) fn refuse(&self, reason: RefusalReason) {
        self.refused.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// Counts a refused stream.
    pub(super) fn refuse_stream(&self, refusal: &StreamRefusal) {
        self.streams_refused.get_or_create(&ReasonLabel { reason: refusal.as_str() }).inc();
    }

    /// Counts a refused call.
    pub(super) fn refuse_call(&self, kind: ErrorKind) {
        self.calls_refused.get_or_create(&KindLabel { kind: kind.as_str() }).inc();
    }

    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        text
    }
}

/// Reads the windows when the metrics are collected.
#[derive(Debug)]
struct WindowGauge(Arc<NodeWindows>);

impl Collector for WindowGauge {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let given = ConstGauge::new(i64::try_from(self.0.granted_bytes()).unwrap_or(i64::MAX));
        let help = "Bytes that callers may send for bodies, beyond the usual window of each connection";
        given.encode(encoder.encode_descriptor("windows", help, Some(&Unit::Bytes), given.metric_type())?)
    }
}

/// Reads the identity when the metrics are collected.
#[derive(Debug)]
struct OwnCertificate(Identity);

impl Collector for OwnCertificate {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (renewed, failed) = self.0.renewal_counts();
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        counter("certificate_renewals", "Renewals of the node's own certificate", renewed)?;
        counter("certificate_renewals_failed", "Failed renewals of the node's own certificate", failed)?;
        let left = ConstGauge::new(self.0.time_left().as_secs_f64());
        let help = "Time until the node's own certificate expires";
        let unit = Unit::Seconds;
        left.encode(encoder.encode_descriptor("certificate_left", help, Some(&unit), left.metric_type())?)
    }
}
