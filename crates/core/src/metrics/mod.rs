//! What the node counts and measures, as Prometheus families in a registry of its own.
//!
//! Every node has its own registry, so two nodes in one process do not mix. Handles are made once per stage and route
//! and kept; labels are route and stage names and small enumerations, never anything that a request brings along.

mod families;
mod handles;
mod histogram;
mod statistics;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::families::NodeMetrics;
pub(crate) use self::handles::{RouteMetrics, StageMetrics};
use self::histogram::PowerHistogram;
pub use self::statistics::{RouteStatistics, StageStatistics};

/// Whether what happens on the path of a call is counted. Off only in a build that finds out what counting costs: see
/// `benches/metrics-cost.sh`. Not a feature, because nobody is meant to turn it on by depending on this crate.
pub(crate) const COUNTING: bool = !cfg!(callboard_no_metrics);

/// Where an entry was when it was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DiscardPlace {
    Queue,
    Worker,
}

/// Why an entry was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Discarded {
    Expired,
    Cancelled,
}

/// Why a stage did not take an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refused {
    /// Its queue was full.
    Full,
    /// It would have missed its deadline.
    Late,
    /// It alone was more than a batch may be.
    Large,
}

/// Why the gateway did not let a call in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TurnedAway {
    /// The node takes nothing new any more.
    Draining,
    /// Too many calls were in flight.
    Calls,
    /// Too many bytes were in flight.
    Bytes,
    /// Too many calls of its route were in flight.
    Route,
}

impl TurnedAway {
    const ALL: [Self; 4] = [Self::Draining, Self::Calls, Self::Bytes, Self::Route];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Calls => "calls",
            Self::Bytes => "bytes",
            Self::Route => "route",
        }
    }
}

/// What a replica does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaState {
    /// It waits for a batch.
    Free,
    /// It has at least one in hand.
    Busy,
    /// It finishes what it has, because its stage was scaled down.
    Leaving,
    /// It is being built, or waits for its next start.
    Missing,
}

impl ReplicaState {
    pub(crate) const ALL: [Self; 4] = [Self::Free, Self::Busy, Self::Leaving, Self::Missing];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Busy => "busy",
            Self::Leaving => "leaving",
            Self::Missing => "missing",
        }
    }
}

/// Durations: 1 µs to 134 s in doubling steps, wide enough for closures and for language models.
type Seconds = PowerHistogram<29>;

/// Batch sizes: 1 to 4,096 entries.
type Sizes = PowerHistogram<14>;

fn seconds() -> Seconds {
    Seconds::new(1e-6)
}

fn sizes() -> Sizes {
    Sizes::new(1.0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Shared by everything on the node that counts.
pub(crate) type SharedMetrics = Arc<NodeMetrics>;

#[cfg(test)]
mod tests {
    use super::families::MAX_PAST;
    use super::*;
    use crate::id::StageName;
    use crate::timeline::ReleaseReason;

    #[test]
    fn every_histogram_ends_in_an_infinite_bucket() {
        let metrics = NodeMetrics::new();
        let stage = metrics.stage(&"stage".into());
        stage.released(ReleaseReason::Idle, 10_000);
        let text = metrics.encode(0, 0);
        let infinite = "callboard_stage_batch_size_bucket{le=\"+Inf\",stage=\"stage\"} 1";
        assert!(text.contains(infinite), "{text}");
        assert!(!text.contains("e308"), "{text}");
    }

    #[test]
    fn a_returning_name_keeps_its_counts_and_the_number_of_names_is_bounded() {
        let metrics = NodeMetrics::new();
        let name = |n: usize| StageName::from(format!("stage-{n}"));
        for n in 0..200 {
            metrics.stage(&name(n)).released(ReleaseReason::Idle, 1);
            metrics.forget_stage(&name(n));
            // Unloaded and loaded again all the time: never the oldest.
            metrics.stage(&"steady".into()).released(ReleaseReason::Idle, 1);
            metrics.forget_stage(&"steady".into());
        }
        let text = metrics.encode(0, 0);
        let has = |stage: &str| text.contains(&format!("callboard_stage_batch_size_count{{stage=\"{stage}\"}} 1\n"));
        assert!(text.contains("callboard_stage_batch_size_count{stage=\"steady\"} 200"), "{text}");
        assert_eq!((0..200).filter(|n| has(&format!("stage-{n}"))).count(), MAX_PAST - 1);
        assert!(has("stage-199") && !text.contains("stage-100"), "the latest stay, with all families");
        assert!(!text.contains("callboard_stage_ready{"), "gauges show the current values");
    }
}
