//! The signals between a worker and its replica outside of batches: the end of the worker, and the end of the replica.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Replica;
use crate::containment::WorkerExit;

/// Reports the end of a worker outside of its calls: its replica is started again. Inside a call a worker uses
/// [`WorkerExit::unwind`].
#[derive(Clone)]
pub struct ExitPort {
    report: Arc<dyn Fn(String, bool) + Send + Sync>,
    is_over: Arc<AtomicBool>,
}

impl ExitPort {
    /// Until the replica's actor runs.
    pub(crate) fn unconnected() -> Self {
        Self::new(|_, _| {})
    }

    pub(crate) fn new(report: impl Fn(String, bool) + Send + Sync + 'static) -> Self {
        Self { report: Arc::new(report), is_over: Arc::default() }
    }

    /// The replica has ended: its callers have their answers.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Reports the end of the worker. `had_batch` says whether it began any batch: such an end is charged to the batch.
    /// A worker that ends twice in a row without a batch is in a crash loop, and may fail its stage.
    pub fn report(&self, exit: &WorkerExit, had_batch: bool) {
        (self.report)(exit.to_string(), had_batch);
    }

    /// Whether the replica has ended. The batch that its worker may still run has no callers: the stage's timeout has
    /// passed, or the node has stopped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for ExitPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitPort").finish_non_exhaustive()
    }
}

impl Replica {
    /// Tells the replica of the end of its worker, and the worker of the end of its replica.
    #[must_use]
    pub fn exit_port(&self) -> ExitPort {
        self.exit.clone()
    }
}
