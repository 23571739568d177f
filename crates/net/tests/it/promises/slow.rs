//! A slow node does not drag the others down, and retries do not become a load of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, Contract, Limits, Stage};

use super::{Scale, cluster, offer, working};
use crate::common::LONG;
use crate::ledger::{Book, Work};

/// The worker whose time this is waits as long as it says, in milliseconds.
fn as_slow_as(millis: &Arc<AtomicU64>, book: &Book, worker: u64) -> App {
    let (millis, book) = (Arc::clone(millis), book.clone());
    let work = Stage::each_async("work", move |work: Arc<Work>| {
        let (millis, book) = (Arc::clone(&millis), book.clone());
        async move {
            book.begin(*work, worker)?;
            tokio::time::sleep(Duration::from_millis(millis.load(Ordering::SeqCst))).await;
            Ok(work.0)
        }
    });
    App::new().route("/work", work)
}

fn share(book: &Book, worker: u64, from: usize) -> f64 {
    let executions = book.executions();
    let of_it = executions[from..].iter().filter(|execution| execution.worker == worker).count();
    of_it as f64 / executions[from..].len().max(1) as f64
}

/// One of three is many times slower: it gets next to nothing, and its share again when it is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_gets_few_calls_until_it_is_well_again() {
    let scale = Scale::of(150, 3);
    let (book, millis) = (Book::in_memory(), Arc::new(AtomicU64::new(5)));
    let steady = |worker| App::new().route("/work", working(&book, worker, Duration::from_millis(5)));
    let (gateway, _workers) = cluster(vec![as_slow_as(&millis, &book, 0), steady(1), steady(2)]).await;
    let client = gateway.served.node.client();
    let healthy = offer(&client, scale.rate, scale.lasting / 2, |_| LONG).await;
    let fair = share(&book, 0, 0);
    scale.at_least("slow node: share of one of three that are well", fair * 100.0, 15.0, "%");

    millis.store(5 * 50, Ordering::SeqCst);
    let noticing = Duration::from_secs(if scale.is_full { 5 } else { 1 });
    offer(&client, scale.rate, noticing, |_| LONG).await;
    let from = book.executions().len();
    let beside = offer(&client, scale.rate, scale.lasting / 2, |_| LONG).await;
    let small = share(&book, 0, from);
    for offer in [&healthy, &beside] {
        assert_eq!(offer.done().count() as u64, offer.count(), "{:?}", offer.ledger.not_done());
    }
    scale.at_most("slow node: share of the slow one", small * 100.0, 5.0, "%");
    scale.hold("slow node: p99 beside it", beside.p99(), healthy.p99() * 3);

    if !scale.is_full {
        // It takes a while to forget: `standing.rs` says how long, and who gets how much, in time of its own.
        return;
    }
    millis.store(5, Ordering::SeqCst);
    let well_since = Instant::now();
    loop {
        let from = book.executions().len();
        offer(&client, scale.rate, Duration::from_secs(1), |_| LONG).await;
        if share(&book, 0, from) >= 0.25 {
            break;
        }
        assert!(well_since.elapsed() < LONG, "it never gets its share again");
    }
    scale.hold("slow node: a share of a quarter again", well_since.elapsed(), Duration::from_secs(30));
}

/// All workers refuse everything. Each call is made, and a fifth of them once more, and ten a second, saved up for ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_do_not_multiply_calls_that_nobody_takes() {
    let scale = Scale::of(300, 5);
    let book = Book::in_memory();
    let full = |_| {
        let limits = Limits { max_in_flight: 0, ..Limits::default() };
        App::new().route("/work", working(&book, 0, Duration::ZERO)).limits(limits)
    };
    let (gateway, workers) = cluster((0..3).map(full).collect()).await;
    let client = gateway.served.node.client();
    let begun = Instant::now();
    let offer = offer(&client, scale.rate, scale.lasting, |_| LONG).await;
    // The budget grows for as long as calls come, which on a busy machine is longer than was meant.
    let seconds = begun.elapsed().as_secs_f64().ceil() + 10.0;
    let sums = offer.ledger.check(offer.count(), &book.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.refused), (0, sums.calls), "{sums:?}");
    let refused = |metrics: String| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with("callboard_refused_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let upstream: u64 = workers.iter().map(|worker| refused(worker.node.client().metrics())).sum();
    // What the gateway counts of it is the same.
    let told = gateway.served.edge.metrics();
    assert!(told.contains(&format!("callboard_net_peers_asked_total{{heard=\"overloaded\"}} {upstream}\n")), "{told}");
    let again = upstream - sums.calls as u64;
    assert!(told.contains(&format!("callboard_net_peers_asked_again_total {again}\n")), "{told}");
    assert!(told.contains("callboard_net_peers_linked 3\n"), "{told}");
    let most = sums.calls as f64 * 1.2 + seconds * 10.0;
    scale.at_most(&format!("retries: upstream calls for {}", sums.calls), upstream as f64, most, "calls");
    assert!(upstream > sums.calls as u64 && upstream as f64 <= most, "{upstream} for {}", sums.calls);
}
