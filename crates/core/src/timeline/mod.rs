//! One call's record: which stages it came to, in which batches it ran, and what became of each run.
//!
//! Nothing is recorded unless the call's options have a [`Recorder`]; without one it costs a pointer. Every call keeps
//! an `Account` of its phases.

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

use serde::Serialize;

use crate::clock::Instant;
use crate::id::StageName;

/// The content of a [`Recorder`] at one moment. Times count from the recorder's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// Until the moment at which this was asked for.
    pub total: Duration,
    /// The stages that it came to, in the order of its arrival. A stage that runs a call in parts has one for each
    /// part.
    pub visits: Vec<StageVisit>,
    /// The number of visits after the first 64, which are not kept: streams may make any number.
    pub omitted: usize,
}

/// A call in one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageVisit {
    /// The stage.
    pub stage: StageName,
    /// When it came.
    pub arrived: Duration,
    /// When it had its outcome there; `None` while it has none, and where its caller stopped waiting before.
    pub left: Option<Duration>,
    /// It ran on another node, which knows its runs.
    pub is_remote: bool,
    /// Facts from that node. `None` without them, for example after a failure.
    pub remote: Option<NodeFacts>,
    /// Its ways through the queue, one after the other. More than one where a run ended and the call was run again.
    pub runs: Vec<StageRun>,
}

/// Facts of a visit on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFacts {
    /// Its name, or its address where it has none.
    pub node: String,
    /// Where the time went there, of all stages that it ran of this call; told with the first of them.
    pub timing: Option<Timing>,
}

/// One way through a stage's queue: waiting, then a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageRun {
    /// When it began to wait.
    pub queued: Duration,
    /// How long it waited, or has waited so far.
    pub queue: Duration,
    /// From the forming of its batch until user code began, or so far. `None` while it is in no batch.
    pub batch_wait: Option<Duration>,
    /// What user code took for the whole batch, or so far. `None` before it began.
    pub compute: Option<Duration>,
    /// The batch that it was in.
    pub batch: Option<BatchFacts>,
    /// What became of it; `None` while it goes on.
    pub end: Option<RunEnd>,
}

/// The batch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchFacts {
    /// The stage's count of batches since it started, from 1.
    pub id: u64,
    /// How many entries it was run with, or until then: how many it was formed of.
    pub size: usize,
    /// Which replica of the stage it was given to, from 0.
    pub replica: usize,
    /// Why it left the queue when it did. `None`: it is a part of a batch that killed its worker, run apart from
    /// others.
    pub reason: Option<ReleaseReason>,
    /// Its place in a trace, where a member is traced.
    pub span: Option<SpanId>,
}

impl BatchFacts {
    /// Whether it is run apart from others.
    pub(crate) fn is_isolating(&self) -> bool {
        self.reason.is_none()
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEnd {
    /// User code gave its outcome.
    Done,
    /// User code gave a failure for it.
    Failed,
    /// It was refused before it waited: the deadline could not be kept.
    Refused,
    /// The deadline passed before user code began.
    Expired,
    /// Its caller left before user code began.
    Cancelled,
    /// The deadline passed before user code, which gives its outputs one by one, had given the last of them.
    Late,
    /// User code panicked with its batch.
    Panicked,
    /// User code did not come back within the stage's timeout.
    Hung,
    /// The worker gave another number of results than it got items.
    WrongCount,
    /// The worker was lost, and not by this batch.
    Lost,
    /// The worker ended before it began the batch.
    NotBegun,
    /// The stage ended.
    Closed,
}

impl RunEnd {
    /// The one word for programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Late => "late",
            Self::Panicked => "panicked",
            Self::Hung => "hung",
            Self::WrongCount => "wrong_count",
            Self::Lost => "lost",
            Self::NotBegun => "not_begun",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in a trace: which trace, and which part of it. Neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId {
    /// The trace.
    pub trace: u128,
    /// The part.
    pub span: u64,
}

impl SpanId {
    /// The first part of a new trace.
    #[must_use]
    pub fn begin() -> Self {
        Self { trace: fastrand::u128(1..), span: Self::new_span() }
    }

    /// The place in the words of the W3C, of a trace that is recorded: the value of a `traceparent` header.
    #[must_use]
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    /// The number of a new part of any trace.
    #[must_use]
    pub fn new_span() -> u64 {
        fastrand::u64(1..)
    }
}

/// Is told of every batch with a traced call.
pub trait BatchObserver: fmt::Debug + Send + Sync + 'static {
    /// A batch is over. Called where it ran, before its callers have their outcomes: it must not block, and should be
    /// quick.
    fn ended(&self, batch: EndedBatch);
}

/// Joins the traces of calls from any edge.
pub trait CallTracer: fmt::Debug + Send + Sync + 'static {
    /// A call has been let in whose caller has this place in a trace that is recorded. `what` names its route, or its
    /// stages. What is given back is the call's own place, and its record.
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder;
}

/// A batch that is over.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndedBatch {
    /// The stage that ran it.
    pub stage: StageName,
    /// What its members know of it.
    pub facts: BatchFacts,
    /// When it left the queue.
    pub formed_at: Instant,
    /// When user code began.
    pub started_at: Instant,
    /// When user code ended, or was waited for no longer.
    pub ended_at: Instant,
    /// What became of it: of a batch that came to its end, `Done`.
    pub end: RunEnd,
    /// Its traced members.
    pub members: Vec<SpanId>,
}
