//! The counts and measurements of a node, as Prometheus families in its own registry.
//!
//! Every node has its own registry, so two nodes in one process do not mix. Handles are made once per stage and route
//! and kept; labels are route and stage names and small enumerations, never data of a request. What user code of other
//! processes counts is bounded in `reported/`.

mod extra;
mod families;
mod handles;
mod histogram;
mod load;
mod reported;
mod statistics;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::words;

pub(crate) use self::extra::ExtraFamilies;
pub(crate) use self::families::NodeMetrics;
pub(crate) use self::handles::{KeyedMetrics, RolloutMetrics, RouteMetrics, StageMetrics};
use self::histogram::PowerHistogram;
pub use self::load::NodeLoad;
pub(crate) use self::reported::ReportedFamilies;
pub use self::reported::{ReportedSample, ReportedValue, SampleReporter};
pub use self::statistics::{RouteStatistics, StageStatistics};
pub use self::usage::ProcessUsage;
pub(crate) use self::usage::UsagePort;

/// Whether the path of a call is counted. Off only in a build that measures the cost of counting: see
/// `benches/metrics-cost.sh`. Not a feature: a dependent crate must not turn it off.
pub(crate) const COUNTING: bool = !cfg!(callboard_no_metrics);

words! {
    /// The use of the response caches of a call's stages. Of several uses, the last in this order counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CacheUse {
        /// The answer was kept.
        Hit => "hit",
        /// The answer is that of an equal call that ran at the same time.
        Collapsed => "collapsed",
        /// The stage ran.
        Miss => "miss",
    }
}

words! {
    /// The part of a revision in a rollout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum TrialRole {
        Current => "current",
        Candidate => "candidate",
    }
}

words! {
    /// The end of a rollout.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum Verdict {
        Promote => "promoted",
        RollBack => "rolled_back",
    }
}

words! {
    /// Why a rollout ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum DecisionCause {
        /// The candidate is within all limits.
        Sound => "sound",
        ErrorRate => "error_rate",
        Latency => "latency",
        Agreement => "agreement",
        TimeLimit => "time_limit",
        /// An order by a handle of the node.
        Order => "order",
        /// The candidate's own actors died, or the route changed meanwhile.
        Lost => "lost",
    }
}

words! {
    /// The place of an entry when it was discarded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum DiscardPlace {
        Queue => "queue",
        Worker => "worker",
    }
}

words! {
    /// Why an entry was discarded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum DiscardReason {
        Expired => "expired",
        Cancelled => "cancelled",
    }
}

words! {
    /// Why a stage refused an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum EntryRefusal {
        /// Its queue was full.
        Full => "full",
        /// It would have missed its deadline.
        Late => "late",
        /// It alone was larger than a batch may be.
        Large => "large",
    }
}

words! {
    /// Why the gateway refused a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum CallRefusal {
        /// The node drains.
        Draining => "draining",
        /// Too many calls were in flight.
        Calls => "calls",
        /// Too many bytes were in flight.
        Bytes => "bytes",
        /// Too many calls of its route were in flight.
        Route => "route",
    }
}

words! {
    /// How a load of a stage, or of a keyed actor, ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum LoadResult {
        /// Its first replica is up, or its instance.
        Ok => "ok",
        /// It could not start.
        Failed => "failed",
    }
}

words! {
    /// How a save of a keyed actor ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum SaveResult {
        Ok => "ok",
        /// The store failed or was too slow, or the state cannot be saved.
        Failed => "failed",
        /// A later instance has claimed the key.
        Conflict => "conflict",
    }
}

words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum ReplicaState {
        /// It waits for a batch.
        Free => "free",
        /// It runs at least one batch.
        Busy => "busy",
        /// It finishes its batches, because its stage was scaled down.
        Leaving => "leaving",
        /// It is being built, or waits for its next start.
        Missing => "missing",
    }
}

/// Durations: 1 µs to 134 s in doubling steps, wide enough for closures and for language models.
type Seconds = PowerHistogram<29>;

/// Batch sizes: 1 to 4,096 entries.
type Sizes = PowerHistogram<14>;

impl Default for Seconds {
    fn default() -> Self {
        Self::new(1e-6)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self::new(1.0)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Shared by all parts of the node.
pub(crate) type SharedMetrics = Arc<NodeMetrics>;

#[cfg(test)]
mod tests {
    use super::families::MAX_ENDED;
    use super::*;
    use crate::id::StageName;
    use crate::timeline::ReleaseReason;

    #[test]
    fn every_histogram_ends_in_an_infinite_bucket() {
        let metrics = NodeMetrics::new();
        let stage = metrics.stage(&"stage".into());
        stage.released(ReleaseReason::Idle, 10_000);
        let text = metrics.encode((0, 0), NodeLoad::default(), 0.0, &[]);
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
        let text = metrics.encode((0, 0), NodeLoad::default(), 0.0, &[]);
        let has = |stage: &str| text.contains(&format!("callboard_stage_batch_size_count{{stage=\"{stage}\"}} 1\n"));
        assert!(text.contains("callboard_stage_batch_size_count{stage=\"steady\"} 200"), "{text}");
        assert_eq!((0..200).filter(|n| has(&format!("stage-{n}"))).count(), MAX_ENDED - 1);
        assert!(has("stage-199") && !text.contains("stage-100"), "the latest stay, with all families");
        assert!(!text.contains("callboard_stage_ready{"), "gauges show the current values");
    }
}
