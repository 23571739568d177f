//! Observations of user code and callers, in virtual time. Some invariants are checked while they are recorded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use callboard_core::{CallError, ErrorKind, Instant};

use super::script::{Form, Script};

/// How a call's time in user code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// User code returned its results.
    Returned,
    Panicked,
    /// The future was dropped.
    Dropped,
}

/// One call in one run of one stage's user code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    pub(super) call: u64,
    pub(super) stage: usize,
    pub(super) revision: u64,
    /// Calls that run together share it.
    pub(super) run: u64,
    pub(super) started_at: Instant,
    pub(super) end: Option<(Instant, End)>,
}

/// An outcome, reduced to the parts that are judged.
pub(super) type Answer = Result<u64, (ErrorKind, String)>;

/// The outcome of a call at its caller.
#[derive(Clone, Debug)]
pub(super) struct CallOutcome {
    pub(super) at: Instant,
    pub(super) what: Answer,
}

/// One call, as its caller sees it.
#[derive(Clone, Debug)]
pub(super) struct CallRecord {
    pub(super) called_at: Instant,
    /// Unknown for a stream's calls.
    pub(super) deadline: Option<Instant>,
    pub(super) left_at: Option<Instant>,
    pub(super) outcome: Option<CallOutcome>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) calls: BTreeMap<u64, CallRecord>,
    pub(super) visits: Vec<Visit>,
    pub(super) runs: u64,
    /// The count of calls in user code now.
    pub(super) inside: usize,
    pub(super) violations: Vec<String>,
    /// The watchdog, which uses real time, moved a stage to threads.
    pub(super) moved_to_threads: bool,
    pub(super) events: Vec<(Instant, String)>,
}

impl Book {
    /// The calls in user code that surely have a waiting caller.
    pub(super) fn running_with_a_caller(&self, now: Instant) -> usize {
        let is_wanted = |call: &CallRecord| {
            call.left_at.is_none() && call.outcome.is_none() && call.deadline.is_some_and(|deadline| now < deadline)
        };
        let open = self.visits.iter().filter(|visit| visit.end.is_none());
        open.filter(|visit| self.calls.get(&visit.call).is_some_and(is_wanted)).count()
    }

    /// The times at which the run of this visit may have panicked.
    ///
    /// The items of an asynchronous closure are separate visits that begin together and run concurrently: a panic also
    /// loses the items that have returned.
    pub(super) fn crashes_of(&self, visit: &Visit, form: Form) -> Vec<Instant> {
        let Some((ended_at, end)) = visit.end else { return Vec::new() };
        if end == End::Panicked {
            return vec![ended_at];
        }
        let beside = |other: &&Visit| {
            form == Form::EachAsync
                && (other.stage, other.revision) == (visit.stage, visit.revision)
                && other.started_at == visit.started_at
        };
        let crashes = self.visits.iter().filter(beside).filter_map(|other| match other.end {
            Some((at, End::Panicked)) if at >= ended_at => Some(at),
            _ => None,
        });
        crashes.collect()
    }
}

/// The shared journal of one run.
#[derive(Debug)]
pub(super) struct Journal {
    script: Arc<Script>,
    started: Instant,
    book: Mutex<Book>,
}

impl Journal {
    pub(super) fn new(script: Arc<Script>) -> Self {
        Self { script, started: Instant::now(), book: Mutex::default() }
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    pub(super) fn violation(&self, what: impl fmt::Display) {
        let at = self.time(Instant::now());
        self.book().violations.push(format!("at {at:?}: {what}"));
    }

    pub(super) fn event(&self, what: impl fmt::Display) {
        self.book().events.push((Instant::now(), what.to_string()));
    }

    pub(super) fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    pub(super) fn called(&self, call: u64, deadline: Option<Instant>) {
        let record = CallRecord { called_at: Instant::now(), deadline, left_at: None, outcome: None };
        if self.book().calls.insert(call, record).is_some() {
            self.violation(format_args!("call {call} was pulled twice"));
        }
    }

    pub(super) fn left(&self, call: u64) {
        let mut book = self.book();
        if let Some(record) = book.calls.get_mut(&call) {
            record.left_at = Some(Instant::now());
        }
    }

    pub(super) fn record_outcome(&self, call: u64, outcome: Result<u64, CallError>) {
        let what = outcome.map_err(|error| (error.kind(), error.message().to_owned()));
        let mut book = self.book();
        if let Some(record) = book.calls.get_mut(&call) {
            record.outcome = Some(CallOutcome { at: Instant::now(), what });
        }
    }

    /// User code of a stage begins with these calls.
    pub(super) fn enter(self: &Arc<Self>, stage: usize, revision: u64, calls: &[u64]) -> Visiting {
        let now = Instant::now();
        let found = self.judge_start(stage, calls, now);
        for violation in found {
            self.violation(violation);
        }
        let mut book = self.book();
        let (run, first) = (book.runs, book.visits.len());
        book.runs += 1;
        book.inside += calls.len();
        let visits = calls.iter().map(|call| Visit { call: *call, stage, revision, run, started_at: now, end: None });
        book.visits.extend(visits);
        drop(book);
        Visiting { journal: Arc::clone(self), visits: first..first + calls.len(), returned: false }
    }

    /// Whether each of these calls may start now.
    fn judge_start(&self, stage: usize, calls: &[u64], now: Instant) -> Vec<String> {
        let plan = &self.script.stages[stage];
        let book = self.book();
        let mut found = Vec::new();
        if calls.is_empty() || calls.len() > plan.max_batch_size {
            found.push(format!("stage {} runs {} calls at once", plan.name, calls.len()));
        }
        let cost: u64 = calls.iter().map(|call| Script::cost(self.script.seed, *call)).sum();
        if plan.max_cost.is_some_and(|max| cost > max) {
            found.push(format!("stage {} runs a batch that costs {cost}", plan.name));
        }
        for call in calls {
            let mut no = |why: &str| found.push(format!("call {call} starts in stage {} {why}", plan.name));
            let Some(record) = book.calls.get(call) else {
                no("and was never called");
                continue;
            };
            if record.left_at.is_some() {
                no("after its caller had left");
            }
            if record.deadline.is_some_and(|deadline| deadline <= now) {
                no("after its deadline");
            }
            if record.outcome.is_some() {
                no("although it has its outcome");
            }
            let mut earlier = book.visits.iter().filter(|visit| visit.call == *call && visit.stage == stage).peekable();
            if earlier.peek().is_some() && plan.contract == callboard_core::Contract::AtMostOnce {
                no("a second time in an at-most-once stage");
            }
            if earlier.any(|visit| book.crashes_of(visit, plan.form).is_empty()) {
                no("again without need");
            }
        }
        found
    }

    /// Whether this call has made the stage's user code panic before.
    pub(super) fn has_panicked(&self, call: u64, stage: usize) -> bool {
        let panicked = |visit: &Visit| matches!(visit.end, Some((_, End::Panicked)));
        self.book().visits.iter().any(|visit| visit.call == call && visit.stage == stage && panicked(visit))
    }
}

/// Calls in user code. Dropped before it has returned, it was dropped or panicked.
#[derive(Debug)]
pub(super) struct Visiting {
    journal: Arc<Journal>,
    visits: std::ops::Range<usize>,
    returned: bool,
}

impl Visiting {
    pub(super) fn returned(mut self) {
        self.returned = true;
    }
}

impl Drop for Visiting {
    fn drop(&mut self) {
        let end = if self.returned {
            End::Returned
        } else if std::thread::panicking() {
            End::Panicked
        } else {
            End::Dropped
        };
        let now = Instant::now();
        let mut book = self.journal.book();
        book.inside -= self.visits.len();
        for visit in &mut book.visits[self.visits.clone()] {
            visit.end = Some((now, end));
        }
    }
}

impl fmt::Display for Journal {
    /// The events of the run, one per line, in the order of time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = self.book();
        let mut lines: Vec<(Instant, String)> = book.events.clone();
        for (call, record) in &book.calls {
            lines.push((record.called_at, format!("call {call}: made")));
            if let Some(at) = record.left_at {
                lines.push((at, format!("call {call}: left")));
            }
            if let Some(CallOutcome { at, what }) = &record.outcome {
                lines.push((*at, format!("call {call}: outcome {what:?}")));
            }
        }
        for visit in &book.visits {
            let Visit { call, stage, revision, run, .. } = visit;
            lines.push((visit.started_at, format!("call {call}: starts in stage {stage}.{revision}, run {run}")));
            if let Some((at, end)) = visit.end {
                lines.push((at, format!("call {call}: {end:?} in stage {stage}.{revision}, run {run}")));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        for (at, line) in lines {
            writeln!(f, "{:>12.3?}  {line}", self.time(at))?;
        }
        Ok(())
    }
}
