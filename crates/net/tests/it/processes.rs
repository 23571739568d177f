//! Nodes as separate processes, and the effects of signals on them. Workers write a line per execution before it
//! starts; this ledger survives the worker.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use callboard_codec::wire::{Hello, VERSION};
use callboard_core::actor::AskError;
use callboard_core::remote::RemoteStages;
use callboard_core::{App, CallOptions, Contract, ErrorKind, Node, Pipeline};
use callboard_net::testing::{BareEndpoint, RawPeer};
use callboard_net::{Cluster, Identity, MembershipProfile, NetConfig, QuicEdge, StaticView};
use futures_util::StreamExt;
use quinn::ConnectionError;

use crate::actors::{Held, Hold, desk, until_found};
use crate::common::{self, LONG, until};
use crate::ledger::{ExecutionLog, Work};
use crate::promises::working;

const DIRECTORY: &str = "CALLBOARD_TEST_DIRECTORY";
const SHAPE: &str = "CALLBOARD_TEST_SHAPE";
const WORKER: &str = "processes::worker_process";
const ADDRESS: &str = "CALLBOARD_TEST_ADDRESS";
const NAMED: &str = "CALLBOARD_TEST_NAMED";

/// Not a test: the body of a worker process, started by the tests below.
#[test]
#[ignore = "the body of a worker process"]
fn worker_process() {
    let Some(directory) = directory_of_process() else { return };
    let shape: Shape = std::env::var(SHAPE).unwrap().parse().unwrap();
    let address = std::env::var(ADDRESS).map_or_else(|_| common::loopback(), |address| address.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        let config = if shape.is_patient { common::patient() } else { NetConfig::default() };
        let named = std::env::var(NAMED).ok().map(|address| address.parse::<SocketAddr>().unwrap());
        // Only gossip tells others of it: it connects to nobody but the named node.
        let membership = named.map(|_| MembershipProfile::Near);
        let edge = QuicEdge::bind(address, identity, NetConfig { membership, calls_back: false, ..config }).unwrap();
        let log = ExecutionLog::File(directory.join("ledger"));
        let work = working(&log, u64::from(std::process::id()), Duration::from_millis(shape.service_millis));
        let work = if shape.is_idempotent { work.idempotent() } else { work };
        let work = work.concurrency(shape.seats).queue(shape.queue);
        let node = App::new().route("/work", work).actor(desk("desk", 64)).start().await.unwrap();
        edge.open(node.client());
        let _cluster = named.map(|named| Cluster::start(&edge, edge.view(StaticView::try_new([named]).unwrap())));
        println!("serving {}", edge.address());
        sigterm().await;
        edge.drain();
        let _ = tokio::join!(node.shutdown(LONG), edge.shutdown(LONG));
    });
}

/// The directory of this process, if a test started it.
pub(crate) fn directory_of_process() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Waits for SIGTERM.
pub(crate) async fn sigterm() {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    terminate.recv().await;
}

/// A process of this binary that runs one of the bodies and prints its address. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// Kept open: writing to a closed pipe fails.
    stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn start(body: &str, directory: &Path, environment: &[(&str, String)]) -> Self {
        Self::start_of(&std::env::current_exe().unwrap(), body, directory, environment)
    }

    /// The same of another binary of these tests.
    fn start_of(binary: &Path, body: &str, directory: &Path, environment: &[(&str, String)]) -> Self {
        let mut command = Command::new(binary);
        command.args(["--exact", body, "--ignored", "--nocapture"]).env(DIRECTORY, directory);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.by_ref().lines();
        let address_text =
            lines.map_while(Result::ok).find_map(|line| line.split("serving ").nth(1).map(str::to_owned));
        let address = address_text.expect("it prints its address").trim().parse().unwrap();
        Self { child, stdout, address }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        // The shell's own `kill`: the program is not installed everywhere.
        let script = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
    }

    /// Its output until it ends.
    pub(crate) fn remaining_output(&mut self) -> String {
        let mut words = String::new();
        self.stdout.read_to_string(&mut words).unwrap();
        words
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of a worker process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) is_idempotent: bool,
    pub(crate) service_millis: u64,
    pub(crate) seats: u32,
    pub(crate) queue: usize,
    /// Its connections survive a busy machine.
    pub(crate) is_patient: bool,
}

impl Shape {
    pub(crate) fn new(contract: Contract) -> Self {
        let is_idempotent = contract.may_run_again();
        Self { is_idempotent, service_millis: 5, seats: 64, queue: 1024, is_patient: false }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_idempotent, service_millis, seats, queue, is_patient } = self;
        write!(f, "{is_idempotent} {service_millis} {seats} {queue} {is_patient}")
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn read<T: FromStr>(word: &str) -> Result<T, String> {
            word.parse().map_err(|_| word.to_owned())
        }
        let [is_idempotent, service_millis, seats, queue, is_patient] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err(text.to_owned());
        };
        Ok(Self {
            is_idempotent: read(is_idempotent)?,
            service_millis: read(service_millis)?,
            seats: read(seats)?,
            queue: read(queue)?,
            is_patient: read(is_patient)?,
        })
    }
}

/// A worker process.
pub(crate) struct Worker {
    pub(crate) process: Process,
    directory: PathBuf,
    shape: Shape,
}

impl Worker {
    pub(crate) fn start(directory: &Path, shape: Shape) -> Self {
        let process = Process::start(WORKER, directory, &[(SHAPE, shape.to_string())]);
        Self { process, directory: directory.to_owned(), shape }
    }

    /// A worker that gossips, and names this node.
    pub(crate) fn start_naming(directory: &Path, shape: Shape, named: SocketAddr) -> Self {
        let environment = [(SHAPE, shape.to_string()), (NAMED, named.to_string())];
        Self { process: Process::start(WORKER, directory, &environment), directory: directory.to_owned(), shape }
    }

    /// A worker of an earlier version: of the test binary that `CALLBOARD_EARLIER` names, or without gossip, which is how
    /// the first versions spoke.
    pub(crate) fn start_earlier(directory: &Path, shape: Shape, named: SocketAddr) -> Self {
        match std::env::var_os("CALLBOARD_EARLIER") {
            Some(binary) => {
                let environment = [(SHAPE, shape.to_string()), (NAMED, named.to_string())];
                let process = Process::start_of(Path::new(&binary), WORKER, directory, &environment);
                Self { process, directory: directory.to_owned(), shape }
            }
            None => Self::start(directory, shape),
        }
    }

    /// A process in its place, after it has ended.
    pub(crate) fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// The same, of a worker that gossips, and names this node.
    pub(crate) fn restart_naming(&mut self, named: SocketAddr) {
        self.restart_with(&[(NAMED, named.to_string())]);
    }

    fn restart_with(&mut self, further: &[(&str, String)]) {
        self.process.child.wait().unwrap();
        let environment = [(SHAPE, self.shape.to_string()), (ADDRESS, self.process.address.to_string())];
        self.process = Process::start(WORKER, &self.directory, &[&environment, further].concat());
    }

    /// The time until it ends, and its exit status.
    pub(crate) async fn exited(&mut self) -> (Duration, Option<i32>) {
        let since = Instant::now();
        let ending = async {
            loop {
                if let Some(status) = self.process.child.try_wait().unwrap() {
                    return (since.elapsed(), status.code());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, ending).await.expect("it ends")
    }

    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }
}

/// A node of this process without stages.
pub(crate) struct Gateway {
    pub(crate) node: Node,
    pub(crate) cluster: Cluster,
    pub(crate) edge: QuicEdge,
}

impl Gateway {
    pub(crate) async fn start(directory: &Path, workers: &[&Worker]) -> Self {
        Self::start_with(directory, workers, common::patient()).await
    }

    async fn start_with(directory: &Path, workers: &[&Worker], config: NetConfig) -> Self {
        let workers: Vec<_> = workers.iter().map(|worker| worker.process.address).collect();
        Self::start_naming(directory, &workers, config).await
    }

    /// A gateway that names these nodes.
    pub(crate) async fn start_naming(directory: &Path, named: &[SocketAddr], config: NetConfig) -> Self {
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        let edge = QuicEdge::bind(common::loopback(), identity, config).unwrap();
        let node = App::new().route("/run", Pipeline::<Work, Work>::remote("work")).start().await.unwrap();
        edge.open(node.client());
        let cluster = Cluster::start(&edge, edge.view(StaticView::try_new(named.iter().copied()).unwrap()));
        node.handle().join(cluster.clone()).unwrap();
        let gateway = Self { node, cluster, edge };
        until(|| gateway.cluster.connected_peers() >= named.len()).await;
        gateway
    }

    /// Makes these calls, a few at a time, and acts once a quarter of them is done. Returns their outcomes.
    async fn calls(&self, count: u64, meanwhile: impl FnOnce()) -> HashMap<u64, Result<u64, ErrorKind>> {
        let client = self.node.client();
        let calls = futures_util::stream::iter(0..count).map(|id| {
            let client = client.clone();
            async move {
                let options = CallOptions::new().with_timeout(LONG);
                let outcome = client.call_with::<_, Work>("/run", Work::whenever(id), options).await;
                (id, outcome.map(|answer| answer.call_id()).map_err(|error| error.kind()))
            }
        });
        let mut calls = std::pin::pin!(calls.buffer_unordered(AT_ONCE));
        let (mut outcomes, mut meanwhile) = (HashMap::new(), Some(meanwhile));
        while let Some((id, outcome)) = calls.next().await {
            assert!(outcomes.insert(id, outcome).is_none(), "one outcome for call {id}");
            if outcomes.len() as u64 == count / 4
                && let Some(meanwhile) = meanwhile.take()
            {
                meanwhile();
            }
        }
        outcomes
    }

    /// Makes calls before and during a pause of the worker, which all succeed.
    pub(crate) async fn call_during_a_pause(&self, worker: &Worker, pause: Duration, next_id: &mut u64) {
        let mut calls = tokio::task::JoinSet::new();
        let mut call = || {
            let (client, id) = (self.node.client(), *next_id);
            *next_id += 1;
            calls.spawn(async move {
                let options = CallOptions::new().with_timeout(LONG);
                (id, client.call_with::<_, Work>("/run", Work::whenever(id), options).await)
            });
        };
        (0..AT_ONCE).for_each(|_| call());
        worker.signal("STOP");
        let continues = Instant::now() + pause;
        while Instant::now() < continues {
            call();
            tokio::time::sleep(pause / 10).await;
        }
        worker.signal("CONT");
        while let Some(ended) = calls.join_next().await {
            let (id, outcome) = ended.unwrap();
            assert_eq!(outcome.map(|answer| answer.call_id()).map_err(|error| error.to_string()), Ok(id), "{pause:?}");
        }
    }
}

/// The number of executions of each call.
pub(crate) fn executions(directory: &Path) -> HashMap<u64, usize> {
    let mut executions = HashMap::new();
    for execution in execution_log(directory).executions() {
        *executions.entry(execution.id).or_default() += 1;
    }
    executions
}

pub(crate) fn execution_log(directory: &Path) -> ExecutionLog {
    ExecutionLog::File(directory.join("ledger"))
}

/// A directory with the identity of all nodes of a test.
pub(crate) fn directory_with_identity(name: &str) -> PathBuf {
    let directory = common::directory(name).parent().unwrap().to_owned();
    Identity::development_in(&directory.join("development")).unwrap();
    directory
}

/// Two workers. The first detects a lost link after the default time, the second tolerates long silence.
pub(crate) fn two_workers(name: &str, contract: Contract) -> (PathBuf, Worker, Worker) {
    let directory = directory_with_identity(name);
    let first = Worker::start(&directory, Shape::new(contract));
    let second = Worker::start(&directory, Shape { is_patient: true, ..Shape::new(contract) });
    (directory, first, second)
}

#[test]
fn a_shape_round_trips_through_its_text() {
    let shape = Shape { is_patient: true, queue: 7, ..Shape::new(Contract::Idempotent) };
    assert_eq!(shape.to_string().parse(), Ok(shape));
}

const CALLS: u64 = 1_000;

/// Fewer than the retry budget of a cluster, so that all of them can be retried.
const AT_ONCE: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_fails_no_retryable_call() {
    let (directory, first, second) = two_workers("killed-idempotent", Contract::Idempotent);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let outcomes = gateway.calls(CALLS, || first.signal("KILL")).await;
    let failed: Vec<_> = outcomes.iter().filter(|(id, outcome)| **outcome != Ok(**id)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let executions = executions(&directory);
    assert_eq!(executions.len() as u64, CALLS);
    assert!(executions.values().all(|times| *times <= 2), "{executions:?}");
}

/// A call that this worker has begun.
async fn long_call(
    directory: &Path,
    worker: Worker,
    config: NetConfig,
) -> (Gateway, Worker, tokio::task::JoinHandle<Result<u64, ErrorKind>>) {
    let gateway = Gateway::start_with(directory, &[&worker], config).await;
    let client = gateway.node.client();
    let call = tokio::spawn(async move {
        let options = CallOptions::new().with_timeout(LONG);
        let outcome = client.call_with::<_, Work>("/run", Work::whenever(1), options).await;
        outcome.map(|answer| answer.call_id()).map_err(|error| error.kind())
    });
    until(|| !executions(directory).is_empty()).await;
    (gateway, worker, call)
}

/// A worker that takes two seconds for a call.
fn slow_worker(contract: Contract, name: &str) -> (PathBuf, Worker) {
    let directory = directory_with_identity(name);
    let worker = Worker::start(&directory, Shape { service_millis: 2_000, ..Shape::new(contract) });
    (directory, worker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_noticed_at_once_if_its_machine_reports_it() {
    let (directory, worker) = slow_worker(Contract::AtMostOnce, "noticed");
    let (gateway, worker, call) = long_call(&directory, worker, common::patient()).await;
    let killed = Instant::now();
    worker.signal("KILL");
    assert_eq!(call.await.unwrap(), Err(ErrorKind::Unavailable));
    // The connections of this gateway tolerate a minute of silence, because a busy machine may cause some.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    until(|| gateway.cluster.connected_peers() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_to_a_killed_process_may_have_been_handled_and_is_asked_once() {
    let (directory, worker) = slow_worker(Contract::AtMostOnce, "asked");
    let gateway = Gateway::start(&directory, &[&worker]).await;
    let desk = gateway.node.remote_actor("desk");
    until_found(&desk).await;
    let asking = desk.clone();
    let asked = tokio::spawn(async move { asking.ask(LONG, Hold()).await });
    let held = async { while desk.ask(LONG, Held()).await.unwrap() == 0 {} };
    tokio::time::timeout(LONG, held).await.expect("the actor has it");
    worker.signal("KILL");
    assert_eq!(asked.await.unwrap(), Err(AskError::Lost));
    until(|| gateway.cluster.connected_peers() == 0).await;
    let error = desk.ask(LONG, Held()).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }), "{error:?}");
}

/// A stopped process is as silent as a machine without power: no packet says that its port is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stays_silent_is_lost_after_three_seconds_at_the_default_tuning() {
    let (directory, worker) = slow_worker(Contract::AtMostOnce, "silent");
    let (gateway, worker, call) = long_call(&directory, worker, NetConfig::default()).await;
    let silent = Instant::now();
    worker.signal("STOP");
    assert_eq!(call.await.unwrap(), Err(ErrorKind::Unavailable));
    let noticed = silent.elapsed();
    // Two seconds more than users are promised, for a busy machine.
    let allowed = Duration::from_millis(2_500)..Duration::from_secs(5);
    assert!(allowed.contains(&noticed), "{noticed:?}");
    until(|| gateway.cluster.connected_peers() == 0).await;
}

/// A process, its machine or the line to it pauses. Every call has one execution and one outcome: those in hand, and
/// those made meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_a_process_loses_no_connection_and_no_call() {
    let directory = directory_with_identity("paused");
    let worker = Worker::start(&directory, Shape { is_patient: false, ..Shape::new(Contract::AtMostOnce) });
    let gateway = Gateway::start_with(&directory, &[&worker], NetConfig::default()).await;
    let (connected, mut next_id) = (Instant::now(), 0);
    for pause in [500, 1_000, 2_500].map(Duration::from_millis) {
        gateway.call_during_a_pause(&worker, pause, &mut next_id).await;
        let connected_for = gateway.cluster.peers()[0].connected_for.expect("it is connected");
        assert!(connected_for >= connected.elapsed().saturating_sub(Duration::from_millis(100)), "{connected_for:?}");
    }
    let executions = executions(&directory);
    assert_eq!(executions.len() as u64, next_id);
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_call_runs_again_on_the_node_that_returns() {
    let (directory, worker) = slow_worker(Contract::Idempotent, "repeated");
    let (gateway, mut worker, call) = long_call(&directory, worker, common::patient()).await;
    worker.signal("KILL");
    until(|| gateway.cluster.connected_peers() == 0).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!call.is_finished(), "it waits for a node");
    worker.restart();
    let back = Instant::now();
    until(|| gateway.cluster.connected_peers() == 1).await;
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    assert_eq!(call.await.unwrap(), Ok(1));
}

/// Calls, and how long the only worker of their stage is away.
const CALLS_OF_ONE: u64 = 600;
const DOWNTIME: Duration = Duration::from_millis(1_500);

/// Kills the only worker under load and starts it again after [`DOWNTIME`]; gives the number of calls that failed.
async fn failed_during_a_restart(name: &str, contract: Contract) -> usize {
    let directory = directory_with_identity(name);
    let mut worker = Worker::start(&directory, Shape::new(contract));
    let gateway = Gateway::start(&directory, &[&worker]).await;
    let (killed, dies) = tokio::sync::oneshot::channel();
    let calls = gateway.calls(CALLS_OF_ONE, || killed.send(()).unwrap());
    let returns = async {
        dies.await.unwrap();
        worker.signal("KILL");
        tokio::time::sleep(DOWNTIME).await;
        worker.restart();
        worker
    };
    let (outcomes, _worker) = tokio::join!(calls, returns);
    assert_eq!(outcomes.len() as u64, CALLS_OF_ONE);
    outcomes.iter().filter(|(id, outcome)| **outcome != Ok(**id)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_retryable_call_is_lost_while_the_only_worker_restarts() {
    assert_eq!(failed_during_a_restart("away-pure", Contract::Idempotent).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_only_worker_loses_at_most_the_calls_in_flight_of_an_at_most_once_stage() {
    let failed = failed_during_a_restart("away-once", Contract::AtMostOnce).await;
    assert!(failed <= AT_ONCE, "{failed} failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_makes_no_call_run_twice() {
    let (directory, first, second) = two_workers("killed-at-most-once", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let outcomes = gateway.calls(CALLS, || first.signal("KILL")).await;
    let executions = executions(&directory);
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
    assert_eq!(outcomes.len() as u64, CALLS, "no call is lost");
    let failed = outcomes.values().filter(|outcome| outcome.is_err()).count();
    // At most the calls in flight.
    assert!(failed <= AT_ONCE, "{failed} failed");
    assert!(outcomes.values().all(|outcome| matches!(outcome, Ok(_) | Err(ErrorKind::Unavailable))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gets_sigterm_fails_no_call() {
    let (directory, mut first, second) = two_workers("terminated", Contract::AtMostOnce);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let outcomes = gateway.calls(CALLS, || first.signal("TERM")).await;
    let failed: Vec<_> = outcomes.iter().filter(|(id, outcome)| **outcome != Ok(**id)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(executions(&directory).values().all(|times| *times == 1));
    assert_eq!(first.process.child.wait().unwrap().code(), Some(0));
}

/// A killed process sends nothing to its peers. Its successor has its keys, recognizes its connections and reports them
/// as closed: otherwise they would stay silent until the idle timeout, here a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_successor_of_a_killed_node_closes_the_connections_of_its_callers() {
    let directory = directory_with_identity("reset");
    let identity = Identity::development_in(&directory.join("development")).unwrap();
    let mut worker = Worker::start(&directory, Shape { is_patient: true, ..Shape::new(Contract::AtMostOnce) });
    let endpoint = BareEndpoint::calling_with(&identity, &common::patient().tuning).unwrap();
    let peer = RawPeer::over(&endpoint, worker.process.address).await.unwrap();
    let cluster = identity.cluster().to_owned();
    peer.greet(&Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }).await.unwrap();
    worker.signal("KILL");
    tokio::task::block_in_place(|| worker.restart());
    // Any packet triggers it, also a keep-alive.
    let lost = tokio::time::timeout(LONG, peer.lost()).await.expect("it is notified");
    assert!(matches!(lost, ConnectionError::Reset), "{lost:?}");
}

/// Stopped, not dead: its peers cannot tell the difference, and unanswered calls run on another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_node_fails_no_retryable_call_and_is_used_again_when_it_resumes() {
    let (directory, first, second) = two_workers("frozen", Contract::Idempotent);
    let gateway = Gateway::start(&directory, &[&first, &second]).await;
    let outcomes = gateway.calls(CALLS, || first.signal("STOP")).await;
    let failed: Vec<_> = outcomes.iter().filter(|(id, outcome)| **outcome != Ok(**id)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    until(|| gateway.cluster.connected_peers() == 1).await;
    first.signal("CONT");
    until(|| gateway.cluster.connected_peers() == 2).await;
}
