//! What a worker actor can be told.

use super::run::BatchRun;

/// Messages to one worker.
pub(crate) enum WorkerMessage {
    /// Run this batch. Sent by the batcher, only after it took the worker's slot.
    Run(BatchRun),
    /// User code panicked on the worker's own thread. Sent by that thread, which then ends.
    Crashed(String),
}
