//! The promises of a cluster under load and loss, each a test with a figure.
//!
//! The short form runs with every test run: one or two hundred calls a second for a few seconds. It checks everything
//! that is independent of the machine's speed, and prints the rest. The full form, `just promises`, needs a quiet
//! machine and an optimised build: 500 calls a second for 60 s, half of the thousand of the promise, because two cores
//! carry callers, gateway and workers. It also checks the figures. Either form prints
//! each figure on a line: `figures: what: asked, got`.

#![allow(clippy::print_stdout, reason = "figures are part of the output")]

mod cancels;
mod crashes;
mod deadlines;
mod flood;
mod idle;
mod network_faults;
mod overload;
mod processes;
mod slow;
mod usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_core::{App, CallError, CallOptions, Deadline, LocalClient, Pipeline, Stage};
use tokio::task::JoinSet;

use crate::common::{Member, ServingNode};
use crate::ledger::{Execution, ExecutionLog, Ledger, Work, micros_now};

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Times are checked, too.
    pub(crate) is_full: bool,
    /// Calls in a second.
    pub(crate) rate: u32,
    pub(crate) lasting: Duration,
}

impl Scale {
    /// The scale of this run; the short form uses these values.
    pub(crate) fn new(short_rate: u32, short_seconds: u64) -> Self {
        let is_full = std::env::var("CALLBOARD_PROMISES").is_ok_and(|form| form == "full");
        if is_full {
            Self { is_full, rate: 500, lasting: Duration::from_secs(60) }
        } else {
            Self { is_full, rate: short_rate, lasting: Duration::from_secs(short_seconds) }
        }
    }

    /// Prints a figure and its bound, and checks it in the full form.
    fn judge(&self, what: &str, target: &str, got: &str, holds: bool) {
        println!("figures: {what}: asked {target}, got {got}");
        assert!(holds || !self.is_full, "{what}: asked {target}, got {got}");
    }

    /// A figure in time.
    pub(crate) fn hold(&self, what: &str, got: Duration, most: Duration) {
        self.judge(what, &format!("≤ {most:.1?}"), &format!("{got:.1?}"), got <= most);
    }

    /// A figure with an upper bound.
    pub(crate) fn at_most(&self, what: &str, got: f64, most: f64, unit: &str) {
        self.judge(what, &format!("≤ {most:.1} {unit}"), &format!("{got:.1} {unit}"), got <= most);
    }

    /// A figure with a lower bound.
    pub(crate) fn at_least(&self, what: &str, got: f64, least: f64, unit: &str) {
        self.judge(what, &format!("≥ {least:.1} {unit}"), &format!("{got:.1} {unit}"), got >= least);
    }

    /// The tolerance of deadlines: a clock reading on a quiet machine. The delay of a busy machine between two lines of
    /// the worker is not part of the promise; but calls from a queue or a socket of the short forms would be later than
    /// this.
    pub(crate) fn lateness(&self) -> Duration {
        if self.is_full { Duration::from_millis(5) } else { Duration::from_secs(2) }
    }

    /// How late the latest execution began.
    pub(crate) fn started_in_time(&self, promise: &str, executions: &[Execution]) {
        let late = executions.iter().map(|execution| execution.started.saturating_sub(execution.due)).max();
        let late = Duration::from_micros(late.unwrap_or_default());
        self.hold(&format!("{promise}: begun after its deadline"), late, Duration::from_millis(5));
    }
}

/// One call that was offered.
#[derive(Clone, Debug)]
pub(crate) struct OfferedCall {
    pub(crate) id: u64,
    /// Since the first call.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    pub(crate) outcome: Result<u64, CallError>,
}

/// The offered calls, and their outcomes.
#[derive(Debug, Default)]
pub(crate) struct OfferedLoad {
    pub(crate) ledger: Ledger,
    pub(crate) calls: Vec<OfferedCall>,
}

impl OfferedLoad {
    pub(crate) fn count(&self) -> u64 {
        self.calls.len() as u64
    }

    pub(crate) fn done(&self) -> impl Iterator<Item = &OfferedCall> {
        self.calls.iter().filter(|call| call.outcome.is_ok())
    }

    /// The 99th percentile of the duration of calls that were done.
    pub(crate) fn p99(&self) -> Duration {
        quantile(self.done().map(|call| call.took).collect(), 0.99)
    }

    /// The calls offered between these times that were done within `time`.
    pub(crate) fn goodput(&self, from: Duration, to: Duration, time: Duration) -> f64 {
        let within: Vec<_> = self.calls.iter().filter(|call| (from..to).contains(&call.at)).collect();
        let good = within.iter().filter(|call| call.outcome.is_ok() && call.took <= time);
        good.count() as f64 / within.len().max(1) as f64
    }
}

/// The quantile at this share, such as 0.99.
pub(crate) fn quantile(mut times: Vec<Duration>, share: f64) -> Duration {
    times.sort();
    let at = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(at).copied().unwrap_or_default()
}

/// Makes calls on schedule, independent of earlier ones, and waits for the last. `timeout` gives the limit of each.
pub(crate) async fn offer(
    client: &LocalClient,
    rate: u32,
    lasting: Duration,
    timeout: impl Fn(u64) -> Duration,
) -> OfferedLoad {
    let (start, count) = (Instant::now(), (f64::from(rate) * lasting.as_secs_f64()) as u64);
    let mut calls = JoinSet::new();
    for id in 0..count {
        let at = Duration::from_secs_f64(id as f64 / f64::from(rate));
        tokio::time::sleep_until((start + at).into()).await;
        let (client, timeout) = (client.clone(), timeout(id));
        calls.spawn(async move {
            let started = Instant::now();
            let options = CallOptions::new().with_deadline(Deadline::after(started.into(), timeout));
            let work = Work::new(id, micros_now() + timeout.as_micros() as u64);
            let outcome = client.call_with::<Work, Work>("/run", work, options).await;
            OfferedCall {
                id,
                at: started - start,
                took: started.elapsed(),
                outcome: outcome.map(|answer| answer.call_id()),
            }
        });
    }
    let mut offer = OfferedLoad::default();
    while let Some(call) = calls.join_next().await {
        let call = call.unwrap();
        offer.ledger.note(call.id, &call.outcome);
        offer.calls.push(call);
    }
    offer
}

/// The default worker: takes this time, mostly 5 ms, and checks the checksum of its input.
pub(crate) fn working(log: &ExecutionLog, worker: u64, takes: Duration) -> Stage<Work, Work> {
    let log = log.clone();
    Stage::each_async("work", move |work: Arc<Work>| {
        let log = log.clone();
        async move {
            log.record(&work, worker)?;
            tokio::time::sleep(takes).await;
            work.answered()
        }
    })
}

/// A node of this process without stages, and the nodes that run `work`.
pub(crate) async fn cluster(workers: Vec<App>) -> (Member, Vec<ServingNode>) {
    let mut served = Vec::new();
    for app in workers {
        served.push(ServingNode::start(app).await);
    }
    let edges: Vec<_> = served.iter().map(|worker| &worker.edge).collect();
    let app = App::new().route("/run", Pipeline::<Work, Work>::remote("work"));
    let gateway = Member::start(app, &edges).await;
    gateway.until_connected(served.len()).await;
    gateway.until_offered("work").await;
    (gateway, served)
}
