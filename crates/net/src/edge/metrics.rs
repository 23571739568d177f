//! What the edge counts of its own: who was let in, who was refused and why. Calls are counted by the node.

use std::sync::Arc;

use callboard_core::ErrorKind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::fault::StreamRefusal;
use crate::cluster::Asking;
use crate::endpoint::Windows;
use crate::identity::Identity;

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
    pub(super) calls_cancelled: Counter,
    /// Callers that were first asked to prove that they are where they say.
    pub(super) retried: Counter,
    /// Of the peers that the node itself asks.
    pub(super) asking: Asking,
    /// Peers for which the view had no place.
    pub(super) peers_not_taken: Counter,
    pub(super) joined: Counter,
    pub(super) renewed: Counter,
    identity: Identity,
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
    pub(super) fn new(identity: Identity, windows: Arc<Windows>) -> Self {
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
            asking: Asking::default(),
            peers_not_taken: Counter::default(),
            joined: Counter::default(),
            renewed: Counter::default(),
            identity,
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
        let cancelled = metrics.calls_cancelled.clone();
        registry.register("calls_cancelled", "Calls that were given up one by one, on streams that went on", cancelled);
        let retried = metrics.retried.clone();
        registry.register("connections_retried", "Callers that were first asked to prove their address", retried);
        metrics.asking.register(registry);
        let not_taken = metrics.peers_not_taken.clone();
        registry.register("peers_not_taken", "Nodes that came by and are not called", not_taken);
        registry.register("members_joined", "Certificates given for tokens", metrics.joined.clone());
        registry.register("members_renewed", "Certificates given in the place of others", metrics.renewed.clone());
        registry.register_collector(Box::new(OwnCertificate(metrics.identity.clone())));
        registry.register_collector(Box::new(Unsent(windows)));
        metrics
    }

    /// Counts a connection that was not let in.
    pub(super) fn refuse(&self, reason: &'static str) {
        debug_assert!(crate::refusal::is_told(reason), "nobody is told of {reason}");
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a stream that was not understood.
    pub(super) fn refuse_stream(&self, refusal: &StreamRefusal) {
        self.streams_refused.get_or_create(&Reason { reason: refusal.as_str() }).inc();
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

/// What is read off the windows when somebody looks.
#[derive(Debug)]
struct Unsent(Arc<Windows>);

impl Collector for Unsent {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let given = ConstGauge::new(i64::try_from(self.0.given_bytes()).unwrap_or(i64::MAX));
        let help = "What callers may send for bodies that are on their way, beyond the usual window of each connection";
        given.encode(encoder.encode_descriptor("windows", help, Some(&Unit::Bytes), given.metric_type())?)
    }
}

/// What is read off the identity when somebody looks.
#[derive(Debug)]
struct OwnCertificate(Identity);

impl Collector for OwnCertificate {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (renewed, failed) = self.0.renewals();
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        counter("certificate_renewals", "Times that the node's own certificate was renewed", renewed)?;
        counter("certificate_renewals_failed", "Times that this failed", failed)?;
        let left = ConstGauge::new(self.0.time_left().as_secs_f64());
        let help = "How long the node's own certificate still holds";
        let unit = Unit::Seconds;
        left.encode(encoder.encode_descriptor("certificate_left", help, Some(&unit), left.metric_type())?)
    }
}
