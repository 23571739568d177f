//! The shell of one replica: builds its worker, passes batches to its seat, dies when user code does.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::{AbortHandle, JoinSet};

use super::Watchdog;
use super::seat::{Seat, SeatContext};
use crate::error::Failure;
use crate::pool::{BatchRun, BatcherMessage, Death, Pool, WorkerMessage, WorkerSlot};
use crate::stage::{Factory, StageSpec};
use crate::worker::Replica;

/// What a replica reports to its supervisor.
pub(crate) enum ReplicaReport {
    /// It is built and warm.
    Up(Arc<WorkerSlot>),
    /// Batches that ran beside one that panicked, and go on without their replica.
    LeftRunning(JoinSet<()>),
}

/// Where a replica reports to. False: its supervisor is gone.
pub(crate) type ReportPort = Box<dyn Fn(ReplicaReport) -> bool + Send + Sync>;

/// The actor of one replica. One life: a restart is a new actor with a new slot.
pub(crate) struct WorkerActor;

/// What a replica needs to start.
pub(crate) struct WorkerArgs {
    pub(crate) spec: Arc<StageSpec>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) replica: Replica,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) report: ReportPort,
}

pub(crate) struct WorkerState {
    /// Taken only while the seat moves or closes.
    seat: Option<Seat>,
    context: SeatContext,
    report: ReportPort,
    /// Batches handed to the seat so far.
    runs: u64,
    /// Wakes the actor when the last of them is overdue.
    alarm: Option<AbortHandle>,
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
        let WorkerArgs { spec, pool, replica, watchdog, report } = args;
        let seats = if spec.is_async() { spec.settings().concurrency().get() } else { 1 };
        let slot = Arc::new(WorkerSlot::new(replica.index(), replica.generation(), seats, myself.clone()));
        let context = SeatContext { pool, slot, actor: myself };
        let seat = take_seat(&spec, replica, &watchdog, &context).await;
        let seat = seat.map_err(|failure| failure.message().to_owned())?;
        Ok(WorkerState { seat: Some(seat), context, report, runs: 0, alarm: None })
    }

    async fn post_start(
        &self,
        _myself: ActorRef<WorkerMessage>,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        let slot = &state.context.slot;
        if !(state.report)(ReplicaReport::Up(Arc::clone(slot))) {
            return Err("its supervisor is gone".into());
        }
        state.context.pool.tell_batcher(BatcherMessage::Join(Arc::clone(slot)));
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
            // The replica dies with its user code; the supervisor reads why.
            WorkerMessage::Crashed(words) => {
                if let Some(running) = state.seat.as_mut().and_then(Seat::take_running) {
                    // Its supervisor outlives this replica, and is there to end them with the stage.
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
        state.context.slot.retire();
        if let Some(seat) = state.seat.take() {
            close(seat, &state.context).await;
        }
        Ok(())
    }
}

/// Ends in good order; a thread that hangs is given up here as well, because its alarm is not heard any more.
async fn close(seat: Seat, context: &SeatContext) {
    let SeatContext { pool, slot, .. } = context;
    let Some(timeout) = pool.settings().timeout().filter(|_| seat.is_thread()) else { return seat.close().await };
    if tokio::time::timeout(timeout, seat.close()).await.is_err()
        && let Some(hand) = slot.take_hand()
    {
        pool.abandon_thread();
        hand.give_up_waiting(timeout);
    }
}

/// Builds the worker where its stage wants it to run.
async fn take_seat(
    spec: &Arc<StageSpec>,
    replica: Replica,
    watchdog: &Watchdog,
    context: &SeatContext,
) -> Result<Seat, Failure> {
    let pool = &context.pool;
    match spec.factory() {
        Factory::Async(build) => Seat::on_futures(|| build(&replica), pool).await,
        Factory::Sync(build) => {
            let build = Arc::clone(build);
            let build = Box::new(move || build(&replica));
            if spec.settings().runs_as_task() && !pool.is_moved_to_threads() {
                Seat::on_task(build, pool, watchdog.watch(pool))
            } else {
                Seat::on_thread(build, context.clone()).await
            }
        }
    }
}

impl WorkerState {
    fn run(&mut self, myself: &ActorRef<WorkerMessage>, mut run: BatchRun) -> Result<(), ActorProcessingErr> {
        self.leave_the_runtime_if_told()?;
        self.runs += 1;
        run.number = self.runs;
        let seat = self.seat.as_mut().ok_or("the worker has no seat")?;
        if let Some(timeout) = self.context.pool.settings().timeout()
            && seat.is_thread()
        {
            // One at a time: the run before is over, or this one would not have come.
            if let Some(alarm) = self.alarm.replace(watch(myself, timeout, self.runs)) {
                alarm.abort();
            }
        }
        Ok(seat.run(run, &self.context)?)
    }

    /// The watchdog found this stage too slow for the runtime.
    fn leave_the_runtime_if_told(&mut self) -> Result<(), ActorProcessingErr> {
        if self.context.pool.is_moved_to_threads()
            && let Some(seat) = self.seat.take_if(|seat| seat.is_task())
        {
            let moved = seat.move_to_thread(self.context.clone());
            self.seat = Some(moved.map_err(|failure| failure.message().to_owned())?);
        }
        Ok(())
    }

    /// Answers for user code that has not come back in time, and ends this replica: its supervisor starts another. The
    /// thread cannot be stopped; it is left alone, and ends when user code comes back.
    fn give_up_if_hung(&self, myself: &ActorRef<WorkerMessage>, number: u64) -> Result<(), ActorProcessingErr> {
        let SeatContext { pool, slot, .. } = &self.context;
        let Some(timeout) = pool.settings().timeout() else { return Ok(()) };
        let Some(hand) = slot.take_hand_of(number) else {
            // Either the run is over, or its thread was not even given a turn yet.
            if self.runs == number && slot.running() > 0 {
                watch(myself, timeout, number);
            }
            return Ok(());
        };
        slot.retire();
        slot.note_death(Death::Hung);
        pool.abandon_thread();
        hand.give_up_waiting(timeout);
        Err(format!("a call did not come back within the stage's timeout of {timeout:?}").into())
    }
}

fn watch(myself: &ActorRef<WorkerMessage>, timeout: Duration, number: u64) -> AbortHandle {
    myself.send_after(timeout, move || WorkerMessage::Overdue(number)).abort_handle()
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        // A killed or crashed actor never comes to `post_stop`; its slot must not look free, and whom it leaves behind in a
        // thread that does not come back is answered here.
        self.context.slot.retire();
        if self.context.pool.is_ending()
            && let Some(hand) = self.context.slot.take_hand()
        {
            self.context.pool.abandon_thread();
            hand.give_up();
        }
    }
}
