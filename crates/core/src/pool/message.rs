//! Messages to a batcher and to a worker.

use std::sync::Arc;

use super::demand::FailedStart;
use super::replica::ReplicaHandle;
use super::run::BatchRun;
use crate::queue::{Entry, EntryKey, HostedId, LifeId, Suspicion};

/// Messages to one batcher. There are at most a few for each permit of the queue and for each replica, so their number
/// is bounded, though ractor's mailbox has no limit. Entries come by the [`Inbox`](crate::queue::Inbox).
#[derive(Debug)]
pub(crate) enum BatcherMessage {
    /// There are entries in the inbox. From the caller of the first of them.
    Submitted,
    /// The caller of this entry has left. From the caller's guard.
    Abandon(EntryKey),
    /// A replica is ready for batches. From the new worker.
    Join(Arc<ReplicaHandle>),
    /// A replica is not needed any more: it gets no further batches, and leaves. From the supervisor.
    Leave(Arc<ReplicaHandle>),
    /// A worker became free while entries were waiting. From that worker.
    Free,
    /// The worker of these entries ended, and they may be queued again: they had not started, or their contract allows
    /// it. From the dropped batch.
    TakeBack(Vec<Entry>),
    /// These entries run again apart from others: their worker ended with them, or a run of suspects did not begin.
    /// From the worker, the dropped batch, or the batcher itself.
    Isolate {
        entries: Vec<Entry>,
        suspicion: Suspicion,
        /// The life of the replica, if other batches may have ended it.
        life: Option<LifeId>,
    },
    /// The yield is over; form a batch from the entries that came. From the batcher to itself.
    Yielded,
    /// Batches ran until the turn was over; form more of them. From the batcher to itself.
    NextTurn,
    /// The delay that was armed has passed. From the batcher's timer.
    Due,
    /// The first replica could not start: refuse all waiting entries, and those that arrive during its back-off. From
    /// the supervisor.
    RefuseUntil(FailedStart),
    /// The stage has failed: refuse all waiting entries. From the supervisor.
    Close,
    /// The stage serves again after it had failed. From the supervisor, before it accepts entries.
    Open,
    /// This stage, which the replicas have run for another one, has ended. From the router.
    Ended(HostedId),
    /// No delays any more: the node drains. From the supervisor.
    Drain,
}

pub(crate) enum WorkerMessage {
    /// Run this batch. Sent by the batcher, only after it took one of the replica's slots.
    Run(BatchRun),
    /// Finish the running batches, clean up and end: the stage needs fewer replicas. Sent by the batcher, which hands
    /// over nothing after it.
    Leave,
    /// User code panicked outside the actor. Sent by the thread or future where it did, which then ends.
    Crashed(String),
    /// The stage's timeout has passed since this run was handed to the worker's thread. From the worker's own timer.
    Overdue(u64),
}
