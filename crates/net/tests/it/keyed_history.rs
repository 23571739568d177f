//! Keyed counters while nodes are killed, restarted and cut off: their answers are those of one counter for each key.
//!
//! `KEYED_CHAOS_CALLS` sets the number of questions (default 4,000), `CHAOS_SEED` repeats a run's choices.

#![allow(clippy::print_stdout, reason = "seeds and figures are part of the output")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::actor::AskError;
use callboard_core::keyed::{KeyedRef, SavePolicy};
use callboard_core::testing::{CounterAnswer, CounterOperation, CounterOutcome, check_counter, env_number};
use callboard_net::testing::cutter;
use parking_lot::Mutex;

use crate::common::LONG;
use crate::keyed_cluster::{Add, Answer, KeyedCluster, KeyedNode, gossiping};

const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: u64 = 50;
const ASKERS: u64 = 8;

/// Longer than a node needs to be called dead.
const DEADLINE: Duration = Duration::from_secs(5);

/// The histories of all keys, and the nodes that callers can reach.
#[derive(Default)]
struct Histories {
    of_keys: Mutex<BTreeMap<u64, Vec<CounterOperation>>>,
    nodes: Mutex<BTreeMap<&'static str, KeyedRef>>,
    /// Numbers the events.
    clock: AtomicU64,
    asked: AtomicU64,
}

impl Histories {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Increments once, and notes what came of it.
    async fn increment(&self, node: &KeyedRef, key: u64) -> Result<Answer, AskError> {
        let called = self.tick();
        let answer = node.ask(&key.to_string(), DEADLINE, Add(1)).await;
        let outcome = match &answer {
            Ok(Answer { total, epoch, instance }) => CounterOutcome::Answered(CounterAnswer {
                returned: self.tick(),
                total: *total,
                epoch: *epoch,
                instance: *instance,
            }),
            Err(error) if error.was_taken() => CounterOutcome::Unknown,
            Err(_) => CounterOutcome::Refused,
        };
        let operation = CounterOperation::increment(called, outcome);
        self.of_keys.lock().entry(key).or_default().push(operation);
        answer
    }

    /// Asks until all questions are asked.
    async fn ask_all(&self, seed: u64, calls: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        while self.asked.fetch_add(1, Ordering::SeqCst) < calls {
            let node = random.choice(self.nodes.lock().values()).expect("some node serves").clone();
            if self.increment(&node, random.u64(..KEYS)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(random.u64(..20))).await;
            }
        }
    }

    fn count(&self, is_it: impl Fn(&CounterOperation) -> bool) -> usize {
        self.of_keys.lock().values().flatten().filter(|operation| is_it(operation)).count()
    }
}

/// What befalls a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    Kill,
    Restart,
    /// Its connections end.
    Cut,
}

const DISTURBANCES: [Disturbance; 3] = [Disturbance::Kill, Disturbance::Restart, Disturbance::Cut];

/// Kills, restarts and cuts nodes in turns, until all questions are asked. Returns how often.
async fn disturb(
    (cluster, histories): (&KeyedCluster, &Histories),
    nodes: &mut BTreeMap<&'static str, KeyedNode>,
    (seed, calls): (u64, u64),
) -> BTreeMap<Disturbance, u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut counts = BTreeMap::new();
    let mut disturbances = DISTURBANCES.into_iter().cycle();
    while histories.asked.load(Ordering::SeqCst) < calls {
        let name = random.choice(NAMES).expect("three names");
        let disturbance = disturbances.next().expect("it has no end");
        *counts.entry(disturbance).or_default() += 1;
        if disturbance == Disturbance::Cut {
            cutter(&nodes[name].served.edge)();
            tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
            continue;
        }
        histories.nodes.lock().remove(name);
        let node = nodes.remove(name).expect("it runs");
        if disturbance == Disturbance::Kill {
            node.kill()
        } else {
            node.stop().await
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..500))).await;
        let named: Vec<_> = nodes.values().map(KeyedNode::address).collect();
        let node = cluster.node(name, &named, gossiping()).await;
        histories.nodes.lock().insert(name, node.counter.clone());
        node.until_ready().await;
        nodes.insert(name, node);
        tokio::time::sleep(Duration::from_millis(random.u64(..500))).await;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_answers_are_those_of_one_counter_for_each_key_whatever_becomes_of_nodes() {
    let (seed, calls) = (env_number("CHAOS_SEED", fastrand::u64(..)), env_number("KEYED_CHAOS_CALLS", 4_000));
    println!("CHAOS_SEED={seed} KEYED_CHAOS_CALLS={calls}");
    let began = Instant::now();
    let cluster = KeyedCluster::start("keyed-history", seed, SavePolicy::Durable).await;
    let histories = Arc::<Histories>::default();
    let mut nodes = BTreeMap::new();
    for name in NAMES {
        let named: Vec<_> = nodes.values().map(KeyedNode::address).collect();
        let node = cluster.node(name, &named, gossiping()).await;
        histories.nodes.lock().insert(name, node.counter.clone());
        nodes.insert(name, node);
    }
    for node in nodes.values() {
        node.until_ready().await;
    }
    let asking: Vec<_> = (0..ASKERS)
        .map(|asker| {
            let histories = Arc::clone(&histories);
            tokio::spawn(async move { histories.ask_all(seed ^ asker, calls).await })
        })
        .collect();
    let disturbances = disturb((&cluster, &histories), &mut nodes, (seed, calls)).await;
    for asker in asking {
        asker.await.unwrap();
    }
    // The total at the end, with one more: an instance that cannot save any more may still answer what only reads.
    for key in 0..KEYS {
        let last = async {
            while histories.increment(&nodes["a"].counter, key).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(LONG, last).await.is_ok(), "key {key} is not answered, CHAOS_SEED={seed}");
    }
    for node in nodes.into_values() {
        node.stop().await;
    }
    let answered = histories.count(|operation| matches!(operation.outcome, CounterOutcome::Answered(_)));
    let unknown = histories.count(|operation| operation.outcome == CounterOutcome::Unknown);
    let refused = histories.count(|operation| operation.outcome == CounterOutcome::Refused);
    println!("{answered} answered, {unknown} unknown, {refused} refused; {disturbances:?}; {:?}", began.elapsed());
    for (key, history) in histories.of_keys.lock().iter() {
        assert_eq!(check_counter(history), Ok(()), "key {key}, CHAOS_SEED={seed}: {history:#?}");
    }
    assert!(answered as u64 > calls / 2, "{answered} of {calls} answered");
    assert_eq!(disturbances.len(), DISTURBANCES.len(), "each must have happened: {disturbances:?}");
}
