//! One stage on this node, as callers, batcher, replicas and supervisor share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::demand::{Demand, FailedStart};
use super::entrance::QueueEntrance;
use super::health::Health;
use super::idle::Quickness;
use super::lifecycle::StageState;
use super::message::BatcherMessage;
use super::replica::ReplicaHandle;
use super::replica_set::ReplicaSet;
use super::rerun_budget::RerunBudget;
use super::response_cache::ResponseCache;
use super::sharing::Hosted;
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind, RETRY_AFTER};
use crate::id::StageName;
use crate::log_limit::{LogRate, SharedLogLimit};
use crate::metrics::{DiscardPlace, DiscardReason, NodeMetrics, StageMetrics};
use crate::queue::{BatchEnd, BatchPolicy, Entry, HostedId, Load, SharedCost};
use crate::remote::Cluster;
use crate::stage::{StageSettings, StageSpec};
use crate::timeline::{BatchFacts, ReleaseReason, RunEnd};
use crate::worker::NotePort;

/// One stage on this node.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) spec: Arc<StageSpec>,
    /// The other nodes, where the stage may run as well.
    pub(crate) cluster: Cluster,
    pub(crate) health: Arc<Health>,
    pub(crate) entrance: QueueEntrance,
    pub(crate) replicas: Arc<ReplicaSet>,
    pub(crate) demand: Arc<Demand>,
    /// The pool whose replicas run it, if they are not its own.
    pub(crate) host: Option<Arc<Self>>,
    pub(super) hosted: Hosted,
    /// Its number among the stages of its host; 0 without a host.
    pub(crate) hosted_id: HostedId,
    /// How long batches take, as measured.
    pub(crate) cost: SharedCost,
    /// The number of entries of the last batch.
    last_batch: AtomicUsize,
    /// The last batch that ended; only where its callers may be waited for.
    last_end: Mutex<Option<BatchEnd>>,
    pub(super) quickness: Quickness,
    pub(crate) metrics: StageMetrics,
    retries: Mutex<RerunBudget>,
    crash_log: SharedLogLimit,
    pub(super) cache: Option<ResponseCache>,
    /// The note of its workers.
    pub(crate) note: NotePort,
}

impl Pool {
    /// `host` is the pool of the stage's [host](StageSpec::host), if it has one.
    pub(crate) fn new(
        spec: Arc<StageSpec>,
        cluster: Cluster,
        host: Option<Arc<Self>>,
        metrics: &NodeMetrics,
    ) -> Arc<Self> {
        let of_host = host.as_deref();
        let hosted_id = of_host.map_or(0, |host| host.hosted.next());
        let replicas = || Arc::new(ReplicaSet::new(spec.settings().scaling().min()));
        let pool = Arc::new(Self {
            cluster,
            health: of_host.map_or_else(Arc::default, |host| Arc::clone(&host.health)),
            entrance: QueueEntrance::new(spec.settings().queue().get(), of_host.map(|host| &host.entrance)),
            replicas: of_host.map_or_else(replicas, |host| Arc::clone(&host.replicas)),
            demand: of_host.map_or_else(|| Arc::new(Demand::new()), |host| Arc::clone(&host.demand)),
            hosted: Hosted::default(),
            hosted_id,
            cost: SharedCost::default(),
            last_batch: AtomicUsize::new(0),
            last_end: Mutex::default(),
            quickness: Quickness::default(),
            metrics: metrics.stage(spec.name()),
            retries: Mutex::default(),
            crash_log: SharedLogLimit::new(LogRate::FAULTS),
            cache: spec.cache().map(ResponseCache::new),
            note: of_host.map_or_else(NotePort::default, |host| host.note.clone()),
            host,
            spec,
        });
        if let Some(host) = &pool.host {
            host.hosted.add(hosted_id, &pool);
        }
        pool
    }

    pub(crate) fn name(&self) -> &StageName {
        self.spec.name()
    }

    pub(crate) fn settings(&self) -> &StageSettings {
        self.spec.settings()
    }

    pub(crate) fn policy(&self) -> &BatchPolicy {
        self.settings().batching()
    }

    /// Entries in the queue and on their way to it.
    pub(crate) fn queued(&self) -> usize {
        self.entrance.permits.taken()
    }

    /// A batch is about to be handed over: counts it, and returns its facts.
    pub(crate) fn release(
        &self,
        entries: usize,
        cost: u64,
        replica: usize,
        reason: Option<ReleaseReason>,
    ) -> BatchFacts {
        let id = self.entrance.next_batch(self.hosted_id, cost);
        if let Some(reason) = reason {
            self.last_batch.store(entries, Ordering::Relaxed);
            self.metrics.released(reason, entries);
        }
        BatchFacts { id, size: entries, replica, reason, span: None }
    }

    /// The number of entries of the last batch. Parts of a batch under bisection do not count.
    pub(crate) fn last_batch(&self) -> usize {
        self.last_batch.load(Ordering::Relaxed)
    }

    /// The last batch that ended, once.
    pub(crate) fn take_end(&self) -> Option<BatchEnd> {
        if self.policy().waits_for_returns() { self.last_end.lock().take() } else { None }
    }

    /// Whether entries wait for its replicas, or run there.
    pub(crate) fn has_calls(&self) -> bool {
        self.queued_by_all() > 0 || self.replicas.all().iter().any(|replica| replica.running() > 0)
    }

    /// The entries that its replicas hold when all of them run full batches. A stage without a replica gets one for its
    /// next entry.
    pub(crate) fn capacity(&self) -> usize {
        self.replicas.target().max(1).saturating_mul(self.policy().max_batch_size.get())
    }

    /// The bytes of the answers that it keeps.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, ResponseCache::bytes)
    }

    pub(crate) fn tell_batcher(&self, message: BatcherMessage) {
        self.entrance.tell_batcher(message);
    }

    /// Moves the stage to its next state. An invalid step changes nothing.
    pub(crate) fn enter(&self, state: StageState, reason: Option<String>) {
        let Some((before, reason)) = self.health.enter(state, reason) else { return };
        if state != StageState::Failed {
            self.health.set_retry_at(None);
        }
        if !state.accepts_entries() {
            self.entrance.permits.wake_all();
            self.others().iter().for_each(|pool| pool.entrance.permits.wake_all());
        }
        // Without the lock: a log subscriber may ask for the state.
        if before != state {
            let log = || {
                tracing::info!(
                    parent: None, stage = %self.name(), from = %before, to = %state, reason, "stage state"
                )
            };
            if before.is_ready() && state.is_ready() { self.log_crash(log) } else { log() }
        }
    }

    /// The stage has failed, and tries again then.
    pub(crate) fn fail(&self, reason: String, retry_at: Instant) {
        self.health.set_retry_at(Some(retry_at));
        self.enter(StageState::Failed, Some(reason));
    }

    /// Logs a line about a crash, unless the stage has written many lately.
    pub(crate) fn log_crash(&self, line: impl FnOnce()) {
        let tell = |left_out| {
            tracing::warn!(parent: None, stage = %self.name(), left_out, "lines about its crashes were left out");
        };
        if self.crash_log.admits(0, tell) {
            line();
        }
    }

    /// The workers are built and about to warm up. Has an effect only while the stage starts.
    pub(crate) fn begin_warm_up(&self) {
        if self.health.state() == StageState::Starting {
            self.enter(StageState::WarmingUp, None);
        }
    }

    /// A poison entry was found: it killed its worker when it ran alone.
    pub(crate) fn found_poison(&self) {
        self.metrics.poison_entries.inc();
        self.health.record_culprit();
    }

    /// The number of these entries, lost with their replica, that the retry budget lets run again.
    pub(crate) fn take_retries(&self, entries: usize) -> usize {
        let retries = self.retries.lock().take(entries);
        self.metrics.retries.inc_by(retries as u64);
        retries
    }

    /// Entries had their outcome.
    pub(crate) fn record_outcomes(&self, entries: usize) {
        if self.spec.contract().may_run_again() {
            self.retries.lock().completed(entries);
        }
        self.health.record_outcomes(entries);
    }

    /// A thread hangs in user code and is abandoned.
    pub(crate) fn abandon_thread(&self) {
        self.metrics.hung.inc();
        self.replicas.abandon_thread();
    }

    /// An abandoned thread has come back, and ends. A stage that waits for that looks.
    pub(crate) fn thread_came_back(&self) {
        self.replicas.thread_came_back();
        self.demand.wake();
    }

    /// Moves the stage off the runtime: the watchdog saw a call longer than `limit`.
    pub(crate) fn move_to_threads(&self, limit: Duration) {
        if self.replicas.move_to_threads() {
            self.metrics.moved_to_threads.inc();
            tracing::warn!(
                parent: None,
                stage = %self.name(),
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

    /// Tells the batcher of a free slot, if entries wait.
    pub(super) fn tell_of_free_slot(&self) {
        if self.queued() > 0 || self.is_shared() {
            self.tell_batcher(BatcherMessage::Free);
        }
    }

    /// Answers an entry whose caller has left or whose deadline has passed, and counts it.
    pub(crate) fn discard(&self, entry: Entry, now: Instant, place: DiscardPlace) {
        let expired = entry.flight.is_late(now);
        let why = if expired { DiscardReason::Expired } else { DiscardReason::Cancelled };
        entry.note_end(self.name(), now, if expired { RunEnd::Expired } else { RunEnd::Cancelled });
        self.metrics.discarded(place, why);
        // A caller that is still there gets the same answer from its own timer.
        entry.refuse(CallError::deadline_exceeded("before a worker was free").at_stage(self.name()));
    }

    /// Feeds the cost model with a batch, which took its slot for `batch` until user code began, and then for
    /// `compute`.
    pub(crate) fn record_run(
        &self,
        entries: usize,
        cost: u64,
        batch: Duration,
        compute: Duration,
        finished_at: Instant,
    ) {
        self.metrics.computed(compute);
        self.quickness.observe(compute);
        // A streaming batch lasts as long as its readers take.
        if self.policy().waits_for_returns() && !self.spec.is_streaming() {
            *self.last_end.lock() = Some(BatchEnd { at: finished_at, entries, took: batch + compute });
        }
        // A streaming batch lasts as long as its readers take, which does not predict the next one.
        if !self.spec.is_streaming() {
            self.cost.observe(finished_at, cost, batch + compute);
        }
    }

    /// Notes the load of the queue, for the retry time of refused callers.
    pub(crate) fn note_queued(&self, load: Load) {
        if self.spec.sizing().has_cost() {
            self.entrance.set_queued_cost(load.cost);
        }
    }

    /// The answer to an entry whose stage has no replica, because its start failed.
    pub(crate) fn not_started(&self, failed: &FailedStart, now: Instant) -> CallError {
        let message = format!("stage `{}` is not loaded: {}", self.name(), failed.reason);
        let retry_after = failed.until.saturating_duration_since(now);
        CallError::unavailable(message, retry_after).at_stage(self.name())
    }

    pub(crate) fn unavailable(&self) -> CallError {
        let name = self.name();
        let message = match self.health.state_and_reason() {
            (state, Some(reason)) => format!("stage `{name}` is {state}: {reason}"),
            (state, None) => format!("stage `{name}` is {state}"),
        };
        let error = match self.health.retry_at() {
            Some(at) => CallError::unavailable(message, at.saturating_duration_since(clock::now()).max(RETRY_AFTER)),
            None => CallError::new(ErrorKind::Unavailable, message),
        };
        error.at_stage(name)
    }
}
