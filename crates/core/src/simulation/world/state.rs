//! The state of a world: calls, lives, batches, and counts of their events.

use crate::queue::EntryKey;
use crate::restart::CrashLoop;
use crate::timeline::ReleaseReason;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulation) enum Outcome {
    Done,
    Failed,
    WorkerFailed,
    Late,
    Cancelled,
    Overloaded,
    Unavailable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulation) enum Place {
    Outside,
    Queue,
    PoisonSuspects,
    Running,
}

/// One call in the world.
#[derive(Clone, Debug)]
pub(in crate::simulation) struct ModelCall {
    pub(in crate::simulation) key: EntryKey,
    pub(in crate::simulation) arrived_at: u64,
    pub(in crate::simulation) place: Place,
    pub(in crate::simulation) starts: u32,
    pub(super) lone_crashes: u32,
    pub(in crate::simulation) outcome: Option<Outcome>,
    pub(super) line: Option<usize>,
}

/// One life of a replica.
#[derive(Clone, Debug)]
pub(in crate::simulation) struct ModelLife {
    pub(in crate::simulation) index: usize,
    pub(in crate::simulation) leaving: bool,
    pub(in crate::simulation) batch: Option<ModelBatch>,
    pub(super) batches: u64,
}

#[derive(Clone, Debug)]
pub(in crate::simulation) struct ModelBatch {
    pub(in crate::simulation) calls: Vec<usize>,
    /// The batch that died first, if this batch is a part of it.
    pub(super) family: Option<usize>,
    pub(super) started_at: u64,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Returns,
    Panics,
    Hangs,
}

/// A batch that killed its worker, and the search for the culprit.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulation) struct Family {
    pub(in crate::simulation) size: usize,
    pub(in crate::simulation) runs: usize,
    /// Culprits may leave before they are found.
    pub(in crate::simulation) culprits: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelReplica {
    pub(super) crash_loop: CrashLoop,
    pub(super) restart_due: bool,
}

/// The counts of events.
#[derive(Debug, Default)]
pub(in crate::simulation) struct Counts {
    pub(in crate::simulation) outcomes: [u64; 7],
    pub(in crate::simulation) reasons: [u64; ReleaseReason::ALL.len()],
    pub(in crate::simulation) batches: u64,
    pub(in crate::simulation) isolations: u64,
    pub(in crate::simulation) restarts: u64,
    pub(in crate::simulation) failed_stages: u64,
}

impl Counts {
    pub(in crate::simulation) fn add(&mut self, other: &Self) {
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(sum, more)| *sum += more);
        self.reasons.iter_mut().zip(other.reasons).for_each(|(sum, more)| *sum += more);
        self.batches += other.batches;
        self.isolations += other.isolations;
        self.restarts += other.restarts;
        self.failed_stages += other.failed_stages;
    }

    pub(in crate::simulation) fn has_everything(&self) -> bool {
        // No caller of this world comes back: `queue/returns.rs` has a world of its own for that.
        let reasons = ReleaseReason::ALL.into_iter().filter(|reason| *reason != ReleaseReason::Returned);
        let reasons: Vec<_> = reasons.map(|reason| self.reasons[reason as usize]).collect();
        let all = self.outcomes.iter().chain(&reasons);
        all.chain([&self.isolations, &self.restarts, &self.failed_stages]).all(|count| *count > 0)
    }
}
