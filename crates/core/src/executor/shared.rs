//! The executor of one replica, as its actor and the callers share it: a caller that has taken a slot runs its batch
//! without the actor.
//!
//! The lock is held while code on the runtime runs, which has one slot, and else for a moment. So nobody waits for it but
//! an actor at its end.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::kind::{Executor, ExecutorContext, ExecutorError};
use crate::error::Failure;
use crate::pool::{BatchPort, BatchRun, ReplicaHandle, WorkerMessage};

/// How often an actor at its end looks whether a run is over.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The executor of one replica; `None` after its end.
#[derive(Clone)]
pub(crate) struct SharedExecutor(Arc<Mutex<Option<Executor>>>);

impl SharedExecutor {
    pub(crate) fn new(executor: Executor) -> Self {
        Self(Arc::new(Mutex::new(Some(executor))))
    }

    /// The port by which callers hand over batches. A crash ends the replica, as it does in the actor.
    pub(crate) fn port(&self) -> BatchPort {
        let executor = self.clone();
        BatchPort::new(move |run, handle| {
            if let Err(error) = executor.run(run, handle) {
                handle.retire();
                // An actor that has stopped needs no report.
                let _ = handle.actor().send_message(WorkerMessage::Crashed(error.to_string()));
            }
        })
    }

    /// Runs one batch, or hands it over to its thread or future. At the end of the replica it goes back to the queue.
    pub(crate) fn run(&self, run: BatchRun, handle: &Arc<ReplicaHandle>) -> Result<(), ExecutorError> {
        match &mut *self.0.lock() {
            Some(executor) => executor.run(run, handle),
            None => Ok(()),
        }
    }

    /// Whether a running call may be abandoned. Code that runs at this moment is not on a thread.
    pub(crate) fn is_thread(&self) -> bool {
        self.0.try_lock().is_some_and(|executor| executor.as_ref().is_some_and(Executor::is_thread))
    }

    /// Moves a worker from a task to a thread. Its slot is taken, so it does not run.
    pub(crate) fn move_to_thread(&self, context: &ExecutorContext) -> Result<(), Failure> {
        let mut executor = self.0.lock();
        if let Some(task) = executor.take_if(|executor| executor.is_task()) {
            *executor = Some(task.move_to_thread(context.clone())?);
        }
        Ok(())
    }

    /// The other batches of a replica whose batch panicked.
    pub(crate) fn take_running(&self) -> Option<JoinSet<()>> {
        self.0.lock().as_mut().and_then(Executor::take_running)
    }

    /// Takes the executor, after a run in a caller's poll.
    pub(crate) async fn take(&self) -> Option<Executor> {
        loop {
            if let Some(mut executor) = self.0.try_lock() {
                return executor.take();
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Drops the executor. False: it runs in a caller's poll, and is dropped with its port.
    pub(crate) fn drop_now(&self) -> bool {
        let executor = self.0.try_lock().map(|mut executor| executor.take());
        executor.is_some()
    }
}
