//! How many lines of one source reach the log: a pure decision.
//!
//! * **Full:** lines beyond the rate are left out and counted; the count is for the next line, once there is room
//!   again.

use std::time::Duration;

use crate::clock::Instant;

/// The most lines of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRate {
    /// This many lines,
    pub lines: u32,
    /// and this many bytes,
    pub bytes: usize,
    /// within this time.
    pub per: Duration,
}

/// The lines of one source since the start of its window.
#[derive(Debug)]
pub struct LogLimit {
    rate: LogRate,
    begin: Option<Instant>,
    lines: u32,
    bytes: usize,
    left_out: u64,
}

impl LogLimit {
    /// Nothing was written.
    #[must_use]
    pub fn new(rate: LogRate) -> Self {
        Self { rate, begin: None, lines: 0, bytes: 0, left_out: 0 }
    }

    /// Begins the next window, if it is time. Returns the number of lines that were left out of the former.
    pub fn turn(&mut self, now: Instant) -> u64 {
        if self.begin.is_some_and(|begin| now.saturating_duration_since(begin) < self.rate.per) {
            return 0;
        }
        let former = std::mem::replace(self, Self { begin: Some(now), ..Self::new(self.rate) });
        former.left_out
    }

    /// Whether a line of this length may be written in this window.
    pub fn admit(&mut self, bytes: usize) -> bool {
        let is_admitted = self.lines < self.rate.lines && self.bytes.saturating_add(bytes) <= self.rate.bytes;
        if is_admitted {
            self.lines += 1;
            self.bytes += bytes;
        } else {
            self.left_out += 1;
        }
        is_admitted
    }

    /// At the end of the source: the number of lines that were left out and not told.
    pub fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: LogRate = LogRate { lines: 3, bytes: 100, per: Duration::from_secs(1) };

    #[test]
    fn lines_beyond_the_rate_are_left_out_and_counted_once() {
        let (start, mut limit) = (Instant::now(), LogLimit::new(RATE));
        let mut say =
            |millis: u64, bytes: usize| (limit.turn(start + Duration::from_millis(millis)), limit.admit(bytes));
        for _ in 0..3 {
            assert_eq!(say(0, 10), (0, true));
        }
        assert_eq!((say(500, 10), say(999, 10)), ((0, false), (0, false)));
        assert_eq!((say(1000, 10), say(1001, 10)), ((2, true), (0, true)));
        assert_eq!((say(2000, 100), say(2001, 1), say(2002, 1)), ((0, true), (0, false), (0, false)));
        assert_eq!((say(5000, 101), say(5001, 100)), ((2, false), (0, true)));
        assert_eq!((limit.take_left_out(), limit.take_left_out()), (1, 0));
    }

    proptest! {
        /// Every line is written or counted, and no time has more lines than its windows.
        #[test]
        fn lines_are_written_or_counted(gaps in prop::collection::vec(0_u64..1000, 1..300)) {
            let (mut limit, start) = (LogLimit::new(RATE), Instant::now());
            let (mut now, mut written, mut counted) = (start, 0, 0);
            for gap in &gaps {
                now += Duration::from_millis(*gap);
                counted += limit.turn(now);
                written += u64::from(limit.admit(1));
            }
            prop_assert_eq!(written + counted + limit.take_left_out(), gaps.len() as u64);
            prop_assert!(written <= u64::from(RATE.lines) * ((now - start).as_secs() + 1), "{}", written);
        }
    }
}
