//! Rolling restarts of nodes with keyed actors that answer before they save, and how keys go from one node to another.

#![allow(clippy::print_stdout, reason = "seeds and figures are part of the output")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use callboard_core::actor::AskError;
use callboard_core::keyed::{KeyedRef, SavePolicy};
use callboard_net::NetConfig;
use callboard_net::testing::cutter;
use parking_lot::Mutex;

use crate::common::{LONG, loopback, until};
use crate::keyed_cluster::{Add, Answer, KeyedCluster, KeyedNode, gossiping};

const RELAXED: SavePolicy = SavePolicy::Relaxed { every: LONG };

const NAMES: [&str; 3] = ["a", "b", "c"];

/// What askers know of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    answered: u64,
    /// Perhaps added.
    unsure: u64,
}

/// The references of the nodes that callers can reach, and what came of their questions.
#[derive(Default)]
struct Load {
    nodes: Mutex<BTreeMap<&'static str, KeyedRef>>,
    known: Mutex<BTreeMap<String, Known>>,
    refused: Mutex<BTreeMap<String, u64>>,
    is_over: AtomicBool,
}

impl Load {
    fn open(&self, name: &'static str, node: &KeyedNode) {
        self.nodes.lock().insert(name, node.counter.clone());
    }

    /// Asks keys of any node until the end.
    async fn ask(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        while !self.is_over.load(Ordering::SeqCst) {
            let node = {
                let nodes = self.nodes.lock();
                random.choice(nodes.values()).expect("some node serves").clone()
            };
            let key = random.u8(..60).to_string();
            let answer = node.ask(&key, LONG, Add(1)).await;
            {
                let mut known = self.known.lock();
                let of_key = known.entry(key).or_default();
                match answer {
                    Ok(_) => of_key.answered += 1,
                    Err(error) if error.was_taken() => of_key.unsure += 1,
                    Err(error) => *self.refused.lock().entry(error.to_string()).or_default() += 1,
                }
            }
            tokio::time::sleep(Duration::from_micros(random.u64(..2_000))).await;
        }
    }
}

/// Restarts each of three nodes this often, and returns what was lost of how many answers, and how many were unsure.
/// Almost none is refused.
async fn rolling_restart(name: &str, save: SavePolicy, rounds: usize) -> (u64, u64, u64) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let cluster = KeyedCluster::start(name, seed, save).await;
    let load = Arc::<Load>::default();
    let mut nodes: BTreeMap<&str, KeyedNode> = BTreeMap::new();
    for name in NAMES {
        let named: Vec<_> = nodes.values().map(KeyedNode::address).collect();
        let node = cluster.node(name, &named, gossiping()).await;
        load.open(name, &node);
        nodes.insert(name, node);
    }
    for node in nodes.values() {
        node.until_ready().await;
    }
    let asking: Vec<_> = (0..8)
        .map(|asker| {
            let load = Arc::clone(&load);
            tokio::spawn(async move { load.ask(seed ^ asker).await })
        })
        .collect();
    let answered = || load.known.lock().values().map(|known| known.answered).sum::<u64>();
    let until_more = async |more: u64| {
        let before = answered();
        until(|| answered() >= before + more).await;
    };
    for name in NAMES.into_iter().cycle().take(rounds * NAMES.len()) {
        until_more(300).await;
        let node = nodes.remove(name).expect("it runs");
        // A balancer has seen that it is not ready.
        load.nodes.lock().remove(name);
        node.stop().await;
        until_more(100).await;
        let named: Vec<_> = nodes.values().map(KeyedNode::address).collect();
        let node = cluster.node(name, &named, gossiping()).await;
        // Callers come before it knows the others.
        load.open(name, &node);
        node.until_ready().await;
        nodes.insert(name, node);
    }
    load.is_over.store(true, Ordering::SeqCst);
    for asker in asking {
        asker.await.unwrap();
    }
    let (known, refused) = (load.known.lock().clone(), load.refused.lock().clone());
    let (mut lost, mut unsure) = (0, 0);
    for (key, of_key) in &known {
        let Answer { total, .. } = nodes["a"].counter.ask(key, LONG, Add(0)).await.unwrap();
        lost += of_key.answered.saturating_sub(total);
        unsure += of_key.unsure;
        assert!(total <= of_key.answered + of_key.unsure, "key {key} was added to twice: {total}, {of_key:?}");
    }
    println!("{name}: lost {lost} of {} answers, {unsure} unsure, refused {refused:?}", answered());
    // The nodes may need longer than two hops to agree.
    assert!(refused.values().sum::<u64>() * 1_000 <= answered(), "of {} answers: {refused:?}", answered());
    for node in nodes.into_values() {
        node.stop().await;
    }
    (lost, answered(), unsure)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_no_answer_that_was_not_saved() {
    let (lost, answered, unsure) = rolling_restart("relaxed-restarts", RELAXED, 2).await;
    assert_eq!((lost, unsure), (0, 0), "of {answered}");
}

/// Two nodes that save at their end only, of which the second names the first.
async fn two(name: &str) -> (KeyedCluster, KeyedNode, KeyedNode) {
    let cluster = KeyedCluster::start(name, fastrand::u64(..), RELAXED).await;
    let left = cluster.node("left", &[], gossiping()).await;
    let right = cluster.node("right", &[left.address()], gossiping()).await;
    right.until_ready().await;
    until(|| left.served.node.describe().peers.iter().any(|peer| peer.connected_for.is_some())).await;
    (cluster, left, right)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_hands_over_what_it_has_not_saved() {
    let (cluster, left, right) = two("draining-owner").await;
    let key = right.own_key().await;
    assert_eq!(right.counter.ask(&key, LONG, Add(3)).await.map(|answer| answer.total), Ok(3));
    cluster.store.holds_saves.send_replace(true);
    right.served.node.withdraw();
    right.served.edge.drain();
    // The left node has it, and waits for the right one.
    let moved = {
        let (counter, key) = (left.counter.clone(), key.clone());
        tokio::spawn(async move { counter.ask(&key, LONG, Add(1)).await })
    };
    until(|| left.counter.active_keys(usize::MAX).contains(&key)).await;
    cluster.store.holds_saves.send_replace(false);
    assert_eq!(moved.await.unwrap().map(|answer| answer.total), Ok(4));
    right.stop().await;
    assert_eq!(left.counter.ask(&key, LONG, Add(0)).await.map(|answer| answer.total), Ok(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_given_a_key_away_does_not_load_it_meanwhile_although_its_view_is_older() {
    let cluster = KeyedCluster::start("older-view", fastrand::u64(..), RELAXED).await;
    // It never connects to the right node, so all keys are its own by its view.
    let config = NetConfig { membership: None, calls_back: false, ..gossiping() };
    let left = cluster.node("left", &[], config.clone()).await;
    let key = {
        // A key of the right node once both see each other: one that the left node has, and the right one asks for.
        let probe = cluster.node("right", &[left.address()], config.clone()).await;
        probe.until_ready().await;
        let key = probe.own_key().await;
        probe.stop().await;
        key
    };
    let total = |answer: Result<Answer, AskError>| answer.map(|answer| answer.total);
    // It is back to the left node, which has something to save.
    assert_eq!(total(left.counter.ask(&key, LONG, Add(3)).await), Ok(3));
    let right = cluster.node("right", &[left.address()], config).await;
    right.until_ready().await;
    cluster.store.holds_claims.send_replace(true);
    let taking = {
        let (counter, key) = (right.counter.clone(), key.clone());
        tokio::spawn(async move { counter.ask(&key, LONG, Add(1)).await })
    };
    until(|| left.counter.active() == 0).await;
    // Whatever the left node answers now must count.
    let asked_left = {
        let (counter, key) = (left.counter.clone(), key.clone());
        tokio::spawn(async move { counter.ask(&key, LONG, Add(10)).await })
    };
    until(|| asked_left.is_finished() || left.counter.active() > 0).await;
    cluster.store.holds_claims.send_replace(false);
    assert_eq!(total(taking.await.unwrap()), Ok(4));
    let of_left = asked_left.await.unwrap();
    assert!(of_left.as_ref().is_err_and(|error| !error.was_taken()), "{of_left:?}");
    assert_eq!(total(right.counter.ask(&key, LONG, Add(0)).await), Ok(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_soon_after_it_was_given_keys_gives_them_back() {
    let cluster = KeyedCluster::start("given-back", fastrand::u64(..), RELAXED).await;
    let left = cluster.node("left", &[], gossiping()).await;
    let keys: Vec<_> = (0..20).map(|key| key.to_string()).collect();
    let add_all = async |node: &KeyedNode, expected| {
        for key in &keys {
            assert_eq!(node.counter.ask(key, LONG, Add(1)).await.map(|answer| answer.total), Ok(expected), "{key}");
        }
    };
    add_all(&left, 1).await;
    let right = cluster.node("right", &[left.address()], gossiping()).await;
    right.until_ready().await;
    add_all(&right, 2).await;
    assert!(right.counter.active() > 0);
    right.served.node.withdraw();
    right.served.edge.drain();
    add_all(&left, 3).await;
    right.stop().await;
    add_all(&left, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_to_a_living_owner_loses_nothing_that_it_has_not_saved() {
    let (_cluster, left, right) = two("lost-connection").await;
    let key = right.own_key().await;
    let cut = [cutter(&left.served.edge), cutter(&right.served.edge)];
    let (mut answered, mut unsure) = (0, 0);
    for _ in 0..20 {
        cut.iter().for_each(|cut| cut());
        until(|| left.served.node.describe().peers.iter().all(|peer| peer.connected_for.is_none())).await;
        match left.counter.ask(&key, LONG, Add(1)).await {
            Ok(_) => answered += 1,
            Err(error) => unsure += u64::from(error.was_taken()),
        }
        for node in [&left, &right] {
            until(|| node.served.node.describe().peers.iter().any(|peer| peer.connected_for.is_some())).await;
        }
    }
    let total = loop {
        match left.counter.ask(&key, LONG, Add(0)).await {
            // Both nodes have just found each other again.
            Err(AskError::NoOwner) => {}
            answer => break answer.unwrap().total,
        }
    };
    assert!(answered > 0 && (answered..=answered + unsure).contains(&total), "{total}: {answered} and {unsure} unsure");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_named_nodes_do_not_exist_has_its_keys_after_a_while_and_nodes_that_start_together_meet() {
    let cluster = KeyedCluster::start("first-nodes", fastrand::u64(..), RELAXED).await;
    let nobody = std::net::UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let config = NetConfig { join_within: Duration::from_millis(500), ..gossiping() };
    let first = cluster.node("a", &[nobody], config).await;
    let health = first.served.node.health();
    assert!(!health.ready && health.joining.is_some(), "{health:?}");
    let began = Instant::now();
    assert_eq!(first.counter.ask("ann", LONG, Add(1)).await.map(|answer| answer.total), Ok(1));
    assert!(began.elapsed() >= Duration::from_millis(400), "the question has waited");
    // Two that start at once, one of which names the other before that has an address of the cluster.
    let named = [first.address()];
    let (left, right) = tokio::join!(cluster.node("b", &named, gossiping()), cluster.node("c", &named, gossiping()));
    left.until_ready().await;
    right.until_ready().await;
    for node in [&first, &left, &right] {
        assert_eq!(node.counter.ask("ann", LONG, Add(1)).await.map(drop), Ok(()));
    }
    assert_eq!(first.counter.ask("ann", LONG, Add(0)).await.map(|answer| answer.total), Ok(4));
}
