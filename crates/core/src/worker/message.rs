//! What a worker actor can be told.

use super::run::BatchRun;

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
