//! Three nodes with faulty networks: datagrams are lost, duplicated, delayed and reordered by a seed, and links are
//! cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_core::{App, Contract, Pipeline};
use callboard_net::testing::{FaultProfile, Faults};
use callboard_net::{Cluster, NetConfig, QuicEdge, StaticView};

use super::{Offer, Scale, offer, working};
use crate::common::{IDENTITY, LONG, Served, loopback, patient, until};
use crate::ledger::{Book, Work};

/// A gateway and two workers, each with its own faults.
struct Sea {
    gateway: Served,
    cluster: Cluster,
    workers: Vec<Served>,
    /// Those of the gateway come first.
    faults: Vec<Faults>,
    book: Book,
}

impl Sea {
    /// The link to the first worker has this idle timeout; the other link tolerates any delay of a busy machine.
    async fn start(seed: u64, contract: Contract, idle: Duration) -> Self {
        let config = |node: usize| {
            let mut config = patient();
            if node == 1 {
                config.tuning.idle_timeout = idle;
                config.tuning.keep_alive = idle / 8;
            }
            config
        };
        Self::start_with(seed, contract, config).await
    }

    async fn start_with(seed: u64, contract: Contract, config: impl Fn(usize) -> NetConfig) -> Self {
        println!("CALLBOARD_SEED={seed}");
        let faults: Vec<_> = (0..3).map(|node| Faults::new(seed.wrapping_add(node))).collect();
        let book = Book::in_memory();
        let config = |node: usize| {
            let mut config = config(node);
            config.tuning.faults = Some(faults[node].clone());
            config
        };
        let mut workers = Vec::new();
        for worker in 0..2_u64 {
            let work = working(&book, worker, Duration::from_millis(5)).contract(contract);
            workers.push(Served::start_with(App::new().route("/work", work), config(worker as usize + 1)).await);
        }
        let edge = QuicEdge::bind(loopback(), IDENTITY.clone(), config(0)).unwrap();
        let app = App::new().route("/run", Pipeline::<Work, Work>::remote("work"));
        let node = app.start().await.unwrap();
        edge.open(node.client());
        let cluster = Cluster::start(
            &edge,
            Arc::new(StaticView::try_new(workers.iter().map(|worker| worker.edge.address())).unwrap()),
        );
        node.handle().join(cluster.clone()).unwrap();
        let sea = Self { gateway: Served { node, edge }, cluster, workers, faults, book };
        until(|| sea.cluster.connected_peers() == 2).await;
        sea
    }

    fn set(&self, weather: FaultProfile) {
        self.faults.iter().for_each(|faults| faults.set(weather));
    }

    async fn offer(&self, scale: &Scale) -> Offer {
        offer(&self.gateway.node.client(), scale.rate, scale.lasting, |_| LONG).await
    }

    fn counters(&self) -> String {
        format!("{:?}", self.faults.iter().map(Faults::counters).collect::<Vec<_>>())
    }
}

fn seed() -> u64 {
    std::env::var("CALLBOARD_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap())
}

/// No connection is lost, so no call is; and nothing runs twice, even if packets are duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_weather_loses_and_doubles_no_call() {
    let scale = Scale::of(100, 4);
    let sea = Sea::start(seed(), Contract::AtMostOnce, LONG).await;
    sea.set(FaultProfile::new(0.05, 0.05, 0.2, Duration::from_millis(4)));
    let offer = sea.offer(&scale).await;
    let sums = offer.ledger.check(offer.count(), &sea.book.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.repeated), (sums.calls, 0), "{sums:?} in {}", sea.counters());
    assert!(
        sea.faults.iter().all(|faults| faults.counters().lost > 0 && faults.counters().duplicated > 0),
        "{}",
        sea.counters()
    );
    sea.set(FaultProfile::default());
    for served in sea.workers.iter().chain([&sea.gateway]) {
        served.comes_to_rest().await;
    }
}

/// With the default timeouts no live node is taken for dead: quiet and busy links survive a line with 200 ms of latency
/// and 20% loss, while each core is kept busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_line_that_loses_a_fifth_is_no_death() {
    let scale = Scale::of(20, 4);
    let sea = Sea::start_with(seed(), Contract::AtMostOnce, |_| NetConfig::default()).await;
    let _busy: Vec<Busy> = (0..2).map(|_| Busy::begin()).collect();
    let mut slow = FaultProfile::new(0.2, 0.0, 0.0, Duration::ZERO);
    slow.delay = Duration::from_millis(200);
    sea.set(slow);
    let quiet = tokio::time::timeout(scale.lasting, until(|| sea.cluster.connected_peers() < 2)).await;
    assert!(quiet.is_err(), "a quiet link was lost in {}", sea.counters());
    let offer = sea.offer(&scale).await;
    let sums = offer.ledger.check(offer.count(), &sea.book.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.repeated), (sums.calls, 0), "{sums:?} in {}", sea.counters());
}

/// A thread that keeps a core busy until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The link to one worker is cut for longer than the idle timeout. Calls that may be retried all succeed; after repair,
/// the worker is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_fails_no_call_that_may_be_run_again() {
    cut_in_the_middle(Contract::Idempotent).await;
}

/// Calls that may not be retried fail with the right error, at most as many as were on that link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_makes_nothing_run_twice() {
    cut_in_the_middle(Contract::AtMostOnce).await;
}

async fn cut_in_the_middle(contract: Contract) {
    let scale = Scale::of(60, 6);
    let sea = Sea::start(seed(), contract, Duration::from_secs(3)).await;
    sea.set(FaultProfile::new(0.01, 0.01, 0.05, Duration::from_millis(2)));
    let far = sea.workers[0].edge.address();
    let script = async {
        tokio::time::sleep(scale.lasting / 4).await;
        sea.faults[0].cut(far);
        sea.faults[1].cut(sea.gateway.edge.address());
        until(|| sea.cluster.connected_peers() == 1).await;
        sea.faults.iter().for_each(Faults::heal);
        until(|| sea.cluster.connected_peers() == 2).await;
    };
    let (offer, ()) = tokio::join!(sea.offer(&scale), script);
    let sums = offer.ledger.check(offer.count(), &sea.book.executions(), contract, Duration::ZERO);
    println!("cut: {sums:?} in {}", sea.counters());
    if contract.may_run_again() {
        assert_eq!(sums.done, sums.calls, "{:?}", offer.ledger.not_done());
    } else {
        // The calls in flight; a silent worker soon gets no more.
        scale.at_most("cut: failed or refused", (sums.failed + sums.refused) as f64, 32.0, "calls");
    }
    // It gets its share again.
    let before = sea.book.executions().len();
    until_used(&sea, before).await;
}

async fn until_used(sea: &Sea, from: usize) {
    let client = sea.gateway.node.client();
    let using = async {
        while !sea.book.executions()[from..].iter().any(|execution| execution.worker == 0) {
            let _ = client.call::<Work, Work>("/run", Work::whenever(u64::MAX)).await;
        }
    };
    tokio::time::timeout(LONG, using).await.expect("the worker behind the cut is used again");
}
