//! How many lines of one source reach the log. `LogLimit` is the pure decision; `SharedLogLimit` reads the clock and
//! locks it.
//!
//! * **Full:** lines beyond the rate are left out and counted; the count is for the next line, once there is room
//!   again.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{self, Instant};

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

impl LogRate {
    /// Faults that callers can cause at any rate: crashes, failures of authentication, of loading and of saving keys.
    /// Enough for each fault of a small accident, and a flood costs less than 20 MB in a day.
    pub const FAULTS: Self = Self { lines: 60, bytes: usize::MAX, per: Duration::from_secs(30) };

    /// Failed calls, of which each has an id that an operator may search for.
    const FAILED_CALLS: Self = Self { lines: 100, bytes: 256 * 1024, per: Duration::from_secs(1) };
}

/// Lines about failed calls, of all nodes and edges of this process: they share its log.
pub static FAILED_CALLS: SharedLogLimit = SharedLogLimit::new(LogRate::FAILED_CALLS);

/// The lines of one source since the start of its window.
#[derive(Debug)]
struct LogLimit {
    rate: LogRate,
    begin: Option<Instant>,
    lines: u32,
    bytes: usize,
    left_out: u64,
}

impl LogLimit {
    const fn new(rate: LogRate) -> Self {
        Self { rate, begin: None, lines: 0, bytes: 0, left_out: 0 }
    }

    /// Begins the next window, if it is time. Returns the number of lines that were left out of the former.
    fn turn(&mut self, now: Instant) -> u64 {
        if self.begin.is_some_and(|begin| now.saturating_duration_since(begin) < self.rate.per) {
            return 0;
        }
        let former = std::mem::replace(self, Self { begin: Some(now), ..Self::new(self.rate) });
        former.left_out
    }

    /// Counts a line of this length. Returns whether it may be written in this window.
    fn count_line(&mut self, bytes: usize) -> bool {
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
    fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

/// The limit of a source on several threads, such as all calls of a node.
#[derive(Debug)]
pub struct SharedLogLimit(Mutex<LogLimit>);

impl SharedLogLimit {
    /// Nothing was written.
    #[must_use]
    pub const fn new(rate: LogRate) -> Self {
        Self(Mutex::new(LogLimit::new(rate)))
    }

    /// Whether a line of this length may be written now. Before it, `tell` writes how many were left out, if some were.
    pub fn admits(&self, bytes: usize, tell: impl FnOnce(u64)) -> bool {
        let (left_out, is_admitted) = {
            let mut limit = self.0.lock();
            (limit.turn(clock::now()), limit.count_line(bytes))
        };
        told(left_out, tell);
        is_admitted
    }

    /// Writes how many lines were left out, if some were and there is room again.
    pub fn tell_left_out(&self, tell: impl FnOnce(u64)) {
        let left_out = self.0.lock().turn(clock::now());
        told(left_out, tell);
    }

    /// The same at the end of the source, when there is room for a last line.
    pub fn tell_at_end(&self, tell: impl FnOnce(u64)) {
        let left_out = self.0.lock().take_left_out();
        told(left_out, tell);
    }
}

fn told(left_out: u64, tell: impl FnOnce(u64)) {
    if left_out > 0 {
        tell(left_out);
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
            |millis: u64, bytes: usize| (limit.turn(start + Duration::from_millis(millis)), limit.count_line(bytes));
        for _ in 0..3 {
            assert_eq!(say(0, 10), (0, true));
        }
        assert_eq!((say(500, 10), say(999, 10)), ((0, false), (0, false)));
        assert_eq!((say(1000, 10), say(1001, 10)), ((2, true), (0, true)));
        assert_eq!((say(2000, 100), say(2001, 1), say(2002, 1)), ((0, true), (0, false), (0, false)));
        assert_eq!((say(5000, 101), say(5001, 100)), ((2, false), (0, true)));
        assert_eq!((limit.take_left_out(), limit.take_left_out()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shared_limit_tells_before_the_next_line_and_at_the_end() {
        let (limit, mut told) = (SharedLogLimit::new(RATE), Vec::new());
        let admitted = (0..5).filter(|_| limit.admits(1, |_| unreachable!("there is no room"))).count();
        assert_eq!(admitted, 3);
        limit.tell_left_out(|_| unreachable!("there is no room"));
        tokio::time::advance(RATE.per).await;
        assert!(limit.admits(1, |left_out| told.push(left_out)));
        limit.tell_at_end(|_| unreachable!("all was told"));
        assert!(!limit.admits(RATE.bytes, |_| unreachable!("all was told")));
        limit.tell_at_end(|left_out| told.push(left_out));
        assert_eq!(told, [2, 1]);
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
                written += u64::from(limit.count_line(1));
            }
            prop_assert_eq!(written + counted + limit.take_left_out(), gaps.len() as u64);
            prop_assert!(written <= u64::from(RATE.lines) * ((now - start).as_secs() + 1), "{}", written);
        }
    }
}
