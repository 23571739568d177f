//! What a node counts of its membership.

use callboard_core::families;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

families! {
    pub(crate) struct MembershipMetrics {
        pub(super) up: Gauge = "members_up", "Other members that are up, the suspected ones included";
        pub(super) deaths: Counter = "members_down", "Members that went down";
        pub(super) suspected: Counter = "suspected", "Messages that said this node is suspected or down";
        pub(super) refused: Counter = "gossip_refused", "Invalid messages of members";
        pub(super) dropped: Counter = "gossip_dropped", "Messages of and to members that were dropped from full queues";
    }
}
