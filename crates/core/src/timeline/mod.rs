//! One call's record: the stages that it visited, the batches in which it ran, and the outcome of each run.
//!
//! Nothing is recorded unless the call's options have a [`Recorder`]; without a recorder this costs a pointer. Every
//! call has an `Account` of its phases.

mod account;
mod recorder;
mod release;
mod timing;

pub(crate) use account::{Account, Phase};
pub use recorder::Recorder;
pub use release::ReleaseReason;
pub(crate) use timing::Micros;
pub use timing::Timing;

use std::fmt;
use std::time::Duration;

use callboard_codec::hex;
use serde::Serialize;

use crate::clock::Instant;
use crate::id::StageName;

/// The content of a [`Recorder`] at one moment. Times count from the recorder's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// Until the moment of the request.
    pub total: Duration,
    /// The visited stages, in the order of arrival. A stage that runs a call in parts has one visit for each part.
    pub visits: Vec<StageVisit>,
    /// The count of visits after the first 64, which are not stored: streams may make any number.
    pub omitted: usize,
}

/// A call in one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageVisit {
    /// The stage.
    pub stage: StageName,
    /// When it arrived.
    pub arrived: Duration,
    /// When it had its outcome there; `None` without an outcome, or if its caller stopped waiting before.
    pub left: Option<Duration>,
    /// Whether it ran on another node, which knows its runs.
    pub is_remote: bool,
    /// Facts from that node. `None` without them, for example after a failure.
    pub remote: Option<NodeFacts>,
    /// Its runs, one after the other. More than one if a run ended and the call ran again.
    pub runs: Vec<StageRun>,
}

/// Facts of a visit on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFacts {
    /// Its name, or its address where it has none.
    pub node: String,
    /// The times there, for all stages of this call on that node; only in the first visit.
    pub timing: Option<Timing>,
}

/// One run in a stage: waiting, then a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageRun {
    /// When it entered the queue.
    pub queued: Duration,
    /// How long it waited in the queue so far.
    pub queue: Duration,
    /// From the forming of its batch until user code began, or so far. `None` outside of a batch.
    pub batch_wait: Option<Duration>,
    /// The duration of user code for the whole batch, or so far. `None` before it began.
    pub compute: Option<Duration>,
    /// Its batch.
    pub batch: Option<BatchFacts>,
    /// Its end; `None` while it continues.
    pub end: Option<RunEnd>,
}

/// The batch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchFacts {
    /// The number of the batch since the start of the stage, from 1.
    pub id: u64,
    /// The count of entries at the run; before the run, the count at the forming.
    pub size: usize,
    /// The index of the replica, from 0.
    pub replica: usize,
    /// Why it left the queue. `None`: it is a part of a batch that killed its worker, and runs apart from others.
    pub reason: Option<ReleaseReason>,
    /// Its place in a trace, if a member is traced.
    pub span: Option<SpanId>,
}

impl BatchFacts {
    /// Whether it runs apart from others.
    pub(crate) fn is_isolating(&self) -> bool {
        self.reason.is_none()
    }
}

callboard_codec::words! {
    /// How a run ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum RunEnd {
        /// User code returned its outcome.
        Done => "done",
        /// User code returned a failure for it.
        Failed => "failed",
        /// It was refused before it waited: it could not meet its deadline.
        Refused => "refused",
        /// The deadline passed before user code began.
        Expired => "expired",
        /// Its caller left before user code began.
        Cancelled => "cancelled",
        /// The deadline passed before streaming user code had emitted the last output.
        Late => "late",
        /// User code panicked with its batch.
        Panicked => "panicked",
        /// User code did not return within the stage's timeout.
        Hung => "hung",
        /// The count of results was not the count of items.
        WrongCount => "wrong_count",
        /// The worker was lost, but not because of this batch.
        Lost => "lost",
        /// The worker ended before it began the batch.
        NotBegun => "not_begun",
        /// The stage ended.
        Closed => "closed",
    }
}

/// A place in a trace: the ids of the trace and of the span. Neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
}

impl SpanId {
    /// The first span of a new trace.
    #[must_use]
    pub fn begin() -> Self {
        Self { trace: fastrand::u128(1..), span: Self::new_span() }
    }

    /// The place in a recorded trace in W3C format: the value of a `traceparent` header.
    #[must_use]
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    /// The place in a trace that the value of a `traceparent` header names (W3C), and its flags. `None` for a value
    /// that cannot be read: the tracing of a caller may be broken although its calls are fine.
    #[must_use]
    pub fn parse_traceparent(text: &[u8]) -> Option<(Self, u8)> {
        const LENGTH: usize = 55;
        let is_known =
            text.len() == LENGTH || (text.len() > LENGTH && text[LENGTH] == b'-' && !text.starts_with(b"00"));
        if !is_known || [2, 35, 52].iter().any(|dash| text[*dash] != b'-') {
            return None;
        }
        let text = &text[..LENGTH];
        // The standard allows lowercase digits only.
        if text.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let [version] = hex::decode(&text[..2])?;
        let (trace, span) =
            (u128::from_be_bytes(hex::decode(&text[3..35])?), u64::from_be_bytes(hex::decode(&text[36..52])?));
        let [flags] = hex::decode(&text[53..])?;
        // Version 255 is invalid. Later versions begin as this one does.
        (version != 0xff && trace != 0 && span != 0).then_some((Self { trace, span }, flags))
    }

    /// The id of a new span of any trace.
    #[must_use]
    pub fn new_span() -> u64 {
        fastrand::u64(1..)
    }
}

/// Observes every batch with a traced call.
pub trait BatchObserver: fmt::Debug + Send + Sync + 'static {
    /// A batch has ended. Called where it ran, before its callers have their outcomes: it must be quick and not block.
    fn ended(&self, batch: EndedBatch);
}

/// Joins the traces of calls from any edge.
pub trait CallTracer: fmt::Debug + Send + Sync + 'static {
    /// A call was admitted whose caller has this place in a recorded trace. `what` names its route, or its stages.
    /// Returns a recorder with the call's own place.
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder;
}

/// An ended batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndedBatch {
    /// The stage that ran it.
    pub stage: StageName,
    /// The facts that its members record.
    pub facts: BatchFacts,
    /// When it left the queue.
    pub formed_at: Instant,
    /// When user code began.
    pub started_at: Instant,
    /// When user code ended, or the wait for it ended.
    pub ended_at: Instant,
    /// The end of the batch; `Done` if it was complete.
    pub end: RunEnd,
    /// Its traced members.
    pub members: Vec<SpanId>,
}
