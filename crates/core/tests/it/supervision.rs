//! Crashes end one replica and its batch; loops end the stage; other parts are not affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{App, BackoffPolicy, Batch, ErrorKind, Failure, Pipeline, Replica, Stage, StartError, Worker};

use super::support::{serve, until};

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

#[tokio::test]
async fn a_crash_loop_fails_its_stage_and_other_stages_continue() {
    let fast = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    let broken = Stage::each("broken", |_: &u64| -> Result<u64, Failure> { panic!("always") });
    let settings = broken.settings().clone().with_backoff(fast);
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let node = App::new()
        .route("/broken", Pipeline::from(broken.with_settings(settings)))
        .route("/echo", echo)
        .start()
        .await
        .unwrap();
    let client = node.client();
    // The first crash may be chance; the later ones are a loop.
    for _ in 0..7 {
        let error = client.call::<u64, u64>("/broken", 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "{error}");
    }
    until("the stage gives up", || node.health().stages[0].state == StageState::Failed).await;

    let error = client.call::<u64, u64>("/broken", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("more than 5 crashes in 10s"), "{error}");
    let health = node.health();
    assert!(!health.ready && health.live);
    assert!(health.stages[0].reason.as_deref().unwrap().contains("always"));
    assert_eq!(client.call::<u64, u64>("/echo", 1).await.unwrap(), 1);
}

#[tokio::test]
async fn crashes_between_completed_batches_are_not_a_loop() {
    let node = serve(fragile()).await;
    let client = node.client();
    for _ in 0..20 {
        assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1);
        assert_eq!(client.call::<u64, u64>("/route", 13).await.unwrap_err().kind(), ErrorKind::WorkerFailed);
    }
    assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1);
    assert_eq!(node.describe().stages[0].restarts, 20);
}

#[tokio::test]
async fn each_replica_knows_its_index_and_generation() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
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
