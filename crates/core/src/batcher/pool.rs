//! What everybody who deals with one stage on this node shares: its queue's bound, its state, its measurements.
//!
//! [`Pool::submit`] is the only way in. It refuses before anything is queued, or returns the one outcome of the entry.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};
use tokio::sync::oneshot;

use super::admission::{CONFIRMED_FOR, Prospect, Verdict};
use super::cost::{Load, SharedCost};
use super::entry::{Entry, EntryKey, ReplyPort, StageOutcome};
use super::lanes::Lanes;
use super::message::BatcherMessage;
use super::places::{Place as QueuePlace, Places};
use super::policy::{BatchPolicy, ReleaseReason};
use crate::call::{Flight, Timing};
use crate::clock::{self, Instant};
use crate::containment::contain;
use crate::error::{CallError, ErrorKind};
use crate::failure::Failure;
use crate::id::StageName;
use crate::metrics::{Discarded, NodeMetrics, Place, Refused, StageMetrics};
use crate::stage::{Contract, Sizing, StageSettings, StageSpec};
use crate::supervisor::{CulpritShare, Lifecycle, RetryBudget, StageState};
use crate::worker::{OutputSender, WorkerSlot};

/// What a refused caller is told before anything was measured.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

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
    name: StageName,
    settings: StageSettings,
    sizing: Sizing,
    streams: bool,
    metrics: StageMetrics,
    lifecycle: Mutex<Lifecycle>,
    /// Whether `submit` may queue: true in Ready, Degraded and, for calls admitted before, Draining.
    open: AtomicBool,
    batcher: OnceLock<ActorRef<BatcherMessage>>,
    workers: Mutex<Vec<Arc<WorkerSlot>>>,
    /// The last restarts, the newest last.
    restarts: Mutex<VecDeque<Restart>>,
    /// How many replicas there are to be.
    replicas: AtomicUsize,
    places: Places,
    sequence: AtomicU64,
    moved_to_threads: AtomicBool,
    abandoned_threads: AtomicUsize,
    retries: Mutex<RetryBudget>,
    culprits: Mutex<CulpritShare>,
    /// Whether there are culprits to remember: what most stages look at instead of the lock.
    has_culprits: AtomicBool,
    /// What waits costs, as the batcher last said; only where the stage has a cost function.
    queued_cost: AtomicU64,
    cost: SharedCost,
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
            workers: Mutex::default(),
            restarts: Mutex::default(),
            replicas: AtomicUsize::new(spec.settings().replicas().get()),
            places: Places::new(spec.settings().queue().get()),
            sequence: AtomicU64::new(0),
            moved_to_threads: AtomicBool::new(false),
            abandoned_threads: AtomicUsize::new(0),
            retries: Mutex::default(),
            culprits: Mutex::default(),
            has_culprits: AtomicBool::new(false),
            queued_cost: AtomicU64::new(0),
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
        self.check_time(flight, now)?;
        if self.streams {
            let message = format!("stage `{}` streams its outputs: read the call's replies one by one", self.name);
            return Err(CallError::new(ErrorKind::InvalidInput, message).at_stage(&self.name));
        }
        let (payload, cost) = if self.sizing.has_cost() { self.measure(payload)? } else { (payload, 1) };
        // What is seldom is boxed: as a part of the caller's future it would be moved and kept with each call.
        if cost > self.policy().bounds().1 {
            return Ok(Submitted::Seldom(Box::pin(self.submit_in_parts(payload, cost, flight, now))));
        }
        let place = match self.places.take() {
            Some(place) => place,
            None if flight.patient => {
                return Ok(Submitted::Seldom(Box::pin(async move {
                    let (place, now) = self.await_place(flight).await?;
                    self.enqueue(place, payload, cost, flight, now)?.await
                })));
            }
            None => return Err(self.refuse()),
        };
        Ok(Submitted::Queued(self.enqueue(place, payload, cost, flight, now)?))
    }

    /// Runs one payload through this stage, which streams its outputs. The outcome comes behind the last of them.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub(crate) async fn submit_streaming(
        &self,
        payload: Payload,
        outputs: OutputSender,
        flight: &Arc<Flight>,
        now: Instant,
    ) -> StageOutcome {
        self.check_time(flight, now)?;
        let (place, now) = self.take_or_await_place(flight, now).await?;
        self.enqueue_with(Some(outputs), place, payload, 1, flight, now)?.await
    }

    fn check_time(&self, flight: &Flight, now: Instant) -> Result<(), CallError> {
        if flight.deadline.is_expired(now) {
            return Err(CallError::deadline_exceeded("before the stage was reached").at_stage(&self.name));
        }
        Ok(())
    }

    /// Queues an entry for which a place was taken.
    pub(super) fn enqueue<'a>(
        &'a self,
        place: QueuePlace,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Enqueued<'a>, CallError> {
        self.enqueue_with(None, place, payload, cost, flight, now)
    }

    fn enqueue_with<'a>(
        &'a self,
        outputs: Option<OutputSender>,
        place: QueuePlace,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Enqueued<'a>, CallError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let (reply, outcome) = ReplyPort::pair();
        // Boxed: it changes hands a dozen times before a batch takes it.
        let entry = Box::new(Entry {
            sequence,
            cost,
            payload: Some(payload),
            flight: Arc::clone(flight),
            enqueued_at: now,
            reply,
            outputs,
            place: Some(place),
        });
        let sent = self.check_open()?.send_message(BatcherMessage::Submit(entry));
        if sent.is_err() {
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
        match contain(code) {
            Ok(outcome) => outcome.map_err(|failure| CallError::from_failure(failure, &self.name)),
            Err(words) => {
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

    /// Where the stage is in its life, and why.
    pub(crate) fn state(&self) -> (StageState, Option<String>) {
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
        if self.state().0 == StageState::Starting {
            self.enter(StageState::WarmingUp, None);
        }
    }

    /// Whether the stage takes nothing new any more.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state().0, StageState::Draining | StageState::Stopped | StageState::Failed)
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

    /// A worker was handed a batch that nobody wanted any more: it is free, and has completed nothing.
    pub(crate) fn give_back_worker(&self, slot: &WorkerSlot) {
        slot.give_back();
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
        entry.refuse(CallError::deadline_exceeded("before a worker was free").at_stage(&self.name));
    }

    pub(crate) fn record_release(&self, reason: ReleaseReason, entries: usize) {
        self.metrics.released(reason, entries);
    }

    /// Learns from a batch for which a worker was taken at `taken_at`: until it is free again, nobody else has it.
    pub(crate) fn record_run(&self, cost: u64, taken_at: Instant, started_at: Instant, finished_at: Instant) {
        self.metrics.computed(finished_at.saturating_duration_since(started_at));
        self.cost.observe(finished_at, cost, finished_at.saturating_duration_since(taken_at));
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
        let cost = if self.sizing.has_cost() { self.queued_cost.load(Ordering::Relaxed) } else { queued as u64 };
        line.drain(Load::of(queued, cost), self.policy(), self.seats())
    }

    /// Notes what the queue holds, for those who are refused.
    pub(super) fn note_queued(&self, load: Load) {
        if self.sizing.has_cost() {
            self.queued_cost.store(load.cost, Ordering::Relaxed);
        }
    }

    /// How many batches may run at once, at least one: a replica that is down now is about to come back.
    pub(crate) fn seats(&self) -> usize {
        let seats: usize = self.workers.lock().iter().filter(|slot| !slot.is_gone()).map(|slot| slot.seats()).sum();
        seats.max(1)
    }

    /// Why an entry that is about to queue would wait for nothing, if so. `last_cost` is what the batches in hand cost.
    pub(crate) fn refusal<T>(&self, entry: &Entry, queue: &Lanes<T>, last_cost: u64) -> Option<CallError> {
        let line = self.cost.warm_line()?;
        let now = entry.enqueued_at;
        let remaining = entry.flight.deadline.remaining(now);
        let worst =
            Prospect { line, remaining, cost: entry.cost, before: queue.load(), running: Some(last_cost), seats: 1 };
        // Nearly every call has time enough for the worst that its place can mean, and then nobody looks closer.
        if worst.judge(self.policy()) == Verdict::Queue {
            return None;
        }
        let (seats, free) = {
            let workers = self.workers.lock();
            let live = workers.iter().filter(|slot| !slot.is_gone());
            live.fold((0, false), |(seats, free), slot| (seats + slot.seats(), free || slot.free_seats() > 0))
        };
        let (before, only) = queue.before(entry.flight.session, entry.key());
        let running = (!free).then_some(last_cost);
        let prospect = Prospect { before, running, seats: only.unwrap_or(seats), ..worst };
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

    /// A place for an entry that was admitted once, although the queue may be full.
    pub(crate) fn take_place_again(&self) -> QueuePlace {
        self.places.take_again()
    }

    /// Takes a place: at once or not at all, or for a patient flight when there is one. Tells when that was.
    pub(super) async fn take_or_await_place(
        &self,
        flight: &Flight,
        now: Instant,
    ) -> Result<(QueuePlace, Instant), CallError> {
        match self.places.take() {
            Some(place) => Ok((place, now)),
            None if flight.patient => self.await_place(flight).await,
            None => Err(self.refuse()),
        }
    }

    /// Waits for a place, at most until the flight's deadline.
    async fn await_place(&self, flight: &Flight) -> Result<(QueuePlace, Instant), CallError> {
        let place = self.places.wait(|| self.still_waits(flight)).await?;
        Ok((place, clock::now()))
    }

    /// Whether waiting for a place makes sense.
    fn still_waits(&self, flight: &Flight) -> Result<(), CallError> {
        self.check_open()?;
        if flight.is_wanted(clock::now()) {
            return Ok(());
        }
        Err(CallError::deadline_exceeded("before there was room in the queue").at_stage(&self.name))
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

    pub(crate) fn unavailable(&self) -> CallError {
        let message = format!("stage `{}` {}", self.name, self.why_unavailable());
        CallError::new(ErrorKind::Unavailable, message).at_stage(&self.name)
    }

    /// The second half of "stage `x` …".
    fn why_unavailable(&self) -> String {
        match self.state() {
            (state, Some(reason)) => format!("is {state}: {reason}"),
            (state, None) => format!("is {state}"),
        }
    }

    /// The reply port was dropped unused: whoever held the entry is gone.
    fn lost(&self) -> CallError {
        let kind = match self.state().0 {
            // A batch that was handed over and never begun, or a queue that died with its batcher.
            StageState::Stopped | StageState::Draining | StageState::Failed => ErrorKind::Unavailable,
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
