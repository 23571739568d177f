//! Decides how long a body may still take: a pure value, fed with times and sizes.
//!
//! Three limits count from the first wait for a body, and the earliest decides: the deadline of the request, the
//! longest time for any body, and a window in which a number of bytes must arrive. A slow trickle of bytes fails the
//! window.

use std::time::Duration;

use callboard_core::{Deadline, Instant};

use crate::config::HttpConfig;

/// The limits of the time of one body.
#[derive(Clone, Copy, Debug)]
pub struct PaceLimits {
    /// The length of a window.
    pub(crate) progress_timeout: Duration,
    /// The bytes that have to arrive within a window, unless the body ends.
    pub(crate) progress_bytes: u64,
    /// The longest time for any body.
    pub(crate) body_timeout: Duration,
    /// The deadline of the request.
    pub(crate) deadline: Deadline,
}

impl PaceLimits {
    /// The limits of a body whose request has this deadline.
    #[must_use]
    pub fn new(config: &HttpConfig, deadline: Deadline) -> Self {
        Self {
            progress_timeout: config.body_progress_timeout,
            progress_bytes: config.least_bytes_in(config.body_progress_timeout),
            body_timeout: config.body_timeout,
            deadline,
        }
    }
}

/// The reason why a body is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooSlow {
    /// The window ended with too few bytes.
    Stalled,
    /// The time for any body passed.
    OutOfTime,
    /// The deadline of the request passed.
    Deadline,
}

/// The progress of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    began: Instant,
    window_began: Instant,
    window_bytes: u64,
}

impl Pace {
    /// Waiting begins.
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, window_began: now, window_bytes: 0 }
    }

    /// Counts received bytes. A full window starts a new one.
    pub(crate) fn received(&mut self, now: Instant, bytes: u64, limits: &PaceLimits) {
        self.window_bytes += bytes;
        if self.window_bytes >= limits.progress_bytes {
            (self.window_began, self.window_bytes) = (now, 0);
        }
    }

    /// Excludes a time in which the edge did not read the body: the client is not responsible for it.
    pub(crate) fn paused(&mut self, time: Duration) {
        self.began += time;
        self.window_began += time;
    }

    /// The time at which the body fails if nothing more arrives, and the reason.
    pub(crate) fn end(&self, limits: &PaceLimits) -> (Instant, TooSlow) {
        let ends = [
            (self.window_began + limits.progress_timeout, TooSlow::Stalled),
            (self.began + limits.body_timeout, TooSlow::OutOfTime),
            (limits.deadline.instant(), TooSlow::Deadline),
        ];
        // The first of equal times: the client's behaviour is named before its deadline.
        ends.into_iter().min_by_key(|(end, _)| *end).expect("three ends")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(now: Instant, deadline: Duration) -> PaceLimits {
        PaceLimits {
            progress_timeout: 10 * SECOND,
            progress_bytes: 1000,
            body_timeout: 60 * SECOND,
            deadline: Deadline::after(now, deadline),
        }
    }

    #[test]
    fn a_trickle_does_not_move_the_end_of_its_window() {
        let now = Instant::now();
        let limits = limits(now, 3600 * SECOND);
        let mut pace = Pace::new(now);
        for second in 1..10 {
            pace.received(now + second * SECOND, 1, &limits);
        }
        assert_eq!(pace.end(&limits), (now + 10 * SECOND, TooSlow::Stalled));
        pace.received(now + 9 * SECOND, 991, &limits);
        assert_eq!(pace.end(&limits), (now + 19 * SECOND, TooSlow::Stalled));
    }

    #[test]
    fn a_pause_extends_every_limit_except_the_deadline() {
        let now = Instant::now();
        let limits = limits(now, 3600 * SECOND);
        let mut pace = Pace::new(now);
        pace.paused(5 * SECOND);
        assert_eq!(pace.end(&limits), (now + 15 * SECOND, TooSlow::Stalled));
        for second in 6..65 {
            pace.received(now + second * SECOND, 1000, &limits);
        }
        assert_eq!(pace.end(&limits), (now + 65 * SECOND, TooSlow::OutOfTime));
    }

    #[test]
    fn a_body_at_the_minimum_rate_ends_at_the_body_timeout() {
        let now = Instant::now();
        let limits = limits(now, 3600 * SECOND);
        let mut pace = Pace::new(now);
        for second in 1..60 {
            pace.received(now + second * SECOND, 1000, &limits);
        }
        assert_eq!(pace.end(&limits), (now + 60 * SECOND, TooSlow::OutOfTime));
    }

    #[test]
    fn an_earlier_deadline_of_the_caller_wins() {
        let now = Instant::now();
        let limits = limits(now, 5 * SECOND);
        assert_eq!(Pace::new(now).end(&limits), (now + 5 * SECOND, TooSlow::Deadline));
    }
}
