//! Asynchronous workers: concurrent batches, and cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, AsyncWorker, Batch, CallOptions, ErrorKind, Failure, Instant, Stage};
use futures_util::future::join_all;
use tokio::time::sleep;

use super::support::{hide_panics, until};

/// Counts the calls inside, and their maximum.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Visit<'a>(&'a Inside);

impl Inside {
    fn enter(&self) -> Visit<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Visit(self)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

fn sleeping(inside: &Arc<Inside>, time: Duration) -> Stage<u64, u64> {
    let inside = Arc::clone(inside);
    Stage::each_async("waits", move |n: Arc<u64>| {
        let inside = Arc::clone(&inside);
        async move {
            let _visit = inside.enter();
            sleep(time).await;
            Ok(*n + 1)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn calls_up_to_the_concurrency_limit_run_concurrently() {
    let inside = Arc::default();
    let stage = sleeping(&inside, Duration::from_secs(1)).concurrency(8);
    let node = App::new().route("/waits", stage).start().await.unwrap();
    let client = node.client();
    let started = Instant::now();
    let outcomes = join_all((0..24).map(|n| client.call::<u64, u64>("/waits", n))).await;
    assert!(outcomes.into_iter().enumerate().all(|(n, outcome)| outcome.unwrap() == n as u64 + 1));
    assert_eq!(inside.most.load(Ordering::SeqCst), 8);
    assert_eq!(started.elapsed().as_secs(), 3, "24 calls of a second, 8 at a time");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_or_is_late_stops_its_work() {
    let inside = Arc::default();
    let node = App::new().route("/waits", sleeping(&inside, Duration::from_secs(60))).start().await.unwrap();
    let client = node.client();
    let left = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/waits", 1).await }
    });
    until("it runs", || inside.now.load(Ordering::SeqCst) == 1).await;
    left.abort();
    until("its work has stopped", || inside.now.load(Ordering::SeqCst) == 0).await;

    let options = CallOptions::new().with_timeout(Duration::from_secs(2));
    let error = client.call_with::<u64, u64>("/waits", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    until("its work has also stopped", || inside.now.load(Ordering::SeqCst) == 0).await;
    assert!(!node.describe().stages[0].replicas[0].busy);
    let metrics = node.metrics();
    assert!(
        metrics.contains(r#"stage_discarded_total{stage="waits",place="worker",reason="cancelled"} 1"#),
        "{metrics}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_stages_timeout_drops_the_call_and_keeps_the_replica() {
    let inside = Arc::default();
    let stage = sleeping(&inside, Duration::from_secs(60)).timeout(Duration::from_secs(1));
    let node = App::new().route("/waits", stage).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/waits", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.message().contains("timeout of 1s"), "{error}");
    assert_eq!(inside.now.load(Ordering::SeqCst), 0);
    assert_eq!(node.describe().stages[0].restarts, 0);
}

struct Pairs;

impl AsyncWorker for Pairs {
    type In = u64;
    type Out = usize;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<usize, Failure>> {
        sleep(Duration::from_millis(1)).await;
        assert!(batch.iter().all(|n| *n != 666), "meant to panic");
        if batch.iter().any(|n| *n == 77) {
            return Vec::new();
        }
        let length = |n: &u64| if *n == 13 { Err(Failure::invalid_input("not 13")) } else { Ok(batch.len()) };
        batch.iter().map(length).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn the_trait_has_batches_and_the_same_promises() {
    hide_panics();
    let stage = Stage::async_worker("pairs", |_| Ok(Pairs)).max_batch_size(4).concurrency(1);
    let stage = stage.max_delay(Duration::from_millis(5));
    let node = App::new().route("/pairs", stage).start().await.unwrap();
    let client = node.client();
    let call = |n| client.call::<u64, usize>("/pairs", n);

    let outcomes = join_all([1, 2, 13, 4].map(call)).await;
    let kinds: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.kind())).collect();
    assert_eq!(kinds, [Ok(4), Ok(4), Err(ErrorKind::InvalidInput), Ok(4)]);

    let error = call(77).await.unwrap_err();
    assert_eq!(error.message(), "the worker returned 0 results for 1 items");
    let error = call(666).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert_eq!(call(1).await.unwrap(), 1, "the replica is back");
    assert_eq!(node.describe().stages[0].restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn concurrent_batches_finish_after_a_panic() {
    hide_panics();
    let stage = Stage::async_worker("pairs", |_| Ok(Slow)).concurrency(2);
    let node = App::new().route("/pairs", stage).start().await.unwrap();
    let client = node.client();
    let (slow, panics) = tokio::join!(client.call::<u64, u64>("/pairs", 100), client.call::<u64, u64>("/pairs", 666),);
    assert_eq!(panics.unwrap_err().kind(), ErrorKind::WorkerFailed);
    assert_eq!(slow.unwrap(), 100);
}

#[tokio::test(start_paused = true)]
async fn concurrent_batches_after_a_panic_end_with_their_node() {
    hide_panics();
    let stage = Stage::async_worker("pairs", |_| Ok(Slow)).concurrency(2);
    let node = App::new().route("/pairs", stage).start().await.unwrap();
    let client = node.client();
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/pairs", 20_000).await }
    });
    assert_eq!(client.call::<u64, u64>("/pairs", 666).await.unwrap_err().kind(), ErrorKind::WorkerFailed);
    let started = Instant::now();
    node.abort();
    assert!(slow.await.unwrap().is_err());
    assert!(started.elapsed() < Duration::from_secs(1), "answered when its node ended, not at its deadline");
}

struct Slow;

impl AsyncWorker for Slow {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        assert_ne!(batch[0], 666, "meant to panic");
        sleep(Duration::from_millis(batch[0])).await;
        vec![Ok(batch[0])]
    }
}

/// Panics when it is dropped in the middle of its work.
struct Fragile(bool);

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(self.0, "meant to panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_on_drop_ends_a_replica_and_no_stage() {
    hide_panics();
    let stage = Stage::each_async("fragile", |millis: Arc<u64>| async move {
        let mut whole = Fragile(false);
        sleep(Duration::from_millis(*millis)).await;
        whole.0 = true;
        Ok(*millis)
    });
    let node = App::new().route("/fragile", stage.concurrency(1)).start().await.unwrap();
    let client = node.client();
    for _ in 0..3 {
        let options = CallOptions::new().with_timeout(Duration::from_millis(10));
        assert!(client.call_with::<u64, u64>("/fragile", 1000, options).await.is_err());
        assert_eq!(client.call::<u64, u64>("/fragile", 1).await.unwrap(), 1, "another replica serves");
    }
}
