//! Whether a call may run again after its worker died.

use serde::Serialize;

callboard_codec::words! {
    /// Whether a stage may run a call more than once.
    ///
    /// It decides the outcome of a batch whose worker dies. Under [`AtMostOnce`](Self::AtMostOnce) all its calls get
    /// `WorkerFailed` at once. Under the other two the calls run again in halves, until the call that kills the worker
    /// is alone and the others have their results: at most 2·⌈log₂ n⌉ + 1 runs for a batch of n. A call that was alone
    /// runs [once more](crate::StageSettings::crash_retries) before it fails: the machine may have caused the crash.
    ///
    /// The cost: a stage that may run calls again shares their inputs with the worker instead of giving them away, so
    /// [`Batch::into_inputs`](crate::Batch::into_inputs) clones each.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Contract {
        /// A call is never started twice. The default, because only the author knows better.
        #[default]
        AtMostOnce => "at_most_once",
        /// Running a call twice has the same effect as running it once: writes of the same value, for example.
        Idempotent => "idempotent",
        /// A call has no effect but its result: models, transformations.
        Pure => "pure",
    }
}

impl Contract {
    /// Whether a call that was started may be started again.
    #[must_use]
    pub const fn may_run_again(self) -> bool {
        matches!(self, Self::Idempotent | Self::Pure)
    }
}
