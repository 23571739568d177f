//! When a crashed part starts again, and when it gives up: pure decisions.

mod backoff;
mod intensity;

pub use backoff::BackoffPolicy;
pub use intensity::RestartIntensity;

pub(crate) use intensity::{RestartDecision, RestartWindow};
