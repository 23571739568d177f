//! What a node counts of the peers that it asks. Shown with what its edge counts.

use callboard_core::{CallError, ErrorKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::client::is_lost;

/// The counters of a cluster. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asking {
    asked: Family<Heard, Counter>,
    again: Counter,
    linked: Gauge,
    namesakes: Counter,
    offers_refused: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Heard {
    heard: &'static str,
}

impl Asking {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("peers_linked", "Other nodes that calls may go to", self.linked.clone());
        registry.register("peers_asked", "Calls to other nodes, by what was heard of them", self.asked.clone());
        let again = self.again.clone();
        let namesakes = self.namesakes.clone();
        registry.register(
            "peers_namesakes",
            "Times that two nodes of one name were met, and one left alone",
            namesakes,
        );
        let refused = self.offers_refused.clone();
        registry.register("offers_refused", "Stages that peers offered and may not offer to this node", refused);
        registry.register("peers_asked_again", "Those that went to a further node after one did not do", again);
    }

    /// A peer was asked, and this came of it. A stream counts when it begins.
    pub(super) fn asked(&self, error: Option<&CallError>) {
        let heard = match error {
            Some(error) if is_lost(error) => "lost",
            Some(error) if error.is_refusal() && error.kind() == ErrorKind::Overloaded => "overloaded",
            Some(error) if error.is_refusal() => "not_started",
            _ => "answered",
        };
        self.asked.get_or_create(&Heard { heard }).inc();
    }

    /// Counts stages that peers may not offer.
    pub(super) fn offers_refused(&self) -> Counter {
        self.offers_refused.clone()
    }

    /// The next one is asked.
    pub(super) fn again(&self) {
        self.again.inc();
    }

    /// There are two nodes under one identity, this one or a peer and another.
    pub(super) fn met_namesake(&self) {
        self.namesakes.inc();
    }

    /// A node can be asked, until this is dropped.
    pub(super) fn linked(&self) -> Linked {
        self.linked.inc();
        Linked(self.linked.clone())
    }
}

/// A node that can be asked.
pub(super) struct Linked(Gauge);

impl Drop for Linked {
    fn drop(&mut self) {
        self.0.dec();
    }
}
