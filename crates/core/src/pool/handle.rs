//! The state of one stage that callers, batcher, replicas and supervisor share: life cycle, replicas, measurements.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorRef;

use super::lifecycle::{Lifecycle, StageState};
use super::message::BatcherMessage;
use super::poison::PoisonShare;
use super::replica::ReplicaHandle;
use super::replica_set::ReplicaSet;
use super::retry_budget::RetryBudget;
use crate::clock::Instant;
use crate::error::{CallError, ErrorKind};
use crate::id::StageName;
use crate::metrics::{DiscardPlace, Discarded, NodeMetrics, StageMetrics};
use crate::queue::{BatchPolicy, Entry, Inbox, Load, QueuePermit, QueuePermits, SharedCost};
use crate::stage::{Contract, Sizing, StageSettings, StageSpec};
use crate::timeline::{ReleaseReason, RunEnd, Timing};

/// One stage on this node.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: StageName,
    pub(crate) settings: StageSettings,
    pub(crate) sizing: Sizing,
    pub(crate) streams: bool,
    pub(crate) metrics: StageMetrics,
    lifecycle: Mutex<Lifecycle>,
    /// Whether `submit` may queue: in Ready, Degraded and, for calls admitted before, Draining.
    pub(crate) open: AtomicBool,
    pub(crate) batcher: OnceLock<ActorRef<BatcherMessage>>,
    pub(crate) inbox: Inbox,
    pub(crate) replicas: ReplicaSet,
    pub(crate) permits: QueuePermits,
    pub(crate) sequence: AtomicU64,
    /// Batches that were handed out.
    batches: AtomicU64,
    retries: Mutex<RetryBudget>,
    poison: Mutex<PoisonShare>,
    /// Whether poison entries were found lately. Most stages read this instead of taking the lock.
    has_poison: AtomicBool,
    /// The cost of the queue, as the batcher last reported it; only where the stage has a cost function.
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
            replicas: ReplicaSet::new(spec.settings().replicas().get()),
            permits: QueuePermits::new(spec.settings().queue().get()),
            sequence: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            retries: Mutex::default(),
            poison: Mutex::default(),
            has_poison: AtomicBool::new(false),
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

    /// Its replicas on this node.
    pub(crate) fn replicas(&self) -> &ReplicaSet {
        &self.replicas
    }

    pub(crate) fn metrics(&self) -> &StageMetrics {
        &self.metrics
    }

    pub(crate) fn policy(&self) -> &BatchPolicy {
        self.settings.batching()
    }

    /// Entries in the queue and on their way to it.
    pub(crate) fn queued(&self) -> usize {
        self.permits.taken()
    }

    /// Whether the queue holds a full batch.
    pub(crate) fn has_full_batch(&self) -> bool {
        self.queued() >= self.policy().max_batch_size.get()
    }

    pub(crate) fn set_batcher(&self, batcher: ActorRef<BatcherMessage>) {
        let _ = self.batcher.set(batcher);
    }

    pub(crate) fn tell_batcher(&self, message: BatcherMessage) {
        if let Some(batcher) = self.batcher.get() {
            // An error means that the batcher is gone, and its queue with it.
            let _ = batcher.send_message(message);
        }
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

    /// Moves the stage to its next state. An invalid step changes nothing.
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
            self.permits.wake_all();
        }
        // Without the lock: a log subscriber may ask for the state.
        if before != state {
            tracing::info!(stage = %self.name, from = %before, to = %state, reason, "stage state");
        }
    }

    /// The workers are built and about to warm up. Has an effect only while the stage starts.
    pub(crate) fn begin_warm_up(&self) {
        if self.stage_state() == StageState::Starting {
            self.enter(StageState::WarmingUp, None);
        }
    }

    /// Whether the stage takes no new entries.
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

    /// A poison entry was found: it killed its worker when it ran alone.
    pub(crate) fn found_poison(&self) {
        self.metrics.found_poison();
        self.has_poison.store(true, Ordering::Relaxed);
        let mut poison = self.poison.lock();
        poison.record_poison();
        self.judge(&poison);
    }

    /// The number of these entries, lost with their replica, that the retry budget lets run again.
    pub(crate) fn take_retries(&self, entries: usize) -> usize {
        let retries = self.retries.lock().take(entries);
        self.metrics.retried(retries);
        retries
    }

    /// Entries had their outcome.
    pub(crate) fn record_outcomes(&self, entries: usize) {
        if self.contract().may_run_again() {
            self.retries.lock().completed(entries);
        }
        if self.has_poison.load(Ordering::Relaxed) {
            let mut poison = self.poison.lock();
            poison.record_runs(entries);
            self.judge(&poison);
            self.has_poison.store(!poison.is_negligible(), Ordering::Relaxed);
        }
    }

    fn judge(&self, poison: &PoisonShare) {
        let complaint = poison.excess().map(|_| "more than a fifth of its entries kill their worker".to_owned());
        self.lifecycle.lock().complain(complaint);
    }

    /// A thread hangs in user code and is abandoned.
    pub(crate) fn abandon_thread(&self) {
        self.metrics.hung();
        self.replicas.abandon_thread();
    }

    /// Moves the stage off the runtime: the watchdog saw a call longer than `limit`.
    pub(crate) fn move_to_threads(&self, limit: Duration) {
        if self.replicas.move_to_threads() {
            self.metrics.moved_to_threads();
            tracing::warn!(
                stage = %self.name,
                limit_ms = limit.as_millis() as u64,
                "a task stage held a runtime thread for too long and moves to threads of its own; \
                 declare it with `on_threads()`"
            );
        }
    }

    /// A replica has finished a batch: frees its slot, and tells the batcher if entries wait.
    pub(crate) fn release_worker(&self, handle: &ReplicaHandle) {
        handle.release();
        self.tell_of_free_slot();
    }

    /// Frees the slot of a batch that was not completed: its callers have left, or the stage's timeout has passed.
    pub(crate) fn give_back_worker(&self, handle: &ReplicaHandle) {
        handle.give_back();
        self.tell_of_free_slot();
    }

    fn tell_of_free_slot(&self) {
        if self.queued() > 0 {
            self.tell_batcher(BatcherMessage::Free);
        }
    }

    /// Answers an entry whose caller has left or whose deadline has passed, and counts it.
    pub(crate) fn discard(&self, entry: Entry, now: Instant, place: DiscardPlace) {
        let expired = entry.flight.is_late(now);
        let why = if expired { Discarded::Expired } else { Discarded::Cancelled };
        entry.note_end(&self.name, now, if expired { RunEnd::Expired } else { RunEnd::Cancelled });
        self.metrics.discarded(place, why);
        // A caller that is still there gets the same answer from its own timer.
        entry.refuse(CallError::deadline_exceeded("before a worker was free").at_stage(&self.name));
    }

    /// The number of the next batch, from 1.
    pub(crate) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn record_release(&self, reason: ReleaseReason, entries: usize) {
        self.metrics.released(reason, entries);
    }

    /// Feeds the cost model with a batch: it took its slot for `batch`, until user code began, and for `compute`.
    pub(crate) fn record_run(&self, cost: u64, batch: Duration, compute: Duration, finished_at: Instant) {
        self.metrics.computed(compute);
        // A streaming batch lasts as long as its readers take, which does not predict the next one.
        if self.streams {
            return;
        }
        self.cost.observe(finished_at, cost, batch + compute);
    }

    pub(crate) fn record_waits(&self, timing: &Timing) {
        self.metrics.record_wait(timing);
    }

    /// How long batches take, as measured.
    pub(crate) fn cost(&self) -> &SharedCost {
        &self.cost
    }

    /// Notes the load of the queue, for the retry time of refused callers.
    pub(crate) fn note_queued(&self, load: Load) {
        if self.sizing.has_cost() {
            self.queued_cost.store(load.cost, Ordering::Relaxed);
        }
    }

    /// A permit for an entry that was admitted before, even if the queue is full.
    pub(crate) fn take_permit_again(&self) -> QueuePermit {
        self.permits.take_again()
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
