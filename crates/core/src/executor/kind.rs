//! The place where a worker's code runs: inline on the runtime, on its own OS thread, or as futures on the runtime.
//!
//! A task or thread runs one batch at a time. Threads and futures answer the entries themselves and notify their actor
//! only of a crash. When the actor stops, its thread finishes its batch, cleans up and ends. A hung thread is
//! abandoned: it ends by itself, and counts as abandoned until then.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use ractor::ActorRef;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Span;

use super::watchdog::WatchedTask;
use crate::containment::{CaughtPanic, contain, contain_future, drop_contained};
use crate::error::Failure;
use crate::pool::{BatchRun, Finish, Pool, ReplicaHandle, RunError, WorkerMessage};
use crate::worker::{ClockHold, DynAsyncWorker, DynWorker, hold_during, span, warm_up};

/// Builds the worker, inside the replica and on the thread where it will run.
pub(crate) type BuildWorker = Box<dyn FnOnce() -> Result<Box<dyn DynWorker>, Failure> + Send>;

/// The stage and replica of an executor.
#[derive(Clone)]
pub(crate) struct ExecutorContext {
    pub(crate) pool: Arc<Pool>,
    pub(crate) handle: Arc<ReplicaHandle>,
    pub(crate) actor: ActorRef<WorkerMessage>,
}

impl ExecutorContext {
    /// Keeps a paused clock still, in tests.
    fn hold_clock(&self) -> Option<ClockHold> {
        self.pool.settings().has_virtual_time().then(ClockHold::new)
    }
}

/// The place where the code of one replica runs.
pub(crate) enum Executor {
    /// On the runtime, watched by the watchdog.
    Task { worker: Box<dyn DynWorker>, watched: Arc<WatchedTask>, runtime: Handle },
    /// On its own thread.
    Thread { batches: SyncSender<ThreadRun>, ended: oneshot::Receiver<()>, runtime: Handle },
    /// As futures on the runtime, one per batch.
    Futures { worker: Arc<dyn DynAsyncWorker>, running: JoinSet<()>, runtime: Handle },
}

/// A batch for a thread, and the hold on a paused clock until the batch is done.
type ThreadRun = (BatchRun, Option<ClockHold>);

/// The replica cannot take another batch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecutorError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("the worker's thread has ended")]
    ThreadEnded,
}

impl Executor {
    /// Builds a worker in place.
    pub(crate) fn on_task(build: BuildWorker, pool: &Pool, watched: Arc<WatchedTask>) -> Result<Self, Failure> {
        Ok(Self::Task { worker: build_and_warm_up(build, pool)?, watched, runtime: Handle::current() })
    }

    /// Builds a worker on a new thread and waits until it is warm.
    pub(crate) async fn on_thread(build: BuildWorker, context: ExecutorContext) -> Result<Self, Failure> {
        let pool = Arc::clone(&context.pool);
        let (executor, ready) = Self::start_thread(move || build_and_warm_up(build, &pool), context)?;
        // The sender is dropped without a message only if the thread was killed from outside.
        ready.await.unwrap_or_else(|_| Err(Failure::new("the worker's thread ended while it was starting")))?;
        Ok(executor)
    }

    /// Builds an asynchronous worker.
    pub(crate) async fn on_futures(
        build: impl FnOnce() -> Result<Arc<dyn DynAsyncWorker>, Failure>,
        pool: &Pool,
    ) -> Result<Self, Failure> {
        let worker = contain(build).unwrap_or_else(|words| Err(panicked(&words)))?;
        pool.begin_warm_up();
        warm_up(&*worker).await?;
        Ok(Self::Futures { worker, running: JoinSet::new(), runtime: Handle::current() })
    }

    /// Whether a running call may be abandoned.
    pub(crate) fn is_thread(&self) -> bool {
        matches!(self, Self::Thread { .. })
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self, Self::Task { .. })
    }

    /// Runs one batch, or hands it over to its thread or future. A caller may be outside of the node's runtime.
    pub(crate) fn run(&mut self, mut run: BatchRun, handle: &Arc<ReplicaHandle>) -> Result<(), ExecutorError> {
        run.number = handle.next_run();
        match self {
            Self::Task { worker, watched, runtime } => {
                let _entered = runtime.enter();
                let _watched = watched.watch();
                let order = run.finish_on_runtime();
                Ok(run.execute(worker.as_mut(), handle, order)?)
            }
            // A slot has at most one batch, so the buffer of one is never full while the thread lives. If it were, the
            // batch would go back to the queue.
            Self::Thread { batches, runtime, .. } => {
                let _entered = run.has_virtual_time().then(|| runtime.enter());
                let clock = run.has_virtual_time().then(ClockHold::new);
                batches.try_send((run, clock)).map_err(|error| match error {
                    TrySendError::Full(_) | TrySendError::Disconnected(_) => ExecutorError::ThreadEnded,
                })
            }
            Self::Futures { worker, running, runtime } => {
                while running.try_join_next().is_some() {}
                let (worker, handle) = (Arc::clone(worker), Arc::clone(handle));
                let running_batch = async move {
                    // A run contains panics of user code, but its future may also panic when it is dropped.
                    let crash = match contain_future(run.execute_async(worker, &handle)).await {
                        Ok(Ok(())) => return,
                        Ok(Err(error)) => error.to_string(),
                        Err(words) => words.to_string(),
                    };
                    handle.retire();
                    let _ = handle.actor().send_message(WorkerMessage::Crashed(crash));
                };
                running.spawn_on(running_batch, runtime);
                Ok(())
            }
        }
    }

    /// Moves a worker from a task to a thread. Another executor stays as it is.
    pub(crate) fn move_to_thread(self, context: ExecutorContext) -> Result<Self, Failure> {
        match self {
            Self::Task { worker, .. } => {
                let (executor, _ready) = Self::start_thread(move || Ok(worker), context)?;
                Ok(executor)
            }
            other @ (Self::Thread { .. } | Self::Futures { .. }) => Ok(other),
        }
    }

    /// Ends in good order: running batches finish, then the worker cleans up.
    pub(crate) async fn close(self) {
        match self {
            Self::Task { mut worker, .. } => drop_contained(contain(|| worker.cleanup())),
            Self::Thread { batches, ended, .. } => {
                drop(batches);
                let _ = ended.await;
            }
            Self::Futures { worker, mut running, .. } => {
                while running.join_next().await.is_some() {}
                worker.cleanup().await;
            }
        }
    }

    /// The other batches of a replica whose batch panicked. The caller must let them finish.
    pub(crate) fn take_running(&mut self) -> Option<JoinSet<()>> {
        match self {
            Self::Futures { running, .. } => Some(std::mem::take(running)),
            Self::Task { .. } | Self::Thread { .. } => None,
        }
    }

    fn start_thread(
        make: impl FnOnce() -> Result<Box<dyn DynWorker>, Failure> + Send + 'static,
        context: ExecutorContext,
    ) -> Result<(Self, oneshot::Receiver<Result<(), Failure>>), Failure> {
        let (batches, inbox) = sync_channel::<ThreadRun>(1);
        let (ready_sender, ready) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let runtime = Handle::current();
        let of_thread = runtime.clone();
        let name = format!("{}-{}", context.pool.name(), context.handle.index());
        let clock = context.hold_clock();
        let affinity = context.pool.settings().affinity_of(context.handle.index());
        let span = span::for_replica(context.pool.name(), context.handle.index());
        thread::Builder::new().name(name).spawn(move || {
            if let Some(core) = affinity {
                pin_to(core, &context);
            }
            // The runtime provides timers and the clock, which may be virtual.
            let _entered = of_thread.enter();
            let worker = match span.in_scope(make) {
                Ok(worker) => worker,
                Err(failure) => return drop(ready_sender.send(Err(failure))),
            };
            let _ = ready_sender.send(Ok(()));
            drop(clock);
            work(worker, &inbox, &context, &span);
            let _ = ended_sender.send(());
        })?;
        Ok((Self::Thread { batches, ended, runtime }, ready))
    }
}

/// The main function of a worker thread: runs batches until the actor closes the channel, or until a panic.
fn work(
    mut worker: Box<dyn DynWorker>,
    inbox: &std::sync::mpsc::Receiver<ThreadRun>,
    context: &ExecutorContext,
    span: &Span,
) {
    // A run contains panics of user code, but users' values may also panic when they are dropped.
    let ended = contain(|| serve(worker.as_mut(), inbox, &context.handle));
    let crash = match ended {
        Ok(Ok(())) => {
            drop_contained(contain(|| span.in_scope(|| worker.cleanup())));
            None
        }
        Ok(Err(RunError::Panicked(words))) => Some(words.to_string()),
        Ok(Err(RunError::Abandoned)) => {
            context.pool.thread_came_back();
            None
        }
        Err(words) => {
            context.handle.retire();
            if let Some(batch) = context.handle.take_batch() {
                context.handle.note_end_in_batch();
                batch.after_panic(&words, &context.handle);
            }
            Some(words.to_string())
        }
    };
    if let Some(words) = crash {
        let _ = context.actor.send_message(WorkerMessage::Crashed(words));
    }
    drop_contained(worker);
}

fn serve(
    worker: &mut dyn DynWorker,
    inbox: &std::sync::mpsc::Receiver<ThreadRun>,
    handle: &ReplicaHandle,
) -> Result<(), RunError> {
    while let Ok((run, clock)) = inbox.recv() {
        hold_during(clock, || run.execute(worker, handle, Finish::MayRelease))?;
    }
    Ok(())
}

fn pin_to(core: usize, context: &ExecutorContext) {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        tracing::warn!(
            parent: None, stage = %context.pool.name(), replica = context.handle.index(), core,
            "could not pin the thread"
        );
    }
}

fn build_and_warm_up(build: BuildWorker, pool: &Pool) -> Result<Box<dyn DynWorker>, Failure> {
    contain(|| {
        let mut worker = build()?;
        pool.begin_warm_up();
        worker.warmup()?;
        Ok(worker)
    })
    .unwrap_or_else(|words| Err(panicked(&words)))
}

fn panicked(words: &CaughtPanic) -> Failure {
    Failure::new(format!("panicked: {words}"))
}
