//! When a crashed part starts again, when it gives up, and when it tries again: pure decisions.

mod backoff;
mod crash_loop;
mod intensity;
mod recovery;

pub use backoff::BackoffPolicy;
pub use intensity::RestartIntensity;

pub(crate) use crash_loop::{CrashLoop, LifeEnd, NextStart};
pub(crate) use intensity::{RestartDecision, RestartWindow};
pub(crate) use recovery::Recovery;
