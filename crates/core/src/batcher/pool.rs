//! What everybody who deals with one stage on this node shares: its queue's bound, its state, its measurements.
//!
//! [`Pool::submit`] is the only way in. It refuses before anything is queued, or returns the one outcome of the entry.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};
use tokio::sync::{Notify, oneshot};

use super::admission::{CONFIRMED_FOR, Prospect, Verdict};
use super::cost::{Load, SharedCost};
use super::entry::{Entry, EntryKey, ReplyPort, StageOutcome};
use super::lanes::Lanes;
use super::message::BatcherMessage;
use super::policy::{BatchPolicy, ReleaseReason};
use crate::call::{Flight, Timing};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::failure::Failure;
use crate::id::StageName;
use crate::metrics::{Discarded, NodeMetrics, Place, Refused, StageMetrics};
use crate::stage::{Sizing, StageSettings, StageSpec};
use crate::supervisor::{Lifecycle, StageState};
use crate::worker::{WorkerSlot, panic_message};

/// What a refused caller is told before anything was measured.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// One stage on this node.
#[derive(Debug)]
pub(crate) struct Pool {
    name: StageName,
    settings: StageSettings,
    sizing: Sizing,
    metrics: StageMetrics,
    lifecycle: Mutex<Lifecycle>,
    /// Whether `submit` may queue: true in Ready, Degraded and, for calls admitted before, Draining.
    open: AtomicBool,
    batcher: OnceLock<ActorRef<BatcherMessage>>,
    workers: Mutex<Vec<Arc<WorkerSlot>>>,
    /// How many replicas there are to be.
    replicas: AtomicUsize,
    /// Entries in the mailbox and the queue. Sequentially consistent with the workers' slots.
    queued: AtomicUsize,
    /// Callers that wait for a place in the full queue, and how they hear of one.
    waiting_for_room: AtomicUsize,
    room: Notify,
    sequence: AtomicU64,
    moved_to_threads: AtomicBool,
    cost: SharedCost,
}

impl Pool {
    pub(crate) fn new(spec: &StageSpec, metrics: &NodeMetrics) -> Self {
        Self {
            name: spec.name().clone(),
            settings: spec.settings().clone(),
            sizing: spec.sizing().clone(),
            metrics: metrics.stage(spec.name()),
            lifecycle: Mutex::default(),
            open: AtomicBool::new(false),
            batcher: OnceLock::new(),
            workers: Mutex::default(),
            replicas: AtomicUsize::new(spec.settings().replicas().get()),
            queued: AtomicUsize::new(0),
            waiting_for_room: AtomicUsize::new(0),
            room: Notify::new(),
            sequence: AtomicU64::new(0),
            moved_to_threads: AtomicBool::new(false),
            cost: SharedCost::default(),
        }
    }

    /// Runs one payload through this stage.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the stage has given up, `DeadlineExceeded` when there is no time left, `Overloaded` when its
    /// queue is full and the flight is not patient: in these three cases nothing was queued. Else whatever became of the entry.
    ///
    /// # Cancellation
    ///
    /// Dropping the future abandons the entry: it leaves the queue, or, if it runs already, its worker is told and its
    /// result dropped.
    pub(crate) fn submit<'a>(
        self: &'a Arc<Self>,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Submitted<'a> {
        self.try_submit(payload, flight, now).unwrap_or_else(|error| Submitted::Refused(Some(error)))
    }

    fn try_submit<'a>(
        &'a self,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Submitted<'a>, CallError> {
        self.check_open()?;
        if flight.deadline.is_expired(now) {
            let error = CallError::deadline_exceeded("before the stage was reached");
            return Err(error.at_stage(&self.name));
        }
        let (payload, cost) = if self.sizing.has_cost() { self.measure(payload)? } else { (payload, 1) };
        // What is seldom is boxed: as a part of the caller's future it would be moved and kept with each call.
        if cost > self.policy().bounds().1 {
            return Ok(Submitted::Seldom(Box::pin(self.submit_in_parts(payload, cost, flight, now))));
        }
        if !flight.patient {
            self.take_place()?;
        } else if !self.try_take_place() {
            return Ok(Submitted::Seldom(Box::pin(async move {
                let now = self.await_place(flight).await?;
                self.enqueue(payload, cost, flight, now)?.await
            })));
        }
        Ok(Submitted::Queued(self.enqueue(payload, cost, flight, now)?))
    }

    /// Queues an entry for which a place was taken.
    pub(super) fn enqueue<'a>(
        &'a self,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Enqueued<'a>, CallError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (reply, outcome) = ReplyPort::pair();
        // Boxed: it changes hands a dozen times before a batch takes it.
        let entry = Box::new(Entry { sequence, cost, payload, flight: Arc::clone(flight), enqueued_at: now, reply });
        let sent = self.check_open()?.send_message(BatcherMessage::Submit(entry));
        if sent.is_err() {
            self.give_up_places(1);
            return Err(self.unavailable());
        }
        Ok(Enqueued { pool: self, flight, sequence, outcome: Some(outcome) })
    }

    /// Asks the stage's cost function.
    pub(super) fn measure(&self, payload: Payload) -> Result<(Payload, u64), CallError> {
        self.guarded("cost", || self.sizing.cost(payload))
    }

    /// Runs a piece of user code in the caller's future: its panic is this call's error, not the edge's end.
    pub(super) fn guarded<T>(&self, what: &str, code: impl FnOnce() -> Result<T, Failure>) -> Result<T, CallError> {
        match catch_unwind(AssertUnwindSafe(code)) {
            Ok(outcome) => outcome.map_err(|failure| CallError::from_failure(failure, &self.name)),
            Err(panic) => {
                let words = panic_message(panic.as_ref());
                let message = format!("the {what} function of stage `{}` panicked: {words}", self.name);
                Err(CallError::new(ErrorKind::WorkerFailed, message).at_stage(&self.name).with_trace(words))
            }
        }
    }

    pub(crate) fn name(&self) -> &StageName {
        &self.name
    }

    pub(crate) fn settings(&self) -> &StageSettings {
        &self.settings
    }

    pub(super) fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(crate) fn metrics(&self) -> &StageMetrics {
        &self.metrics
    }

    pub(crate) fn policy(&self) -> &BatchPolicy {
        self.settings.batching()
    }

    /// Entries waiting, for those who look. What a stage had when it came to a sudden end waits no more.
    pub(crate) fn waiting(&self) -> usize {
        if matches!(self.state().0, StageState::Stopped | StageState::Failed) { 0 } else { self.queued() }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::SeqCst)
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

    /// How many replicas there are to be.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Relaxed)
    }

    pub(crate) fn set_replicas(&self, replicas: usize) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Where the stage is in its life, and why.
    pub(crate) fn state(&self) -> (StageState, Option<String>) {
        let lifecycle = self.lifecycle.lock();
        (lifecycle.state(), lifecycle.reason().map(str::to_owned))
    }

    /// Moves the stage on in its life. Steps that its life does not have are refused and change nothing.
    pub(crate) fn enter(&self, state: StageState, reason: Option<String>) {
        let mut lifecycle = self.lifecycle.lock();
        let before = lifecycle.state();
        if !lifecycle.enter(state, reason) {
            return;
        }
        self.open.store(state.accepts_entries(), Ordering::Release);
        if !state.accepts_entries() {
            self.room.notify_waiters();
        }
        if before != state {
            tracing::info!(stage = %self.name, from = %before, to = %state, reason = lifecycle.reason(), "stage state");
        }
    }

    /// The watchdog's word: this stage holds runtime threads for too long.
    pub(crate) fn move_to_threads(&self) {
        if !self.moved_to_threads.swap(true, Ordering::AcqRel) {
            self.metrics.moved_to_threads();
            tracing::warn!(
                stage = %self.name,
                limit_ms = crate::worker::MAX_TASK_CALL.as_millis() as u64,
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
        if self.queued() > 0 {
            self.tell_batcher(BatcherMessage::Free);
        }
    }

    /// Answers an entry that nobody wants any more, and counts it.
    pub(crate) fn discard(&self, entry: Entry, now: Instant, place: Place) {
        let expired = entry.flight.is_late(now);
        let why = if expired { Discarded::Expired } else { Discarded::Cancelled };
        self.metrics.discarded(place, why);
        // Whoever still listens only waits for its own timer to say the same.
        entry.reply.send(Err(CallError::deadline_exceeded("in the queue").at_stage(&self.name)));
    }

    pub(crate) fn record_release(&self, reason: ReleaseReason, entries: usize) {
        self.metrics.released(reason, entries);
    }

    pub(crate) fn record_run(&self, cost: u64, started_at: Instant, finished_at: Instant) {
        let compute = finished_at.saturating_duration_since(started_at);
        self.metrics.computed(compute);
        self.cost.observe(finished_at, cost, compute);
    }

    pub(crate) fn record_waits(&self, timing: &Timing) {
        self.metrics.waited(timing);
    }

    /// How long batches take, as measured.
    pub(crate) fn cost(&self) -> &SharedCost {
        &self.cost
    }

    /// How long it would take to work off what waits, at the measured rate and with the replicas that are up.
    fn drain_time(&self) -> Duration {
        let line = self.cost.line();
        if !line.is_known() {
            return RETRY_AFTER_UNKNOWN;
        }
        let queued = self.queued();
        line.drain(Load::of(queued, queued as u64), self.policy(), self.live_replicas())
    }

    /// The replicas that work, at least one: what is down now is about to come back.
    pub(crate) fn live_replicas(&self) -> usize {
        self.workers.lock().iter().filter(|slot| !slot.is_gone()).count().max(1)
    }

    /// Why an entry that is about to queue would wait for nothing, if so. `last_cost` is what the batches in hand cost.
    pub(crate) fn refusal<T>(&self, entry: &Entry, queue: &Lanes<T>, last_cost: u64) -> Option<CallError> {
        let line = self.cost.warm_line()?;
        let now = entry.enqueued_at;
        let remaining = entry.flight.deadline.remaining(now);
        let worst =
            Prospect { line, remaining, cost: entry.cost, before: queue.load(), running: Some(last_cost), replicas: 1 };
        // Nearly every call has time enough for the worst that its place can mean, and then nobody looks closer.
        if worst.judge(self.policy()) == Verdict::Queue {
            return None;
        }
        let (replicas, free) = {
            let workers = self.workers.lock();
            let live = workers.iter().filter(|slot| !slot.is_gone());
            live.fold((0, false), |(count, free), slot| (count + 1, free || !slot.is_busy()))
        };
        let (before, only) = queue.before(entry.flight.session, entry.key());
        let running = (!free).then_some(last_cost);
        let prospect = Prospect { before, running, replicas: only.unwrap_or(replicas), ..worst };
        let verdict = prospect.judge(self.policy());
        if verdict != Verdict::Queue && prospect.is_first() {
            let confirmed = now.checked_sub(CONFIRMED_FOR).is_none_or(|then| self.cost.is_confirmed_since(then));
            if !confirmed {
                return None;
            }
        }
        // Who waits for room waits for time, too.
        if entry.flight.patient && matches!(verdict, Verdict::TooMuchWaits { .. }) {
            return None;
        }
        self.refuse_late(verdict, remaining)
    }

    fn refuse_late(&self, verdict: Verdict, remaining: Duration) -> Option<CallError> {
        let error = match verdict {
            Verdict::Queue => return None,
            Verdict::TooMuchWaits { behind } => {
                let message = format!(
                    "what waits before this call in stage `{}` would make it miss its deadline by about {behind:.1?}",
                    self.name
                );
                CallError::overloaded(message, behind)
            }
            Verdict::TooLate { needs } => {
                let message =
                    format!("stage `{}` takes about {needs:.1?}, and the deadline is in {remaining:.1?}", self.name);
                CallError::new(ErrorKind::DeadlineExceeded, message)
            }
        };
        self.metrics.refused(Refused::Late);
        Some(error.at_stage(&self.name))
    }

    /// Takes a place in the bounded queue for one entry. The batcher gives it up when the entry leaves the queue.
    fn take_place(&self) -> Result<(), CallError> {
        let before = self.queued.fetch_add(1, Ordering::SeqCst);
        if before < self.settings.queue().get() {
            return Ok(());
        }
        self.give_up_places(1);
        Err(self.refuse())
    }

    /// Takes a place: at once or not at all, or for a patient flight when there is one. Returns when that was.
    pub(super) async fn take_or_await_place(&self, flight: &Flight, now: Instant) -> Result<Instant, CallError> {
        if !flight.patient {
            return self.take_place().map(|()| now);
        }
        if self.try_take_place() {
            return Ok(now);
        }
        self.await_place(flight).await
    }

    /// Waits for a place. How many do so is bounded by their caller, for how long by their deadline. Entries that refuse to
    /// wait may overtake them.
    async fn await_place(&self, flight: &Flight) -> Result<Instant, CallError> {
        let _waiting = WaitingForRoom::new(self);
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // Listening first: a place that is given up between the look and the wait is not missed.
            room.as_mut().enable();
            self.check_open()?;
            let now = clock::now();
            if !flight.is_wanted(now) {
                return Err(CallError::deadline_exceeded("before there was room in the queue").at_stage(&self.name));
            }
            if self.try_take_place() {
                return Ok(now);
            }
            room.await;
        }
    }

    /// Takes a place if there is one. Unlike [`take_place`](Self::take_place) it never looks, not even for a moment, as if
    /// it had taken one too many: somebody else who waits would see a full queue then, and nobody would wake it again.
    fn try_take_place(&self) -> bool {
        let limit = self.settings.queue().get();
        let take = |queued| (queued < limit).then_some(queued + 1);
        self.queued.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    /// Entries have left the queue.
    pub(crate) fn give_up_places(&self, entries: usize) {
        self.queued.fetch_sub(entries, Ordering::SeqCst);
        // Sequentially consistent with the count: who took no place because of these entries has counted itself before.
        let waiting = self.waiting_for_room.load(Ordering::SeqCst);
        for _ in 0..entries.min(waiting) {
            self.room.notify_one();
        }
    }

    /// Entries are back in the queue, although it may be full: they were admitted once.
    pub(crate) fn take_places_again(&self, entries: usize) {
        self.queued.fetch_add(entries, Ordering::SeqCst);
    }

    fn refuse(&self) -> CallError {
        self.metrics.refused(Refused::Full);
        let message =
            format!("the queue of stage `{}` is full: {} entries wait already", self.name, self.settings.queue());
        CallError::overloaded(message, self.drain_time()).at_stage(&self.name)
    }

    fn check_open(&self) -> Result<&ActorRef<BatcherMessage>, CallError> {
        match self.batcher.get() {
            Some(batcher) if self.open.load(Ordering::Acquire) => Ok(batcher),
            _ => Err(self.unavailable()),
        }
    }

    fn unavailable(&self) -> CallError {
        let message = format!("stage `{}` {}", self.name, self.why_unavailable());
        CallError::new(ErrorKind::Unavailable, message).at_stage(&self.name)
    }

    /// The second half of "stage `x` …".
    pub(crate) fn why_unavailable(&self) -> String {
        match self.state() {
            (state, Some(reason)) => format!("is {state}: {reason}"),
            (state, None) => format!("is {state}"),
        }
    }

    /// The reply port was dropped unused: whoever held the entry is gone.
    fn lost(&self) -> CallError {
        let kind = match self.state().0 {
            StageState::Stopped | StageState::Draining => ErrorKind::Unavailable,
            _ => ErrorKind::WorkerFailed,
        };
        CallError::new(kind, "the worker was lost before it answered").at_stage(&self.name)
    }
}

/// What became of a submission: as small as it can be, because every waiting call holds one.
#[must_use = "an entry is abandoned when this is dropped"]
pub(crate) enum Submitted<'a> {
    /// It was not queued. Taken when that is told.
    Refused(Option<CallError>),
    /// It is in the queue or beyond.
    Queued(Enqueued<'a>),
    /// It waits for a place, or runs in parts.
    Seldom(Pin<Box<dyn Future<Output = StageOutcome> + Send + 'a>>),
}

impl Future for Submitted<'_> {
    type Output = StageOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<StageOutcome> {
        match self.get_mut() {
            Self::Queued(entry) => Pin::new(entry).poll(context),
            Self::Seldom(submission) => submission.as_mut().poll(context),
            Self::Refused(error) => Poll::Ready(Err(error.take().expect("a future is not polled after its end"))),
        }
    }
}

/// An entry on its way to its outcome. Dropped before that, it abandons the entry.
#[derive(Debug)]
pub(crate) struct Enqueued<'a> {
    pool: &'a Pool,
    flight: &'a Flight,
    sequence: u64,
    /// Taken when the outcome is there.
    outcome: Option<oneshot::Receiver<StageOutcome>>,
}

impl Future for Enqueued<'_> {
    type Output = StageOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<StageOutcome> {
        let outcome = self.outcome.as_mut().expect("a future is not polled after its end");
        let outcome = ready!(Pin::new(outcome).poll(context));
        self.outcome = None;
        Poll::Ready(outcome.unwrap_or_else(|_| Err(self.pool.lost())))
    }
}

impl Drop for Enqueued<'_> {
    fn drop(&mut self) {
        if self.outcome.is_some() {
            // First the flag, which running workers and the forming of batches read, then the message, which frees the place.
            self.flight.abandon();
            let Flight { priority, deadline, .. } = *self.flight;
            self.pool.tell_batcher(BatcherMessage::Abandon(EntryKey { priority, deadline, sequence: self.sequence }));
        }
    }
}

/// Counts a caller that waits for a place.
struct WaitingForRoom<'a>(&'a Pool);

impl<'a> WaitingForRoom<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.waiting_for_room.fetch_add(1, Ordering::SeqCst);
        Self(pool)
    }
}

impl Drop for WaitingForRoom<'_> {
    fn drop(&mut self) {
        // Whoever leaves without the place that it was woken for must not keep the next one asleep.
        if self.0.waiting_for_room.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.0.room.notify_one();
        }
    }
}
