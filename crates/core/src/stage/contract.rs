//! What may be done with a call whose worker did not survive it.

use serde::Serialize;

/// What a stage says of running one call more than once.
///
/// It decides what becomes of a batch whose worker dies. Under [`AtMostOnce`](Self::AtMostOnce) all of its calls get
/// `WorkerFailed` at once. Under the other two they are run again, in halves, until the one that kills the worker
/// stands alone, in at most 2·⌈log₂ n⌉ + 1 runs of a batch of n, and its neighbours have their results. One that was
/// alone is run [once more](crate::StageSettings::crash_retries) before it fails: the crash may have been the
/// machine's.
///
/// What it costs: a stage that may run calls again shares their inputs with the worker instead of giving them away, so
/// [`Batch::into_inputs`](crate::Batch::into_inputs) clones each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Contract {
    /// A call is never started twice. The default, because only the author knows better.
    #[default]
    AtMostOnce,
    /// Running a call twice does no more than running it once: writes of the same value, say.
    Idempotent,
    /// A call has no effect but its result: models, transformations.
    Pure,
}

impl Contract {
    /// Whether a call that was started may be started again.
    #[must_use]
    pub const fn may_run_again(self) -> bool {
        matches!(self, Self::Idempotent | Self::Pure)
    }

    /// The one word for documents and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtMostOnce => "at_most_once",
            Self::Idempotent => "idempotent",
            Self::Pure => "pure",
        }
    }
}
