//! What a batcher and a worker can be told.

use std::sync::Arc;

use super::run::BatchRun;
use super::slot::WorkerSlot;
use crate::queue::{Entry, EntryKey};

/// Messages to one batcher. There are at most a few for each place in the bounded queue and for each replica, so the mailbox
/// is bounded although its type is not. Entries come by the [`Inbox`](crate::queue::Inbox).
#[derive(Debug)]
pub(crate) enum BatcherMessage {
    /// There are entries in the inbox. From the caller that put down the first of them.
    Submitted,
    /// The caller of this entry has gone. From the caller's guard.
    Abandon(EntryKey),
    /// A replica is ready for batches. From the new worker.
    Join(Arc<WorkerSlot>),
    /// A replica is not needed any more: tell it to leave, and give it nothing after that. From the supervisor.
    Part(Arc<WorkerSlot>),
    /// A worker became free while entries were waiting. From that worker.
    Free,
    /// These were handed to a worker that ended before it began them. From the batch that was dropped.
    TakeBack(Vec<Entry>),
    /// These, run together, killed their worker: run each half alone. From the worker.
    Isolate {
        entries: Vec<Entry>,
        /// How often the one entry was alone when a worker died; 0 for several.
        lone_crashes: u32,
    },
    /// The turn was given away; form a batch from what has come. From the batcher to itself.
    Settled,
    /// The delay that was armed has passed. From the batcher's timer.
    Due,
    /// The stage has given up: answer everything that waits. From the supervisor.
    Close,
    /// No delays any more: the node drains. From the supervisor.
    Drain,
}

/// Messages to one worker.
pub(crate) enum WorkerMessage {
    /// Run this batch. Sent by the batcher, only after it took one of the worker's seats.
    Run(BatchRun),
    /// Finish what is in hand, clean up and end: the stage needs fewer replicas. Sent by the batcher, which hands over
    /// nothing after it.
    Leave,
    /// User code panicked outside the actor. Sent by the thread or future where it did, which then ends.
    Crashed(String),
    /// The stage's timeout has passed since this run was handed to the worker's thread. From the worker's own timer.
    Overdue(u64),
}
