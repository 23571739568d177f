//! No call starts after its deadline, and late calls get their error.

use std::time::Duration;

use callboard_core::{App, CallError, Contract, ErrorKind};

use super::{Scale, cluster, offer, quantile, working};
use crate::common::LONG;
use crate::ledger::{Book, Work};

const SHORT: Duration = Duration::from_millis(20);

/// One call in ten has 20 ms, the work takes 100 ms, and the load is more than twice the capacity: every queued call
/// waits for seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_begins_after_its_deadline() {
    let scale = Scale::of(100, 4);
    let book = Book::in_memory();
    let concurrency = scale.rate / 50;
    let work = |worker| working(&book, worker, Duration::from_millis(100)).concurrency(concurrency);
    let (gateway, workers) = cluster((0..2).map(|n| App::new().route("/work", work(n))).collect()).await;
    let client = gateway.served.node.client();
    // The first call sets up the whole route.
    client.call::<Work, Work>("/run", Work::whenever(u64::MAX)).await.unwrap();
    let first = book.executions().len();
    let timeout = |id: u64| if id.is_multiple_of(10) { SHORT } else { LONG };
    let offer = offer(&client, scale.rate, scale.lasting, timeout).await;
    let executions = book.executions().split_off(first);
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, scale.lateness());
    scale.begun_in_time("deadlines", &executions);
    let short: Vec<_> = offer.calls.iter().filter(|call| call.id.is_multiple_of(10)).collect();
    // Refused as hopeless, or late: no call waits longer than it can.
    for call in &short {
        let kind = call.outcome.as_ref().err().map(CallError::kind);
        // A machine that stalls for that long may find its answer when it checks again.
        let is_told = matches!(kind, Some(ErrorKind::DeadlineExceeded | ErrorKind::Overloaded));
        assert!(is_told || (kind.is_none() && !scale.is_full), "{:?}", call.outcome);
    }
    println!("deadlines: {sums:?}");
    let told = quantile(short.iter().map(|call| call.took).collect(), 0.99);
    scale.hold("deadlines: told p99", told, SHORT + Duration::from_millis(20));
    for worker in &workers {
        worker.comes_to_rest().await;
    }
    gateway.served.comes_to_rest().await;
}
