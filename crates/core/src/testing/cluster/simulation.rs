//! A seed draws when askers come, which nodes are killed and started again, and how the network is parted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::TestCluster;
use super::network::{Network, name};
use crate::clock::{self, Instant};
use crate::containment::contain_future;
use crate::node::NodeHandle;
use crate::testing::simulation::{FOREVER, Journal, SimulationRun, expect_a_paused_clock};
use crate::testing::{Chance, TestApp};

/// How long a node is away, and the network is parted, in milliseconds: from less than a move of a key takes to more.
const TROUBLE: std::ops::Range<u64> = 50..3_000;

/// After this time without trouble, each key has one owner.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// How long a message takes, in milliseconds.
const ON_ITS_WAY: std::ops::Range<u64> = 0..20;

/// The nodes of a test that run.
#[derive(Clone, Debug)]
pub struct TestNodes(Network);

impl TestNodes {
    pub(super) fn of(network: Network) -> Self {
        Self(network)
    }

    /// One of them. It may be killed at any time: what is asked there then fails, and the next one can be picked.
    ///
    /// # Panics
    ///
    /// If none runs. A simulation always leaves one.
    #[must_use]
    pub fn pick(&self, chance: &mut Chance) -> NodeHandle {
        let mut running = self.0.running();
        assert!(!running.is_empty(), "no node of the test runs");
        running.swap_remove(chance.within(0..running.len() as u64) as usize).1
    }
}

type AskFn = dyn Fn(TestNodes, Chance) -> BoxFuture<'static, String> + Send + Sync;
type CheckFn = dyn FnOnce(NodeHandle) -> BoxFuture<'static, ()> + Send;

/// A simulation of a graph of actors over several nodes, with one seed, on virtual time.
///
/// Askers come at random times. Each is code of the test, which picks nodes, asks their actors, and notes what it
/// learns where the test finds it. Meanwhile nodes are [killed](Self::kills) and started again, and the network is
/// [parted](Self::partitions) and heals; messages take up to 20 ms in each direction. Then all nodes run and reach each
/// other, the rest of the askers end, and two seconds later [`finally`](Self::finally) checks what must hold.
///
/// The run fails the test, and names its seed, if an asker panics or has no end, or if the last check panics. The same
/// seed gives the same run, event by event, if the code takes nothing from outside: see
/// [`Simulation`](super::super::Simulation). What is simulated of a network, and what is not: [`TestCluster`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// use callboard_core::actor::Question;
/// use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
/// use callboard_core::testing::{ClusterSimulation, MemoryStore, TestApp};
/// use callboard_core::{App, Failure};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Add(u64);
///
/// impl Question for Add {
///     const NAME: &str = "add";
///     type Answer = u64;
/// }
///
/// impl Answers<Add> for Stored<u64> {
///     async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
///         **self += by;
///         Ok(**self)
///     }
/// }
///
/// let within = Duration::from_secs(1);
/// for seed in 0..10 {
///     let store = Arc::new(MemoryStore::new());
///     let answered = Arc::new(AtomicU64::new(0));
///     let counted = Arc::clone(&answered);
///     ClusterSimulation::new(seed, 3, move |_| {
///         let kind = KeyedSpec::new("counter", store.clone(), |_, count: Stored<u64>| async { Ok(count) });
///         TestApp::new(App::new().keyed(kind.accepts::<Add>()))
///     })
///     .askers(50, move |nodes, mut chance| {
///         let counted = Arc::clone(&counted);
///         async move {
///             match nodes.pick(&mut chance).keyed("counter").ask("ann", within, Add(1)).await {
///                 Ok(total) => {
///                     counted.fetch_add(1, Ordering::SeqCst);
///                     format!("{total}")
///                 }
///                 Err(error) => error.to_string(),
///             }
///         }
///     })
///     .kills(3)
///     .partitions(3)
///     .finally(move |node| async move {
///         let total = node.keyed("counter").ask("ann", within, Add(0)).await.expect("all is well again");
///         assert!(total >= answered.load(Ordering::SeqCst), "what was answered is kept");
///     })
///     .run()
///     .await;
/// }
/// # }
/// ```
#[must_use = "nothing happens before it is run"]
pub struct ClusterSimulation {
    seed: u64,
    nodes: usize,
    app: Box<super::AppFn>,
    askers: Vec<(usize, Arc<AskFn>)>,
    kills: usize,
    partitions: usize,
    check: Option<Box<CheckFn>>,
}

/// What happens at a time.
enum Event {
    Ask { number: usize, ask: Arc<AskFn> },
    Kill,
    Restart(usize),
    Part,
    Heal,
}

/// Events in the order of their times, and of those of one time in the order in which they were planned.
#[derive(Default)]
struct Plan {
    order: BinaryHeap<Reverse<(Instant, usize)>>,
    events: Vec<Option<Event>>,
}

impl Plan {
    fn add(&mut self, at: Instant, event: Event) {
        self.order.push(Reverse((at, self.events.len())));
        self.events.push(Some(event));
    }

    fn next(&mut self) -> Option<(Instant, Event)> {
        let Reverse((at, number)) = self.order.pop()?;
        Some((at, self.events[number].take()?))
    }
}

impl ClusterSimulation {
    /// Of this number of nodes, `node-0` and so on; `app` makes the app of each name. Nodes share what the test gives
    /// to all of them, such as a store.
    ///
    /// # Panics
    ///
    /// Without a node.
    pub fn new(seed: u64, nodes: usize, app: impl Fn(&str) -> TestApp + Send + Sync + 'static) -> Self {
        assert!(nodes > 0, "a cluster has nodes");
        Self { seed, nodes, app: Box::new(app), askers: Vec::new(), kills: 0, partitions: 0, check: None }
    }

    /// This number of askers, each at a random time, with choices of its own. What an asker returns is in the trace.
    pub fn askers<F>(mut self, count: usize, ask: impl Fn(TestNodes, Chance) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output: fmt::Display> + Send + 'static,
    {
        let ask = move |nodes, chance| -> BoxFuture<'static, String> {
            ask(nodes, chance).map(|outcome| outcome.to_string()).boxed()
        };
        self.askers.push((count, Arc::new(ask)));
        self
    }

    /// So often a node is killed, at a random time, and started again up to 3 s later. One node always runs.
    pub fn kills(mut self, times: usize) -> Self {
        self.kills = times;
        self
    }

    /// So often the network is parted into two, at a random time, and heals up to 3 s later.
    pub fn partitions(mut self, times: usize) -> Self {
        self.partitions = times;
        self
    }

    /// What must hold at the end, seen from one of the nodes: it panics if that is wrong.
    pub fn finally<F>(mut self, check: impl FnOnce(NodeHandle) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.check = Some(Box::new(move |node| check(node).boxed()));
        self
    }

    /// Runs the simulation, in a test with a paused clock.
    ///
    /// # Panics
    ///
    /// If an asker or the last check panics, or an asker has no end, with the seed and the last events; if the clock
    /// runs, or an app does not start.
    pub async fn run(mut self) -> SimulationRun {
        expect_a_paused_clock();
        // This thread draws the jitter of back-offs.
        fastrand::seed(self.seed);
        let Self { seed, nodes, .. } = self;
        let journal = Arc::new(Journal::new(seed, format!("ClusterSimulation::new({seed}, {nodes}, …)")));
        let (plan, check) = (self.plan(), self.check.take());
        let started = TestCluster::start(nodes, self.app).await;
        let cluster = started.unwrap_or_else(|error| panic!("an app does not start: {error}"));
        cluster.network.set_delays(Chance::for_thing(seed, &[1]), ON_ITS_WAY);
        let chance = Chance::for_thing(seed, &[2]);
        let mut play = Play { seed, cluster, plan, chance, askers: JoinSet::new(), journal: Arc::clone(&journal) };
        while let Some((at, event)) = play.plan.next() {
            sleep_until(at).await;
            play.happen(event).await;
        }
        play.until_over().await;
        sleep(SETTLED_AFTER).await;
        if let Some(check) = check {
            let node = play.cluster.nodes().pick(&mut play.chance);
            match timeout(FOREVER, contain_future(check(node))).await {
                Ok(Ok(())) => {}
                Ok(Err(words)) => journal.violation(words),
                Err(_) => journal.violation("the last check has no end"),
            }
        }
        journal.take().expect_kept()
    }

    /// All askers and troubles, at times of their own.
    fn plan(&self) -> Plan {
        let (mut plan, started, mut number) = (Plan::default(), clock::now(), 0);
        let mut last = Duration::ZERO;
        for (group, (count, ask)) in self.askers.iter().enumerate() {
            let mut chance = Chance::for_thing(self.seed, &[0, group as u64]);
            let mean = Duration::from_millis(chance.pick(&[5, 20, 80]));
            let mut at = Duration::ZERO;
            for _ in 0..*count {
                at += Duration::from_millis(chance.gap(mean).as_millis() as u64);
                plan.add(started + at, Event::Ask { number, ask: Arc::clone(ask) });
                number += 1;
            }
            last = last.max(at);
        }
        let mut chance = Chance::for_thing(self.seed, &[3]);
        let span = u64::try_from(last.as_millis()).unwrap_or(u64::MAX).max(1);
        (0..self.kills).for_each(|_| plan.add(started + chance.millis(0..span), Event::Kill));
        (0..self.partitions).for_each(|_| plan.add(started + chance.millis(0..span), Event::Part));
        plan
    }
}

/// A run that is under way.
struct Play {
    seed: u64,
    cluster: TestCluster,
    plan: Plan,
    /// Of the kills and the partitions.
    chance: Chance,
    askers: JoinSet<()>,
    journal: Arc<Journal>,
}

impl Play {
    async fn happen(&mut self, event: Event) {
        let Self { seed, cluster, plan, chance, askers, journal } = self;
        match event {
            Event::Ask { number, ask } => {
                let asking = ask(cluster.nodes(), Chance::for_thing(*seed, &[4, number as u64]));
                let journal = Arc::clone(journal);
                journal.event(format_args!("asker {number} comes"));
                askers.spawn(async move {
                    match contain_future(asking).await {
                        Ok(outcome) => journal.event(format_args!("asker {number}: {outcome}")),
                        Err(words) => journal.violation(format_args!("asker {number}: {words}")),
                    }
                });
            }
            Event::Kill => {
                let running = cluster.network.running();
                let number = running[chance.within(0..running.len() as u64) as usize].0;
                let back_at = clock::now() + chance.millis(TROUBLE);
                if running.len() > 1 {
                    journal.killed(&name(number));
                    cluster.kill(number);
                    plan.add(back_at, Event::Restart(number));
                }
            }
            Event::Restart(number) => {
                journal.event(format_args!("{} starts again", name(number)));
                if let Err(error) = cluster.restart(number).await {
                    journal.violation(format_args!("{} does not start again: {error}", name(number)));
                }
            }
            Event::Part => {
                let apart: Vec<usize> = (0..cluster.nodes.len()).filter(|_| chance.one_in(2)).collect();
                let names: Vec<String> = apart.iter().map(|number| name(*number)).collect();
                journal.event(format_args!("the network is parted: {names:?} and the rest"));
                cluster.part(&apart);
                plan.add(clock::now() + chance.millis(TROUBLE), Event::Heal);
            }
            Event::Heal => {
                journal.event("the network heals");
                cluster.heal();
            }
        }
    }

    async fn until_over(&mut self) {
        let Self { askers, journal, .. } = self;
        let all = async {
            while let Some(asked) = askers.join_next().await {
                if let Err(error) = asked {
                    journal.violation(format_args!("an asker has no end: {error}"));
                }
            }
        };
        if timeout(FOREVER, all).await.is_err() {
            journal.violation(format_args!("{} askers have no end", askers.len()));
        }
    }
}

impl fmt::Debug for ClusterSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, kills, partitions, .. } = self;
        let mut shown = f.debug_struct("ClusterSimulation");
        shown.field("seed", seed).field("nodes", nodes).field("kills", kills).field("partitions", partitions);
        shown.finish_non_exhaustive()
    }
}
