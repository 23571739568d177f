//! The one place in this crate that reads the clock.
//!
//! Decisions take `now` as an argument; actors and handles ask here. Under a paused runtime the time is virtual.

pub use tokio::time::Instant;

/// The current time, as the runtime sees it.
#[must_use]
pub(crate) fn now() -> Instant {
    Instant::now()
}
