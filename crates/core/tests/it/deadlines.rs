//! Deadlines fire on time even if all workers are busy, and expired calls never run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{CallOptions, Deadline, ErrorKind, Instant, Pipeline, Stage};

use super::support::{Gate, gated, serve, until};

fn within(timeout: Duration) -> CallOptions {
    CallOptions::new().with_timeout(timeout)
}

#[tokio::test]
async fn a_deadline_fires_while_every_worker_is_busy() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let holder = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/route", 1).await }
    });
    until("the worker is busy", || gate.arrived() == 1).await;

    // The gate stays closed: only a timer can answer this call.
    let error = client.call_with::<u64, u64>("/route", 2, within(Duration::from_millis(20))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    until("the expired entry left the queue", || node.describe().stages[0].queued == 0).await;

    gate.open();
    assert_eq!(holder.await.unwrap().unwrap(), 1);
    assert_eq!(gate.arrived(), 1, "the expired call was executed");
}

#[tokio::test]
async fn a_deadline_shorter_than_the_work_answers_in_time_and_frees_the_permit() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let error = client.call_with::<u64, u64>("/route", 1, within(Duration::from_millis(20))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(node.describe().in_flight, 0);
    gate.open();
    assert_eq!(client.call::<u64, u64>("/route", 2).await.unwrap(), 2);
}

#[tokio::test]
async fn a_deadline_in_the_past_is_refused_before_it_queues() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let node = serve(Stage::each("count", move |n: &u64| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(*n)
    }))
    .await;
    let past = CallOptions::new().with_deadline(Deadline::at(Instant::now()));
    let error = node.client().call_with::<u64, u64>("/route", 1, past).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_more_entries_up_to_its_delay_and_not_past_a_deadline() {
    let stage = Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(8).max_delay(Duration::from_secs(10));
    let node = serve(stage).await;
    let client = node.client();

    let start = Instant::now();
    assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1);
    assert_eq!(start.elapsed().as_secs(), 10, "alone, the entry waits for the whole delay");

    let start = Instant::now();
    let options = CallOptions::new().with_timeout(Duration::from_secs(3));
    let outcome = client.call_with::<u64, u64>("/route", 2, options).await;
    assert!(start.elapsed() <= Duration::from_secs(3), "the delay exceeded the deadline");
    drop(outcome);

    let start = Instant::now();
    let calls: Vec<_> = (0..8u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "a full batch does not wait");
}

#[tokio::test(start_paused = true)]
async fn small_functions_do_not_start_for_a_late_call() {
    let pipeline = Pipeline::<u64, u64>::pass_through().map("late", |_: &u64| -> Result<u64, _> { panic!("ran") });
    let node = serve(pipeline).await;
    let options = CallOptions::new().with_deadline(Deadline::at(Instant::now()));
    let error = node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn no_deadline_is_more_than_an_hour_ahead() {
    let node = serve(Stage::each_async("never", |_: Arc<u64>| std::future::pending::<Result<u64, _>>())).await;
    let started = Instant::now();
    let options = CallOptions::new().with_deadline(Deadline::at(started + Duration::from_secs(10 * 24 * 3600)));
    let error = node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(started.elapsed().as_secs(), 3600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_expires_within_its_batch_does_not_start() {
    let ran = Arc::new(AtomicUsize::new(0));
    let stage = Stage::each("slow", {
        let ran = Arc::clone(&ran);
        move |n: &u64| {
            ran.fetch_add(1, Ordering::SeqCst);
            std::thread::park_timeout(Duration::from_millis(100));
            Ok(*n)
        }
    });
    let node = serve(stage.max_batch_size(2).max_delay(Duration::from_secs(5)).on_threads()).await;
    let client = node.client();
    let options = |ms| CallOptions::new().with_timeout(Duration::from_millis(ms));
    // The queue is in the order of deadlines: the patient call is second, and would start after all callers have left.
    let (first, second) = tokio::join!(
        client.call_with::<u64, u64>("/route", 1, options(60)),
        client.call_with::<u64, u64>("/route", 2, options(80)),
    );
    assert!(first.is_err() && second.is_err());
    until("the batch is over", || !node.describe().stages[0].replicas[0].busy).await;
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_starts_with_each_call_and_a_deadline_is_fixed() {
    let hangs =
        Stage::each_async("hangs", |_: Arc<u64>| std::future::pending::<Result<u64, callboard_core::Failure>>());
    let node = serve(hangs).await;
    let client = node.client();
    let lasted = async |options: &CallOptions| {
        let started = Instant::now();
        let error = client.call_with::<u64, u64>("/route", 1, options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        started.elapsed().as_secs()
    };
    let options = within(Duration::from_secs(3));
    let until_ten = options.clone().with_deadline(Deadline::after(Instant::now(), Duration::from_secs(10)));
    assert_eq!(lasted(&until_ten).await, 3);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(lasted(&options).await, 3, "the full timeout, as for new options");
    assert_eq!(lasted(&until_ten).await, 0, "eleven seconds have passed");
    assert_eq!(lasted(&options.with_timeout(Duration::from_secs(7))).await, 3, "the smaller limit applies");
}
