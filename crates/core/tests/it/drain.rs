//! Ends in good order: running calls finish, workers clean up, new calls are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{AsyncWorker, Batch, Drained, ErrorKind, Failure, Replica, Stage, Worker};

use super::support::{Gate, PATIENCE, gated, serve, until};

#[tokio::test]
async fn a_drain_finishes_running_calls_and_refuses_new_ones() {
    let gate = Gate::default();
    let node = Arc::new(serve(gated(&gate)).await);
    let client = node.client();
    let calls: Vec<_> = (0..10u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
        })
        .collect();
    until("all are in flight", || node.describe().in_flight == 10).await;

    let draining = tokio::spawn({
        let node = Arc::clone(&node);
        async move { node.drain(PATIENCE).await }
    });
    until("the node drains", || node.health().draining).await;
    let refused = client.call::<u64, u64>("/route", 99).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(!node.health().ready && node.health().live);

    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(draining.await.unwrap(), Drained::Completely);
}

#[tokio::test]
async fn a_drain_gives_up_after_its_grace() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/route", 1).await });
    until("the worker is busy", || gate.arrived() == 1).await;
    assert_eq!(node.drain(Duration::from_millis(10)).await, Drained::TimedOut { in_flight: 1 });
    gate.open();
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_withdrawn_node_is_not_ready_but_still_serves() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    node.withdraw();
    let health = node.health();
    assert!(!health.ready && health.draining && health.live);
    assert_eq!(node.client().call::<u64, u64>("/route", 1).await.unwrap(), 1);
}

struct CountsCleanups(Arc<AtomicUsize>);

impl Worker for CountsCleanups {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }

    fn cleanup(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_shutdown_lets_every_worker_clean_up() {
    let cleaned = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&cleaned);
    let on_threads = Stage::worker("tidy", move |_: &Replica| Ok(CountsCleanups(Arc::clone(&count)))).replicas(3);
    let node = serve(on_threads.clone()).await;
    let client = node.client();
    client.call::<u64, u64>("/route", 1).await.unwrap();
    assert_eq!(node.shutdown(PATIENCE).await, Drained::Completely);
    assert_eq!(cleaned.load(Ordering::SeqCst), 3);
    assert_eq!(client.health().stages[0].state, StageState::Stopped);

    let node = serve(on_threads.as_tasks()).await;
    assert_eq!(node.shutdown(PATIENCE).await, Drained::Completely);
    assert_eq!(cleaned.load(Ordering::SeqCst), 6);
}

#[tokio::test]
async fn dropping_a_node_answers_its_callers() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let calls: Vec<_> = (0..3u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
        })
        .collect();
    until("all are in flight", || client.describe().in_flight == 3).await;
    node.abort();
    gate.open();
    for call in calls {
        // The running call may still finish; no call hangs.
        let outcome = tokio::time::timeout(PATIENCE, call).await.expect("answered").unwrap();
        drop(outcome);
    }
    assert_eq!(client.describe().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_full_batch() {
    let stage = Stage::each("patient", |n: &u64| Ok(*n)).max_batch_size(8).max_delay(Duration::MAX);
    let node = serve(stage).await;
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/route", 1).await });
    until("it waits", || node.describe().stages[0].queued == 1).await;
    assert_eq!(node.shutdown(Duration::MAX).await, Drained::Completely);
    assert_eq!(call.await.unwrap().unwrap(), 1);
}

/// Takes seven seconds to clean up.
struct Tidy(Arc<AtomicBool>);

impl AsyncWorker for Tidy {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.into_inputs().into_iter().map(Ok).collect()
    }

    async fn cleanup(&self) {
        tokio::time::sleep(Duration::from_secs(7)).await;
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_the_stop_timeout_of_its_stage_to_clean_up_or_the_rest_of_the_drain() {
    let within = Duration::from_secs;
    for (own, rest, is_tidy) in [(None, 20, false), (Some(10), 20, true), (Some(10), 3, false)] {
        let has_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&has_ended);
        let stage = Stage::async_worker("tidy", move |_: &Replica| Ok(Tidy(Arc::clone(&ended))));
        let stage = if let Some(own) = own { stage.stop_timeout(within(own)) } else { stage };
        let node = serve(stage).await;
        assert_eq!(node.client().call::<u64, u64>("/route", 1).await.unwrap(), 1);
        node.stop(within(rest)).await;
        assert_eq!(has_ended.load(Ordering::SeqCst), is_tidy, "{own:?} {rest}");
    }
}
