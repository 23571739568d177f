//! One request's item in one stage, and the port through which it is answered.

use std::sync::Arc;
use std::task::{Context, Poll};

use callboard_codec::Payload;
use tokio::sync::oneshot;

use super::permits::QueuePermit;
pub(crate) use super::waiting::EntryKey;
use crate::call::Flight;
use crate::clock::{self, Instant};
use crate::containment::drop_contained;
use crate::error::CallError;
use crate::id::StageName;
use crate::timeline::{BatchFacts, Micros, Phase, RunEnd, Timing};
use crate::worker::OutputSender;

/// The output of one stage for one entry.
#[derive(Debug)]
pub(crate) struct EntryReply {
    pub(crate) payload: Payload,
    timing: Micros,
}

impl EntryReply {
    pub(crate) fn new(payload: Payload, timing: Timing) -> Self {
        Self { payload, timing: timing.into() }
    }

    pub(crate) fn into_parts(self) -> (Payload, Timing) {
        (self.payload, self.timing.into())
    }
}

pub(crate) type EntryOutcome = Result<EntryReply, CallError>;

/// A stage among those that the same replicas run, of [`HOSTED_BITS`] bits. 0 is the stage that has the replicas, and
/// most have no other.
pub(crate) type HostedId = u32;

/// The low bits of an entry's number that say its stage. Those above count entries: years of them.
pub(crate) const HOSTED_BITS: u32 = 20;

/// The port for an entry's outcome: straight to its waiting caller.
///
/// It can be used once. Dropped unused (its worker or batcher died with it), it tells the caller that the worker was
/// lost.
#[derive(Debug)]
pub(crate) struct OutcomePort(oneshot::Sender<EntryOutcome>);

impl OutcomePort {
    pub(crate) fn pair() -> (Self, oneshot::Receiver<EntryOutcome>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Ready when the caller left; the task is woken then.
    pub(crate) fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_closed(context)
    }

    /// Answers. An outcome without a reader is dropped under `catch_unwind`.
    pub(crate) fn send(self, outcome: EntryOutcome) {
        if let Err(unread) = self.0.send(outcome) {
            drop_contained(unread);
        }
    }
}

/// A waiting input. Its destructor is user code, so it runs under `catch_unwind`.
#[derive(Debug, Default)]
pub(crate) struct ContainedPayload(Option<Payload>);

impl ContainedPayload {
    pub(crate) fn new(payload: Payload) -> Self {
        Self(Some(payload))
    }

    pub(crate) fn get(&self) -> Option<&Payload> {
        self.0.as_ref()
    }

    pub(crate) fn take(&mut self) -> Option<Payload> {
        self.0.take()
    }
}

impl Drop for ContainedPayload {
    fn drop(&mut self) {
        if let Some(payload) = self.0.take() {
            drop_contained(payload);
        }
    }
}

/// One request's item, waiting in or taken from one stage's queue.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its place among entries that are otherwise equal, with its [stage](Self::hosted_id) in the low bits: together
    /// they are as large as one of them.
    pub(crate) sequence: u64,
    /// Its cost by the stage's cost function; 1 where there is none.
    pub(crate) cost: u64,
    /// Empty after the start of a run that does not keep its inputs.
    pub(crate) payload: ContainedPayload,
    pub(crate) flight: Arc<Flight>,
    pub(crate) enqueued_at: Instant,
    pub(crate) reply: OutcomePort,
    /// The channel for the outputs of a streaming stage, until a worker takes it.
    pub(crate) outputs: Option<OutputSender>,
    /// Its permit, while it is in the queue.
    pub(crate) permit: Option<QueuePermit>,
}

impl Entry {
    /// Its stage among those that the replicas run: 0 for the stage that has them.
    pub(crate) fn hosted_id(&self) -> HostedId {
        (self.sequence & ((1 << HOSTED_BITS) - 1)) as HostedId
    }

    /// Answers an entry that will not run.
    pub(crate) fn refuse(self, error: CallError) {
        // The permit first: the caller may come again at once.
        drop(self.permit);
        self.reply.send(Err(error));
    }
}

/// Notes in its call's account and record.
impl Entry {
    /// It waits from now on.
    pub(crate) fn note_queued(&self, stage: &StageName, now: Instant) {
        self.flight.enter(Phase::Queue, now);
        if let Some(recorder) = self.flight.recorder() {
            recorder.queued(stage, self.sequence, now);
        }
    }

    /// It belongs to a batch.
    pub(crate) fn note_taken(&self, stage: &StageName, now: Instant, facts: BatchFacts) {
        self.flight.enter(Phase::Batch, now);
        if let Some(recorder) = self.flight.recorder() {
            recorder.taken(stage, self.sequence, now, facts);
        }
    }

    /// User code begins with it.
    pub(crate) fn note_started(&self, stage: &StageName, now: Instant, facts: BatchFacts) {
        self.flight.enter(Phase::Compute, now);
        if let Some(recorder) = self.flight.recorder() {
            recorder.started(stage, self.sequence, now, facts);
        }
    }

    /// It is about to have its outcome.
    pub(crate) fn note_end(&self, stage: &StageName, now: Instant, end: RunEnd) {
        self.flight.enter(Phase::Outside, now);
        if let Some(recorder) = self.flight.recorder() {
            recorder.ended(stage, self.sequence, now, end);
        }
    }

    /// Its run is over, and it waits again.
    pub(crate) fn note_again(&self, stage: &StageName, end: RunEnd) {
        let now = clock::now();
        self.flight.enter(Phase::Queue, now);
        if let Some(recorder) = self.flight.recorder() {
            recorder.waits_again(stage, self.sequence, now, end);
        }
    }
}

impl Entry {
    /// Its position in the order.
    pub(crate) fn key(&self) -> EntryKey {
        EntryKey { priority: self.flight.priority, deadline: self.flight.deadline, sequence: self.sequence }
    }
}
