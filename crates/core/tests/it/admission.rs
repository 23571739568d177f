//! Admission to a stage's queue: only calls that can meet their deadline by the prediction of the stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callboard_core::{CallOptions, ErrorKind, LocalClient, Stage};

use super::support::{serve, until};

/// Takes this number of milliseconds per call, for any input.
fn slow(millis: &Arc<AtomicU64>) -> Stage<u64, u64> {
    let millis = Arc::clone(millis);
    Stage::each_async("slow", move |n: Arc<u64>| {
        let takes = Duration::from_millis(millis.load(Ordering::SeqCst));
        async move {
            tokio::time::sleep(takes).await;
            Ok(*n)
        }
    })
    .concurrency(1)
}

fn within(millis: u64) -> CallOptions {
    CallOptions::new().with_timeout(Duration::from_millis(millis))
}

async fn call(client: &LocalClient, options: CallOptions) -> Result<u64, callboard_core::CallError> {
    client.call_with("/route", 7u64, options).await
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_meet_its_deadline_even_alone_is_refused_at_once() {
    let node = serve(slow(&Arc::new(AtomicU64::new(100)))).await;
    let client = node.client();
    // No call is refused before the stage was measured.
    let unmeasured = call(&client, within(10)).await.unwrap_err();
    assert_eq!(unmeasured.message(), "the deadline passed before the outcome was there");
    for _ in 0..6 {
        call(&client, CallOptions::new()).await.unwrap();
    }

    let error = call(&client, within(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    // From the stage before it queued the call, not from the call's own timer.
    assert!(error.message().starts_with("stage `slow` takes about 1"), "{error}");
    assert!(call(&client, within(5_000)).await.is_ok());
    assert_eq!((node.describe().in_flight, node.describe().stages[0].queued), (0, 0));
    assert!(node.metrics().contains(r#"stage_refused_total{stage="slow",reason="late"} 1"#), "{}", node.metrics());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_queue_would_make_late_is_refused_with_a_retry_after() {
    let node = serve(slow(&Arc::new(AtomicU64::new(20)))).await;
    let client = node.client();
    for _ in 0..6 {
        call(&client, CallOptions::new()).await.unwrap();
    }
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { call(&client, CallOptions::new()).await })
        })
        .collect();
    until("they wait", || node.describe().stages[0].queued >= 14).await;

    // All earlier calls have the default deadline and run later; calls of a higher class would not.
    let low = |millis| within(millis).with_priority(callboard_core::Priority::Low);
    let error = call(&client, low(150)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert!(error.message().contains("would make it miss its deadline"), "{error}");
    let retry_after = error.retry_after().unwrap();
    assert!(retry_after > Duration::from_millis(50) && retry_after < Duration::from_millis(400), "{retry_after:?}");
    let first_in_order = call(&client, within(150)).await;
    assert!(first_in_order.is_ok(), "the same deadline, with nothing before it: {first_in_order:?}");
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovered_stage_is_noticed_although_all_deadlines_are_short() {
    let millis = Arc::new(AtomicU64::new(60));
    let node = serve(slow(&millis)).await;
    let client = node.client();
    for _ in 0..6 {
        call(&client, CallOptions::new()).await.unwrap();
    }
    assert_eq!(call(&client, within(20)).await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    millis.store(0, Ordering::SeqCst);
    let hurried = async {
        while call(&client, within(20)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(super::support::PATIENCE, hurried).await.is_ok(), "refused for ever");
}
