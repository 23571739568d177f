//! Detached calls: admitted or refused at once, counted, drained.

use std::time::Duration;

use callboard_core::{App, CallOptions, Deadline, Drained, ErrorKind, Failure, Instant, Limits, Stage};

use super::support::{Gate, PATIENCE, gated, serve, until};

#[tokio::test]
async fn a_cast_is_counted_and_a_drain_waits_for_it() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    for n in 0..3u64 {
        client.call_detached("/route", n).unwrap();
    }
    let description = node.describe();
    assert_eq!((description.admitted, description.in_flight), (3, 3), "admitted before it returned");
    // The caller leaves; the work continues.
    drop(client);
    assert_eq!(node.drain(Duration::from_millis(10)).await, Drained::TimedOut { in_flight: 3 });
    gate.open();
    assert_eq!(node.drain(PATIENCE).await, Drained::Completely);
    assert_eq!(gate.arrived(), 3);
    let description = node.describe();
    assert_eq!((description.outcomes, description.in_flight), (3, 0));
    let refused = node.client().call_detached("/route", 4u64).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_full_queue_refuses_a_cast_at_once() {
    let gate = Gate::default();
    let node = serve(gated(&gate).queue(2)).await;
    let client = node.client();
    client.call_detached("/route", 0u64).unwrap();
    until("the worker is busy", || gate.arrived() == 1).await;
    client.call_detached("/route", 1u64).unwrap();
    client.call_detached("/route", 2u64).unwrap();
    let error = client.call_detached("/route", 3u64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert!(error.retry_after().is_some());
    assert_eq!(node.describe().in_flight, 3, "the refused cast holds no permit");
    gate.open();
    assert_eq!(node.drain(PATIENCE).await, Drained::Completely);
    assert_eq!(gate.arrived(), 3);
}

#[tokio::test]
async fn a_full_node_refuses_a_cast_at_once() {
    let gate = Gate::default();
    let limits = Limits { max_in_flight: 1, ..Limits::default() };
    let node = App::new().route("/route", gated(&gate)).limits(limits).start().await.unwrap();
    node.client().call_detached("/route", 1u64).unwrap();
    let error = node.client().call_detached("/route", 2u64).unwrap_err();
    assert_eq!(error.message(), "1 calls are in flight already");
    assert_eq!(node.client().call_detached("/nowhere", 2u64).unwrap_err().kind(), ErrorKind::NotFound);
    let past = CallOptions::new().with_deadline(Deadline::at(Instant::now()));
    gate.open();
    until("there is room", || node.describe().in_flight == 0).await;
    let late = node.client().call_detached_with("/route", 3u64, past).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn a_cast_that_fails_is_counted_under_its_kind() {
    let no = Stage::each("no", |_: &u64| -> Result<u64, Failure> { Err(Failure::new("no")) });
    let node = serve(no).await;
    node.client().call_detached("/route", 1u64).unwrap();
    assert_eq!(node.drain(PATIENCE).await, Drained::Completely);
    let metrics = node.metrics();
    assert!(metrics.contains(r#"callboard_requests_total{route="/route",outcome="failed"} 1"#), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_cast() {
    let stage = Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(8).max_delay(Duration::from_secs(1000));
    let node = serve(stage).await;
    let options = CallOptions::new().with_timeout(Duration::from_secs(5));
    node.client().call_detached_with("/route", 1u64, options).unwrap();
    let started = Instant::now();
    assert_eq!(node.drain(Duration::from_secs(60)).await, Drained::Completely);
    assert!(started.elapsed() <= Duration::from_secs(6), "{:?}", started.elapsed());
    assert_eq!(node.describe().outcomes, 1);
}

#[tokio::test]
async fn a_cast_works_outside_a_runtime() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    // On a plain thread, which ends before the call does.
    std::thread::spawn(move || client.call_detached("/route", 1u64)).join().unwrap().unwrap();
    gate.open();
    assert_eq!(node.drain(PATIENCE).await, Drained::Completely);
    assert_eq!((gate.arrived(), node.describe().outcomes), (1, 1));
}
