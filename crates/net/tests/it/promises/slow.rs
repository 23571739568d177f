//! A slow node does not slow the others down, and retries do not overload them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use callboard_core::{App, Contract, Failure, Limits, Stage};
use callboard_net::testing;

use super::{Scale, cluster, offer, working};
use crate::common::LONG;
use crate::ledger::{ExecutionLog, Work};

/// This worker waits for the given time, in milliseconds.
fn worker_with_delay(millis: &Arc<AtomicU64>, log: &ExecutionLog, worker: u64) -> App {
    let (millis, log) = (Arc::clone(millis), log.clone());
    let work = Stage::each_async("work", move |work: Arc<Work>| {
        let (millis, log) = (Arc::clone(&millis), log.clone());
        async move {
            log.record(&work, worker)?;
            tokio::time::sleep(Duration::from_millis(millis.load(Ordering::SeqCst))).await;
            work.answered()
        }
    });
    App::new().route("/work", work)
}

fn share(log: &ExecutionLog, worker: u64, from: usize) -> f64 {
    let executions = log.executions();
    let by_worker = executions[from..].iter().filter(|execution| execution.worker == worker).count();
    by_worker as f64 / executions[from..].len().max(1) as f64
}

/// One of three workers is many times slower: it gets few calls, and its full share once it is fast again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_gets_few_calls_until_it_recovers() {
    let scale = Scale::new(150, 3);
    let (log, millis) = (ExecutionLog::in_memory(), Arc::new(AtomicU64::new(5)));
    let steady = |worker| App::new().route("/work", working(&log, worker, Duration::from_millis(5)));
    let (gateway, _workers) = cluster(vec![worker_with_delay(&millis, &log, 0), steady(1), steady(2)]).await;
    let client = gateway.served.node.client();
    let healthy = offer(&client, scale.rate, scale.lasting / 2, |_| LONG).await;
    let fair = share(&log, 0, 0);
    scale.at_least("slow node: share of one of three that are well", fair * 100.0, 15.0, "%");

    millis.store(5 * 50, Ordering::SeqCst);
    let noticing = Duration::from_secs(if scale.is_full { 5 } else { 1 });
    offer(&client, scale.rate, noticing, |_| LONG).await;
    let from = log.executions().len();
    let slowed = offer(&client, scale.rate, scale.lasting / 2, |_| LONG).await;
    let small = share(&log, 0, from);
    for offer in [&healthy, &slowed] {
        assert_eq!(offer.done().count() as u64, offer.count(), "{:?}", offer.ledger.not_done());
    }
    scale.at_most("slow node: share of the slow one", small * 100.0, 5.0, "%");
    scale.hold("slow node: p99 beside it", slowed.p99(), healthy.p99() * 3);

    if !scale.is_full {
        // Recovery takes a while: `peer_stats.rs` tests the times.
        return;
    }
    millis.store(5, Ordering::SeqCst);
    let well_since = Instant::now();
    loop {
        let from = log.executions().len();
        offer(&client, scale.rate, Duration::from_secs(1), |_| LONG).await;
        if share(&log, 0, from) >= 0.25 {
            break;
        }
        assert!(well_since.elapsed() < LONG, "it never recovers its share");
    }
    scale.hold("slow node: a share of a quarter again", well_since.elapsed(), Duration::from_secs(30));
}

/// The only permit of a node: with it, the node is full.
fn only_permit(node: &callboard_core::Node, route: &str) -> callboard_core::edge::Admission {
    let client = node.client();
    let route = client.route(route).unwrap();
    client.edge().admit(&route, 0).unwrap()
}

/// All workers refuse everything. Each call is made once; the retry budget is a fifth of the calls, and ten a second,
/// saved up for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_do_not_multiply_calls_that_every_worker_refuses() {
    let scale = Scale::new(300, 5);
    let log = ExecutionLog::in_memory();
    let full = |_| {
        let limits = Limits { max_in_flight: 1, ..Limits::default() };
        App::new().route("/work", working(&log, 0, Duration::ZERO)).limits(limits)
    };
    let (gateway, workers) = cluster((0..3).map(full).collect()).await;
    let _permits: Vec<_> = workers.iter().map(|worker| only_permit(&worker.node, "/work")).collect();
    let client = gateway.served.node.client();
    let started = Instant::now();
    let offer = offer(&client, scale.rate, scale.lasting, |_| LONG).await;
    // The budget grows as long as calls arrive, which takes longer on a busy machine.
    let seconds = started.elapsed().as_secs_f64().ceil() + 10.0;
    let sums = offer.ledger.check(offer.count(), &log.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.refused), (0, sums.calls), "{sums:?}");
    let refused = |metrics: String| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with("callboard_refused_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let upstream: u64 = workers.iter().map(|worker| refused(worker.node.client().metrics())).sum();
    // The gateway's counters agree.
    let metrics = gateway.served.edge.metrics();
    assert!(
        metrics.contains(&format!("callboard_net_peer_calls_total{{outcome=\"overloaded\"}} {upstream}\n")),
        "{metrics}"
    );
    // On a busy machine some find no room on a connection for 5 ms, and do not reach their worker.
    let start = "callboard_net_peer_calls_total{outcome=\"not_started\"} ";
    let not_sent: Option<u64> = metrics.lines().find_map(|line| line.strip_prefix(start)?.parse().ok());
    let again = upstream + not_sent.unwrap_or_default() - sums.calls as u64;
    assert!(metrics.contains(&format!("callboard_net_peer_retries_total {again}\n")), "{metrics}");
    assert!(metrics.contains("callboard_net_peers_connected 3\n"), "{metrics}");
    let most = sums.calls as f64 * 1.2 + seconds * 10.0;
    scale.at_most(&format!("retries: upstream calls for {}", sums.calls), upstream as f64, most, "calls");
    assert!(upstream > sums.calls as u64 && upstream as f64 <= most, "{upstream} for {}", sums.calls);
}

/// Cuts all connections of one worker, once it is known how.
type Cutter = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// Each worker loses its connections at the start of every call; the calls may be retried each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_do_not_multiply_calls_that_every_worker_loses() {
    let scale = Scale::new(300, 5);
    let log = ExecutionLog::in_memory();
    let cutters: [Cutter; 3] = Default::default();
    let lost = |worker: usize| {
        let (log, cutter) = (log.clone(), Arc::clone(&cutters[worker]));
        let stage = Stage::each_async("work", move |work: Arc<Work>| {
            let (log, cutter) = (log.clone(), Arc::clone(&cutter));
            async move {
                log.record(&work, worker as u64)?;
                cutter.get().expect("it is set before the first call")();
                std::future::pending::<Result<Work, Failure>>().await
            }
        });
        App::new().route("/work", stage.concurrency(64).idempotent())
    };
    let (gateway, workers) = cluster((0..3).map(lost).collect()).await;
    for (cutter, worker) in cutters.iter().zip(&workers) {
        assert!(cutter.set(Box::new(testing::cutter(&worker.edge))).is_ok());
    }
    let client = gateway.served.node.client();
    let started = Instant::now();
    let offer = offer(&client, scale.rate, scale.lasting, |_| LONG).await;
    let seconds = started.elapsed().as_secs_f64().ceil() + 10.0;
    let executions = log.executions();
    let sums = offer.ledger.check(offer.count(), &executions, Contract::Idempotent, Duration::ZERO);
    // Each error says that the call may have run, or that no worker was available.
    assert_eq!(sums.done, 0, "{sums:?}");
    assert!(sums.failed > 0, "{sums:?}");
    let metrics = gateway.served.edge.metrics();
    let start = "callboard_net_peer_calls_total{outcome=\"lost\"} ";
    let attempts: f64 = metrics.lines().find_map(|line| line.strip_prefix(start)).expect(start).parse().unwrap();
    println!("retries: {sums:?}, begun {} times, lost {attempts} times", executions.len());
    // A call that was lost once stays "may have run", for any later event: all further losses are retries.
    let (again, most) = (attempts - sums.failed as f64, sums.calls as f64 * 0.2 + seconds * 10.0);
    scale.at_most(&format!("retries: of {} that were lost, run again", sums.failed), again, most, "calls");
    assert!((0.0..=most).contains(&again), "{again} of {}", sums.failed);
    assert!(executions.len() as f64 <= sums.calls as f64 + most, "{} begun", executions.len());
    gateway.served.until_idle().await;
}
