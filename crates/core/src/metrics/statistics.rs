//! The counts of one route as numbers, for protocols with statistics of their own.

use std::time::Duration;

use crate::id::StageName;

/// The counts of a route since the start, over all its revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStatistics {
    /// Calls that succeeded.
    pub succeeded: u64,
    /// Their time from admission to outcome, in sum.
    pub succeeded_time: Duration,
    /// Calls that were admitted and did not succeed.
    pub failed: u64,
    /// Their time from admission to outcome, in sum.
    pub failed_time: Duration,
    /// Its stages, in order. A stage that several routes share has one count.
    pub stages: Vec<StageStatistics>,
}

/// The counts of a stage since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageStatistics {
    /// Its name.
    pub name: StageName,
    /// Batches that were released.
    pub batches: u64,
    /// Entries in them.
    pub entries: u64,
    /// How long entries waited in the queue, in sum.
    pub queue_time: Duration,
    /// How long they then waited for user code to begin, in sum.
    pub batch_time: Duration,
    /// How long user code ran, in sum over the batches.
    pub compute_time: Duration,
}
