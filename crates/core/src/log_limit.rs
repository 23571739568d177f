//! How many lines of one source reach the log. `LogLimit` is the pure decision; `SharedLogLimit` reads the clock and
//! locks it.
//!
//! * **Full:** lines beyond the rate are left out and counted; the count is for the next line, once there is room
//!   again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::clock::{self, Instant};
use crate::error::{ErrorKind, ErrorOrigin};

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
    const FAILED_CALLS: Self = Self { lines: 20, bytes: 64 * 1024, per: Duration::from_secs(1) };
}

/// Lines about failed calls, of all nodes and edges of this process: they share its log. Each route has one limit for
/// refusals and late calls, which any caller can cause, and another for all else. Some routes may share theirs.
static FAILED_CALLS: [SharedLogLimit; 64] = [const { SharedLogLimit::new(LogRate::FAILED_CALLS) }; 64];

/// Whether a line of this length about a failed call of a route may be written now. Lines that are left out are
/// counted; a further line says how many, at most a second later.
#[must_use]
pub fn admits_failed_call(route: &str, kind: ErrorKind, bytes: usize) -> bool {
    let is_load = matches!(kind.row().origin, ErrorOrigin::Load | ErrorOrigin::Service | ErrorOrigin::Time);
    let mut hasher = DefaultHasher::new();
    (route, is_load).hash(&mut hasher);
    let limit = &FAILED_CALLS[(hasher.finish() % FAILED_CALLS.len() as u64) as usize];
    let line = limit.count(bytes, |left_out| tell_failed_calls(route, left_out));
    if let (Line::LeftOut { is_first: true }, Ok(runtime)) = (line, Handle::try_current()) {
        let route = route.to_owned();
        runtime.spawn(async move {
            tokio::time::sleep(LogRate::FAILED_CALLS.per).await;
            limit.tell_left_out(|left_out| tell_failed_calls(&route, left_out));
        });
    }
    line == Line::Written
}

fn tell_failed_calls(route: &str, left_out: u64) {
    tracing::warn!(parent: None, route, left_out, "lines about failed calls were left out");
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Written,
    LeftOut {
        /// In its window.
        is_first: bool,
    },
}

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

    /// Counts a line of this length.
    fn count_line(&mut self, bytes: usize) -> Line {
        if self.lines < self.rate.lines && self.bytes.saturating_add(bytes) <= self.rate.bytes {
            self.lines += 1;
            self.bytes += bytes;
            return Line::Written;
        }
        self.left_out += 1;
        Line::LeftOut { is_first: self.left_out == 1 }
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
        self.count(bytes, tell) == Line::Written
    }

    fn count(&self, bytes: usize, tell: impl FnOnce(u64)) -> Line {
        let (left_out, line) = {
            let mut limit = self.0.lock();
            (limit.turn(clock::now()), limit.count_line(bytes))
        };
        told(left_out, tell);
        line
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
        let mut say = |millis: u64, bytes: usize| {
            (limit.turn(start + Duration::from_millis(millis)), limit.count_line(bytes) == Line::Written)
        };
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

    /// The count of lines that were left out is logged within a second.
    #[tokio::test(start_paused = true)]
    async fn failed_calls_of_one_kind_or_route_leave_room_for_those_of_others() {
        let admitted = |route, kind| (0..100).filter(|_| admits_failed_call(route, kind, 1)).count();
        assert_eq!(admitted("/a", ErrorKind::DeadlineExceeded), 20);
        assert_eq!((admitted("/a", ErrorKind::Failed), admitted("/b", ErrorKind::Failed)), (20, 20));
        let left_out = || FAILED_CALLS.iter().map(|limit| limit.0.lock().left_out).sum::<u64>();
        assert_eq!(left_out(), 240);
        tokio::time::sleep(LogRate::FAILED_CALLS.per * 2).await;
        assert_eq!(left_out(), 0);
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
                written += u64::from(limit.count_line(1) == Line::Written);
            }
            prop_assert_eq!(written + counted + limit.take_left_out(), gaps.len() as u64);
            prop_assert!(written <= u64::from(RATE.lines) * ((now - start).as_secs() + 1), "{}", written);
        }
    }
}
