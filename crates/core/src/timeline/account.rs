//! The times of a call so far. Every call has such an account, so that an error without an outcome can report it.
//!
//! A call is in one phase at a time, and each move books the phase that ends. If parts of a call run concurrently, the
//! last part that moved decides the phase; the sum is still the elapsed time. Time after the deadline is not booked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::timing::Timing;
use crate::clock::Instant;
use crate::deadline::Deadline;

/// The activity of a call at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The call waits in a stage's queue.
    Queue,
    /// The call belongs to a batch that has not begun.
    Batch,
    /// User code runs the call.
    Compute,
    /// The call is between two stages, or on another node.
    Outside,
}

/// The account of one call, in microseconds of 32 bits: they reach beyond the longest deadline.
///
/// The queue and the messages order the moves of a call, so these atomics need no ordering of their own.
#[derive(Debug)]
pub(crate) struct Account {
    /// One sum for each reported phase.
    sums: [AtomicU32; 3],
    /// The phase, whether user code has had the call ([`STARTED`]), and in the bits above, the time from the beginning
    /// of the phase to the deadline: so the start of the call need not be stored.
    mark: AtomicU64,
}

impl Account {
    pub(crate) fn new() -> Self {
        Self { sums: Default::default(), mark: AtomicU64::new(Phase::Outside as u64) }
    }

    /// Books the phase that ends, and begins another.
    pub(crate) fn enter(&self, phase: Phase, deadline: Deadline, now: Instant) {
        let left = micros(deadline.remaining(now));
        let mark = self.mark.load(Ordering::Relaxed);
        if let Some(sum) = self.sums.get(phase_of(mark)) {
            let passed = left_of(mark).saturating_sub(left);
            sum.store(sum.load(Ordering::Relaxed).saturating_add(passed), Ordering::Relaxed);
        }
        let started = if phase == Phase::Compute { STARTED } else { mark & STARTED };
        self.mark.store(u64::from(left) << 8 | started | phase as u64, Ordering::Relaxed);
    }

    /// Whether user code has had the call, or may have had it on another node.
    pub(crate) fn has_started(&self) -> bool {
        self.mark.load(Ordering::Relaxed) & STARTED != 0
    }

    /// The booked time, and the elapsed time of the current phase.
    pub(crate) fn spent(&self, deadline: Deadline, now: Instant) -> Timing {
        let mark = self.mark.load(Ordering::Relaxed);
        let mut sums = self.sums.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        if let Some(sum) = sums.get_mut(phase_of(mark)) {
            *sum = sum.saturating_add(left_of(mark).saturating_sub(micros(deadline.remaining(now))));
        }
        let [queue, batch, compute] = sums.map(|micros| Duration::from_micros(micros.into()));
        Timing { queue, batch, compute }
    }
}

/// Set in the mark after the call was in [`Phase::Compute`].
const STARTED: u64 = 0x80;

fn phase_of(mark: u64) -> usize {
    (mark & 0x7f) as usize
}

fn left_of(mark: u64) -> u32 {
    (mark >> 8) as u32
}

fn micros(duration: Duration) -> u32 {
    let whole = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
    whole.saturating_mul(1_000_000).saturating_add(duration.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn records_each_phase_and_reports_the_current_one() {
        let (start, at) = (clock::now(), Duration::from_millis);
        let deadline = Deadline::after(start, at(1000));
        let account = Account::new();
        assert_eq!(account.spent(deadline, start + at(5)), Timing::default());
        assert!(!account.has_started());
        account.enter(Phase::Queue, deadline, start + at(10));
        account.enter(Phase::Batch, deadline, start + at(30));
        assert!(!account.has_started());
        account.enter(Phase::Compute, deadline, start + at(33));
        account.enter(Phase::Outside, deadline, start + at(83));
        account.enter(Phase::Queue, deadline, start + at(90));
        let spent = account.spent(deadline, start + at(100));
        assert_eq!(spent, Timing { queue: at(30), batch: at(3), compute: at(50) });
        assert!(account.has_started());
    }

    #[test]
    fn time_after_the_deadline_is_not_recorded() {
        let (start, at) = (clock::now(), Duration::from_millis);
        let deadline = Deadline::after(start, at(20));
        let account = Account::new();
        account.enter(Phase::Compute, deadline, start + at(5));
        assert_eq!(account.spent(deadline, start + at(500)).total(), at(15));
        account.enter(Phase::Queue, deadline, start + at(600));
        assert_eq!(account.spent(deadline, start + at(700)).total(), at(15));
    }
}
