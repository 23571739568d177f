//! The actor of one replica: builds its worker, passes batches to its executor, and ends after a panic of user code.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument;

use super::Watchdog;
use super::kind::{Executor, ExecutorContext};
use super::shared::SharedExecutor;
use crate::error::Failure;
use crate::pool::{BatchRun, BatcherMessage, Pool, ReplicaHandle, WorkerMessage};
use crate::stage::Factory;
use crate::worker::{ExitPort, Replica, span};

/// A replica's reports to its supervisor.
pub(crate) enum ReplicaReport {
    /// The replica is built and warm.
    Up(Arc<ReplicaHandle>),
    /// The other batches of a replica whose batch panicked. They run to their end without it.
    LeftRunning(JoinSet<()>),
}

/// Sends a report. False: the supervisor is gone.
pub(crate) type ReportPort = Box<dyn Fn(ReplicaReport) -> bool + Send + Sync>;

/// The actor of one replica for one life: a restart is a new actor with a new handle.
pub(crate) struct WorkerActor;

/// The arguments of a replica's start.
pub(crate) struct WorkerArgs {
    pub(crate) pool: Arc<Pool>,
    pub(crate) replica: Replica,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) report: ReportPort,
}

pub(crate) struct WorkerState {
    executor: SharedExecutor,
    context: ExecutorContext,
    report: ReportPort,
    /// Wakes the actor when the last batch is overdue.
    alarm: Option<AbortHandle>,
    /// Tells a worker that may still run that its replica has ended.
    exit: ExitPort,
}

impl Actor for WorkerActor {
    type Msg = WorkerMessage;
    type State = WorkerState;
    type Arguments = WorkerArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<WorkerMessage>,
        args: WorkerArgs,
    ) -> Result<WorkerState, ActorProcessingErr> {
        let WorkerArgs { pool, mut replica, watchdog, report } = args;
        let settings = pool.settings();
        let (slots, ahead) =
            if pool.spec.is_async() { (settings.concurrency().get(), settings.hands_ahead().into()) } else { (1, 0) };
        let handle = Arc::new(ReplicaHandle::new(&replica, slots, ahead, myself.clone()));
        replica.exit = exit_port(Arc::clone(&handle));
        let exit = replica.exit.clone();
        let context = ExecutorContext { pool, handle, actor: myself };
        let span = span::for_replica(context.pool.name(), context.handle.index());
        let executor = build_executor(replica, &watchdog, &context).instrument(span).await;
        let executor = executor.map_err(|failure| failure.message().to_owned())?;
        let executor = SharedExecutor::new(executor);
        context.handle.set_port(executor.port());
        Ok(WorkerState { executor, context, report, alarm: None, exit })
    }

    async fn post_start(
        &self,
        _myself: ActorRef<WorkerMessage>,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        let handle = &state.context.handle;
        if !(state.report)(ReplicaReport::Up(Arc::clone(handle))) {
            return Err("its supervisor is gone".into());
        }
        state.context.pool.tell_batcher(BatcherMessage::Join(Arc::clone(handle)));
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<WorkerMessage>,
        message: WorkerMessage,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WorkerMessage::Run(run) => state.run(&myself, run),
            WorkerMessage::Leave => {
                myself.stop(None);
                Ok(())
            }
            // The replica ends with its user code; the supervisor reads the reason.
            WorkerMessage::Crashed(words) => {
                if let Some(running) = state.executor.take_running() {
                    // The supervisor outlives this replica, and ends these batches with the stage.
                    (state.report)(ReplicaReport::LeftRunning(running));
                }
                Err(words.into())
            }
            WorkerMessage::Overdue(number) => state.give_up_if_hung(&myself, number),
        }
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<WorkerMessage>,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        state.context.handle.retire();
        if let Some(executor) = state.executor.take().await {
            let ExecutorContext { pool, handle, .. } = &state.context;
            let span = span::for_replica(pool.name(), handle.index());
            close(executor, &state.context).instrument(span).await;
        }
        Ok(())
    }
}

/// The port by which a worker reports its end. Its message may come before the batches that end with the worker, so the
/// report says whether a batch began.
fn exit_port(handle: Arc<ReplicaHandle>) -> ExitPort {
    ExitPort::new(move |words, had_batch| {
        if had_batch {
            handle.note_end_in_batch();
        }
        // An actor that has stopped needs no report.
        let _ = handle.actor().cast(WorkerMessage::Crashed(words));
    })
}

/// Closes the executor. Abandons a hung thread here as well, because the actor reads no more alarms.
async fn close(executor: Executor, context: &ExecutorContext) {
    let ExecutorContext { pool, handle, .. } = context;
    let Some(timeout) = pool.settings().timeout().filter(|_| executor.is_thread()) else {
        return executor.close().await;
    };
    if tokio::time::timeout(timeout, executor.close()).await.is_err()
        && let Some(batch) = handle.take_batch()
    {
        pool.abandon_thread();
        batch.give_up_waiting(timeout);
    }
}

/// Builds the worker in the place that its stage requires.
async fn build_executor(replica: Replica, watchdog: &Watchdog, context: &ExecutorContext) -> Result<Executor, Failure> {
    let pool = &context.pool;
    match pool.spec.factory() {
        Factory::Async(build) => Executor::on_futures(|| build(&replica), pool).await,
        Factory::Sync(build) => {
            let build = Arc::clone(build);
            let build = Box::new(move || build(&replica));
            if pool.settings().runs_as_task() && !pool.replicas.is_moved_to_threads() {
                Executor::on_task(build, pool, watchdog.watch(pool))
            } else {
                Executor::on_thread(build, context.clone()).await
            }
        }
    }
}

impl WorkerState {
    fn run(&mut self, myself: &ActorRef<WorkerMessage>, run: BatchRun) -> Result<(), ActorProcessingErr> {
        self.leave_the_runtime_if_told()?;
        let ExecutorContext { pool, handle, .. } = &self.context;
        if let Some(timeout) = pool.settings().timeout()
            && self.executor.is_thread()
        {
            // A thread runs one batch at a time, so the previous run is over. A thread with a timeout gets its batches
            // here only, so the next number is that of this one.
            if let Some(alarm) = self.alarm.replace(watch(myself, timeout, handle.runs() + 1)) {
                alarm.abort();
            }
        }
        Ok(self.executor.run(run, handle)?)
    }

    /// The watchdog found this stage too slow for the runtime.
    fn leave_the_runtime_if_told(&self) -> Result<(), ActorProcessingErr> {
        if self.context.pool.replicas.is_moved_to_threads() {
            let moved = self.executor.move_to_thread(&self.context);
            moved.map_err(|failure| failure.message().to_owned())?;
        }
        Ok(())
    }

    /// Answers the callers of a run that has exceeded its timeout, and ends this replica; its supervisor starts
    /// another. The thread cannot be stopped: it is abandoned, and ends when user code returns.
    fn give_up_if_hung(&self, myself: &ActorRef<WorkerMessage>, number: u64) -> Result<(), ActorProcessingErr> {
        let ExecutorContext { pool, handle, .. } = &self.context;
        let Some(timeout) = pool.settings().timeout() else { return Ok(()) };
        let Some(batch) = handle.take_batch_of(number) else {
            // Either the run is over, or the operating system has not scheduled its thread yet.
            if handle.runs() == number && handle.running() > 0 {
                watch(myself, timeout, number);
            }
            return Ok(());
        };
        handle.retire();
        handle.note_end_in_batch();
        pool.abandon_thread();
        batch.give_up_waiting(timeout);
        Err(format!("a call did not come back within the stage's timeout of {timeout:?}").into())
    }
}

fn watch(myself: &ActorRef<WorkerMessage>, timeout: Duration, number: u64) -> AbortHandle {
    myself.send_after(timeout, move || WorkerMessage::Overdue(number)).abort_handle()
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        // A killed or crashed actor never runs `post_stop`. Its slot must not look free, and the callers of a batch in
        // a hung thread are answered here.
        self.exit.close();
        self.context.handle.retire();
        // A task that runs in its caller's poll answers by itself.
        if self.executor.drop_now()
            && self.context.pool.health.state().is_ending()
            && let Some(batch) = self.context.handle.take_batch()
        {
            self.context.pool.abandon_thread();
            batch.give_up();
        }
    }
}
