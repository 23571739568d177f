//! Why a batch left the queue, as metrics and records name it.

use serde::Serialize;

/// Why a batch was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    /// The batch had reached its largest size.
    Full,
    /// A worker was free and there was no reason to wait.
    Idle,
    /// The oldest entry had waited for the maximum delay.
    Delay,
    /// A member's deadline left no more time to wait.
    Deadline,
    /// The stage is draining.
    Drain,
}

impl ReleaseReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Full, Self::Idle, Self::Delay, Self::Deadline, Self::Drain];

    /// The name for metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Delay => "delay",
            Self::Deadline => "deadline",
            Self::Drain => "drain",
        }
    }
}
