//! The events of a simulation, in virtual time, and the broken promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{self, Instant};
use crate::error::ErrorKind;
use crate::id::StageName;

/// The count of trace events that a failure prints: the cause is near the end.
const LAST_EVENTS: usize = 40;

/// The record of one run.
#[derive(Debug)]
pub(in crate::testing) struct Journal {
    started: Instant,
    book: Mutex<SimulationRun>,
}

/// One finished run of a [`Simulation`](super::Simulation) or a
/// [`ClusterSimulation`](crate::testing::ClusterSimulation). It prints as its trace, a line for each event.
#[derive(Clone, Debug, Default)]
pub struct SimulationRun {
    seed: u64,
    /// What repeats it, with the seed.
    again: String,
    trace: Vec<String>,
    outcomes: BTreeMap<&'static str, usize>,
    crashes: usize,
    left: usize,
    violations: Vec<String>,
}

impl SimulationRun {
    /// The events in order, with the virtual time of each. The same seed gives the same trace.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        &self.trace
    }

    /// The count of calls with an answer.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.outcomes.get("ok").copied().unwrap_or(0)
    }

    /// The count of calls with an error of this kind.
    #[must_use]
    pub fn failed(&self, kind: ErrorKind) -> usize {
        self.outcomes.get(kind.as_str()).copied().unwrap_or(0)
    }

    /// The count of callers that left before they had an answer.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// The count of killed workers, or of killed nodes.
    #[must_use]
    pub fn crashes(&self) -> usize {
        self.crashes
    }

    /// Fails the test if a promise was broken.
    pub(in crate::testing) fn expect_kept(self) -> Self {
        let Self { seed, again, violations, trace, .. } = &self;
        let last = trace.len().saturating_sub(LAST_EVENTS);
        assert!(
            violations.is_empty(),
            "seed {seed} broke {} promises:\n  {}\nthe last events:\n  {}\nagain: `{again}`",
            violations.len(),
            violations.join("\n  "),
            trace[last..].join("\n  "),
        );
        self
    }
}

impl fmt::Display for SimulationRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Journal {
    pub(in crate::testing) fn new(seed: u64, again: String) -> Self {
        Self { started: clock::now(), book: Mutex::new(SimulationRun { seed, again, ..SimulationRun::default() }) }
    }

    pub(in crate::testing) fn event(&self, what: impl fmt::Display) {
        let line = self.line(what);
        self.book.lock().trace.push(line);
    }

    /// Notes a broken promise.
    pub(in crate::testing) fn violation(&self, what: impl fmt::Display) {
        let line = self.line(what);
        self.book.lock().violations.push(line);
    }

    pub(super) fn answered(&self, call: usize, error: Option<ErrorKind>) {
        let outcome = error.map_or("ok", ErrorKind::as_str);
        *self.book.lock().outcomes.entry(outcome).or_default() += 1;
        self.event(format_args!("call {call}: {outcome}"));
    }

    pub(super) fn left(&self, call: usize) {
        self.book.lock().left += 1;
        self.event(format_args!("call {call}: its caller has left"));
    }

    /// The count of calls with an answer, or with a caller that left.
    pub(super) fn ended(&self) -> usize {
        let book = self.book.lock();
        book.outcomes.values().sum::<usize>() + book.left
    }

    pub(super) fn crashed(&self, stage: &StageName, after: bool) {
        self.book.lock().crashes += 1;
        let when = if after { "after" } else { "before" };
        self.event(format_args!("stage {stage}: a worker dies {when} its code runs"));
    }

    pub(in crate::testing) fn killed(&self, node: &str) {
        self.book.lock().crashes += 1;
        self.event(format_args!("{node} is killed"));
    }

    pub(super) fn slow(&self, stage: &StageName, delay: Duration) {
        self.event(format_args!("stage {stage}: a batch takes {delay:?} longer"));
    }

    pub(in crate::testing) fn take(&self) -> SimulationRun {
        std::mem::take(&mut *self.book.lock())
    }

    fn line(&self, what: impl fmt::Display) -> String {
        format!("{:>6} ms  {what}", clock::now().saturating_duration_since(self.started).as_millis())
    }
}
