//! Counts of events: a simulation without events finds no defect.

use callboard_core::ErrorKind;

use super::journal::{Answer, End, Journal};

/// Counts of events over any number of runs.
#[derive(Debug, Default)]
pub(super) struct Totals {
    calls: u64,
    ok: u64,
    failed: u64,
    worker_failed: u64,
    deadline_exceeded: u64,
    overloaded: u64,
    unavailable: u64,
    left: u64,
    panics: u64,
    dropped: u64,
    run_again: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum.1 += more.1;
        }
    }

    pub(super) fn missing_events(&self) -> Vec<&'static str> {
        self.fields().into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    fn fields(&self) -> Vec<(&'static str, u64)> {
        let mut copy = Self { ..*self };
        copy.fields_mut().into_iter().map(|(name, count)| (name, *count)).collect()
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u64); 11] {
        [
            ("calls", &mut self.calls),
            ("ok", &mut self.ok),
            ("failed", &mut self.failed),
            ("worker_failed", &mut self.worker_failed),
            ("deadline_exceeded", &mut self.deadline_exceeded),
            ("overloaded", &mut self.overloaded),
            ("unavailable", &mut self.unavailable),
            ("left", &mut self.left),
            ("panics", &mut self.panics),
            ("dropped", &mut self.dropped),
            ("run_again", &mut self.run_again),
        ]
    }

    pub(super) fn of(journal: &Journal) -> Self {
        let book = journal.book();
        let failures_of = |kind| {
            let of_kind = |what: &Answer| what.as_ref().err().is_some_and(|(k, _)| *k == kind);
            book.calls
                .values()
                .filter_map(|call| call.outcome.as_ref())
                .filter(|outcome| of_kind(&outcome.what))
                .count() as u64
        };
        let ended = |end| book.visits.iter().filter(|visit| visit.end.is_some_and(|(_, e)| e == end)).count() as u64;
        let mut places: Vec<_> = book.visits.iter().map(|visit| (visit.call, visit.stage)).collect();
        places.sort_unstable();
        places.dedup();
        Self {
            calls: book.calls.len() as u64,
            ok: book
                .calls
                .values()
                .filter(|call| call.outcome.as_ref().is_some_and(|outcome| outcome.what.is_ok()))
                .count() as u64,
            failed: failures_of(ErrorKind::Failed),
            worker_failed: failures_of(ErrorKind::WorkerFailed),
            deadline_exceeded: failures_of(ErrorKind::DeadlineExceeded),
            overloaded: failures_of(ErrorKind::Overloaded),
            unavailable: failures_of(ErrorKind::Unavailable),
            left: book.calls.values().filter(|call| call.left_at.is_some()).count() as u64,
            panics: ended(End::Panicked),
            dropped: ended(End::Dropped),
            run_again: (book.visits.len() - places.len()) as u64,
        }
    }
}
