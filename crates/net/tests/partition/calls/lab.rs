//! Workers and gateways, each in a namespace of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use callboard_core::{App, Pipeline, Stage};

use crate::ledger::{ExecutionLog, Work};
use crate::members::Members;
use crate::network::Network;
use crate::placed::Placed;
use crate::wait_until;

/// The stages of a worker: calls of the first may run again, those of the second may not.
pub(super) const STAGES: [&str; 2] = ["again", "once"];

/// The nodes and their network. They end in this order.
pub(super) struct Lab {
    nodes: Vec<Placed>,
    workers: usize,
    /// The executions of each stage.
    pub(super) logs: [ExecutionLog; 2],
    _members: Members,
    pub(super) network: Network,
    /// The next one waits: the figures of one depend on the load of the other.
    _only: MutexGuard<'static, ()>,
}

impl Lab {
    /// Workers have the first numbers, gateways the next ones. `None` where the tests are skipped.
    pub(super) fn start(name: &str, workers: usize, gateways: usize) -> Option<Self> {
        static ONLY: Mutex<()> = Mutex::new(());
        let required = std::env::var("CALLBOARD_REQUIRE").unwrap_or_default();
        if !required.split(',').any(|tool| tool == "namespaces") {
            eprintln!("skipped: CALLBOARD_REQUIRE=namespaces runs it, as root");
            return None;
        }
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = workers + gateways;
        let network = Network::try_new(name, nodes).expect("CALLBOARD_REQUIRE names namespaces");
        let members = Members::join(name, nodes);
        let logs = [ExecutionLog::in_memory(), ExecutionLog::in_memory()];
        let start = |number| {
            let app = if number > workers { gateway() } else { worker(number, &logs) };
            Placed::start(&network, number, app, &members)
        };
        let nodes: Vec<_> = (1..=nodes).map(start).collect();
        let lab = Self { nodes, workers, logs, _members: members, network, _only: only };
        lab.wait_for_one_view();
        for gateway in lab.gateways() {
            wait_until(|| {
                if gateway.node().health().ready { Ok(()) } else { Err(format!("{:?}", gateway.node().health())) }
            });
        }
        Some(lab)
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        1..=self.nodes.len()
    }

    pub(super) fn gateways(&self) -> impl Iterator<Item = &Placed> {
        self.nodes[self.workers..].iter()
    }

    pub(super) fn others(&self, number: usize) -> impl Iterator<Item = &Placed> {
        self.nodes.iter().filter(move |node| node.number != number)
    }

    /// How many members each node has seen go down.
    pub(super) fn deaths(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| metric(node, "members_down_total")).collect()
    }

    /// No packet passes between this node and the others. Addresses are still resolved, and no interface is down, so
    /// nobody is told.
    pub(super) fn cut(&self, number: usize) {
        self.others(number).for_each(|other| self.network.drop_from([number], other.number));
        self.network.drop_from(self.others(number).map(|other| other.number), number);
    }

    /// All packets pass again.
    pub(super) fn mend(&self) {
        self.numbers().for_each(|number| self.network.drop_nothing(number));
    }

    /// The same, until all know each other.
    pub(super) fn heal(&self) {
        self.mend();
        self.wait_for_one_view();
    }

    pub(super) fn wait_for_one_view(&self) {
        self.nodes.iter().for_each(|node| node.wait_for_members(self.nodes.len() - 1));
    }
}

fn metric(node: &Placed, name: &str) -> u64 {
    let metrics = node.edge().metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("callboard_net_{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
}

fn worker(number: usize, logs: &[ExecutionLog; 2]) -> App {
    let [again, once] = [0, 1].map(|index: usize| {
        let log = logs[index].clone();
        let work = move |work: Arc<Work>| {
            let log = log.clone();
            async move {
                log.record(&work, number as u64)?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                work.answered()
            }
        };
        Stage::each_async(STAGES[index], work).concurrency(64).queue(1_024)
    });
    App::new().route("/again", again.idempotent()).route("/once", once)
}

fn gateway() -> App {
    let remote = |stage| Pipeline::<Work, Work>::remote(stage);
    App::new().route("/again", remote(STAGES[0])).route("/once", remote(STAGES[1]))
}
