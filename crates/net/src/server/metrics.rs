//! The metrics of the server: connections, streams and refusals. The node counts calls.

use std::sync::Arc;

use callboard_core::{ErrorKind, families};
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
use crate::membership::MembershipMetrics;
use crate::metrics::PeerMetrics;
use crate::refusal::RefusalReason;

families! {
    pub(super) struct ServerCounters {
        pub(super) open: Gauge = "connections_open", "Connections being served";
        pub(super) accepted: Counter = "connections_accepted", "Connections whose hello was answered";
        refused: Family<ReasonLabel, Counter> = "connections_refused", "Refused connections, by reason";
        pub(super) streams: Counter = "streams", "Streams with calls";
        streams_refused: Family<ReasonLabel, Counter> = "streams_refused", "Streams reset by the node, by reason";
        calls_refused: Family<KindLabel, Counter> = "calls_refused", "Calls refused before they ran, by kind";
        pub(super) cancelled: Counter = "streams_cancelled", "Streams reset by their callers";
        pub(super) calls_cancelled: Counter =
            "calls_cancelled", "Calls cancelled one by one, on streams that went on";
        pub(super) retried: Counter = "connections_retried", "Callers that first had to prove their address";
        pub(super) peers_refused: Counter = "peers_refused", "Nodes that connected but were not added as peers";
        pub(super) joined: Counter = "members_joined", "Certificates issued for tokens";
        pub(super) renewed: Counter = "members_renewed", "Certificates renewed";
    }
}

#[derive(Debug)]
pub(super) struct ServerMetrics {
    registry: Registry,
    pub(super) counters: ServerCounters,
    /// Calls to peers.
    pub(super) peers: PeerMetrics,
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
    pub(super) fn new(identity: Identity, windows: Arc<NodeWindows>, membership: &MembershipMetrics) -> Self {
        let (counters, peers) = (ServerCounters::default(), PeerMetrics::default());
        let mut registry = Registry::with_prefix("callboard_net");
        counters.register(&mut registry);
        peers.register(&mut registry);
        membership.register(&mut registry);
        registry.register_collector(Box::new(OwnCertificate(identity)));
        registry.register_collector(Box::new(WindowGauge(windows)));
        Self { registry, counters, peers }
    }

    /// Counts a refused connection.
    pub(super) fn refuse(&self, reason: RefusalReason) {
        self.counters.refused.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// Counts a refused stream.
    pub(super) fn refuse_stream(&self, refusal: &StreamRefusal) {
        self.counters.streams_refused.get_or_create(&ReasonLabel { reason: refusal.as_str() }).inc();
    }

    /// Counts a refused call.
    pub(super) fn refuse_call(&self, kind: ErrorKind) {
        self.counters.calls_refused.get_or_create(&KindLabel { kind: kind.as_str() }).inc();
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
        left.encode(encoder.encode_descriptor("certificate_left", help, Some(&unit), left.metric_type())?)?;
        let Some(issuer) = self.0.issuer() else { return Ok(()) };
        let left = ConstGauge::new(issuer.validity.left(self.0.clock().now()).as_secs_f64());
        let help = "Time until this issuer's certificate expires";
        left.encode(encoder.encode_descriptor("issuer_left", help, Some(&unit), left.metric_type())?)
    }
}
