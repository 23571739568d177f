//! Crashes end one replica and its batch; loops fail the stage until it tries again; other parts are not affected.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{
    App, AsyncWorker, BackoffPolicy, Batch, Contract, ErrorKind, ExitPort, Failure, Node, Replica, Stage, StartError,
    Worker, WorkerExit,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::support::{DEADLY, breakable, hide_panics, serve, until};

fn fragile() -> Stage<u64, u64> {
    Stage::each("fragile", |n: &u64| {
        assert!(*n != 13, "unlucky {n}");
        Ok(*n)
    })
}

async fn survives_a_panic(stage: Stage<u64, u64>) {
    let node = serve(stage).await;
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1);

    let error = client.call::<u64, u64>("/route", 13).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert_eq!(error.message(), "the worker panicked: unlucky 13");
    let trace = error.remote_trace().unwrap();
    assert!(trace.starts_with("panicked at ") && trace.ends_with(":\nunlucky 13"), "{trace}");

    // The next call waits in the queue until the replica is back.
    assert_eq!(client.call::<u64, u64>("/route", 2).await.unwrap(), 2);
    let stage = &node.describe().stages[0];
    assert_eq!((stage.health.state, stage.restarts), (StageState::Ready, 1));
    assert_eq!(stage.replicas[0].generation, 1);
    assert!(stage.last_restarts[0].reason.contains("unlucky 13"), "{:?}", stage.last_restarts);
    assert!(node.health().ready);
}

#[tokio::test]
async fn a_panic_on_the_runtime_ends_one_replica_and_the_stage_stays_up() {
    survives_a_panic(fragile()).await;
}

#[tokio::test]
async fn a_panic_on_a_thread_ends_one_replica_and_the_stage_stays_up() {
    survives_a_panic(fragile().on_threads()).await;
}

#[tokio::test]
async fn a_panic_answers_its_whole_batch_at_once() {
    let gate = super::support::Gate::default();
    let hold = gate.clone();
    let stage = Stage::batch("fragile", move |batch: Batch<u64>| {
        if batch[0] == 0 {
            hold.pass();
        }
        assert!(batch.iter().all(|n| *n != 13), "unlucky");
        batch.iter().map(|n| Ok(*n)).collect()
    })
    .max_batch_size(4)
    .on_threads();
    let node = serve(stage).await;
    let client = node.client();
    let send = |n: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
    };
    let holder = send(0);
    until("the worker is busy", || gate.arrived() == 1).await;
    let batch = [send(1), send(13), send(3), send(4)];
    until("the batch is queued", || node.describe().stages[0].queued == 4).await;
    gate.open();
    holder.await.unwrap().unwrap();
    for call in batch {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::WorkerFailed);
    }
    assert_eq!(client.call::<u64, u64>("/route", 5).await.unwrap(), 5);
}

struct Stubborn;

impl Worker for Stubborn {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }

    fn warmup(&mut self) -> Result<(), Failure> {
        Err(Failure::new("the weights are corrupt"))
    }
}

#[tokio::test]
async fn a_worker_that_cannot_be_built_fails_the_start_with_its_own_message_once() {
    let built = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&built);
    let stage = Stage::worker("broken", move |_: &Replica| -> Result<Stubborn, Failure> {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("no such device");
    });
    let error = App::new().route("/route", stage).start().await.unwrap_err();
    assert!(matches!(error, StartError::Stage { .. }));
    assert_eq!(error.to_string(), "stage `broken` did not start: replica 0 could not start: panicked: no such device");
    assert_eq!(built.load(Ordering::SeqCst), 1, "no replica tries again");

    for stage in [
        Stage::worker("warm", |_: &Replica| Ok(Stubborn)),
        Stage::worker("warm", |_: &Replica| Ok(Stubborn)).as_tasks(),
    ] {
        let error = App::new().route("/route", stage).start().await.unwrap_err();
        assert!(error.to_string().ends_with("the weights are corrupt"), "{error}");
    }
}

/// Ends for an input of [`DEADLY`]: first its replica hears of it, and a little later its batch.
struct EndsOutside(ExitPort);

impl AsyncWorker for EndsOutside {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        if batch.iter().any(|n| *n == DEADLY) {
            let exit = WorkerExit::new("meant to end");
            self.0.report(&exit, true);
            tokio::time::sleep(Duration::from_millis(1)).await;
            exit.unwind();
        }
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

/// Twelve bytes, one request at a time: whatever ends the worker, wherever it runs, and whatever its contract says.
async fn only_the_deadly_calls_fail(stage: Stage<u64, u64>) {
    hide_panics();
    let node = serve(stage).await;
    let client = node.client();
    for n in 0..24 {
        let error = client.call::<u64, u64>("/route", DEADLY).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "call {n}: {error}");
        assert!(node.health().ready, "after call {n}");
    }
    for n in 0..3 {
        assert_eq!(client.call::<u64, u64>("/route", n).await.unwrap(), n);
    }
    let health = &node.describe().stages[0].health;
    assert_eq!(health.state, StageState::Degraded);
    assert!(health.reason.as_deref().unwrap().contains("more than a fifth"), "{health:?}");
}

fn mortal() -> Stage<u64, u64> {
    Stage::each("mortal", |n: &u64| {
        assert!(*n != DEADLY, "meant to panic");
        Ok(*n)
    })
}

#[tokio::test]
async fn inputs_that_end_their_worker_never_fail_a_stage_under_any_contract() {
    let ends_outside = || Stage::async_worker("mortal", |replica: &Replica| Ok(EndsOutside(replica.exit_port())));
    for contract in [Contract::AtMostOnce, Contract::Idempotent, Contract::Pure] {
        only_the_deadly_calls_fail(mortal().contract(contract)).await;
        only_the_deadly_calls_fail(mortal().on_threads().contract(contract)).await;
        only_the_deadly_calls_fail(ends_outside().contract(contract)).await;
    }
}

/// A caller ends a worker each second, one call at a time.
#[tokio::test(start_paused = true)]
async fn an_hour_of_deadly_calls_costs_an_honest_caller_nothing() {
    let node = serve(Stage::async_worker("mortal", |replica: &Replica| Ok(EndsOutside(replica.exit_port())))).await;
    let client = node.client();
    // A worker is built outside of the paused clock, which would pass a deadline meanwhile.
    let is_up = async || until("the replica is up", || node.describe().stages[0].replicas.len() == 1).await;
    let end = Instant::now() + Duration::from_secs(3600);
    let mut answered = 0;
    while Instant::now() < end {
        is_up().await;
        let error = client.call::<u64, u64>("/route", DEADLY).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "after {answered} answers: {error}");
        is_up().await;
        assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1, "after {answered} answers");
        assert!(node.health().ready, "after {answered} answers");
        answered += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(answered >= 3000, "{answered}");
}

/// A worker that ends when the test says so, and is warm when the gate has a permit.
struct Killable(Arc<Semaphore>);

impl AsyncWorker for Killable {
    type In = u64;
    type Out = u64;

    async fn warmup(&self) -> Result<(), Failure> {
        let _permit = self.0.acquire().await?;
        Ok(())
    }

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

type Ports = Arc<Mutex<Vec<ExitPort>>>;

/// A stage of workers that end when the test says so, and the ports of those that are up, by their replicas.
fn killable(replicas: usize) -> (Stage<u64, u64>, Ports) {
    killable_behind(replicas, Arc::new(Semaphore::new(1)))
}

/// The same; the gate is for restarts of replica 1.
fn killable_behind(replicas: usize, gate: Arc<Semaphore>) -> (Stage<u64, u64>, Ports) {
    killable_if(replicas, gate, |_| true)
}

/// The same; a replica of which this is not true does not start.
fn killable_if(
    replicas: usize,
    gate: Arc<Semaphore>,
    starts: impl Fn(&Replica) -> bool + Send + Sync + 'static,
) -> (Stage<u64, u64>, Ports) {
    let ports: Ports = Arc::new(Mutex::new(vec![]));
    let list = Arc::clone(&ports);
    let stage = Stage::async_worker("killable", move |replica: &Replica| {
        if !starts(replica) {
            return Err(Failure::new("its device is gone"));
        }
        let mut ports = list.lock().unwrap();
        let at = replica.index();
        while ports.len() <= at {
            ports.push(replica.exit_port());
        }
        ports[at] = replica.exit_port();
        let is_held = (replica.index(), replica.generation() > 0) == (1, true);
        Ok(Killable(if is_held { Arc::clone(&gate) } else { Arc::new(Semaphore::new(1)) }))
    });
    let fast = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    (stage.map_settings(|settings| settings.with_backoff(fast)).replicas(replicas), ports)
}

/// Ends a replica that has begun nothing, until its stage has had enough of it.
async fn end_without_batches(node: &Node, ports: &Ports, replica: usize) {
    let generation =
        || node.describe().stages[0].replicas.iter().find(|up| up.index == replica).map(|up| up.generation);
    for life in 0..7 {
        until("the replica is back", || generation() == Some(life)).await;
        let port = ports.lock().unwrap()[replica].clone();
        port.report(&WorkerExit::new("no reason"), false);
    }
    until("the replica is gone", || generation().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_without_batches_fails_its_stage_until_it_tries_again() {
    let (stage, ports) = killable(1);
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let node = App::new().route("/killable", stage).route("/echo", echo).start().await.unwrap();
    let client = node.client();
    end_without_batches(&node, &ports, 0).await;

    let error = client.call::<u64, u64>("/killable", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("more than 5 crashes in 10s"), "{error}");
    assert!(
        error.is_refusal() && error.retry_after().is_some_and(|after| after <= Duration::from_secs(1)),
        "{error:?}"
    );
    let health = node.health();
    assert!(!health.ready && health.live);
    assert_eq!((health.stages[0].name.as_str(), health.stages[0].state), ("killable", StageState::Failed));
    assert!(health.stages[0].reason.as_deref().unwrap().contains("no reason"));
    assert_eq!(client.call::<u64, u64>("/echo", 1).await.unwrap(), 1);

    until("the stage is back by itself", || node.health().ready).await;
    assert_eq!(node.describe().stages[0].health.state, StageState::Ready);
    assert_eq!(client.call::<u64, u64>("/killable", 1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_stage_is_tried_at_most_once_a_minute() {
    let (stage, model) = breakable();
    let node = serve(stage).await;
    model.fail(&node).await;
    let (failed_at, before) = (Instant::now(), model.built());
    // Each wait is at most a fifth shorter than twice the one before: 1, 2, 4 … 32, 60, 60 s.
    tokio::time::sleep(Duration::from_secs(62)).await;
    assert!((6..=7).contains(&(model.built() - before)), "{}", model.built() - before);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let tries = model.built() - before;
    assert!((64..=82).contains(&tries), "{tries} tries in {:?}", failed_at.elapsed());
    let error = node.client().call::<u64, u64>("/route", 1).await.unwrap_err();
    assert_eq!((error.kind(), node.health().ready), (ErrorKind::Unavailable, false));
    assert!(error.message().contains("the weights are gone"), "{error}");

    model.mend();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(node.health().ready, "it is back by itself");
    assert_eq!(node.client().call::<u64, u64>("/route", 1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_in_a_loop_leaves_the_calls_to_its_siblings() {
    let (stage, ports) = killable(2);
    let node = serve(stage).await;
    end_without_batches(&node, &ports, 1).await;
    for n in 0..10 {
        assert_eq!(node.client().call::<u64, u64>("/route", n).await.unwrap(), n);
    }
    let health = node.health();
    assert!(health.ready);
    assert_eq!(health.stages[0].state, StageState::Degraded);
    until("the replica is tried again", || node.describe().stages[0].replicas.len() == 2).await;
    assert_eq!(node.health().stages[0].state, StageState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_still_starts_when_its_stage_is_back_is_not_started_twice() {
    let gate = Arc::new(Semaphore::new(0));
    let (stage, ports) = killable_behind(2, Arc::clone(&gate));
    let node = serve(stage).await;
    let up = || node.describe().stages[0].replicas.len();
    ports.lock().unwrap()[1].report(&WorkerExit::new("no reason"), false);
    until("the replica is gone", || up() == 1).await;
    end_without_batches(&node, &ports, 0).await;
    assert_eq!(node.health().stages[0].state, StageState::Failed);
    until("the stage is back", || up() == 1).await;
    gate.add_permits(1);
    until("its other replica is up", || up() == 2).await;
    let replicas = node.describe().stages[0].replicas.clone();
    let slow = replicas.iter().find(|replica| replica.index == 1).unwrap();
    assert_eq!(slow.generation, 1, "its only restart");
}

#[tokio::test(start_paused = true)]
async fn a_failed_stage_tries_another_replica_each_time_so_that_one_lost_device_does_not_keep_it_down() {
    let (stage, ports) =
        killable_if(2, Arc::new(Semaphore::new(1)), |replica| (replica.index(), replica.generation() > 0) != (0, true));
    let node = serve(stage).await;
    ports.lock().unwrap()[0].report(&WorkerExit::new("its device is gone"), false);
    until("the replica is gone", || node.describe().stages[0].replicas.len() == 1).await;
    until("the stage has failed", || {
        ports.lock().unwrap()[1].report(&WorkerExit::new("no reason"), false);
        node.health().stages[0].state == StageState::Failed
    })
    .await;
    until("the stage is back", || node.health().ready).await;
    assert_eq!(node.client().call::<u64, u64>("/route", 2).await.unwrap(), 2);
}

#[tokio::test]
async fn each_replica_knows_its_index_and_generation() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let stage = Stage::worker("indexed", move |replica: &Replica| {
        log.lock().unwrap().push((replica.index(), replica.generation(), replica.max_batch_size()));
        Ok(Healthy)
    })
    .replicas(3)
    .max_batch_size(16);
    let node = serve(stage).await;
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0, 16), (1, 0, 16), (2, 0, 16)]);
    assert_eq!(node.describe().stages[0].replicas.len(), 3);
}

struct Healthy;

impl Worker for Healthy {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

#[tokio::test]
async fn a_start_that_fails_is_not_tried_again_by_its_siblings() {
    let built = Arc::new(AtomicUsize::new(0));
    let stage = Stage::worker("stubborn", {
        let built = Arc::clone(&built);
        move |_: &Replica| -> Result<Stubborn, Failure> {
            built.fetch_add(1, Ordering::SeqCst);
            Err(Failure::new("no licence"))
        }
    });
    let error = App::new().route("/route", stage.as_tasks().replicas(2)).start().await.unwrap_err();
    assert!(matches!(&error, StartError::Stage { message, .. } if message.contains("no licence")), "{error}");
    assert_eq!(built.load(Ordering::SeqCst), 2, "each replica once");
}
