//! When an answer stops being useful: an absolute instant inside, the remaining time outside.

use std::time::Duration;

use crate::clock::{self, Instant};

/// The instant after which the caller stops waiting.
///
/// A deadline covers the whole call: all stages, all retries. Of two deadlines the earlier one counts.
///
/// ```
/// use std::time::Duration;
/// use callboard_core::{Deadline, Instant};
///
/// let now = Instant::now();
/// let deadline = Deadline::after(now, Duration::from_millis(50));
/// assert!(!deadline.is_expired(now));
/// assert!(deadline.is_expired(now + Duration::from_millis(50)));
/// assert_eq!(deadline.remaining(now), Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Instant);

impl Deadline {
    /// How long a call may take when its caller did not say: long enough for a slow model, short enough to free a stuck
    /// caller.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

    /// The longest timeout a caller may ask for; beyond it a queued request is a leak.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

    /// The deadline at exactly this instant.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The deadline `timeout` from `now`, capped at [`MAX_TIMEOUT`](Self::MAX_TIMEOUT).
    #[must_use]
    pub fn after(now: Instant, timeout: Duration) -> Self {
        Self(now + timeout.min(Self::MAX_TIMEOUT))
    }

    /// Later than anything that a process does: for a call that ends when its caller leaves.
    #[must_use]
    pub fn never(now: Instant) -> Self {
        // Timers take no more than about two years.
        Self(now + Duration::from_secs(365 * 24 * 60 * 60))
    }

    /// The instant itself, for timers.
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// Whether the time is up: a deadline is expired at its own instant.
    #[must_use]
    pub fn is_expired(self, now: Instant) -> bool {
        now >= self.0
    }

    /// The time left, zero once expired. This is the form that crosses the wire.
    #[must_use]
    pub fn remaining(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }
}

impl From<Duration> for Deadline {
    /// The deadline this long from the present, capped at [`MAX_TIMEOUT`](Self::MAX_TIMEOUT).
    fn from(timeout: Duration) -> Self {
        Self::after(clock::now(), timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_expired_at_its_own_instant() {
        let now = clock::now();
        let (deadline, step) = (Deadline::after(now, Duration::from_millis(50)), Duration::from_nanos(1));
        let expired = [deadline.instant() - step, deadline.instant(), deadline.instant() + step];
        assert_eq!(expired.map(|now| deadline.is_expired(now)), [false, true, true]);
    }
}
