//! How a stage gets more or fewer replicas: because its load asks for it, an operator, or another stage that needs its
//! place in memory.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::deployment::{DeploymentState, ReplicaRecord};
use super::message::{DeploymentMessage, ScaleError};
use super::places::{ASK_EVERY, HeldPlace, PlaceOrder, Places};
use super::scaler::{ReplicaLoad, ScaleDecision, Scaler};
use crate::clock::{self, Instant};
use crate::pool::{BatcherMessage, FailedStart, Pool, ReplicaHandle, ScaleChange, StageState};

/// The number of a stage's replicas, as its supervisor knows it.
pub(super) struct Scale {
    /// `None`: the number is fixed.
    scaler: Option<Scaler>,
    /// A change in progress.
    pending: Option<PendingScale>,
    places: Arc<Places>,
    /// The place of its stage in memory, or its request for one, if it needs one.
    place: Option<HeldPlace>,
    /// The starts of replicas whose outcome was not read yet.
    pub(super) starting: usize,
    /// When the load began that is in progress.
    loading_since: Option<Instant>,
    /// Failed loads in a row.
    failures: u32,
    /// The armed look, so that no second timer is armed for the same moment.
    look_at: Option<Instant>,
}

/// A change of the number of replicas in progress.
struct PendingScale {
    /// The number to restore if a new replica cannot be started.
    before: usize,
    /// The operator that asked for it.
    asker: Option<Asker>,
}

struct Asker {
    scaled: oneshot::Sender<Result<(), ScaleError>>,
    _turn: OwnedSemaphorePermit,
}

impl PendingScale {
    fn end(self, outcome: Result<(), ScaleError>) {
        if let Some(asker) = self.asker {
            let _ = asker.scaled.send(outcome);
        }
    }
}

impl Scale {
    pub(super) fn new(pool: &Pool, places: Arc<Places>) -> Self {
        let scaling = pool.settings().scaling();
        Self {
            scaler: (!scaling.is_fixed()).then(|| Scaler::new(scaling, clock::now())),
            pending: None,
            places,
            place: None,
            starting: 0,
            loading_since: None,
            failures: 0,
            look_at: None,
        }
    }

    /// The stage could not start: answers the operator, and gives the place back.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.refuse_change(reason);
        self.place = None;
    }

    /// The change in progress, if there is one, has failed.
    pub(super) fn refuse_change(&mut self, reason: &str) {
        if let Some(pending) = self.pending.take() {
            pending.end(Err(ScaleError::NotStarted(reason.to_owned())));
        }
    }
}

impl DeploymentState {
    /// A stage with replicas from the start takes its place at once.
    pub(super) fn take_first_place(&mut self, myself: &ActorRef<DeploymentMessage>) {
        if self.pool.settings().is_pinned() {
            self.scale.place = self.scale.places.request(&self.pool, myself.clone()).ok();
        }
    }

    /// Decides on the number of replicas, and arms the next look.
    pub(super) fn look(&mut self, myself: &ActorRef<DeploymentMessage>) {
        let now = clock::now();
        self.pool.demand.heard();
        if self.scale.look_at.is_some_and(|at| at <= now) {
            self.scale.look_at = None;
        }
        if self.is_stopping {
            return;
        }
        self.try_again_if_threads_returned(myself);
        if self.failed.is_failed() {
            return;
        }
        self.make_room(now);
        self.give_place_back();
        if !self.is_growing()
            && let Some(decision) = self.decide(now)
            && self.may_have(now, decision.replicas)
            && (self.pool.replicas.target() > 0 || self.has_place(myself, now))
        {
            self.change(myself, now, decision);
        }
        self.give_place_back();
        let waits = self.scale.place.as_ref().is_some_and(|place| place.order() == PlaceOrder::Wait);
        let scaler = self.scale.scaler.as_ref();
        let next = if waits {
            Some(now + ASK_EVERY)
        } else {
            scaler.and_then(|scaler| scaler.next_look(now, self.pool.replicas.target()))
        };
        if let Some(at) = next
            && self.scale.look_at.is_none_or(|armed| at < armed)
        {
            self.scale.look_at = Some(at);
            myself.send_after(at.saturating_duration_since(now), || DeploymentMessage::Look);
        }
    }

    fn decide(&mut self, now: Instant) -> Option<ScaleDecision> {
        let load = replica_load(&self.pool);
        self.scale.scaler.as_mut()?.decide(now, &load)
    }

    /// Whether the stage may have this many replicas: none is added while far too many of its threads hang.
    fn may_have(&mut self, now: Instant, replicas: usize) -> bool {
        let running = self.pool.replicas.target();
        let may = replicas <= running || !self.must_wait_for_threads();
        if !may && running == 0 {
            self.refuse_callers(now, self.hung_threads());
        }
        may
    }

    /// Leaves memory for another stage, if no call is here.
    fn make_room(&mut self, now: Instant) {
        let Some(place) = &self.scale.place else { return };
        let PlaceOrder::Go(other) = place.order() else { return };
        if self.pool.replicas.target() == 0 {
            return;
        }
        if self.pool.has_calls() {
            return place.stay();
        }
        self.pool.metrics.evictions.inc();
        self.note_change(now, 0, format!("stage `{other}` needs its place, and it was used least recently"));
        self.start_change(None, 0);
        self.part_with_surplus(0);
    }

    /// Whether the stage may load: it needs no place, or has one. Else it waits for it, or its callers learn why not.
    fn has_place(&mut self, myself: &ActorRef<DeploymentMessage>, now: Instant) -> bool {
        if !self.pool.settings().takes_a_place() {
            return true;
        }
        if self.scale.place.is_none() {
            match self.scale.places.request(&self.pool, myself.clone()) {
                Ok(place) => self.scale.place = Some(place),
                Err(never) => {
                    self.refuse_callers(now, never.to_string());
                    return false;
                }
            }
        }
        let Some(place) = &self.scale.place else { return false };
        if place.order() == PlaceOrder::Wait {
            place.ask();
        }
        place.order() == PlaceOrder::Stay
    }

    /// Gives the place back when nothing of the stage is in memory and no call waits for it.
    fn give_place_back(&mut self) {
        let is_gone = self.pool.replicas.target() == 0
            && self.scale.starting == 0
            && self.pool.replicas.all().is_empty()
            && (self.pool.queued_by_all() == 0 || self.scale.place.as_ref().is_some_and(is_leaving));
        if is_gone {
            self.scale.place = None;
        }
    }

    /// Carries out a decision.
    fn change(&mut self, myself: &ActorRef<DeploymentMessage>, now: Instant, decision: ScaleDecision) {
        let ScaleDecision { replicas, reason } = decision;
        self.note_change(now, replicas, reason);
        self.set_replicas(myself, now, None, replicas);
    }

    /// Logs a change and keeps it for the description.
    fn note_change(&mut self, now: Instant, to: usize, reason: String) {
        let from = self.pool.replicas.target();
        tracing::info!(parent: None, stage = %self.pool.name(), from, to, reason, "scaling");
        self.pool.demand.note_change(ScaleChange { at: now, from, to, reason });
        if let Some(scaler) = &mut self.scale.scaler {
            scaler.changed(now);
        }
    }

    fn start_change(&mut self, asker: Option<Asker>, replicas: usize) {
        let running = self.pool.replicas.target();
        let earlier = self.scale.pending.take();
        let before = earlier.as_ref().map_or(running, |earlier| earlier.before).min(replicas);
        if let Some(earlier) = earlier {
            earlier.end(Err(ScaleError::Superseded));
        }
        self.scale.pending = Some(PendingScale { before, asker });
    }

    fn set_replicas(
        &mut self,
        myself: &ActorRef<DeploymentMessage>,
        now: Instant,
        asker: Option<Asker>,
        replicas: usize,
    ) {
        let running = self.pool.replicas.target();
        self.start_change(asker, replicas);
        if running == 0 && replicas > 0 {
            self.scale.loading_since = Some(now);
        }
        if replicas > running {
            self.pool.replicas.set_target(replicas);
            self.start_replicas(myself, running..replicas);
        } else {
            self.part_with_surplus(replicas);
            self.settle_start();
        }
        self.tell_if_scaled();
    }

    /// Sets the number of replicas for an operator. A later request supersedes an earlier one.
    pub(super) fn scale(
        &mut self,
        myself: &ActorRef<DeploymentMessage>,
        replicas: usize,
        scaled: oneshot::Sender<Result<(), ScaleError>>,
        turn: OwnedSemaphorePermit,
    ) {
        let scaling = self.pool.settings().scaling();
        if self.is_stopping {
            let _ = scaled.send(Err(ScaleError::Ending));
            return;
        }
        if !scaling.is_fixed() && !(scaling.min()..=scaling.max().get()).contains(&replicas) {
            let _ = scaled.send(Err(ScaleError::OutOfBounds { min: scaling.min(), max: scaling.max().get() }));
            return;
        }
        let now = clock::now();
        if self.failed.is_failed() {
            self.note_change(now, replicas, "an operator asked for it".to_owned());
            self.start_change(Some(Asker { scaled, _turn: turn }), replicas);
            return self.try_again_with(myself, replicas);
        }
        if !self.may_have(now, replicas) {
            let _ = scaled.send(Err(ScaleError::NotStarted(self.hung_threads())));
            return;
        }
        if self.pool.replicas.target() == 0 && replicas > 0 && !self.has_place(myself, now) {
            self.give_place_back();
            let message = "no place in memory is free: scale another stage to 0 first".to_owned();
            let _ = scaled.send(Err(ScaleError::NotStarted(message)));
            return;
        }
        self.note_change(now, replicas, "an operator asked for it".to_owned());
        self.set_replicas(myself, now, Some(Asker { scaled, _turn: turn }), replicas);
        self.look(myself);
    }

    /// Keeps the first `keep` replicas. The others finish their batches, clean up and end.
    fn part_with_surplus(&mut self, keep: usize) {
        self.pool.replicas.set_target(keep);
        for index in keep..self.replicas.len() {
            self.replicas[index].is_restart_due = false;
            if let Some(handle) = self.replicas[index].handle.take() {
                self.part_with(&handle);
            }
        }
    }

    pub(super) fn part_with(&self, handle: &Arc<ReplicaHandle>) {
        handle.set_leaving();
        self.pool.tell_batcher(BatcherMessage::Leave(Arc::clone(handle)));
    }

    /// Whether replicas of the last change are still being built.
    fn is_growing(&self) -> bool {
        let target = self.pool.replicas.target();
        self.scale.pending.as_ref().is_some_and(|pending| pending.before < target)
            && !self.replicas[..target].iter().all(ReplicaRecord::is_up)
    }

    pub(super) fn tell_if_scaled(&mut self) {
        let replicas = &self.replicas[..self.pool.replicas.target()];
        if replicas.iter().all(ReplicaRecord::is_up)
            && !self.pool.replicas.all().iter().any(|handle| handle.is_leaving())
            && let Some(pending) = self.scale.pending.take()
        {
            pending.end(Ok(()));
        }
    }

    /// A replica is up: if it was the first one, the stage is loaded.
    pub(super) fn note_loaded(&mut self) {
        if let Some(since) = self.scale.loading_since.take_if(|_| self.pool.replicas.target() > 0) {
            let now = clock::now();
            self.scale.failures = 0;
            self.pool.demand.note_batch(now);
            self.pool.metrics.loaded(now.saturating_duration_since(since));
        }
    }

    /// A replica of a change in progress could not start: the stage keeps the replicas that it had. True: it was such a
    /// replica.
    pub(super) fn undo_scaling(&mut self, index: usize, reason: &str) -> bool {
        let Some(pending) = self.scale.pending.take_if(|pending| index >= pending.before) else { return false };
        let (before, now) = (pending.before, clock::now());
        tracing::warn!(parent: None, stage = %self.pool.name(), to = before, reason, "scaling failed");
        self.part_with_surplus(before);
        pending.end(Err(ScaleError::NotStarted(reason.to_owned())));
        if before == 0 {
            self.scale.loading_since = None;
            self.pool.metrics.load_failed();
            self.pool.enter(StageState::Degraded, Some(reason.to_owned()));
            self.refuse_callers(now, reason.to_owned());
        } else {
            self.back_off(now);
        }
        true
    }

    /// A stage that may have no replica gives up: its next call after the wait loads it again.
    pub(super) fn unload(&mut self, now: Instant, until: Instant, reason: String) {
        self.note_change(now, 0, reason.clone());
        self.scale.refuse_change(&reason);
        self.pool.replicas.set_target(0);
        self.scale.loading_since = None;
        if let Some(scaler) = &mut self.scale.scaler {
            scaler.rest(now, until.saturating_duration_since(now));
        }
        self.pool.enter(StageState::Degraded, Some(reason.clone()));
        self.pool.tell_batcher(BatcherMessage::RefuseUntil(FailedStart { reason, until }));
    }

    /// No other start for a while, the longer the more starts in a row have failed.
    fn back_off(&mut self, now: Instant) -> Duration {
        self.scale.failures = self.scale.failures.saturating_add(1);
        let delay = self.pool.settings().backoff().delay(self.scale.failures, fastrand::f64());
        if let Some(scaler) = &mut self.scale.scaler {
            scaler.rest(now, delay);
        }
        delay
    }

    /// Answers the callers that wait for the first replica, or call during the back-off.
    fn refuse_callers(&mut self, now: Instant, reason: String) {
        let until = now + self.back_off(now);
        self.pool.tell_batcher(BatcherMessage::RefuseUntil(FailedStart { reason, until }));
    }
}

fn is_leaving(place: &HeldPlace) -> bool {
    matches!(place.order(), PlaceOrder::Go(_))
}

/// The load of a stage, as the scaler reads it.
fn replica_load(pool: &Pool) -> ReplicaLoad {
    ReplicaLoad {
        target: pool.replicas.target(),
        queued: pool.queued_by_all(),
        delay: pool.queue_delay(),
        busy: pool.busy(),
        last_batch: pool.demand.last_batch(),
    }
}
