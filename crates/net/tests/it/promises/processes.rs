//! A worker's process is killed and restarted, is shut down, and is stopped and continued, under load.

use std::time::{Duration, Instant};

use callboard_core::Contract;

use super::{Offer, Scale, offer};
use crate::common::{LONG, until};
use crate::ledger::Sums;
use crate::processes::{Gateway, book, scene};

/// The calls that a dead, silent peer may hold until the idle timeout: those in flight, and those sent before its
/// silence is noticed. The cluster assumes that a peer is as slow as its silence so far, so after a few milliseconds it
/// prefers other peers. Credit is no bound: a connection has room for 256 streams of up to 32 calls.
const STUCK: f64 = 32.0;

/// The limit for "done again": service takes 5 ms, and a call to the silent peer waits for seconds.
const IN_TIME: Duration = Duration::from_millis(250);

/// Killed after a third of the run, restarted after half of it. Returns both times since the first call.
async fn killed_and_back(name: &str, contract: Contract) -> (Scale, Offer, Sums, [Duration; 2]) {
    let scale = Scale::of(80, 8);
    let (directory, mut first, second) = scene(name, contract);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let begun = Instant::now();
    let script = async {
        tokio::time::sleep(scale.lasting / 3).await;
        first.signal("KILL");
        let killed = begun.elapsed();
        tokio::time::sleep_until((begun + scale.lasting / 2).into()).await;
        tokio::task::block_in_place(|| first.again());
        let back = begun.elapsed();
        until(|| gateway.cluster.connected_peers() == 2).await;
        [killed, back]
    };
    let calls =
        offer(&client, scale.rate, scale.lasting, |_| if scale.is_full { Duration::from_secs(10) } else { LONG });
    let (offer, times) = tokio::join!(calls, script);
    let sums = offer.ledger.check(offer.count(), &book(&directory).executions(), contract, scale.lateness());
    println!("killed: {contract:?}, {sums:?}");
    scale.begun_in_time("killed", &book(&directory).executions());
    for (what, since, limit) in [("kill", times[0], 4), ("restart", times[1], 2)] {
        let limit = since + Duration::from_secs(limit);
        let share = offer.goodput(limit, limit + Duration::from_secs(2), IN_TIME);
        scale.at_least(&format!("killed: goodput after the {what}, from {limit:.1?} on"), share * 100.0, 95.0, "%");
    }
    (scale, offer, sums, times)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_node_that_comes_back_fails_nothing_that_may_be_run_again() {
    let (scale, offer, sums, _) = killed_and_back("promised-killed", Contract::Idempotent).await;
    assert_eq!(sums.done, sums.calls, "{:?}", offer.ledger.not_done());
    let longest = offer.calls.iter().map(|call| call.took).max().unwrap_or_default();
    scale.hold("killed: longest", longest, Duration::from_millis(3_500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_node_that_comes_back_makes_nothing_run_twice() {
    let (scale, _, sums, _) = killed_and_back("promised-killed-once", Contract::AtMostOnce).await;
    scale.at_most("killed: failed or refused", (sums.failed + sums.refused) as f64, STUCK, "calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_is_told_to_end_under_load_fails_nothing_and_is_gone_soon() {
    let scale = Scale::of(80, 4);
    let (directory, mut first, second) = scene("promised-terminated", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let script = async {
        tokio::time::sleep(scale.lasting / 3).await;
        first.signal("TERM");
        first.ended().await
    };
    let (offer, (took, code)) = tokio::join!(offer(&client, scale.rate, scale.lasting, |_| LONG), script);
    let executions = book(&directory).executions();
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, code), (sums.calls, Some(0)), "{:?}", offer.ledger.not_done());
    // The longest request works for 5 ms.
    scale.hold("told to end: gone after", took, Duration::from_secs(6));
}

/// Calls have a second; the stop is longer, and longer than the idle timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_thaws_begins_nothing_whose_time_has_passed() {
    let scale = Scale::of(80, 8);
    let frost = Duration::from_secs(if scale.is_full { 30 } else { 5 });
    let (directory, first, second) = scene("promised-frozen", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let client = gateway.node.client();
    let script = async {
        tokio::time::sleep(scale.lasting / 8).await;
        first.signal("STOP");
        tokio::time::sleep(frost).await;
        let before = book(&directory).executions().len();
        first.signal("CONT");
        let thawed = Instant::now();
        let id = u64::from(first.process.id());
        // Used again: it executes calls again.
        let works = || book(&directory).executions()[before..].iter().any(|execution| execution.worker == id);
        until(works).await;
        thawed.elapsed()
    };
    let calls = offer(&client, scale.rate, scale.lasting.max(frost * 2), |_| Duration::from_secs(1));
    let (offer, back) = tokio::join!(calls, script);
    let executions = book(&directory).executions();
    let sums = offer.ledger.check(offer.count(), &executions, Contract::AtMostOnce, scale.lateness());
    println!("frozen: {sums:?}");
    scale.begun_in_time("frozen", &executions);
    scale.at_most("frozen: failed", sums.failed as f64, STUCK, "calls");
    scale.hold("frozen: traffic again", back, Duration::from_secs(5));
}
