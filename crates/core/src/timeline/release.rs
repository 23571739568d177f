//! Why a batch left the queue, as metrics and records name it.

use serde::Serialize;

callboard_codec::words! {
    /// Why a batch was released.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ReleaseReason {
        /// The batch had reached its largest size.
        Full => "full",
        /// A worker was free and there was no reason to wait.
        Idle => "idle",
        /// The batch had waited for returning callers.
        Returned => "returned",
        /// The oldest entry had waited for the maximum delay.
        Delay => "delay",
        /// A member's deadline left no more time to wait.
        Deadline => "deadline",
        /// The stage is draining.
        Drain => "drain",
    }
}
