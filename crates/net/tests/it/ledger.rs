//! Compares the outcomes that callers saw with the executions of workers.
//!
//! A caller records each outcome, and a worker records each execution before it starts. The check: every call has one
//! outcome; a call that may not repeat ran at most once; calls reported as done ran, and calls reported as not started
//! did not; no call started after its deadline.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_core::{CallError, Contract, ErrorKind, Failure};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The payload of each call and each answer.
const PAYLOAD_BYTES: usize = 1_000;

/// A call of a test, and its answer: a kilobyte with a number and a checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Work {
    pub(crate) id: u64,
    /// Its deadline, in microseconds since 1970, because a worker may be another process.
    due: u64,
    payload: String,
    checksum: u64,
}

impl Work {
    pub(crate) fn new(id: u64, due: u64) -> Self {
        let payload = format!("{id:020}").repeat(PAYLOAD_BYTES / 20);
        Self { id, due, checksum: checksum(&payload), payload }
    }

    /// A call without a deadline.
    pub(crate) fn whenever(id: u64) -> Self {
        Self::new(id, u64::MAX)
    }

    /// The answer: the same payload, made from the received one.
    ///
    /// # Errors
    ///
    /// If the received payload is damaged.
    pub(crate) fn answered(&self) -> Result<Self, Failure> {
        if self.is_whole() {
            Ok(self.clone())
        } else {
            Err(Failure::invalid_input(format!("call {} has come damaged", self.id)))
        }
    }

    /// The id of the call that it answers, or a value that is not an id if it is damaged.
    pub(crate) fn call_id(&self) -> u64 {
        if self.is_whole() { self.id } else { u64::MAX }
    }

    fn is_whole(&self) -> bool {
        self.payload.len() == PAYLOAD_BYTES && checksum(&self.payload) == self.checksum
    }
}

/// FNV-1a.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The current time in microseconds since 1970.
pub(crate) fn micros_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}

/// One start of user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Execution {
    pub(crate) id: u64,
    pub(crate) started: u64,
    pub(crate) due: u64,
    /// The number of the worker, for counts of shares.
    pub(crate) worker: u64,
}

/// The storage of the workers' records.
#[derive(Clone, Debug)]
pub(crate) enum ExecutionLog {
    Memory(Arc<Mutex<Vec<Execution>>>),
    File(PathBuf),
}

impl ExecutionLog {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    pub(crate) fn record(&self, work: &Work, worker: u64) -> Result<(), Failure> {
        let (&Work { id, due, .. }, started) = (work, micros_now());
        match self {
            Self::Memory(log) => log.lock().push(Execution { id, started, due, worker }),
            Self::File(path) => {
                let mut file = OpenOptions::new().create(true).append(true).open(path)?;
                // A line in one write is never mixed with another, and survives the end of its writer.
                file.write_all(format!("{id} {started} {due} {worker}\n").as_bytes())?;
            }
        }
        Ok(())
    }

    pub(crate) fn executions(&self) -> Vec<Execution> {
        match self {
            Self::Memory(log) => log.lock().clone(),
            Self::File(path) => read(path),
        }
    }
}

fn read(path: &Path) -> Vec<Execution> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Execution { id: next(), started: next(), due: next(), worker: next() }
    };
    text.lines().map(line).collect()
}

/// The outcome of one call, as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenOutcome {
    Done,
    /// Nothing was started.
    Refused(ErrorKind),
    /// It may have run.
    Failed(ErrorKind),
}

/// The records of the callers.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    outcomes: HashMap<u64, SeenOutcome>,
    violations: Vec<String>,
}

/// The counts of outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) calls: usize,
    pub(crate) done: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
    /// Calls that ran more than once.
    pub(crate) repeated: usize,
}

impl Ledger {
    /// Records the outcome of a call.
    pub(crate) fn note(&mut self, id: u64, outcome: &Result<u64, CallError>) {
        let outcome = match outcome {
            Ok(call_id) => {
                if *call_id != id {
                    self.violations.push(format!("call {id} got the answer of {call_id}"));
                }
                SeenOutcome::Done
            }
            Err(error) if error.is_refusal() => SeenOutcome::Refused(error.kind()),
            Err(error) => SeenOutcome::Failed(error.kind()),
        };
        self.put(id, outcome);
    }

    fn put(&mut self, id: u64, outcome: SeenOutcome) {
        if let Some(before) = self.outcomes.insert(id, outcome) {
            self.violations.push(format!("call {id} has two outcomes: {before:?}, {outcome:?}"));
        }
    }

    /// The calls that were not done, and their outcomes.
    pub(crate) fn not_done(&self) -> Vec<(u64, SeenOutcome)> {
        self.outcomes
            .iter()
            .filter(|(_, outcome)| **outcome != SeenOutcome::Done)
            .map(|(id, outcome)| (*id, *outcome))
            .collect()
    }

    /// Compares both sides. `late` is the tolerance of deadlines for clock readings and transit.
    ///
    /// # Panics
    ///
    /// With the first violations, if there are any.
    pub(crate) fn check(&self, calls: u64, executions: &[Execution], contract: Contract, late: Duration) -> Totals {
        let (sums, violations) = self.compare(calls, executions, contract, late);
        let first: Vec<_> = violations.iter().take(10).collect();
        assert!(violations.is_empty(), "{} violations, of {sums:?}: {first:#?}", violations.len());
        sums
    }

    fn compare(
        &self,
        calls: u64,
        executions: &[Execution],
        contract: Contract,
        late: Duration,
    ) -> (Totals, Vec<String>) {
        let mut violations = self.violations.clone();
        let mut runs: HashMap<u64, usize> = HashMap::new();
        for execution in executions {
            *runs.entry(execution.id).or_default() += 1;
            let over = execution.started.saturating_sub(execution.due);
            if over > late.as_micros() as u64 {
                violations.push(format!("call {} was started {over} µs after its deadline", execution.id));
            }
        }
        let mut sums = Totals { calls: self.outcomes.len(), ..Totals::default() };
        for id in 0..calls {
            let times = runs.remove(&id).unwrap_or_default();
            sums.repeated += usize::from(times > 1);
            if times > 1 && !contract.may_run_again() {
                violations.push(format!("call {id} ran {times} times"));
            }
            match self.outcomes.get(&id) {
                None => violations.push(format!("call {id} has no outcome")),
                Some(SeenOutcome::Done) => {
                    sums.done += 1;
                    if times == 0 {
                        violations.push(format!("call {id} is reported as done, but never ran"));
                    }
                }
                Some(SeenOutcome::Refused(kind)) => {
                    sums.refused += 1;
                    if times > 0 {
                        violations.push(format!("call {id} ran, and is said not to have been started ({kind})"));
                    }
                }
                Some(SeenOutcome::Failed(_)) => sums.failed += 1,
            }
        }
        violations.extend(runs.keys().map(|id| format!("call {id} ran, and was never made")));
        (sums, violations)
    }
}

fn found(ledger: &Ledger, executions: &[Execution], contract: Contract) -> String {
    ledger.compare(2, executions, contract, Duration::ZERO).1.join("; ")
}

/// The checker finds each kind of violation.
#[test]
fn a_ledger_with_a_violation_fails_its_check() {
    let run = |id| Execution { id, started: 5, due: 10, worker: 0 };
    let mut ledger = Ledger::default();
    ledger.note(0, &Ok(0));
    assert_eq!(found(&ledger, &[run(0)], Contract::AtMostOnce), "call 1 has no outcome");
    ledger.put(1, SeenOutcome::Refused(ErrorKind::Overloaded));
    assert_eq!(found(&ledger, &[run(0)], Contract::AtMostOnce), "");
    assert_eq!(found(&ledger, &[], Contract::AtMostOnce), "call 0 is reported as done, but never ran");
    assert_eq!(found(&ledger, &[run(0), run(0)], Contract::AtMostOnce), "call 0 ran 2 times");
    assert_eq!(found(&ledger, &[run(0), run(0)], Contract::Idempotent), "");
    let started = found(&ledger, &[run(0), run(1)], Contract::Idempotent);
    assert_eq!(started, "call 1 ran, and is said not to have been started (overloaded)");
    assert_eq!(found(&ledger, &[run(0), run(7)], Contract::Idempotent), "call 7 ran, and was never made");
    let late = Execution { id: 0, started: 12, due: 10, worker: 0 };
    assert_eq!(found(&ledger, &[late], Contract::Idempotent), "call 0 was started 2 µs after its deadline");
    ledger.put(1, SeenOutcome::Done);
    assert!(found(&ledger, &[run(0), run(1)], Contract::Pure).contains("two outcomes"));
    let mut wrong = Ledger::default();
    wrong.note(0, &Ok(3));
    wrong.note(1, &Ok(1));
    assert_eq!(found(&wrong, &[run(0), run(1)], Contract::Pure), "call 0 got the answer of 3");
}
