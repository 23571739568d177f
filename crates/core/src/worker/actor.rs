//! The shell of one replica: builds its worker, passes batches to its seat, dies when user code does.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::message::WorkerMessage;
use super::seat::{Seat, SeatContext};
use super::slot::WorkerSlot;
use super::{Replica, Watchdog};
use crate::batcher::{BatcherMessage, Pool};
use crate::stage::StageSpec;
use crate::supervisor::DeploymentMessage;

/// The actor of one replica. One life: a restart is a new actor with a new slot.
pub(crate) struct WorkerActor;

/// What a replica needs to start.
pub(crate) struct WorkerArgs {
    pub(crate) spec: Arc<StageSpec>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) replica: Replica,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) supervisor: ActorRef<DeploymentMessage>,
}

pub(crate) struct WorkerState {
    /// Taken only while the seat moves or closes.
    seat: Option<Seat>,
    context: SeatContext,
    supervisor: ActorRef<DeploymentMessage>,
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
        let WorkerArgs { spec, pool, replica, watchdog, supervisor } = args;
        let slot = Arc::new(WorkerSlot::new(replica.index(), replica.generation(), myself.clone()));
        let context = SeatContext { pool, slot, actor: myself };
        let on_task = spec.settings().runs_as_task() && !context.pool.is_moved_to_threads();
        let watched = watchdog.watch(&context.pool);
        let build = Box::new(move || spec.build(&replica));
        let seat = if on_task { Seat::on_task(build, watched) } else { Seat::on_thread(build, context.clone()).await };
        let seat = seat.map_err(|failure| failure.message().to_owned())?;
        Ok(WorkerState { seat: Some(seat), context, supervisor })
    }

    async fn post_start(
        &self,
        _myself: ActorRef<WorkerMessage>,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        let slot = &state.context.slot;
        state.supervisor.cast(DeploymentMessage::ReplicaUp(Arc::clone(slot)))?;
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
            WorkerMessage::Run(run) => {
                let seat = state.seat.as_mut().ok_or("the worker has no seat")?;
                seat.run(run, &state.context)?;
                if state.context.pool.is_moved_to_threads() {
                    state.leave_the_runtime()?;
                }
                Ok(())
            }
            WorkerMessage::Leave => {
                myself.stop(None);
                Ok(())
            }
            // The replica dies with its user code; the supervisor reads why.
            WorkerMessage::Crashed(message) => Err(format!("the worker panicked: {message}").into()),
        }
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<WorkerMessage>,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        state.context.slot.retire();
        if let Some(seat) = state.seat.take() {
            seat.close().await;
        }
        Ok(())
    }
}

impl WorkerState {
    /// The watchdog found this stage too slow for the runtime.
    fn leave_the_runtime(&mut self) -> Result<(), ActorProcessingErr> {
        if let Some(seat) = self.seat.take() {
            let moved = seat.move_to_thread(self.context.clone());
            self.seat = Some(moved.map_err(|failure| failure.message().to_owned())?);
        }
        Ok(())
    }
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        // A killed or crashed actor never comes to `post_stop`; its slot must not look free.
        self.context.slot.retire();
    }
}
