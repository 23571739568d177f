//! A worker's process is killed and restarted, is shut down, and is stopped and continued, under load.

use std::time::{Duration, Instant};

use callboard_core::Contract;

use super::{OfferedLoad, Scale, offer};
use crate::common::{LONG, until};
use crate::ledger::Totals;
use crate::processes::{Gateway, execution_log, two_workers};

/// The calls that a dead, silent peer may hold until the idle timeout: those in flight, and those sent before its
/// silence is noticed. The cluster assumes that a peer is as slow as its silence so far, so after a few milliseconds it
/// prefers other peers. Credit is no bound: a connection has room for 256 streams of up to 32 calls.
const MAX_STUCK: f64 = 32.0;

/// The limit for "done again": service takes 5 ms, and a call to the silent peer waits for seconds.
const GOODPUT_TIME: Duration = Duration::from_millis(250);

/// Killed after a third of the run, restarted after half of it. Returns both times since the first call.
async fn kill_and_restart(name: &str, contract: Contract) -> (Scale, OfferedLoad, Totals, [Duration; 2]) {
    let scale = Scale::new(80, 8);
    let (directory, mut first, second) = two_workers(name, contract);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let started = Instant::now();
    let script = async {
        tokio::time::sleep(scale.lasting / 3).await;
        first.signal("KILL");
        let killed = started.elapsed();
        tokio::time::sleep_until((started + scale.lasting / 2).into()).await;
        tokio::task::block_in_place(|| first.restart());
        let back = started.elapsed();
        until(|| gateway.cluster.connected_peers() == 2).await;
        [killed, back]
    };
    let calls =
        offer(&client, scale.rate, scale.lasting, |_| if scale.is_full { Duration::from_secs(10) } else { LONG });
    let (offer, times) = tokio::join!(calls, script);
    let sums = offer.ledger.check(offer.count(), &execution_log(&directory).executions(), contract, scale.lateness());
    println!("killed: {contract:?}, {sums:?}");
    scale.started_in_time("killed", &execution_log(&directory).executions());
    for (what, since, limit) in [("kill", times[0], 4), ("restart", times[1], 2)] {
        let limit = since + Duration::from_secs(limit);
        let share = offer.goodput(limit, limit + Duration::from_secs(2), GOODPUT_TIME);
        scale.at_least(&format!("killed: goodput after the {what}, from {limit:.1?} on"), share * 100.0, 95.0, "%");
    }
    (scale, offer, sums, times)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_node_that_was_killed_fails_no_retryable_call() {
    let (scale, offer, sums, _) = kill_and_restart("promised-killed", Contract::Idempotent).await;
    assert_eq!(sums.done, sums.calls, "{:?}", offer.ledger.not_done());
    let longest = offer.calls.iter().map(|call| call.took).max().unwrap_or_default();
    scale.hold("killed: longest", longest, Duration::from_millis(3_500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_node_that_was_killed_makes_no_call_run_twice() {
    let (scale, _, sums, _) = kill_and_restart("promised-killed-once", Contract::AtMostOnce).await;
    scale.at_most("killed: failed or refused", (sums.failed + sums.refused) as f64, MAX_STUCK, "calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_gets_sigterm_under_load_fails_no_call_and_ends_soon() {
    let scale = Scale::new(80, 4);
    let (directory, mut first, second) = two_workers("promised-terminated", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let script = async {
        tokio::time::sleep(scale.lasting / 3).await;
        first.signal("TERM");
        first.exited().await
    };
    let (offer, (took, code)) = tokio::join!(offer(&client, scale.rate, scale.lasting, |_| LONG), script);
    let executions = execution_log(&directory).executions();
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, code), (sums.calls, Some(0)), "{:?}", offer.ledger.not_done());
    // The longest request works for 5 ms.
    scale.hold("told to end: gone after", took, Duration::from_secs(6));
}

/// Calls have a second; the stop is longer, and longer than the idle timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_resumes_starts_no_expired_call() {
    let scale = Scale::new(80, 8);
    let frost = Duration::from_secs(if scale.is_full { 30 } else { 5 });
    let (directory, first, second) = two_workers("promised-frozen", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let script = async {
        tokio::time::sleep(scale.lasting / 8).await;
        first.signal("STOP");
        tokio::time::sleep(frost).await;
        let before = execution_log(&directory).executions().len();
        first.signal("CONT");
        let thawed = Instant::now();
        let id = u64::from(first.process.id());
        // Used again: it executes calls again.
        let works = || execution_log(&directory).executions()[before..].iter().any(|execution| execution.worker == id);
        until(works).await;
        thawed.elapsed()
    };
    let calls = offer(&client, scale.rate, scale.lasting.max(frost * 2), |_| Duration::from_secs(1));
    let (offer, back) = tokio::join!(calls, script);
    let executions = execution_log(&directory).executions();
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, scale.lateness());
    println!("frozen: {sums:?}");
    scale.started_in_time("frozen", &executions);
    scale.at_most("frozen: failed", sums.failed as f64, MAX_STUCK, "calls");
    scale.hold("frozen: traffic again", back, Duration::from_secs(5));
}
