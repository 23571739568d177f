//! No call starts after its deadline, and late calls get their error.

use std::time::Duration;

use callboard_core::{App, CallError, Contract, ErrorKind};

use super::{Scale, cluster, offer, quantile, working};
use crate::common::LONG;
use crate::ledger::{ExecutionLog, Work};

const SHORT: Duration = Duration::from_millis(20);

/// One call in ten has 20 ms, the work takes 100 ms, and the load is more than twice the capacity: every queued call
/// waits for seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_starts_after_its_deadline() {
    let scale = Scale::new(100, 4);
    let log = ExecutionLog::in_memory();
    let concurrency = scale.rate / 50;
    let work = |worker| working(&log, worker, Duration::from_millis(100)).concurrency(concurrency);
    let (gateway, workers) = cluster((0..2).map(|n| App::new().route("/work", work(n))).collect()).await;
    let client = gateway.served.node.client();
    // The first call sets up the whole route.
    client.call::<Work, Work>("/run", Work::whenever(u64::MAX)).await.unwrap();
    let first = log.executions().len();
    let timeout = |id: u64| if id.is_multiple_of(10) { SHORT } else { LONG };
    let offer = offer(&client, scale.rate, scale.lasting, timeout).await;
    let executions = log.executions().split_off(first);
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, scale.lateness());
    scale.started_in_time("deadlines", &executions);
    let short: Vec<_> = offer.calls.iter().filter(|call| call.id.is_multiple_of(10)).collect();
    // Refused as hopeless, or late: no call waits longer than it can.
    for call in &short {
        let kind = call.outcome.as_ref().err().map(CallError::kind);
        // A machine that stalls for that long may find its answer when it checks again.
        let is_told = matches!(kind, Some(ErrorKind::DeadlineExceeded | ErrorKind::Overloaded));
        assert!(is_told || (kind.is_none() && !scale.is_full), "{:?}", call.outcome);
    }
    println!("deadlines: {sums:?}");
    let p99 = quantile(short.iter().map(|call| call.took).collect(), 0.99);
    scale.hold("deadlines: told p99", p99, SHORT + Duration::from_millis(20));
    for worker in &workers {
        worker.until_idle().await;
    }
    gateway.served.until_idle().await;
}
