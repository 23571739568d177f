//! Decides whether the other side sends or reads fast enough: a pure value, fed with times and sizes.
//!
//! In each window of time a minimum of bytes must move; then the next window begins. An occasional byte is not
//! progress.

use std::time::Duration;

use callboard_core::Instant;

/// The bytes that must move, and the time for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    window: Duration,
    least: u64,
    until: Instant,
    moved: u64,
}

impl Pace {
    /// Begins the first window.
    pub(super) fn new(now: Instant, window: Duration, min_bytes_per_second: u64) -> Self {
        let least = u128::from(min_bytes_per_second) * window.as_millis() / 1000;
        let least = u64::try_from(least).unwrap_or(u64::MAX).max(1);
        Self { window, least, until: now + window, moved: 0 }
    }

    /// Counts bytes that moved.
    pub(super) fn moved(&mut self, now: Instant, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
        if self.moved >= self.least {
            (self.until, self.moved) = (now + self.window, 0);
        }
    }

    /// The time at which the other side is too slow, if nothing more moves.
    pub(super) fn end(&self) -> Instant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_does_not_start_a_new_window() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace::new(now, 10 * second, 100);
        for k in 1..=9 {
            pace.moved(now + k * second, 100);
            assert_eq!(pace.end(), now + 10 * second);
        }
        pace.moved(now + 9 * second, 100);
        assert_eq!(pace.end(), now + 19 * second);
    }

    #[test]
    fn without_a_minimum_rate_any_byte_is_progress() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace::new(now, second, 0);
        pace.moved(now, 0);
        assert_eq!(pace.end(), now + second);
        pace.moved(now + second / 2, 1);
        assert_eq!(pace.end(), now + second * 3 / 2);
    }
}
