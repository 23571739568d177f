//! The executor of one replica, as its actor and the callers share it: a caller that has taken a slot runs its batch
//! without the actor.
//!
//! The lock is held while code on the runtime runs, which has one slot, and else for a moment. Only an actor that ends
//! ever waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::kind::{Executor, ExecutorContext, ExecutorError};
use crate::containment::contain;
use crate::error::Failure;
use crate::pool::{BatchPort, BatchRun, ReplicaHandle, WorkerMessage};

/// How often an actor at its end looks whether a run is over.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The executor of one replica.
#[derive(Clone)]
pub(crate) struct SharedExecutor(Arc<Shared>);

struct Shared {
    /// `None` after its end.
    executor: Mutex<Option<Executor>>,
    /// The replica ends: the executor takes no more batches, and the holder of the lock drops it.
    is_over: AtomicBool,
}

impl SharedExecutor {
    pub(crate) fn new(executor: Executor) -> Self {
        Self(Arc::new(Shared { executor: Mutex::new(Some(executor)), is_over: AtomicBool::new(false) }))
    }

    /// The port by which callers hand over batches. A crash ends the replica, as it does in the actor.
    pub(crate) fn port(&self) -> BatchPort {
        let executor = self.clone();
        BatchPort::new(move |run, handle| {
            // User code is contained below this; a log subscriber of the user's is not.
            let crash = match contain(|| executor.run(run, handle)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(words) => {
                    // Before its entries run again.
                    handle.retire();
                    if let Some(batch) = handle.take_batch() {
                        handle.note_end_in_batch();
                        batch.after_panic(&words, handle);
                    }
                    words.to_string()
                }
            };
            handle.retire();
            // An actor that has stopped needs no report.
            let _ = handle.actor().send_message(WorkerMessage::Crashed(crash));
        })
    }

    /// Runs one batch, or hands it over to its thread or future. At the end of the replica it goes back to the queue.
    pub(crate) fn run(&self, run: BatchRun, handle: &Arc<ReplicaHandle>) -> Result<(), ExecutorError> {
        let result = match &mut *self.0.executor.lock() {
            Some(executor) if !self.is_over() => executor.run(run, handle),
            _ => Ok(()),
        };
        if self.is_over() {
            self.drop_now();
        }
        result
    }

    fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::SeqCst)
    }

    /// Whether a running call may be abandoned. Code that runs at this moment is not on a thread.
    pub(crate) fn is_thread(&self) -> bool {
        self.0.executor.try_lock().is_some_and(|executor| executor.as_ref().is_some_and(Executor::is_thread))
    }

    /// Moves a worker from a task to a thread. Its slot is taken, so it does not run.
    pub(crate) fn move_to_thread(&self, context: &ExecutorContext) -> Result<(), Failure> {
        let mut executor = self.0.executor.lock();
        if let Some(task) = executor.take_if(|executor| executor.is_task()) {
            *executor = Some(task.move_to_thread(context.clone())?);
        }
        Ok(())
    }

    /// The other batches of a replica whose batch panicked. It takes no more.
    pub(crate) fn take_running(&self) -> Option<JoinSet<()>> {
        self.0.is_over.store(true, Ordering::SeqCst);
        // A task has no others, and may run in a caller's poll.
        self.0.executor.try_lock_for(LOOK_AGAIN)?.as_mut().and_then(Executor::take_running)
    }

    /// Takes the executor, after a run in a caller's poll.
    pub(crate) async fn take(&self) -> Option<Executor> {
        loop {
            if let Some(mut executor) = self.0.executor.try_lock() {
                return executor.take();
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Drops the executor. False: it runs in a caller's poll, and is dropped after that.
    pub(crate) fn drop_now(&self) -> bool {
        self.0.is_over.store(true, Ordering::SeqCst);
        let executor = self.0.executor.try_lock_for(LOOK_AGAIN).map(|mut executor| executor.take());
        executor.is_some()
    }
}
