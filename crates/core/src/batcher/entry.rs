//! One request's item in one stage, and the port through which it is answered.

use std::sync::Arc;

use callboard_codec::Payload;
use tokio::sync::oneshot;

pub(crate) use super::queue::EntryKey;
use crate::call::{Flight, Timing};
use crate::clock::Instant;
use crate::error::CallError;

/// What one stage gave for one entry.
#[derive(Debug)]
pub(crate) struct StageReply {
    pub(crate) payload: Payload,
    pub(crate) timing: Timing,
}

/// What became of one entry.
pub(crate) type StageOutcome = Result<StageReply, CallError>;

/// Where an entry's outcome goes: straight to the caller that waits in [`Pool::submit`](super::Pool::submit).
///
/// It can be used once. Dropped unused (its worker or batcher died with it), it tells the caller that the worker was lost.
#[derive(Debug)]
pub(crate) struct ReplyPort(oneshot::Sender<StageOutcome>);

impl ReplyPort {
    pub(crate) fn pair() -> (Self, oneshot::Receiver<StageOutcome>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Answers. A caller that has gone does not mind.
    pub(crate) fn send(self, outcome: StageOutcome) {
        let _ = self.0.send(outcome);
    }
}

/// One request's item, waiting in or taken from one stage's queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    /// What the stage's cost function says of it; 1 where there is none.
    pub(crate) cost: u64,
    pub(crate) payload: Payload,
    pub(crate) flight: Arc<Flight>,
    pub(crate) enqueued_at: Instant,
    pub(crate) reply: ReplyPort,
}

impl Entry {
    /// Where it stands in the order.
    pub(crate) fn key(&self) -> EntryKey {
        EntryKey { priority: self.flight.priority, deadline: self.flight.deadline, sequence: self.sequence }
    }
}
