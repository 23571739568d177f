//! Keyed actors while their cluster is cut into halves: three nodes in network namespaces, whose states are in a real
//! PostgreSQL that both halves reach, or one of them. `calls/` has calls between nodes whose lines are in trouble.
//!
//! The nodes are in this process, each with its threads in a namespace of its own, so that one history has the answers
//! of all. `docs/semantics.md` says what they may be. The tests are skipped with one line unless `CALLBOARD_REQUIRE`
//! names `postgres`, and on a machine where this process may not make namespaces.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures of a test, and the line of a skipped one")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod calls;
#[path = "../it/ledger.rs"]
#[allow(dead_code, reason = "the tests over loopback use the rest")]
mod ledger;
mod members;
mod network;
mod placed;
#[path = "../../../state/tests/server/mod.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::actor::{AskError, Question};
use callboard_core::keyed::{Answers, KeyContext, Keyed, KeyedRef, KeyedSpec, Stored};
use callboard_core::testing::{CounterAnswer, CounterOperation, CounterOutcome, check_counter};
use callboard_core::{App, Failure};
use callboard_state::PostgresStore;
use serde::{Deserialize, Serialize};

use self::members::Members;
use self::network::Network;
use self::placed::Placed;
use self::server::Server;

const NODES: usize = 3;

/// The number of the namespace with the database.
const DATABASE: usize = 4;

/// The keys that are counted, and those that are only read while the nodes are apart.
const COUNTED: u64 = 24;
const READ: u64 = 8;

/// How long an asker waits.
const WITHIN: Duration = Duration::from_secs(2);

/// Far above what a busy machine needs for any step.
const LONGEST: Duration = Duration::from_secs(120);

/// Adds to a counter. Zero reads it, and saves nothing.
#[derive(Serialize, Deserialize)]
struct Add(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    total: u64,
    epoch: u64,
    /// A number of the instance.
    instance: u64,
}

impl Question for Add {
    const NAME: &str = "add";
    type Answer = Answer;
}

struct Counter {
    count: Stored<u64>,
    instance: u64,
}

impl Keyed for Counter {
    type State = u64;

    fn stored(&mut self) -> &mut Stored<u64> {
        &mut self.count
    }
}

impl Answers<Add> for Counter {
    async fn answer(&mut self, Add(by): Add, context: &KeyContext) -> Result<Answer, Failure> {
        if by > 0 {
            *self.count += by;
        }
        Ok(Answer { total: *self.count, epoch: context.epoch(), instance: self.instance })
    }
}

/// A node of the counters.
struct Running {
    placed: Placed,
    counter: KeyedRef,
}

impl Running {
    fn start(network: &Network, number: usize, members: &Members) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let store = PostgresStore::try_new(&format!("host=10.0.0.{DATABASE} user=callboard dbname=postgres")).unwrap();
        let load = |_: KeyContext, count| async move {
            Ok(Counter { count, instance: INSTANCES.fetch_add(1, Ordering::SeqCst) })
        };
        let spec = KeyedSpec::new("counter", Arc::new(store), load).accepts::<Add>().idle_after(2 * LONGEST);
        let placed = Placed::start(network, number, App::new().keyed(spec), members);
        let counter = placed.node().keyed("counter");
        Self { placed, counter }
    }

    fn ask(&self, key: &str, by: u64) -> Result<Answer, AskError> {
        self.ask_within(WITHIN, key, by)
    }

    fn ask_within(&self, within: Duration, key: &str, by: u64) -> Result<Answer, AskError> {
        self.runtime.block_on(self.counter.ask(key, within, Add(by)))
    }
}

impl Deref for Running {
    type Target = Placed;

    fn deref(&self) -> &Placed {
        &self.placed
    }
}

/// Tries until it succeeds.
fn wait_until(mut tried: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(reason) = tried() {
        assert!(start.elapsed() < LONGEST, "{reason}");
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread of a test, which polls")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn address(number: usize) -> SocketAddr {
    format!("10.0.0.{number}:4433").parse().unwrap()
}

/// What askers know, of all nodes.
#[derive(Default)]
struct Histories {
    of_keys: Mutex<BTreeMap<u64, Vec<CounterOperation>>>,
    clock: AtomicU64,
    is_apart: AtomicBool,
    is_over: AtomicBool,
    /// The answers that each node's askers got, and the keys of those that were asked while the nodes were apart.
    answered: [AtomicU64; NODES],
    apart: [Mutex<Vec<u64>>; NODES],
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Histories {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Adds to one key after another, from one node, until the end.
    async fn ask_all(&self, number: usize, counter: KeyedRef) {
        for turn in 0.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let key = (turn * 7 + number as u64 * 11) % COUNTED;
            let (called, is_apart) = (self.tick(), self.is_apart.load(Ordering::SeqCst));
            let answer = counter.ask(&key.to_string(), WITHIN, Add(1)).await;
            self.note(key, true, called, &answer);
            let pause = match answer {
                Ok(_) => {
                    self.answered[number - 1].fetch_add(1, Ordering::SeqCst);
                    if is_apart && self.is_apart.load(Ordering::SeqCst) {
                        self.apart[number - 1].lock().unwrap().push(key);
                    }
                    Duration::from_millis(5)
                }
                Err(_) => Duration::from_millis(50),
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn note(&self, key: u64, is_increment: bool, called: u64, answer: &Result<Answer, AskError>) {
        let outcome = match answer {
            Ok(Answer { total, epoch, instance }) => CounterOutcome::Answered(CounterAnswer {
                returned: self.tick(),
                total: *total,
                epoch: *epoch,
                instance: *instance,
            }),
            Err(error) => {
                *self.errors.lock().unwrap().entry(error.to_string()).or_default() += 1;
                if error.was_taken() { CounterOutcome::Unknown } else { CounterOutcome::Refused }
            }
        };
        let operation = if is_increment { CounterOperation::increment } else { CounterOperation::read };
        self.of_keys.lock().unwrap().entry(key).or_default().push(operation(called, outcome));
    }

    fn answered(&self) -> [u64; NODES] {
        [0, 1, 2].map(|index: usize| self.answered[index].load(Ordering::SeqCst))
    }

    /// The count of answers while the nodes were apart, of these nodes together.
    fn answered_apart(&self, numbers: &[usize]) -> usize {
        numbers.iter().map(|number| self.apart[number - 1].lock().unwrap().len()).sum()
    }

    fn keys_apart(&self, numbers: &[usize]) -> BTreeSet<u64> {
        numbers.iter().flat_map(|number| self.apart[number - 1].lock().unwrap().clone()).collect()
    }
}

/// The nodes, their network and their database. They end in this order.
struct Lab {
    nodes: Vec<Running>,
    _members: Members,
    _database: Server,
    network: Network,
}

impl Lab {
    /// `None` where the tests are skipped.
    fn start(name: &str) -> Option<Self> {
        let required = std::env::var("CALLBOARD_REQUIRE").unwrap_or_default();
        if !required.split(',').any(|tool| tool == "postgres") {
            eprintln!("skipped: CALLBOARD_REQUIRE=postgres runs it, as root");
            return None;
        }
        let network = Network::try_new(name, DATABASE);
        let network = network.inspect_err(|reason| eprintln!("skipped: no network namespaces: {reason}")).ok()?;
        let database = network.inside(DATABASE, || {
            let address = format!("10.0.0.{DATABASE}");
            let database = Server::try_start(name, Some(&address)).expect("CALLBOARD_REQUIRE names postgres");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(database.until_up());
            database
        });
        let members = Members::join(name, NODES);
        let nodes: Vec<_> = (1..=NODES).map(|number| Running::start(&network, number, &members)).collect();
        nodes.iter().for_each(|node| node.wait_for_members(NODES - 1));
        for node in &nodes {
            wait_until(|| if node.node().health().ready { Ok(()) } else { Err(format!("{:?}", node.node().health())) });
        }
        Some(Self { nodes, _members: members, _database: database, network })
    }

    fn node(&self, number: usize) -> &Running {
        &self.nodes[number - 1]
    }

    /// No packet passes between these namespaces and the rest of `all`.
    fn cut(&self, numbers: &[usize], all: usize) {
        for number in 1..=all {
            let is_in = numbers.contains(&number);
            self.network.drop_from((1..=all).filter(|other| numbers.contains(other) != is_in), number);
        }
    }

    fn heal(&self) {
        (1..=DATABASE).for_each(|number| self.network.drop_nothing(number));
        self.nodes.iter().for_each(|node| node.wait_for_members(NODES - 1));
    }

    /// Each key has one owner: all nodes get the answers of one instance, and no other node has one.
    fn wait_for_one_owner_each(&self, histories: &Histories) {
        for key in 0..COUNTED {
            wait_until(|| {
                let answers: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|node| {
                        let called = histories.tick();
                        let answer = node.ask(&key.to_string(), 0);
                        (called, answer)
                    })
                    .collect();
                let of_one = |answers: &[(u64, Result<Answer, AskError>)]| {
                    let first = answers.first().and_then(|(_, answer)| answer.clone().ok());
                    first.is_some() && answers.iter().all(|(_, answer)| answer.clone().ok() == first)
                };
                if !of_one(&answers) {
                    return Err(format!("key {key} is answered differently: {answers:?}"));
                }
                answers.iter().for_each(|(called, answer)| histories.note(key, false, *called, answer));
                Ok(())
            });
            wait_until(|| {
                let have_it = |node: &&Running| node.counter.active_keys(usize::MAX).contains(&key.to_string());
                match self.nodes.iter().filter(have_it).count() {
                    1 => Ok(()),
                    count => Err(format!("key {key} is active on {count} nodes")),
                }
            });
        }
    }
}

/// The halves: the first one has node 1 only.
const LONE: [usize; 1] = [1];
const BOTH_OTHERS: [usize; 2] = [2, 3];

fn of_read(key: u64) -> String {
    format!("read {key}")
}

/// Asks on both sides of a cut, and checks the history of each key. `separated` sees the nodes while they are apart.
fn history_of(lab: &Lab, cut: impl FnOnce(), separated: impl FnOnce(&Histories)) {
    let histories = Arc::<Histories>::default();
    let asking: Vec<_> = lab
        .nodes
        .iter()
        .flat_map(|node| [node, node])
        .map(|node| {
            let (histories, counter, number) = (Arc::clone(&histories), node.counter.clone(), node.number);
            node.runtime.spawn(async move { histories.ask_all(number, counter).await })
        })
        .collect();
    let wait_for_more = |more: u64| {
        let before = histories.answered();
        wait_until(|| {
            let now = histories.answered();
            let is_enough = before.iter().zip(&now).all(|(before, now)| now - before >= more);
            if is_enough { Ok(()) } else { Err(format!("{now:?} answers, and {before:?} before")) }
        });
    };
    wait_for_more(50);
    let began = Instant::now();
    cut();
    histories.is_apart.store(true, Ordering::SeqCst);
    lab.node(1).wait_for_members(0);
    BOTH_OTHERS.iter().for_each(|number| lab.node(*number).wait_for_members(1));
    println!("both halves call the other down after {:.1?}", began.elapsed());
    separated(&histories);
    histories.is_apart.store(false, Ordering::SeqCst);
    let (lasted, healing) = (began.elapsed(), Instant::now());
    lab.heal();
    println!("apart for {lasted:.1?}, of one view {:.1?} after that", healing.elapsed());
    wait_for_more(50);
    println!("all nodes answer {:.1?} after that", healing.elapsed());
    histories.is_over.store(true, Ordering::SeqCst);
    for (asking, node) in asking.into_iter().zip(lab.nodes.iter().flat_map(|node| [node, node])) {
        node.runtime.block_on(asking).unwrap();
    }
    lab.wait_for_one_owner_each(&histories);
    let of_keys = histories.of_keys.lock().unwrap();
    let count = |is_it: fn(&CounterOutcome) -> bool| {
        of_keys.values().flatten().filter(|operation| operation.is_increment && is_it(&operation.outcome)).count()
    };
    println!(
        "{} answered, of them {} on the one side and {} on the other while they were apart; {} unknown, {} refused: {:?}",
        count(|outcome| matches!(outcome, CounterOutcome::Answered(_))),
        histories.answered_apart(&LONE),
        histories.answered_apart(&BOTH_OTHERS),
        count(|outcome| *outcome == CounterOutcome::Unknown),
        count(|outcome| *outcome == CounterOutcome::Refused),
        histories.errors.lock().unwrap(),
    );
    for (key, history) in &*of_keys {
        assert_eq!(check_counter(history), Ok(()), "key {key}: {history:#?}");
    }
}

#[test]
fn halves_that_share_a_database_lose_no_answer_and_have_one_writer_for_each_epoch() {
    let Some(lab) = Lab::start("partition-shared") else { return };
    history_of(
        &lab,
        || lab.cut(&LONE, NODES),
        |histories| {
            wait_until(|| {
                let (left, right) = (histories.keys_apart(&LONE), histories.keys_apart(&BOTH_OTHERS));
                let of_both = left.intersection(&right).count() as u64;
                if of_both >= COUNTED / 2 { Ok(()) } else { Err(format!("{of_both} keys were answered on both sides")) }
            });
        },
    );
}

#[test]
fn a_half_without_the_database_answers_no_durable_write_and_the_other_half_goes_on_with_all_keys() {
    let Some(lab) = Lab::start("partition-one-half") else { return };
    for key in 0..READ {
        assert_eq!(lab.node(2).ask_within(LONGEST, &of_read(key), 1).unwrap().total, 1);
    }
    history_of(
        &lab,
        || lab.cut(&[1, DATABASE], DATABASE),
        |histories| {
            wait_until(|| match histories.keys_apart(&LONE).len() as u64 {
                COUNTED => Ok(()),
                keys => Err(format!("{keys} keys are answered by the half with the database")),
            });
            assert_eq!(histories.answered_apart(&BOTH_OTHERS), 0, "nothing was saved for them");
            for key in 0..READ {
                assert_eq!(lab.node(1).ask_within(LONGEST, &of_read(key), 1).unwrap().total, 2);
            }
            // Instances that have changed nothing answer reads.
            let others = BOTH_OTHERS.map(|number| {
                (0..READ).filter_map(|key| lab.node(number).ask(&of_read(key), 0).ok()).collect::<Vec<_>>()
            });
            let others = others.concat();
            println!("{} reads were answered without the database, from before the cut", others.len());
            assert!(!others.is_empty() && others.iter().all(|answer| answer.total == 1), "{others:?}");
        },
    );
    for node in &lab.nodes {
        for key in 0..READ {
            wait_until(|| match node.ask(&of_read(key), 0) {
                Ok(Answer { total: 2, .. }) => Ok(()),
                other => Err(format!("node {}, {}: {other:?}", node.number, of_read(key))),
            });
        }
    }
}
