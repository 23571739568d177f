//! Several nodes in a test, whose actors find each other: killed, parted, and simulated with a seed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callboard_core::actor::{Actor, ActorContext, ActorSpec, AskError, Question, ReplyPort};
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard_core::testing::{ClusterSimulation, MemoryStore, SimulationRun, TestApp, TestCluster};
use callboard_core::{App, Failure, NodeHandle};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::support::hide_panics;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Add(u64);

impl Question for Add {
    const NAME: &str = "add";
    type Answer = u64;
}

impl Answers<Add> for Stored<u64> {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        if by > 0 {
            **self += by;
        }
        Ok(**self)
    }
}

/// Never answers, so that a question is in hand.
#[derive(Serialize, Deserialize)]
struct Wait;

impl Question for Wait {
    const NAME: &str = "wait";
    type Answer = ();
}

struct Desk;

impl Actor for Desk {
    type Message = ReplyPort<()>;

    async fn handle(&mut self, _answer: ReplyPort<()>, _: &ActorContext<Self>) -> Result<(), Failure> {
        std::future::pending().await
    }
}

/// Counters that share a store, and a desk on the first node.
fn counters(store: &Arc<MemoryStore>) -> impl Fn(&str) -> TestApp + Send + Sync + 'static {
    let store = Arc::clone(store);
    move |name| {
        let kind = KeyedSpec::new("counter", store.clone(), |_, count: Stored<u64>| async { Ok(count) });
        let app = App::new().keyed(kind.accepts::<Add>());
        TestApp::new(match name {
            "node-0" => app.actor(ActorSpec::new("desk", |_| Desk).accepts(|Wait, answer| answer)),
            _ => app,
        })
    }
}

async fn cluster(nodes: usize) -> TestCluster {
    TestCluster::start(nodes, counters(&Arc::default())).await.unwrap()
}

async fn add(node: &NodeHandle, key: &str, by: u64) -> Result<u64, AskError> {
    node.keyed("counter").ask(key, SECOND, Add(by)).await
}

/// The number of the node on which the key is active.
fn owner_of_the_only_key(cluster: &TestCluster, nodes: usize) -> usize {
    let has_it = |number: &usize| cluster.node(*number).is_some_and(|node| node.keyed("counter").active() > 0);
    (0..nodes).find(has_it).expect("it is active")
}

#[tokio::test(start_paused = true)]
async fn all_nodes_find_a_key_and_an_actor() {
    let cluster = cluster(3).await;
    for number in 0..3 {
        let node = cluster.node(number).unwrap();
        for key in 0..20 {
            assert_eq!(add(&node, &key.to_string(), 1).await, Ok(number as u64 + 1));
        }
        let late = node.remote_actor("desk").ask(SECOND, Wait).await;
        assert!(matches!(late, Err(AskError::DeadlineExceeded { .. })), "node {number} reaches the desk: {late:?}");
    }
    let active: Vec<usize> = (0..3).map(|number| cluster.node(number).unwrap().keyed("counter").active()).collect();
    assert!(active.iter().all(|count| *count > 0) && active.iter().sum::<usize>() == 20, "{active:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_of_a_killed_node_is_lost_and_its_keys_come_up_elsewhere() {
    let mut cluster = cluster(3).await;
    let asking = cluster.node(1).unwrap();
    let desk = asking.remote_actor("desk");
    let asked = tokio::spawn(async move { desk.ask(60 * SECOND, Wait).await });
    assert_eq!(add(&asking, "ann", 1).await, Ok(1));
    let owner = owner_of_the_only_key(&cluster, 3);
    cluster.kill(0);
    assert_eq!(asked.await.unwrap(), Err(AskError::Lost));
    let unreachable = asking.remote_actor("desk").ask(SECOND, Wait).await;
    assert!(matches!(unreachable, Err(AskError::Unreachable { .. })), "{unreachable:?}");

    cluster.kill(owner);
    let rest = (1..3).find_map(|number| cluster.node(number)).unwrap();
    assert_eq!(add(&rest, "ann", 1).await, Ok(2));
    for number in 0..3 {
        cluster.restart(number).await.unwrap();
    }
    sleep(SECOND).await;
    assert_eq!(add(&cluster.node(0).unwrap(), "ann", 1).await, Ok(3));
}

/// Each half has the key by its own view. Both compute, and the store believes one.
#[tokio::test(start_paused = true)]
async fn nodes_that_are_parted_both_have_a_key_and_one_of_them_saves() {
    let cluster = cluster(2).await;
    let [left, right] = [0, 1].map(|number| cluster.node(number).unwrap());
    let mut key = String::new();
    for number in 0.. {
        key = number.to_string();
        assert_eq!(add(&right, &key, 1).await, Ok(1));
        if left.keyed("counter").active() > 0 {
            break;
        }
    }
    cluster.part(&[1]);
    assert_eq!((add(&left, &key, 1).await, add(&right, &key, 1).await), (Ok(2), Ok(3)));
    // The claim of the right one has fenced the left one off.
    let fenced = add(&left, &key, 1).await;
    assert!(fenced.is_err(), "{fenced:?}");
    cluster.heal();
    sleep(SECOND).await;
    assert_eq!((add(&right, &key, 0).await, add(&left, &key, 0).await), (Ok(3), Ok(3)));
}

/// Fifty askers, which each add one and do not ask again.
async fn simulate(seed: u64) -> SimulationRun {
    let (store, answered) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&answered);
    ClusterSimulation::new(seed, 3, counters(&store))
        .askers(50, move |nodes, mut chance| {
            let counted = Arc::clone(&counted);
            async move {
                let answer = add(&nodes.pick(&mut chance), chance.pick(&["ann", "bob"]), 1).await;
                counted.fetch_add(u64::from(answer.is_ok()), Ordering::SeqCst);
                format!("{answer:?}")
            }
        })
        .kills(4)
        .partitions(4)
        .finally(move |node| async move {
            let total = add(&node, "ann", 0).await.unwrap() + add(&node, "bob", 0).await.unwrap();
            let answered = answered.load(Ordering::SeqCst);
            assert!((answered..=50).contains(&total), "{answered} answered, and {total} kept");
        })
        .run()
        .await
}

#[tokio::test(start_paused = true)]
async fn a_seed_repeats_every_event_and_others_differ() {
    let (mut kills, mut traces) = (0, Vec::new());
    for seed in 0..8 {
        let run = simulate(seed).await;
        assert_eq!(run.trace(), simulate(seed).await.trace(), "seed {seed}");
        kills += run.crashes();
        traces.push(run.trace().to_vec());
    }
    traces.dedup();
    assert_eq!(traces.len(), 8);
    assert!(kills > 16, "{kills}");
    let all = traces.concat().join("\n");
    for expected in ["is killed", "starts again", "is parted", "heals", "Lost", "Ok("] {
        assert!(all.contains(expected), "no {expected} in eight seeds");
    }
}

/// The text with which a run fails.
async fn complaint(simulation: ClusterSimulation) -> String {
    let failed = AssertUnwindSafe(simulation.run()).catch_unwind().await.expect_err("it fails");
    failed.downcast_ref::<String>().expect("a text").clone()
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_fails_the_run_with_its_seed() {
    hide_panics();
    let simulation = || ClusterSimulation::new(7, 2, counters(&Arc::default()));
    let asker = simulation().askers(1, |_, _| async { if true { panic!("an asker is wrong") } else { "right" } });
    let check = simulation().finally(|_| async { panic!("the total is wrong") });
    let endless = simulation().askers(1, |_, _| std::future::pending::<String>());
    for (simulation, expected) in
        [(asker, "asker 0: an asker is wrong"), (check, "the total is wrong"), (endless, "1 askers have no end")]
    {
        let said = complaint(simulation).await;
        assert!(said.contains(expected) && said.contains("again: `ClusterSimulation::new(7, 2, …)`"), "{said}");
    }
}
