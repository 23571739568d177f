//! What everybody who deals with one stage on this node shares: its state, its workers, its measurements.
//!
//! It decides nothing: `submission.rs` is the way in, with the queue's bound; the batcher's actor forms the batches; the stage's
//! supervisor moves it through its life.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};

use super::culprits::CulpritShare;
use super::lifecycle::{Lifecycle, StageState};
use super::message::BatcherMessage;
use super::retry_budget::RetryBudget;
use super::slot::WorkerSlot;
use crate::clock::Instant;
use crate::error::{CallError, ErrorKind};
use crate::id::StageName;
use crate::metrics::{Discarded, NodeMetrics, Place, StageMetrics};
use crate::queue::{BatchPolicy, Entry, Inbox, Load, Place as QueuePlace, Places, SharedCost};
use crate::stage::{Contract, Sizing, StageSettings, StageSpec};
use crate::timeline::{ReleaseReason, RunEnd, Timing};

/// How many of a stage's last restarts are remembered.
const REMEMBERED_RESTARTS: usize = 8;

/// Why a replica was started again.
#[derive(Clone, Debug)]
pub(crate) struct Restart {
    pub(crate) replica: usize,
    pub(crate) at: Instant,
    pub(crate) reason: String,
}

/// One stage on this node.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: StageName,
    pub(crate) settings: StageSettings,
    pub(crate) sizing: Sizing,
    pub(crate) streams: bool,
    pub(crate) metrics: StageMetrics,
    lifecycle: Mutex<Lifecycle>,
    /// Whether `submit` may queue: true in Ready, Degraded and, for calls admitted before, Draining.
    pub(crate) open: AtomicBool,
    pub(crate) batcher: OnceLock<ActorRef<BatcherMessage>>,
    pub(crate) inbox: Inbox,
    pub(crate) workers: Mutex<Vec<Arc<WorkerSlot>>>,
    /// The last restarts, the newest last.
    restarts: Mutex<VecDeque<Restart>>,
    /// How many replicas there are to be.
    replicas: AtomicUsize,
    pub(crate) places: Places,
    pub(crate) sequence: AtomicU64,
    /// Batches that were handed out.
    batches: AtomicU64,
    moved_to_threads: AtomicBool,
    abandoned_threads: AtomicUsize,
    retries: Mutex<RetryBudget>,
    culprits: Mutex<CulpritShare>,
    /// Whether there are culprits to remember: what most stages look at instead of the lock.
    has_culprits: AtomicBool,
    /// What waits costs, as the batcher last said; only where the stage has a cost function.
    pub(crate) queued_cost: AtomicU64,
    pub(crate) cost: SharedCost,
}

impl Pool {
    pub(crate) fn new(spec: &StageSpec, metrics: &NodeMetrics) -> Self {
        Self {
            name: spec.name().clone(),
            settings: spec.settings().clone(),
            sizing: spec.sizing().clone(),
            streams: spec.streams(),
            metrics: metrics.stage(spec.name()),
            lifecycle: Mutex::default(),
            open: AtomicBool::new(false),
            batcher: OnceLock::new(),
            inbox: Inbox::default(),
            workers: Mutex::default(),
            restarts: Mutex::default(),
            replicas: AtomicUsize::new(spec.settings().replicas().get()),
            places: Places::new(spec.settings().queue().get()),
            sequence: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            moved_to_threads: AtomicBool::new(false),
            abandoned_threads: AtomicUsize::new(0),
            retries: Mutex::default(),
            culprits: Mutex::default(),
            has_culprits: AtomicBool::new(false),
            queued_cost: AtomicU64::new(0),
            cost: SharedCost::default(),
        }
    }

    pub(crate) fn name(&self) -> &StageName {
        &self.name
    }

    pub(crate) fn settings(&self) -> &StageSettings {
        &self.settings
    }

    pub(crate) fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(crate) fn metrics(&self) -> &StageMetrics {
        &self.metrics
    }

    pub(crate) fn policy(&self) -> &BatchPolicy {
        self.settings.batching()
    }

    /// Entries in the queue and on their way to it.
    pub(crate) fn queued(&self) -> usize {
        self.places.taken()
    }

    /// Whether a batch could leave that nobody could join any more.
    pub(crate) fn has_full_batch(&self) -> bool {
        self.queued() >= self.policy().max_batch_size.get()
    }

    /// The replicas that are up, and those that finish what they have before they leave.
    pub(crate) fn workers(&self) -> Vec<Arc<WorkerSlot>> {
        self.workers.lock().iter().filter(|slot| !slot.is_gone() || slot.is_leaving()).cloned().collect()
    }

    pub(crate) fn set_batcher(&self, batcher: ActorRef<BatcherMessage>) {
        let _ = self.batcher.set(batcher);
    }

    pub(crate) fn tell_batcher(&self, message: BatcherMessage) {
        if let Some(batcher) = self.batcher.get() {
            // A batcher that is gone has nothing left to be told about.
            let _ = batcher.send_message(message);
        }
    }

    /// Notes a replica that came up, in place of the one before it.
    pub(crate) fn note_worker(&self, slot: Arc<WorkerSlot>) {
        let mut workers = self.workers.lock();
        let is_over = |other: &WorkerSlot| other.is_gone() || (other.index() == slot.index() && !slot.is_leaving());
        workers.retain(|other| other.is_leaving() || !is_over(other));
        workers.push(slot);
    }

    /// Whether this replica was told to leave; if so, it is forgotten.
    pub(crate) fn has_left(&self, who: ActorId) -> bool {
        let mut workers = self.workers.lock();
        let left = workers.iter().position(|slot| slot.actor().get_id() == who && slot.is_leaving());
        left.map(|position| workers.swap_remove(position)).is_some()
    }

    /// Remembers why a replica is started again; the oldest is forgotten.
    pub(crate) fn note_restart(&self, replica: usize, at: Instant, reason: String) {
        let mut restarts = self.restarts.lock();
        if restarts.len() == REMEMBERED_RESTARTS {
            restarts.pop_front();
        }
        restarts.push_back(Restart { replica, at, reason });
    }

    /// The last restarts, the newest last.
    pub(crate) fn last_restarts(&self) -> Vec<Restart> {
        self.restarts.lock().iter().cloned().collect()
    }

    /// How many replicas there are to be.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    pub(crate) fn set_replicas(&self, replicas: usize) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Where the stage is in its life.
    pub(crate) fn stage_state(&self) -> StageState {
        self.lifecycle.lock().state()
    }

    /// Where the stage is in its life, and why.
    pub(crate) fn state_and_reason(&self) -> (StageState, Option<String>) {
        let lifecycle = self.lifecycle.lock();
        (lifecycle.state(), lifecycle.reason().map(str::to_owned))
    }

    /// Moves the stage on in its life. Steps that its life does not have are refused and change nothing.
    pub(crate) fn enter(&self, state: StageState, reason: Option<String>) {
        let (before, reason) = {
            let mut lifecycle = self.lifecycle.lock();
            let before = lifecycle.state();
            if !lifecycle.enter(state, reason) {
                return;
            }
            self.open.store(state.accepts_entries(), Ordering::Release);
            (before, lifecycle.reason().map(str::to_owned))
        };
        if !state.accepts_entries() {
            self.places.wake_all();
        }
        // Without the lock: whoever writes the log may ask for the state.
        if before != state {
            tracing::info!(stage = %self.name, from = %before, to = %state, reason, "stage state");
        }
    }

    /// The workers are built and about to warm up. Says something only while the stage starts.
    pub(crate) fn begin_warm_up(&self) {
        if self.stage_state() == StageState::Starting {
            self.enter(StageState::WarmingUp, None);
        }
    }

    /// Whether the stage takes nothing new any more.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.stage_state(), StageState::Draining | StageState::Stopped | StageState::Failed)
    }

    /// Whether it answers one input with many outputs.
    pub(crate) fn streams(&self) -> bool {
        self.streams
    }

    pub(crate) fn contract(&self) -> Contract {
        // Outputs that have left cannot be taken back, so a streaming call is not run again.
        if self.streams { Contract::AtMostOnce } else { self.settings.contract() }
    }

    /// An entry killed its worker when it ran alone.
    pub(crate) fn found_culprit(&self) {
        self.metrics.found_culprit();
        self.has_culprits.store(true, Ordering::Relaxed);
        let mut culprits = self.culprits.lock();
        culprits.found();
        self.judge(&culprits);
    }

    /// How many of these entries, which were lost with whoever ran them, may be run again.
    pub(crate) fn take_retries(&self, entries: usize) -> usize {
        let retries = self.retries.lock().take(entries);
        self.metrics.retried(retries);
        retries
    }

    /// Entries had their outcome.
    pub(crate) fn record_survivors(&self, entries: usize) {
        if self.contract().may_run_again() {
            self.retries.lock().completed(entries);
        }
        if self.has_culprits.load(Ordering::Relaxed) {
            let mut culprits = self.culprits.lock();
            culprits.ran(entries);
            self.judge(&culprits);
            self.has_culprits.store(!culprits.is_negligible(), Ordering::Relaxed);
        }
    }

    fn judge(&self, culprits: &CulpritShare) {
        let complaint = culprits.excess().map(|_| "more than a fifth of its entries kill their worker".to_owned());
        self.lifecycle.lock().complain(complaint);
    }

    /// A thread hangs in user code and is left alone.
    pub(crate) fn abandon_thread(&self) {
        self.metrics.hung();
        self.abandoned_threads.fetch_add(1, Ordering::Relaxed);
    }

    /// One that was left alone has come back, and ends.
    pub(crate) fn thread_came_back(&self) {
        self.abandoned_threads.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn abandoned_threads(&self) -> usize {
        self.abandoned_threads.load(Ordering::Relaxed)
    }

    /// The watchdog's word: this stage holds runtime threads for too long.
    pub(crate) fn move_to_threads(&self, limit: Duration) {
        if !self.moved_to_threads.swap(true, Ordering::AcqRel) {
            self.metrics.moved_to_threads();
            tracing::warn!(
                stage = %self.name,
                limit_ms = limit.as_millis() as u64,
                "a task stage held a runtime thread for too long and moves to threads of its own; \
                 declare it with `on_threads()`"
            );
        }
    }

    pub(crate) fn is_moved_to_threads(&self) -> bool {
        self.moved_to_threads.load(Ordering::Acquire)
    }

    /// A worker has finished: it is free, and the batcher hears of it if anybody waits.
    pub(crate) fn release_worker(&self, slot: &WorkerSlot) {
        slot.release();
        self.tell_of_free_seat();
    }

    /// A worker is free that completed nothing: nobody wanted its batch any more, or the stage's timeout has passed.
    pub(crate) fn give_back_worker(&self, slot: &WorkerSlot) {
        slot.give_back();
        self.tell_of_free_seat();
    }

    fn tell_of_free_seat(&self) {
        if self.queued() > 0 {
            self.tell_batcher(BatcherMessage::Free);
        }
    }

    /// Answers an entry that nobody wants any more, and counts it.
    pub(crate) fn discard(&self, entry: Entry, now: Instant, place: Place) {
        let expired = entry.flight.is_late(now);
        let why = if expired { Discarded::Expired } else { Discarded::Cancelled };
        entry.note_end(&self.name, now, if expired { RunEnd::Expired } else { RunEnd::Cancelled });
        self.metrics.discarded(place, why);
        // Whoever still listens only waits for its own timer to say the same.
        entry.refuse(CallError::deadline_exceeded("before a worker was free").at_stage(&self.name));
    }

    /// The number of the next batch, from 1.
    pub(crate) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn record_release(&self, reason: ReleaseReason, entries: usize) {
        self.metrics.released(reason, entries);
    }

    /// Learns from a batch for which a worker was taken at `taken_at`: until it is free again, nobody else has it.
    pub(crate) fn record_run(&self, cost: u64, taken_at: Instant, started_at: Instant, finished_at: Instant) {
        self.metrics.computed(finished_at.saturating_duration_since(started_at));
        // A streaming batch lasts as long as its readers take to read it, which says nothing of the next one.
        if self.streams {
            return;
        }
        self.cost.observe(finished_at, cost, finished_at.saturating_duration_since(taken_at));
    }

    pub(crate) fn record_waits(&self, timing: &Timing) {
        self.metrics.waited(timing);
    }

    /// How long batches take, as measured.
    pub(crate) fn cost(&self) -> &SharedCost {
        &self.cost
    }

    /// Notes what the queue holds, for those who are refused.
    pub(crate) fn note_queued(&self, load: Load) {
        if self.sizing.has_cost() {
            self.queued_cost.store(load.cost, Ordering::Relaxed);
        }
    }

    /// How many batches may run at once, at least one: a replica that is down now is about to come back.
    pub(crate) fn seats(&self) -> usize {
        let seats: usize = self.workers.lock().iter().filter(|slot| !slot.is_gone()).map(|slot| slot.seats()).sum();
        seats.max(1)
    }

    /// A place for an entry that was admitted once, although the queue may be full.
    pub(crate) fn take_place_again(&self) -> QueuePlace {
        self.places.take_again()
    }

    pub(crate) fn unavailable(&self) -> CallError {
        let message = format!("stage `{}` {}", self.name, self.why_unavailable());
        CallError::new(ErrorKind::Unavailable, message).at_stage(&self.name)
    }

    /// The second half of "stage `x` …".
    fn why_unavailable(&self) -> String {
        match self.state_and_reason() {
            (state, Some(reason)) => format!("is {state}: {reason}"),
            (state, None) => format!("is {state}"),
        }
    }
}
