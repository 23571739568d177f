//! A load on the gateways of a lab, on schedule, and what has become of its calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use callboard_core::{CallError, CallOptions, Contract, LocalClient};
use tokio::task::{JoinHandle, JoinSet};

use super::lab::{Lab, STAGES};
use crate::ledger::{Ledger, Work, micros_now};
use crate::pause;

/// The time between two calls of a stage through one gateway.
const EVERY: Duration = Duration::from_millis(50);

/// The time for each call: longer than anything that happens to its node.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How late a worker may begin a call, for a machine that is busy at that moment.
const LATE: Duration = Duration::from_secs(2);

/// Calls each stage through each gateway, until it is ended.
pub(super) struct Load {
    record: Arc<Record>,
    calling: Vec<JoinHandle<()>>,
}

struct Record {
    start: Instant,
    is_over: AtomicBool,
    /// The number of calls of each stage: their ids.
    made: [AtomicU64; 2],
    ended: Mutex<Vec<Ended>>,
}

struct Ended {
    stage: usize,
    id: u64,
    /// Since the start of the load.
    at: Duration,
    took: Duration,
    outcome: Result<u64, CallError>,
}

impl Load {
    pub(super) fn begin(lab: &Lab) -> Self {
        let (is_over, made, ended) = (AtomicBool::new(false), Default::default(), Mutex::default());
        let record = Arc::new(Record { start: Instant::now(), is_over, made, ended });
        let call_all = |record: &Arc<Record>, client| Arc::clone(record).call_all(client);
        let gateways = lab.gateways();
        let calling = gateways.map(|node| node.runtime.spawn(call_all(&record, node.node().client()))).collect();
        Self { record, calling }
    }

    /// Since its start.
    pub(super) fn now(&self) -> Duration {
        self.record.start.elapsed()
    }

    /// Calls go on for this time.
    pub(super) fn wait_for(&self, lasting: Duration) {
        let until = Instant::now() + lasting;
        while Instant::now() < until {
            pause();
        }
    }

    /// Makes no further call, waits for all, and compares them with the executions.
    ///
    /// # Panics
    ///
    /// If an outcome is missing or wrong, a call that may run again has failed, or another one has run twice.
    pub(super) fn end(self, lab: &Lab, what: &str) -> Calls {
        self.record.is_over.store(true, Ordering::SeqCst);
        for (calling, gateway) in self.calling.into_iter().zip(lab.gateways()) {
            gateway.runtime.block_on(calling).unwrap();
        }
        let calls = Calls(std::mem::take(&mut self.record.ended.lock().unwrap()));
        for (stage, contract) in [Contract::Idempotent, Contract::AtMostOnce].into_iter().enumerate() {
            let mut ledger = Ledger::default();
            let mut errors = BTreeMap::<String, usize>::new();
            for call in calls.0.iter().filter(|call| call.stage == stage) {
                ledger.note(call.id, &call.outcome);
                if let Err(error) = &call.outcome {
                    *errors.entry(error.to_string()).or_default() += 1;
                }
            }
            let made = self.record.made[stage].load(Ordering::SeqCst);
            let sums = ledger.check(made, &lab.logs[stage].executions(), contract, LATE);
            println!("{what}, {}: {sums:?}, errors {errors:?}", STAGES[stage]);
            assert!(sums.done == sums.calls || !contract.may_run_again(), "{what}: {errors:?}");
        }
        calls
    }
}

impl Record {
    async fn call_all(self: Arc<Self>, client: LocalClient) {
        let (mut calls, mut times) = (JoinSet::new(), tokio::time::interval(EVERY));
        while !self.is_over.load(Ordering::SeqCst) {
            times.tick().await;
            for stage in 0..STAGES.len() {
                calls.spawn(Arc::clone(&self).call(client.clone(), stage));
            }
        }
        calls.join_all().await;
    }

    async fn call(self: Arc<Self>, client: LocalClient, stage: usize) {
        let (id, at) = (self.made[stage].fetch_add(1, Ordering::SeqCst), self.start.elapsed());
        let work = Work::new(id, micros_now() + TIMEOUT.as_micros() as u64);
        let (route, options) = (format!("/{}", STAGES[stage]), CallOptions::new().with_timeout(TIMEOUT));
        let outcome = client.call_with::<Work, Work>(&route, work, options).await;
        let (took, outcome) = (self.start.elapsed() - at, outcome.map(|answer| answer.call_id()));
        self.ended.lock().unwrap().push(Ended { stage, id, at, took, outcome });
    }
}

/// All calls of a load.
pub(super) struct Calls(Vec<Ended>);

impl Calls {
    /// The longest time of a call that may run again.
    pub(super) fn slowest(&self) -> Duration {
        self.again().map(|call| call.took).max().unwrap_or_default()
    }

    /// Of those made between these times, the share that was done within `time`.
    pub(super) fn goodput(&self, from: Duration, to: Duration, time: Duration) -> f64 {
        let made: Vec<_> = self.again().filter(|call| (from..to).contains(&call.at)).collect();
        let good = made.iter().filter(|call| call.outcome.is_ok() && call.took <= time).count();
        good as f64 / made.len().max(1) as f64
    }

    fn again(&self) -> impl Iterator<Item = &Ended> {
        self.0.iter().filter(|call| call.stage == 0)
    }
}
