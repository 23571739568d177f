//! The way into a stage: an entry is refused before it is queued, or gets exactly one outcome.
//!
//! * **Full:** `Overloaded`, with the time that the queue needs at the measured rate; a patient flight waits for a
//!   place.
//! * **Late:** `DeadlineExceeded` where the call could not make its deadline even alone, `Overloaded` where the queue
//!   before it is too long; see [`DeadlineCheck`].
//! * **Cancelled:** dropping the future of [`Pool::submit`] abandons the entry: it leaves the queue, or its worker is
//!   notified.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use callboard_codec::Payload;
use tokio::sync::oneshot;

use super::handle::Pool;
use super::lifecycle::StageState;
use super::message::BatcherMessage;
use crate::call::{Flight, Origin};
use crate::clock::{self, Instant};
use crate::containment::{contain, drop_contained};
use crate::error::{CallError, ErrorKind, ErrorReason, Failure};
use crate::metrics::EntryRefusal;
use crate::queue::{
    AdmissionDecision, CONFIRMED_FOR, ContainedPayload, CostLine, DeadlineCheck, Entry, EntryKey, EntryOutcome,
    OutcomePort, QueuePermit, SessionQueues,
};
use crate::worker::OutputSender;

impl Pool {
    /// Runs one payload through this stage.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the stage has given up, `DeadlineExceeded` when there is no time left, `Overloaded` when its
    /// queue is full and the flight is not patient: in these three cases nothing was queued. Else the outcome of the
    /// entry.
    ///
    /// # Cancellation
    ///
    /// Dropping the future abandons the entry: it leaves the queue, or its worker is notified and its result dropped.
    pub(crate) fn submit<'a>(
        self: &'a Arc<Self>,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Submission<'a> {
        self.try_submit(payload, flight, now).unwrap_or_else(|error| Submission::Refused(Some(error)))
    }

    fn try_submit<'a>(
        self: &'a Arc<Self>,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Submission<'a>, CallError> {
        self.check_open()?;
        self.check_time(flight, now)?;
        if self.spec.is_streaming() {
            let message = format!("stage `{}` streams its outputs: read the call's replies one by one", self.name());
            return Err(CallError::new(ErrorKind::InvalidInput, message).at_stage(self.name()));
        }
        if let Some(cache) = &self.cache {
            return Ok(Submission::Boxed(Box::pin(self.answer_cached(cache, payload, flight, now))));
        }
        self.submit_uncached(payload, flight, now)
    }

    /// As [`submit`](Self::submit), with no look into the stage's cache.
    pub(super) fn submit_uncached<'a>(
        self: &'a Arc<Self>,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<Submission<'a>, CallError> {
        let (payload, cost) = if self.spec.sizing().has_cost() {
            flight.reading(payload.encoded_bytes(), || self.measure(payload))?
        } else {
            (payload, 1)
        };
        // Rare cases are boxed: inside the caller's future they would be moved and kept with each call.
        if cost > self.policy().bounds().1 {
            return Ok(Submission::Boxed(Box::pin(self.submit_in_parts(payload, cost, flight, now))));
        }
        let permit = match self.entrance.permits.take() {
            Some(permit) => permit,
            None if flight.is_patient => {
                return Ok(Submission::Boxed(Box::pin(async move {
                    let (permit, now) = self.await_permit(flight).await?;
                    self.hand_over(None, permit, payload, cost, flight, now)?.await
                })));
            }
            None => return Err(self.refuse()),
        };
        Ok(Submission::Queued(self.hand_over(None, permit, payload, cost, flight, now)?))
    }

    /// Runs one payload through this stage, which streams its outputs. The outcome comes after the last of them.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub(crate) async fn submit_streaming(
        self: &Arc<Self>,
        payload: Payload,
        outputs: OutputSender,
        flight: &Arc<Flight>,
        now: Instant,
    ) -> EntryOutcome {
        self.check_time(flight, now)?;
        let (permit, now) = self.take_or_await_permit(flight, now).await?;
        self.hand_over(Some(outputs), permit, payload, 1, flight, now)?.await
    }

    fn check_time(&self, flight: &Flight, now: Instant) -> Result<(), CallError> {
        if flight.deadline.is_expired(now) {
            return Err(CallError::deadline_exceeded("before the stage was reached").at_stage(self.name()));
        }
        match &flight.origin {
            Some(origin) => self.check_origin(origin, flight),
            None => Ok(()),
        }
    }

    fn check_origin(&self, origin: &Origin, flight: &Flight) -> Result<(), CallError> {
        origin.check()?;
        if self.is_inside_itself(flight) {
            let message =
                format!("the stage `{}` is called from within itself: it would wait for its own workers", self.name());
            let error = CallError::new(ErrorKind::Failed, message).with_reason(ErrorReason::LoopDetected);
            return Err(error.at_stage(self.name()));
        }
        Ok(())
    }

    /// Hands over an entry that has its permit: to a replica if it need not wait, else to the queue. Where the stage
    /// streams, with the channel for its outputs.
    fn hand_over<'a>(
        self: &'a Arc<Self>,
        outputs: Option<OutputSender>,
        permit: QueuePermit,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<QueuedEntry<'a>, CallError> {
        let (entry, queued) = self.make_entry(outputs, permit, payload, cost, flight, now)?;
        match self.hand_over_idle(entry, now) {
            Ok(()) => Ok(queued),
            Err(entry) => self.put(entry, queued),
        }
    }

    /// Queues an entry that has its permit.
    pub(super) fn enqueue<'a>(
        &'a self,
        permit: QueuePermit,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<QueuedEntry<'a>, CallError> {
        let (entry, queued) = self.make_entry(None, permit, payload, cost, flight, now)?;
        self.put(entry, queued)
    }

    fn put<'a>(&'a self, entry: Entry, mut queued: QueuedEntry<'a>) -> Result<QueuedEntry<'a>, CallError> {
        if self.entrance.put(entry) {
            return Ok(queued);
        }
        // There is nothing to abandon.
        queued.outcome = None;
        Err(self.unavailable())
    }

    fn make_entry<'a>(
        &'a self,
        outputs: Option<OutputSender>,
        permit: QueuePermit,
        payload: Payload,
        cost: u64,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> Result<(Entry, QueuedEntry<'a>), CallError> {
        let sequence = self.entrance.next_sequence(self.hosted_id);
        let (reply, outcome) = OutcomePort::pair();
        let entry = Entry {
            sequence,
            cost,
            payload: ContainedPayload::new(payload),
            flight: Arc::clone(flight),
            enqueued_at: now,
            reply,
            outputs,
            permit: Some(permit),
        };
        self.check_open()?;
        entry.note_queued(self.name(), now);
        Ok((entry, QueuedEntry { pool: self, flight, sequence, outcome: Some(outcome) }))
    }

    /// Calls the stage's cost function.
    pub(crate) fn measure(&self, payload: Payload) -> Result<(Payload, u64), CallError> {
        self.guarded("cost", || self.spec.sizing().cost(payload))
    }

    /// Runs user code in the caller's future: a panic becomes this call's error.
    pub(crate) fn guarded<T>(&self, what: &str, code: impl FnOnce() -> Result<T, Failure>) -> Result<T, CallError> {
        match contain(code) {
            Ok(outcome) => outcome.map_err(|failure| CallError::from_failure(failure, self.name())),
            Err(words) => {
                let message = format!("the {what} function of stage `{}` panicked: {words}", self.name());
                Err(CallError::new(ErrorKind::WorkerFailed, message).at_stage(self.name()).with_trace(words.trace()))
            }
        }
    }

    /// The refusal of an entry that would miss its deadline in the queue, if so. `running` is the cost of the batches
    /// that run, with the durations of such batches; `others` is how long entries of other stages take that leave
    /// before it.
    pub(crate) fn refusal<T>(
        &self,
        entry: &Entry,
        queue: &SessionQueues<T>,
        running: (CostLine, u64),
        others: Duration,
    ) -> Option<CallError> {
        let line = self.cost.warm_line()?;
        let now = entry.enqueued_at;
        let remaining = entry.flight.deadline.remaining(now);
        let worst = DeadlineCheck {
            line,
            remaining,
            cost: entry.cost,
            before: queue.load(),
            running: Some(running),
            others,
            slots: 1,
        };
        // Nearly every call has time enough even in the worst case; then nothing more is computed.
        if worst.judge(self.policy()) == AdmissionDecision::Queue {
            return None;
        }
        let (slots, free) = self.replicas.slots_and_free();
        let (before, only) = queue.before(entry.flight.session, entry.key());
        let running = (!free).then_some(running);
        let check = DeadlineCheck { before, running, slots: only.unwrap_or(slots), ..worst };
        let decision = check.judge(self.policy());
        if decision != AdmissionDecision::Queue && check.is_first() {
            let confirmed = now.checked_sub(CONFIRMED_FOR).is_none_or(|then| self.cost.is_confirmed_since(then));
            if !confirmed {
                return None;
            }
        }
        // A caller that waits for a permit also waits for the queue.
        if entry.flight.is_patient && matches!(decision, AdmissionDecision::QueueTooLong { .. }) {
            return None;
        }
        self.refuse_late(decision, remaining)
    }

    fn refuse_late(&self, decision: AdmissionDecision, remaining: Duration) -> Option<CallError> {
        let error = match decision {
            AdmissionDecision::Queue => return None,
            AdmissionDecision::QueueTooLong { behind } => {
                let message = format!(
                    "what waits before this call in stage `{}` would make it miss its deadline by about {behind:.1?}",
                    self.name()
                );
                CallError::overloaded(message, behind)
            }
            AdmissionDecision::DeadlineTooShort { needs } => {
                let message =
                    format!("stage `{}` takes about {needs:.1?}, and the deadline is in {remaining:.1?}", self.name());
                CallError::new(ErrorKind::DeadlineExceeded, message)
            }
        };
        self.metrics.refused(EntryRefusal::Late);
        Some(error.at_stage(self.name()))
    }

    /// Takes a permit: at once, or for a patient flight as soon as one is free. Returns the time of that.
    pub(crate) async fn take_or_await_permit(
        &self,
        flight: &Flight,
        now: Instant,
    ) -> Result<(QueuePermit, Instant), CallError> {
        match self.entrance.permits.take() {
            Some(permit) => Ok((permit, now)),
            None if flight.is_patient => self.await_permit(flight).await,
            None => Err(self.refuse()),
        }
    }

    /// Waits for a permit, at most until the flight's deadline.
    async fn await_permit(&self, flight: &Flight) -> Result<(QueuePermit, Instant), CallError> {
        let permit = self.entrance.permits.wait(|| self.still_waits(flight)).await?;
        Ok((permit, clock::now()))
    }

    /// Whether to go on waiting for a permit.
    fn still_waits(&self, flight: &Flight) -> Result<(), CallError> {
        self.check_open()?;
        if flight.is_wanted(clock::now()) {
            return Ok(());
        }
        Err(CallError::deadline_exceeded("before there was room in the queue").at_stage(self.name()))
    }

    fn refuse(&self) -> CallError {
        self.metrics.refused(EntryRefusal::Full);
        let message =
            format!("the queue of stage `{}` is full: {} entries wait already", self.name(), self.settings().queue());
        CallError::overloaded(message, self.drain_time()).at_stage(self.name())
    }

    fn check_open(&self) -> Result<(), CallError> {
        if self.health.accepts_entries() { Ok(()) } else { Err(self.unavailable()) }
    }

    /// The reply port was dropped unused: the owner of the entry is gone.
    pub(crate) fn lost(&self) -> CallError {
        let kind = match self.health.state() {
            // The batch was handed over and never begun, or the queue died with its batcher.
            StageState::Stopped | StageState::Draining | StageState::Failed => ErrorKind::Unavailable,
            _ => ErrorKind::WorkerFailed,
        };
        let error = CallError::new(kind, "the worker was lost before it answered").at_stage(self.name());
        if kind == ErrorKind::WorkerFailed { error.in_run(self.spec.contract().may_run_again()) } else { error }
    }
}

/// The state of a submission. It is small, because every waiting call holds one.
#[must_use = "an entry is abandoned when this is dropped"]
pub(crate) enum Submission<'a> {
    /// It was not queued. `None` once the error was returned.
    Refused(Option<CallError>),
    /// It is in the queue or beyond.
    Queued(QueuedEntry<'a>),
    /// It waits for a permit, runs in parts, or looks into the stage's cache.
    Boxed(Pin<Box<dyn Future<Output = EntryOutcome> + Send + 'a>>),
}

impl Future for Submission<'_> {
    type Output = EntryOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<EntryOutcome> {
        match self.get_mut() {
            Self::Queued(entry) => Pin::new(entry).poll(context),
            Self::Boxed(submission) => submission.as_mut().poll(context),
            Self::Refused(error) => Poll::Ready(Err(error.take().expect("a future is not polled after its end"))),
        }
    }
}

/// An entry on its way to its outcome. Dropped before that, it abandons the entry.
#[derive(Debug)]
pub(crate) struct QueuedEntry<'a> {
    pool: &'a Pool,
    flight: &'a Flight,
    sequence: u64,
    /// `None` once the outcome was returned.
    outcome: Option<oneshot::Receiver<EntryOutcome>>,
}

impl Future for QueuedEntry<'_> {
    type Output = EntryOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<EntryOutcome> {
        let outcome = self.outcome.as_mut().expect("a future is not polled after its end");
        let outcome = ready!(Pin::new(outcome).poll(context));
        self.outcome = None;
        Poll::Ready(outcome.unwrap_or_else(|_| Err(self.pool.lost())))
    }
}

impl Drop for QueuedEntry<'_> {
    fn drop(&mut self) {
        if let Some(mut outcome) = self.outcome.take() {
            outcome.close();
            // An unread outcome is a user's value: its destructor may panic.
            drop_contained(outcome.try_recv());
            // First the flag, which workers and the batcher read, then the message, which frees the permit.
            self.flight.abandon();
            let Flight { priority, deadline, .. } = *self.flight;
            self.pool.tell_batcher(BatcherMessage::Abandon(EntryKey { priority, deadline, sequence: self.sequence }));
        }
    }
}
