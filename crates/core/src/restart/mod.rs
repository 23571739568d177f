//! When something that crashed starts again, and when that was too often: pure decisions.

mod backoff;
mod intensity;

pub use backoff::BackoffPolicy;
pub use intensity::RestartIntensity;

pub(crate) use intensity::{RestartDecision, RestartWindow};
