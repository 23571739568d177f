//! The supervisor of one stage: starts its batcher and replicas, and starts replicas again.
//!
//! Construction runs in separate tasks, so a loading model does not block the supervisor. In the first start, one
//! replica that cannot be built fails the stage with its own message, without a second attempt. A stage that fails
//! later is the subject of `recovery.rs`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::early_deaths::{EarlyDeath, EarlyDeaths};
use super::message::DeploymentMessage;
use super::places::Places;
use super::recovery::FailedStage;
use super::scale::Scale;
use crate::batcher::BatcherActor;
use crate::clock;
use crate::deadline::Deadline;
use crate::executor::{ReplicaReport, ReportPort, Watchdog, WorkerActor, WorkerArgs};
use crate::host::HostNode;
use crate::metrics::UsagePort;
use crate::pool::{BatcherMessage, Pool, ReplicaHandle, StageState, WakePort};
use crate::restart::{CrashLoop, LifeEnd, NextStart, RestartDecision, RestartIntensity, RestartWindow};
use crate::stage::StageSettings;
use crate::text::limit_error_text;
use crate::worker::{ExitPort, Replica};

/// A build that is given up ends at once, unless its code blocks the runtime.
const BUILDS_END_WITHIN: Duration = Duration::from_secs(1);

/// The actor that supervises one stage.
pub(crate) struct DeploymentActor;

pub(crate) struct DeploymentArgs {
    pub(crate) pool: Arc<Pool>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The node, for user code.
    pub(crate) node: Arc<dyn HostNode>,
    /// The places in memory, which the node's stages share.
    pub(crate) places: Arc<Places>,
    /// Gets the outcome once: all replicas are up, or the reason why not.
    pub(crate) started: oneshot::Sender<Result<(), String>>,
}

pub(crate) struct DeploymentState {
    pub(super) pool: Arc<Pool>,
    watchdog: Arc<Watchdog>,
    node: Arc<dyn HostNode>,
    batcher: ActorRef<BatcherMessage>,
    pub(super) replicas: Vec<ReplicaRecord>,
    window: RestartWindow,
    pub(super) failed: FailedStage,
    /// `Some` until the first start is decided.
    started: Option<oneshot::Sender<Result<(), String>>>,
    /// The replicas that are being built. They end with the stage.
    builds: JoinSet<()>,
    /// Replicas that died before their `ReplicaUp` was read: supervision events overtake ordinary messages.
    early_deaths: EarlyDeaths,
    pub(super) scale: Scale,
    /// The batches that asynchronous replicas left running when they died. They end with the stage at the latest.
    left_running: Vec<JoinSet<()>>,
    pub(super) is_stopping: bool,
}

/// One replica over all its lives. Surplus replicas are kept without a life, so that a generation is never used twice.
#[derive(Default)]
pub(super) struct ReplicaRecord {
    /// The count of starts.
    starts: u64,
    crash_loop: CrashLoop,
    /// Whether its last life is being built: it is neither up nor known to have failed.
    is_starting: bool,
    /// Whether the back-off's timer is running, or it waits for abandoned threads.
    pub(super) is_restart_due: bool,
    /// The current life, once it is up.
    pub(super) handle: Option<Arc<ReplicaHandle>>,
}

impl Actor for DeploymentActor {
    type Msg = DeploymentMessage;
    type State = DeploymentState;
    type Arguments = DeploymentArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<DeploymentMessage>,
        args: DeploymentArgs,
    ) -> Result<DeploymentState, ActorProcessingErr> {
        let DeploymentArgs { pool, watchdog, node, places, started } = args;
        pool.demand.set_wake(wake_port(myself.clone()));
        let (batcher, _) = Actor::spawn_linked(None, BatcherActor, Arc::clone(&pool), myself.get_cell()).await?;
        pool.entrance.set_batcher(batcher.clone());

        if pool.settings().scaling().may_be_zero() {
            pool.replicas.set_target(0);
        }
        let count = pool.replicas.target();
        let mut state = DeploymentState {
            window: RestartWindow::new(pool.settings().intensity()),
            failed: FailedStage::default(),
            scale: Scale::new(&pool, places),
            pool,
            watchdog,
            node,
            batcher,
            replicas: Vec::new(),
            started: Some(started),
            builds: JoinSet::new(),
            early_deaths: EarlyDeaths::default(),
            left_running: Vec::new(),
            is_stopping: false,
        };
        state.take_first_place(&myself);
        state.start_replicas(&myself, 0..count);
        // Without a replica there is nothing to wait for.
        state.settle_start();
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<DeploymentMessage>,
        message: DeploymentMessage,
        state: &mut DeploymentState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DeploymentMessage::ReplicaUp(handle) => state.replica_up(&myself, handle),
            DeploymentMessage::ReplicaNotStarted { index, generation, message } => {
                state.start_is_over(index, generation);
                if state.is_expected(index, generation) {
                    state.replica_not_started(&myself, index, &message);
                }
                state.look(&myself);
            }
            DeploymentMessage::Restart(index) if !state.is_stopping && state.awaits_restart(index) => {
                state.start_unless_threads_hang(&myself, index);
            }
            DeploymentMessage::Restart(_) => {}
            DeploymentMessage::TryAgain => state.try_again_if_due(&myself),
            DeploymentMessage::Scale { replicas, scaled, turn } => state.scale(&myself, replicas, scaled, turn),
            DeploymentMessage::Look => state.look(&myself),
            DeploymentMessage::LeftRunning(batches) => state.keep_running(batches),
            DeploymentMessage::Stop { within, stopped } => {
                let own = state.pool.settings().stop_timeout().min(Deadline::MAX_TIMEOUT);
                state.stop(within.min(own)).await;
                let _ = stopped.send(());
                myself.stop(None);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<DeploymentMessage>,
        event: SupervisionEvent,
        state: &mut DeploymentState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(who, error) => {
                state.child_died(&myself, &who, &limit_error_text(error.to_string()))
            }
            SupervisionEvent::ActorTerminated(who, _, reason) => {
                state.child_died(&myself, &who, reason.as_deref().unwrap_or("it was stopped"))
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<DeploymentMessage>,
        state: &mut DeploymentState,
    ) -> Result<(), ActorProcessingErr> {
        state.pool.enter(StageState::Stopped, None);
        Ok(())
    }
}

/// The port by which the stage's other parts ask its supervisor to look.
fn wake_port(myself: ActorRef<DeploymentMessage>) -> WakePort {
    // Without its supervisor the stage has failed, and its callers are answered.
    Box::new(move || _ = myself.cast(DeploymentMessage::Look))
}

/// The port for a replica's reports.
fn report_port(myself: ActorRef<DeploymentMessage>) -> ReportPort {
    Box::new(move |report| {
        let message = match report {
            ReplicaReport::Up(handle) => DeploymentMessage::ReplicaUp(handle),
            ReplicaReport::LeftRunning(batches) => DeploymentMessage::LeftRunning(batches),
        };
        myself.cast(message).is_ok()
    })
}

impl Drop for DeploymentState {
    fn drop(&mut self) {
        // A killed or crashed actor never runs `post_stop`; its stage must not look as if it took calls.
        if self.pool.health.state().accepts_entries() {
            self.pool.enter(StageState::Failed, Some("its supervisor is gone".to_owned()));
        }
    }
}

impl DeploymentState {
    pub(super) fn start_replicas(&mut self, myself: &ActorRef<DeploymentMessage>, indices: Range<usize>) {
        if self.replicas.len() < indices.end {
            self.replicas.resize_with(indices.end, ReplicaRecord::default);
        }
        for index in indices {
            self.start_replica(myself, index);
        }
    }

    /// Begins a life of a replica. Its worker or the task reports the outcome.
    pub(super) fn start_replica(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize) {
        let replica = &mut self.replicas[index];
        let generation = replica.starts;
        replica.starts += 1;
        (replica.is_starting, replica.is_restart_due) = (true, false);
        self.scale.starting += 1;
        let args = WorkerArgs {
            pool: Arc::clone(&self.pool),
            replica: Replica {
                stage: self.pool.name().clone(),
                index,
                generation,
                count: self.pool.settings().replicas().get(),
                max_batch_size: self.pool.settings().batching().max_batch_size.get(),
                settings: self.pool.settings().settings_of(index),
                timeout: self.pool.settings().timeout(),
                contract: self.pool.settings().contract(),
                core: self.pool.settings().affinity_of(index),
                node: Arc::clone(&self.node),
                exit: ExitPort::unconnected(),
                usage: UsagePort::default(),
                note: self.pool.note.clone(),
            },
            watchdog: Arc::clone(&self.watchdog),
            report: report_port(myself.clone()),
        };
        let myself = myself.clone();
        self.builds.spawn(async move {
            if let Err(error) = Actor::spawn_linked(None, WorkerActor, args, myself.get_cell()).await {
                let message = spawn_error_text(error);
                // If the supervisor is gone, the outcome no longer matters.
                let _ = myself.cast(DeploymentMessage::ReplicaNotStarted { index, generation, message });
            }
        });
    }

    /// A start has its outcome, of this life of the replica or of an earlier one.
    fn start_is_over(&mut self, index: usize, generation: u64) {
        self.scale.starting -= 1;
        while self.builds.try_join_next().is_some() {}
        let replica = &mut self.replicas[index];
        replica.is_starting &= replica.starts != generation + 1;
    }

    fn replica_up(&mut self, myself: &ActorRef<DeploymentMessage>, handle: Arc<ReplicaHandle>) {
        self.start_is_over(handle.index(), handle.generation());
        if handle.generation() > 0 && !self.pool.settings().scaling().may_be_zero() {
            let log =
                || tracing::info!(parent: None, stage = %self.pool.name(), replica = handle.index(), "replica is back");
            self.pool.log_crash(log);
        }
        if self.is_stopping {
            // It came up after its stage had ended, so stop it here.
            handle.actor().stop(None);
            return;
        }
        let index = handle.index();
        let actor = handle.actor().get_id();
        let expected = self.is_expected(index, handle.generation());
        if !expected {
            // The stage was scaled down while it was built.
            self.part_with(&handle);
        }
        self.pool.replicas.add(Arc::clone(&handle));
        if expected {
            self.replicas[index].handle = Some(handle);
        }
        if let Some(EarlyDeath { why, .. }) = self.early_deaths.take(actor)
            && !self.pool.replicas.remove_leaving(actor)
        {
            self.replica_died(myself, index, &why);
            return;
        }
        if expected {
            self.recover(myself);
        }
        self.note_loaded();
        self.settle_start();
        self.tell_if_scaled();
        self.look(myself);
    }

    /// Whether all replicas are up; if so, the stage is ready.
    pub(super) fn settle_start(&mut self) {
        if self.replicas[..self.pool.replicas.target()].iter().all(ReplicaRecord::is_up) {
            self.pool.enter(StageState::Ready, None);
            if let Some(started) = self.started.take() {
                let _ = started.send(Ok(()));
            }
        }
    }

    fn replica_not_started(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize, message: &str) {
        if self.is_stopping {
            return;
        }
        let message = limit_error_text(message.to_owned());
        let reason = limit_error_text(format!("replica {index} could not start: {message}"));
        if let Some(started) = self.started.take() {
            self.end_for_good(reason.clone());
            let _ = started.send(Err(reason));
            return;
        }
        if self.failed.is_failed() {
            return self.trial_failed(myself, reason);
        }
        if self.undo_scaling(index, &reason) {
            return;
        }
        tracing::error!(parent: None, stage = %self.pool.name(), replica = index, message, "replica could not start");
        self.restart_or_give_up(myself, index, LifeEnd::NotStarted, reason);
    }

    fn child_died(
        &mut self,
        myself: &ActorRef<DeploymentMessage>,
        who: &ActorCell,
        why: &str,
    ) -> Result<(), ActorProcessingErr> {
        if self.is_stopping {
            return Ok(());
        }
        if who.get_id() == self.batcher.get_id() {
            // The queue is gone, and its callers were notified by their dropped reply ports. The stage gets a new life
            // from the router.
            return Err(format!("its batcher died: {why}").into());
        }
        if self.pool.replicas.remove_leaving(who.get_id()) {
            self.tell_if_scaled();
            self.look(myself);
            return Ok(());
        }
        match self.replicas.iter().position(|replica| replica.is(who)) {
            Some(index) => self.replica_died(myself, index, why),
            None => {
                let death = EarlyDeath { who: who.get_id(), has_crashed: true, why: why.to_owned() };
                self.early_deaths.keep(death, 2 * StageSettings::MAX_REPLICAS);
            }
        }
        Ok(())
    }

    fn replica_died(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize, why: &str) {
        let Some(handle) = self.replicas[index].handle.take() else { return };
        handle.retire();
        self.pool.replicas.is_manned(clock::now());
        // Entries of its sessions wait for it, and the batcher may get no other message about its end.
        self.pool.tell_batcher(BatcherMessage::Free);
        self.pool.log_crash(
            || tracing::error!(parent: None, stage = %self.pool.name(), replica = index, why, "replica died"),
        );
        let reason = limit_error_text(format!("replica {index} died: {why}"));
        if self.failed.is_failed() {
            return self.trial_failed(myself, reason);
        }
        if self.has_too_many_abandoned_threads() {
            return self.give_up(myself, index, self.hung_threads());
        }
        self.restart_or_give_up(myself, index, handle.end(), reason);
    }

    pub(super) fn has_too_many_abandoned_threads(&self) -> bool {
        self.pool.replicas.abandoned_threads() > self.pool.settings().max_abandoned_threads()
    }

    /// Starts a replica again, unless it is in a loop that is too quick.
    fn restart_or_give_up(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize, end: LifeEnd, reason: String) {
        let now = clock::now();
        let NextStart { attempt, counts } = self.replicas[index].crash_loop.ended(end);
        if counts && self.window.record(now) == RestartDecision::GiveUp {
            let RestartIntensity { max_restarts, within } = self.pool.settings().intensity();
            let reason = format!("more than {max_restarts} crashes in {within:?}, the last: {reason}");
            return self.give_up(myself, index, reason);
        }
        let delay = self.pool.settings().backoff().delay(attempt, fastrand::f64());
        self.restart_after(myself, index, delay, reason);
    }

    pub(super) fn restart_after(
        &mut self,
        myself: &ActorRef<DeploymentMessage>,
        index: usize,
        delay: Duration,
        reason: String,
    ) {
        self.replicas[index].is_restart_due = true;
        self.pool.replicas.note_restart(index, clock::now(), reason.clone());
        self.pool.enter(StageState::Degraded, Some(reason));
        self.pool.metrics.restarts.inc();
        if delay.is_zero() {
            self.start_replica(myself, index);
        } else {
            myself.send_after(delay, move || DeploymentMessage::Restart(index));
        }
    }

    /// Whether this is the current life of a wanted replica.
    fn is_expected(&self, index: usize, generation: u64) -> bool {
        index < self.pool.replicas.target() && self.replicas[index].starts == generation + 1
    }

    fn awaits_restart(&self, index: usize) -> bool {
        index < self.pool.replicas.target() && self.replicas[index].is_restart_due
    }

    /// The stage could not start. Its owner ends it.
    fn end_for_good(&mut self, reason: String) {
        tracing::error!(parent: None, stage = %self.pool.name(), reason, "stage has failed");
        self.is_stopping = true;
        self.scale.give_up(&reason);
        self.pool.enter(StageState::Failed, Some(reason));
        self.pool.tell_batcher(BatcherMessage::Close);
        for handle in self.pool.replicas.all() {
            handle.actor().stop(None);
        }
    }

    /// Keeps the batches of a dead replica until they are over.
    fn keep_running(&mut self, batches: JoinSet<()>) {
        self.left_running.push(batches);
        self.left_running.retain_mut(|batches| {
            while batches.try_join_next().is_some() {}
            !batches.is_empty()
        });
    }

    /// Gives up the replicas that are being built, stops the workers concurrently and then the batcher. A worker that
    /// does not end in time is killed; a hung thread is abandoned.
    async fn stop(&mut self, within: Duration) {
        self.is_stopping = true;
        self.pool.enter(StageState::Draining, None);
        self.pool.tell_batcher(BatcherMessage::Drain);
        if tokio::time::timeout(BUILDS_END_WITHIN, self.builds.shutdown()).await.is_err() {
            tracing::warn!(parent: None, stage = %self.pool.name(), "a replica that was being built did not end");
        }
        let workers = self.pool.replicas.all();
        for worker in &workers {
            worker.actor().stop(None);
        }
        let end = clock::now() + within;
        for worker in &workers {
            let left = end.saturating_duration_since(clock::now());
            if worker.actor().wait(Some(left)).await.is_err() {
                tracing::warn!(
                    parent: None, stage = %self.pool.name(), replica = worker.index(), "worker did not stop in time"
                );
                worker.actor().kill();
            }
        }
        for batches in &mut self.left_running {
            let over = async { while batches.join_next().await.is_some() {} };
            let _ = tokio::time::timeout_at(end, over).await;
        }
        // Drops the batches that are still running.
        self.left_running.clear();
        self.batcher.stop(None);
        let _ = self.batcher.wait(Some(within)).await;
    }
}

impl ReplicaRecord {
    pub(super) fn is_up(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| !handle.is_gone())
    }

    pub(super) fn is_up_or_starting(&self) -> bool {
        self.is_starting || self.is_up()
    }

    fn is(&self, who: &ActorCell) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.actor().get_id() == who.get_id())
    }
}

/// The constructor's own message, if there is one.
fn spawn_error_text(error: SpawnErr) -> String {
    match error {
        SpawnErr::StartupFailed(cause) => cause.to_string(),
        other => other.to_string(),
    }
}
