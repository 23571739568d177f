//! The report of a worker that ends while it has no batch: its child process has ended, for example.

use std::fmt;
use std::sync::Arc;

use super::Replica;
use crate::containment::WorkerExit;

/// Reports the end of a worker that has no batch: its replica is started again at once. A worker with a batch uses
/// [`WorkerExit::unwind`].
#[derive(Clone)]
pub struct ExitPort(pub(crate) Arc<dyn Fn(String) + Send + Sync>);

impl ExitPort {
    /// Until the replica's actor runs.
    pub(crate) fn unconnected() -> Self {
        Self(Arc::new(|_| {}))
    }

    /// The worker has ended.
    pub fn report(&self, exit: &WorkerExit) {
        (self.0)(exit.to_string());
    }
}

impl fmt::Debug for ExitPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitPort").finish_non_exhaustive()
    }
}

impl Replica {
    /// Reports the end of the worker from another thread, while it has no batch.
    #[must_use]
    pub fn exit_port(&self) -> ExitPort {
        self.exit.clone()
    }
}
