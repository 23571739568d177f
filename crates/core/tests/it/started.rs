//! Errors say whether user code may have run for the call: callers rely on this to send a call again.

use std::time::Duration;

use callboard_core::{Batch, CallError, CallOptions, ErrorKind, Failure, Node, Stage};

use super::support::{Gate, gated, hide_panics, serve};

async fn error_of(node: &Node) -> CallError {
    node.client().call::<u64, u64>("/route", 1).await.unwrap_err()
}

#[tokio::test]
async fn every_error_of_user_code_reports_that_the_call_was_started() {
    hide_panics();
    let panics = Stage::each("panics", |_: &u64| -> Result<u64, Failure> { panic!("meant to panic") });
    let fails = Stage::each("fails", |_: &u64| -> Result<u64, Failure> { Err(Failure::new("no")) });
    let refuses = Stage::each("refuses", |_: &u64| -> Result<u64, Failure> { Err(Failure::invalid_input("odd")) });
    let miscounts = Stage::batch("miscounts", |_: Batch<u64>| -> Vec<Result<u64, Failure>> { Vec::new() });
    let gate = Gate::default();
    let hangs = gated(&gate).timeout(Duration::from_millis(20));
    for (stage, kind) in [
        (panics, ErrorKind::WorkerFailed),
        (fails, ErrorKind::Failed),
        (refuses, ErrorKind::InvalidInput),
        (miscounts, ErrorKind::WorkerFailed),
        (hangs, ErrorKind::DeadlineExceeded),
    ] {
        let name = stage.name().clone();
        let error = error_of(&serve(stage).await).await;
        assert_eq!((error.kind(), error.was_started(), error.is_retryable()), (kind, true, false), "{name}: {error}");
    }
    gate.open();
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_worker_reports_that_the_call_was_started() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(20));
    let error = node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::DeadlineExceeded, true));
    gate.open();
}

#[tokio::test]
async fn a_call_that_is_refused_at_admission_was_not_started() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n)).cost(|n| *n).max_cost(10)).await;
    let missing = node.client().call::<u64, u64>("/missing", 1).await.unwrap_err();
    assert_eq!((missing.kind(), missing.was_started()), (ErrorKind::NotFound, false));
    let large = node.client().call::<u64, u64>("/route", 11).await.unwrap_err();
    assert_eq!((large.kind(), large.was_started()), (ErrorKind::InvalidInput, false));
    let _ = node.drain(Duration::ZERO).await;
    let drained = error_of(&node).await;
    assert_eq!((drained.kind(), drained.was_started()), (ErrorKind::Unavailable, false));
}

#[tokio::test]
async fn a_call_that_is_refused_for_its_deadline_was_not_started() {
    let stage = Stage::each_async("slow", |n: std::sync::Arc<u64>| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(*n)
    });
    let node = serve(stage).await;
    for _ in 0..10 {
        node.client().call::<u64, u64>("/route", 1).await.unwrap();
    }
    let options = CallOptions::new().with_timeout(Duration::from_millis(4));
    let error = node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert!(error.message().contains("takes about"), "{error}");
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::DeadlineExceeded, false));
    assert!(format!("{error:?}").contains("started: false"), "{error:?}");
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_reports_that_the_call_was_not_started() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let first = tokio::spawn(async move { client.call::<u64, u64>("/route", 1).await });
    super::support::until("the first runs", || gate.arrived() == 1).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(20));
    let error = node.client().call_with::<u64, u64>("/route", 2, options).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::DeadlineExceeded, false));
    gate.open();
    first.await.unwrap().unwrap();
}
