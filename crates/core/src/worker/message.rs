//! What a worker actor can be told.

use super::run::BatchRun;

/// Messages to one worker.
pub(crate) enum WorkerMessage {
    /// Run this batch. Sent by the batcher, only after it took the worker's slot.
    Run(BatchRun),
    /// Finish what is in hand, clean up and end: the stage needs fewer replicas. Sent by the batcher, which hands over
    /// nothing after it.
    Leave,
    /// User code panicked on the worker's own thread. Sent by that thread, which then ends.
    Crashed(String),
}
