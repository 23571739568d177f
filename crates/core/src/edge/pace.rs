//! Decides how long a body may still take, in either direction: a pure value, fed with times and sizes.
//!
//! The earliest of three limits decides: a window in which a number of bytes must move, the longest time for the whole
//! body, and the deadline of the call. A slow trickle of bytes fails the window.

use std::time::Duration;

use tokio::time::timeout_at;

use crate::clock::Instant;
use crate::deadline::Deadline;

/// The limits of the time of one body.
#[derive(Clone, Copy, Debug)]
pub struct PaceLimits {
    window: Duration,
    window_bytes: u64,
    whole: Option<Duration>,
    deadline: Option<Deadline>,
}

/// The reason why a body is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooSlow {
    /// The window ended with fewer bytes than this.
    Stalled {
        /// The bytes that have to move within a window.
        bytes: u64,
        /// The length of a window.
        window: Duration,
    },
    /// The time for the whole body passed.
    OutOfTime {
        /// The limit of that time.
        limit: Duration,
    },
    /// The deadline of the call passed.
    Deadline,
}

impl PaceLimits {
    /// At least this rate within each window, and at least one byte.
    #[must_use]
    pub fn new(window: Duration, min_bytes_per_second: u64) -> Self {
        let bytes = u128::from(min_bytes_per_second) * window.as_millis() / 1000;
        let window_bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        Self { window, window_bytes, whole: None, deadline: None }
    }

    /// At most this time for the whole body.
    #[must_use]
    pub fn within(self, whole: Duration) -> Self {
        Self { whole: Some(whole), ..self }
    }

    /// Not beyond the deadline of its call.
    #[must_use]
    pub fn until(self, deadline: Deadline) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The bytes that have to move within a window, unless the body ends.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }
}

/// The progress of one body.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    limits: PaceLimits,
    began: Instant,
    window_began: Instant,
    moved: u64,
}

impl Pace {
    /// Begins the first window.
    #[must_use]
    pub fn new(now: Instant, limits: PaceLimits) -> Self {
        Self { limits, began: now, window_began: now, moved: 0 }
    }

    /// Counts bytes that moved. A full window starts a new one.
    pub fn moved(&mut self, now: Instant, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
        if self.moved >= self.limits.window_bytes {
            (self.window_began, self.moved) = (now, 0);
        }
    }

    /// Excludes a time in which this side did not read: the other side is not responsible for it.
    pub fn paused(&mut self, time: Duration) {
        self.began += time;
        self.window_began += time;
    }

    /// The time at which the body fails if nothing more moves, and the reason.
    #[must_use]
    pub fn end(&self) -> (Instant, TooSlow) {
        let PaceLimits { window, window_bytes, whole, deadline } = self.limits;
        // The first of equal times: the other side's behaviour is named before the deadline of its call.
        let mut end = (self.window_began + window, TooSlow::Stalled { bytes: window_bytes, window });
        if let Some(limit) = whole.filter(|whole| self.began + *whole < end.0) {
            end = (self.began + limit, TooSlow::OutOfTime { limit });
        }
        match deadline.filter(|deadline| deadline.instant() < end.0) {
            Some(deadline) => (deadline.instant(), TooSlow::Deadline),
            None => end,
        }
    }

    /// Waits for more of the body, at most until the body is too slow.
    ///
    /// # Errors
    ///
    /// The body is too slow.
    pub async fn wait_for<T>(&self, more: impl Future<Output = T>) -> Result<T, TooSlow> {
        let (end, reason) = self.end();
        timeout_at(end, more).await.map_err(|_elapsed| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const SECOND: Duration = Duration::from_secs(1);
    const STALLED: TooSlow = TooSlow::Stalled { bytes: 1000, window: Duration::from_secs(10) };
    const OUT_OF_TIME: TooSlow = TooSlow::OutOfTime { limit: Duration::from_secs(60) };

    fn pace(now: Instant, deadline: Duration) -> Pace {
        Pace::new(now, PaceLimits::new(10 * SECOND, 100).within(60 * SECOND).until(Deadline::after(now, deadline)))
    }

    #[test]
    fn a_trickle_does_not_move_the_end_of_its_window() {
        let now = clock::now();
        let mut pace = pace(now, 3600 * SECOND);
        for second in 1..10 {
            pace.moved(now + second * SECOND, 1);
        }
        assert_eq!(pace.end(), (now + 10 * SECOND, STALLED));
        pace.moved(now + 9 * SECOND, 991);
        assert_eq!(pace.end(), (now + 19 * SECOND, STALLED));
    }

    #[test]
    fn a_pause_extends_every_limit_except_the_deadline() {
        let now = clock::now();
        let mut pace = pace(now, 3600 * SECOND);
        pace.paused(5 * SECOND);
        assert_eq!(pace.end(), (now + 15 * SECOND, STALLED));
        for second in 6..65 {
            pace.moved(now + second * SECOND, 1000);
        }
        assert_eq!(pace.end(), (now + 65 * SECOND, OUT_OF_TIME));
    }

    #[test]
    fn a_body_at_the_minimum_rate_ends_at_the_limit_of_its_whole_time() {
        let now = clock::now();
        let mut pace = pace(now, 3600 * SECOND);
        for second in 1..60 {
            pace.moved(now + second * SECOND, 1000);
        }
        assert_eq!(pace.end(), (now + 60 * SECOND, OUT_OF_TIME));
    }

    #[test]
    fn an_earlier_deadline_of_the_caller_wins() {
        let now = clock::now();
        assert_eq!(pace(now, 5 * SECOND).end(), (now + 5 * SECOND, TooSlow::Deadline));
    }

    #[test]
    fn without_a_minimum_rate_any_byte_is_progress() {
        let now = clock::now();
        let mut pace = Pace::new(now, PaceLimits::new(SECOND, 0));
        pace.moved(now, 0);
        assert_eq!(pace.end().0, now + SECOND);
        pace.moved(now + SECOND / 2, 1);
        assert_eq!(pace.end().0, now + SECOND * 3 / 2);
    }
}
