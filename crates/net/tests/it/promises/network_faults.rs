//! Three nodes with faulty networks: datagrams are lost, duplicated, delayed and reordered by a seed, and links are
//! cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, Caller, Contract, Pipeline};
use callboard_net::testing::{FaultProfile, Faults};
use callboard_net::{Client, Cluster, NetConfig, QuicEdge, StaticView};

use super::{OfferedLoad, Scale, offer, working};
use crate::common::{IDENTITY, LONG, ServingNode, loopback, patient, until};
use crate::lab::total;
use crate::ledger::{ExecutionLog, Work};

/// A gateway and two workers, each with its own faults.
struct FaultyCluster {
    gateway: ServingNode,
    cluster: Cluster,
    workers: Vec<ServingNode>,
    /// The gateway's faults are first.
    faults: Vec<Faults>,
    log: ExecutionLog,
}

impl FaultyCluster {
    /// The gateway and the first worker lose a link after this time.
    async fn start(seed: u64, contract: Contract, idle: Duration) -> Self {
        let config = |node: usize| {
            let mut config = patient();
            if node < 2 {
                config.tuning.idle_timeout = idle;
                config.tuning.keep_alive = idle / 8;
            }
            config
        };
        Self::start_with(seed, contract, config).await
    }

    async fn start_with(seed: u64, contract: Contract, config: impl Fn(usize) -> NetConfig) -> Self {
        Self::start_slow(seed, contract, config, Duration::from_millis(5)).await
    }

    /// The workers take this time for a call.
    async fn start_slow(seed: u64, contract: Contract, config: impl Fn(usize) -> NetConfig, takes: Duration) -> Self {
        println!("CALLBOARD_SEED={seed}");
        let faults: Vec<_> = (0..3).map(|node| Faults::new(seed.wrapping_add(node))).collect();
        let log = ExecutionLog::in_memory();
        let config = |node: usize| {
            let mut config = config(node);
            config.tuning.faults = Some(faults[node].clone());
            config
        };
        let mut workers = Vec::new();
        for worker in 0..2_u64 {
            let work = working(&log, worker, takes).contract(contract);
            workers.push(ServingNode::start_with(App::new().route("/work", work), config(worker as usize + 1)).await);
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
        until(|| cluster.connected_peers() == 2).await;
        Self { gateway: ServingNode { node, edge }, cluster, workers, faults, log }
    }

    /// Cuts the link to a worker in both directions.
    fn cut(&self, worker: usize) {
        self.faults[0].cut(self.workers[worker].edge.address());
        self.faults[worker + 1].cut(self.gateway.edge.address());
    }

    fn set(&self, profile: FaultProfile) {
        self.faults.iter().for_each(|faults| faults.set(profile));
    }

    async fn offer(&self, scale: &Scale) -> OfferedLoad {
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
async fn a_faulty_network_loses_and_repeats_no_call() {
    let scale = Scale::new(100, 4);
    let cluster = FaultyCluster::start(seed(), Contract::AtMostOnce, LONG).await;
    cluster.set(FaultProfile::new(0.05, 0.05, 0.2, Duration::from_millis(4)));
    let offer = cluster.offer(&scale).await;
    let sums = offer.ledger.check(offer.count(), &cluster.log.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.repeated), (sums.calls, 0), "{sums:?} in {}", cluster.counters());
    assert!(
        cluster.faults.iter().all(|faults| faults.counters().lost > 0 && faults.counters().duplicated > 0),
        "{}",
        cluster.counters()
    );
    cluster.set(FaultProfile::default());
    for served in cluster.workers.iter().chain([&cluster.gateway]) {
        served.until_idle().await;
    }
}

/// With the default timeouts no live node is taken for dead: quiet and busy links survive a line with 200 ms of latency
/// and 20% loss, while each core is kept busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_with_20_percent_loss_does_not_count_as_dead() {
    let scale = Scale::new(20, 4);
    let cluster = FaultyCluster::start_with(seed(), Contract::AtMostOnce, |_| NetConfig::default()).await;
    let _busy: Vec<BusyCore> = (0..2).map(|_| BusyCore::begin()).collect();
    let mut slow = FaultProfile::new(0.2, 0.0, 0.0, Duration::ZERO);
    slow.delay = Duration::from_millis(200);
    cluster.set(slow);
    let quiet = tokio::time::timeout(scale.lasting, until(|| cluster.cluster.connected_peers() < 2)).await;
    assert!(quiet.is_err(), "a quiet link was lost in {}", cluster.counters());
    let offer = cluster.offer(&scale).await;
    let sums = offer.ledger.check(offer.count(), &cluster.log.executions(), Contract::AtMostOnce, Duration::ZERO);
    assert_eq!((sums.done, sums.repeated), (sums.calls, 0), "{sums:?} in {}", cluster.counters());
}

/// A thread that keeps a core busy until this is dropped.
struct BusyCore(Arc<AtomicBool>);

impl BusyCore {
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

impl Drop for BusyCore {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The link to one worker is cut for longer than the idle timeout. Calls that may be retried all succeed; after repair,
/// the worker is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_fails_no_retryable_call() {
    cut_during_load(Contract::Idempotent).await;
}

/// Calls that may not be retried fail with the right error, at most as many as were on that link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_makes_no_call_run_twice() {
    cut_during_load(Contract::AtMostOnce).await;
}

/// A machine dies without a word while it has calls: none of its calls waits until the link is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_silent_node_ends_on_another_one() {
    let scale = Scale::new(60, 3);
    let cluster = FaultyCluster::start_with(seed(), Contract::Idempotent, |_| lost_late()).await;
    let script = async {
        tokio::time::sleep(scale.lasting / 3).await;
        cluster.cut(0);
    };
    let (offer, ()) = tokio::join!(cluster.offer(&scale), script);
    let sums = offer.ledger.check(offer.count(), &cluster.log.executions(), Contract::Idempotent, Duration::ZERO);
    assert_eq!(sums.done, sums.calls, "{:?}", offer.ledger.not_done());
    let longest = offer.calls.iter().map(|call| call.took).max().unwrap_or_default();
    scale.hold("silent: longest", longest, Duration::from_millis(1_500));
    assert!((Duration::from_millis(850)..LONG).contains(&longest), "{longest:?}");
}

/// Links that are lost so late that whatever ends before has ended because its node is silent.
fn lost_late() -> NetConfig {
    let mut config = NetConfig::default();
    config.tuning.idle_timeout = LONG;
    config
}

/// A client with several nodes, of which it uses one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_repeats_the_call_of_a_silent_node_on_its_next_node() {
    let cluster = FaultyCluster::start_with(seed(), Contract::Idempotent, |_| lost_late()).await;
    let [first, second] = [0, 1].map(|worker: usize| cluster.workers[worker].edge.address());
    let builder = Client::builder().identity(IDENTITY.clone()).connect_timeout(LONG).start_up_wait(LONG);
    let client = builder.tuning(lost_late().tuning).connect(&format!("quic://{first},{second}")).await.unwrap();
    assert_eq!(client.call::<Work, Work>("/work", Work::whenever(1)).await.unwrap().call_id(), 1);
    assert_eq!(cluster.log.executions()[0].worker, 0);
    // Whatever the first node sends is lost.
    cluster.faults[1].set(FaultProfile::new(1.0, 0.0, 0.0, Duration::ZERO));
    let began = Instant::now();
    assert_eq!(client.call::<Work, Work>("/work", Work::whenever(2)).await.unwrap().call_id(), 2);
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    assert_eq!(cluster.log.executions().last().map(|execution| execution.worker), Some(1));
}

/// The node may only have paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_retry_keeps_the_call_of_a_silent_node() {
    let cluster = FaultyCluster::start_with(seed(), Contract::Idempotent, |_| NetConfig::default()).await;
    let [first, second] = [0, 1].map(|worker: usize| cluster.workers[worker].edge.address());
    let builder = Client::builder().identity(IDENTITY.clone()).connect_timeout(LONG).start_up_wait(LONG).attempts(1);
    let client = builder.connect(&format!("quic://{first},{second}")).await.unwrap();
    assert_eq!(client.call::<Work, Work>("/work", Work::whenever(1)).await.unwrap().call_id(), 1);
    cluster.faults[1].set(FaultProfile::new(1.0, 0.0, 0.0, Duration::ZERO));
    let pause = async {
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        cluster.faults[1].set(FaultProfile::new(0.0, 0.0, 0.0, Duration::ZERO));
    };
    let (answer, ()) = tokio::join!(client.call::<Work, Work>("/work", Work::whenever(2)), pause);
    assert_eq!(answer.unwrap().call_id(), 2);
    assert_eq!(cluster.log.executions().last().map(|execution| execution.worker), Some(0));
}

/// The silent node answers before the one that got its call as well, whose call is cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_outcome_of_a_repeated_call_counts_and_the_other_call_is_cancelled() {
    for (contract, executions) in [(Contract::Idempotent, 2), (Contract::AtMostOnce, 1)] {
        let takes = Duration::from_millis(1_600);
        let cluster = FaultyCluster::start_slow(seed(), contract, |_| NetConfig::default(), takes).await;
        let client = cluster.gateway.node.client();
        let began = Instant::now();
        let call = tokio::spawn(async move { client.call::<Work, Work>("/run", Work::whenever(1)).await });
        until(|| cluster.log.executions().len() == 1).await;
        let first = cluster.log.executions()[0].worker as usize;
        cluster.cut(first);
        // The other one has it from 0.9 s on, and would answer after 2.5 s.
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        cluster.faults.iter().for_each(Faults::heal);
        assert_eq!(call.await.unwrap().unwrap().call_id(), 1);
        println!("{contract:?}: {:?}", began.elapsed());
        assert_eq!(cluster.log.executions().len(), executions, "{contract:?}");
        assert_eq!(cluster.cluster.connected_peers(), 2);
        if contract.may_run_again() {
            let other = &cluster.workers[1 - first];
            other.until_idle().await;
            assert_eq!(total(&other.edge, "calls_cancelled") + total(&other.edge, "streams_cancelled"), 1);
        }
    }
}

async fn cut_during_load(contract: Contract) {
    let scale = Scale::new(60, 6);
    let cluster = FaultyCluster::start(seed(), contract, Duration::from_secs(3)).await;
    cluster.set(FaultProfile::new(0.01, 0.01, 0.05, Duration::from_millis(2)));
    let script = async {
        tokio::time::sleep(scale.lasting / 4).await;
        cluster.cut(0);
        until(|| cluster.cluster.connected_peers() == 1).await;
        cluster.faults.iter().for_each(Faults::heal);
        until(|| cluster.cluster.connected_peers() == 2).await;
    };
    let (offer, ()) = tokio::join!(cluster.offer(&scale), script);
    let sums = offer.ledger.check(offer.count(), &cluster.log.executions(), contract, Duration::ZERO);
    println!("cut: {sums:?} in {}", cluster.counters());
    if contract.may_run_again() {
        assert_eq!(sums.done, sums.calls, "{:?}", offer.ledger.not_done());
    } else {
        // The calls in flight; a silent worker soon gets no more.
        scale.at_most("cut: failed or refused", (sums.failed + sums.refused) as f64, 32.0, "calls");
    }
    // It gets its share again.
    let before = cluster.log.executions().len();
    until_first_worker_runs(&cluster, before).await;
}

async fn until_first_worker_runs(cluster: &FaultyCluster, from: usize) {
    let client = cluster.gateway.node.client();
    let using = async {
        while !cluster.log.executions()[from..].iter().any(|execution| execution.worker == 0) {
            let _ = client.call::<Work, Work>("/run", Work::whenever(u64::MAX)).await;
        }
    };
    tokio::time::timeout(LONG, using).await.expect("the worker of the repaired link is used again");
}
