//! Where a worker's code runs: inline on the runtime, or on an OS thread of its own.
//!
//! A seat takes one batch at a time. A thread seat answers the entries itself; its actor only hears of a crash. An actor
//! that stops lets go of its thread: the thread finishes the batch in hand, cleans up and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use ractor::ActorRef;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::erased::DynWorker;
use super::message::WorkerMessage;
use super::run::{BatchRun, Panicked, panic_message};
use super::slot::WorkerSlot;
use super::watchdog::Watched;
use crate::batcher::Pool;
use crate::failure::Failure;

/// Builds the worker, inside the replica and on the thread where it will run.
pub(crate) type Build = Box<dyn FnOnce() -> Result<Box<dyn DynWorker>, Failure> + Send>;

/// What a seat works for.
#[derive(Clone)]
pub(crate) struct SeatContext {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slot: Arc<WorkerSlot>,
    pub(crate) actor: ActorRef<WorkerMessage>,
}

/// The place of one replica.
pub(crate) enum Seat {
    /// On the runtime, watched.
    Task { worker: Box<dyn DynWorker>, watched: Arc<Watched> },
    /// On a thread of its own.
    Thread { batches: SyncSender<BatchRun>, ended: oneshot::Receiver<()> },
}

/// The replica cannot take a batch any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeatError {
    #[error(transparent)]
    Panicked(#[from] Panicked),
    #[error("the worker's thread has ended")]
    ThreadEnded,
}

impl Seat {
    /// Builds a worker in place.
    pub(crate) fn on_task(build: Build, watched: Arc<Watched>) -> Result<Self, Failure> {
        Ok(Self::Task { worker: build_and_warm_up(build)?, watched })
    }

    /// Builds a worker on a new thread and waits until it is warm.
    pub(crate) async fn on_thread(build: Build, context: SeatContext) -> Result<Self, Failure> {
        let (seat, ready) = Self::start_thread(build, context)?;
        // The sender is dropped without a word only if the thread was killed from outside.
        ready.await.unwrap_or_else(|_| Err(Failure::new("the worker's thread ended while it was starting")))?;
        Ok(seat)
    }

    /// Runs one batch, or hands it over to the thread that will.
    pub(crate) fn run(&mut self, run: BatchRun, context: &SeatContext) -> Result<(), SeatError> {
        match self {
            Self::Task { worker, watched } => {
                watched.begin();
                let result = run.execute(worker.as_mut(), &context.pool, &context.slot);
                watched.end();
                Ok(result?)
            }
            Self::Thread { batches, .. } => batches.try_send(run).map_err(|error| match error {
                // The slot protocol admits one batch at a time, so the buffer of one is never full while the thread
                // lives; were it broken, the entries' reply ports would tell their callers.
                TrySendError::Full(_) | TrySendError::Disconnected(_) => SeatError::ThreadEnded,
            }),
        }
    }

    /// Moves a task seat, worker and all, to a thread. A thread seat stays what it is.
    pub(crate) fn move_to_thread(self, context: SeatContext) -> Result<Self, Failure> {
        match self {
            Self::Task { worker, .. } => {
                let (seat, _ready) = Self::start_thread(Box::new(move || Ok(worker)), context)?;
                Ok(seat)
            }
            seated @ Self::Thread { .. } => Ok(seated),
        }
    }

    /// Ends in good order: the batch in hand is finished, then the worker cleans up.
    pub(crate) async fn close(self) {
        match self {
            Self::Task { mut worker, .. } => worker.cleanup(),
            Self::Thread { batches, ended } => {
                drop(batches);
                let _ = ended.await;
            }
        }
    }

    fn start_thread(
        build: Build,
        context: SeatContext,
    ) -> Result<(Self, oneshot::Receiver<Result<(), Failure>>), Failure> {
        let (batches, inbox) = sync_channel::<BatchRun>(1);
        let (ready_sender, ready) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let runtime = Handle::current();
        let name = format!("{}-{}", context.pool.name(), context.slot.index());
        thread::Builder::new().name(name).spawn(move || {
            // Timers and the clock of the runtime, which may be virtual.
            let _entered = runtime.enter();
            let built = build_and_warm_up(build);
            let worker = match built {
                Ok(worker) => worker,
                Err(failure) => return drop(ready_sender.send(Err(failure))),
            };
            let _ = ready_sender.send(Ok(()));
            work(worker, &inbox, &context);
            let _ = ended_sender.send(());
        })?;
        Ok((Self::Thread { batches, ended }, ready))
    }
}

/// A worker thread's life: batches until the actor lets go, or until a panic.
fn work(mut worker: Box<dyn DynWorker>, inbox: &std::sync::mpsc::Receiver<BatchRun>, context: &SeatContext) {
    while let Ok(run) = inbox.recv() {
        if let Err(Panicked(message)) = run.execute(worker.as_mut(), &context.pool, &context.slot) {
            let _ = context.actor.send_message(WorkerMessage::Crashed(message));
            return;
        }
    }
    worker.cleanup();
}

fn build_and_warm_up(build: Build) -> Result<Box<dyn DynWorker>, Failure> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut worker = build()?;
        worker.warmup()?;
        Ok(worker)
    }))
    .unwrap_or_else(|panic| Err(Failure::new(format!("panicked: {}", panic_message(panic.as_ref())))))
}
