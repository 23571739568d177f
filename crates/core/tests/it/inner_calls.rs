//! Inner calls: a stage makes them for its current call. They use its permit, and end with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{
    App, CallContext, CallOptions, ErrorKind, ErrorReason, Failure, Limits, LocalClient, Node, Priority, Stage,
};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::support::{PATIENCE, until};

fn limits(calls: usize) -> Limits {
    Limits { max_in_flight: calls, ..Limits::default() }
}

/// A stage that returns the output of the inner route.
fn asks(name: &str) -> Stage<u64, u64> {
    Stage::each_async_with_context(name, |n: Arc<u64>, context: CallContext| async move {
        Ok(context.client()?.call::<u64, u64>("/inner", *n).await? + 1)
    })
}

async fn all(client: &LocalClient, route: &str, calls: u64) -> Vec<u64> {
    join_all((0..calls).map(|n| client.call::<u64, u64>(route, n))).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_full_node_runs_the_inner_calls_of_its_admitted_calls() {
    let let_go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&let_go);
    let held = Stage::each_async_with_context("held", move |n: Arc<u64>, context: CallContext| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await?.forget();
            Ok(context.client()?.call::<u64, u64>("/inner", *n).await? + 1)
        }
    });
    let inner = Stage::each("inner", |n: &u64| Ok(n * 2));
    let node = App::new().route("/outer", held).route("/inner", inner).limits(limits(8)).start().await.unwrap();
    let client = node.client();
    let calls = tokio::spawn({
        let client = client.clone();
        async move { all(&client, "/outer", 8).await }
    });
    until("the node is full", || client.in_flight() == 8).await;
    let refused = client.call::<u64, u64>("/inner", 1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded, "there is no room for an outer call");
    let_go.add_permits(8);
    assert_eq!(calls.await.unwrap(), (0..8).map(|n| n * 2 + 1).collect::<Vec<_>>());
    assert_eq!((client.in_flight(), client.edge().charged_bytes()), (0, 0));
}

/// The outer caller cannot mend it: its own input is valid.
#[tokio::test]
async fn an_output_that_an_outer_stage_cannot_read_is_not_blamed_on_its_caller() {
    let inner = Stage::each("inner", |n: &u64| Ok(format!("{n}")));
    let node = App::new().route("/outer", asks("outer")).route("/inner", inner).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/outer", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let expected = "route `/inner` gives `alloc::string::String`, which cannot be read as `u64`: ";
    assert!(error.message().contains(expected), "{error}");
    assert_eq!(error.stage(), Some("outer"));
}

#[tokio::test]
async fn a_worker_on_a_thread_calls_routes_even_while_the_node_drains() {
    let started = Arc::new(AtomicUsize::new(0));
    let (counted, let_go) = (Arc::clone(&started), super::support::Gate::default());
    let gate = let_go.clone();
    let blocks = Stage::each_with_context("blocks", move |n: &u64, context: &CallContext| {
        counted.fetch_add(1, Ordering::SeqCst);
        gate.pass();
        Ok(context.client()?.blocking().call::<u64, u64>("/inner", *n)? + 1)
    });
    let inner = Stage::each("inner", |n: &u64| Ok(n * 2));
    let app = App::new().route("/outer", blocks.on_threads()).route("/inner", inner);
    let node = app.limits(limits(1)).start().await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/outer", 4).await });
    until("the call has started", || started.load(Ordering::SeqCst) == 1).await;
    let draining = async {
        let refused = || node.client().call::<u64, u64>("/inner", 1).now_or_never().and_then(Result::err);
        let drains = || refused().is_some_and(|error| error.kind() == ErrorKind::Unavailable);
        until("the node drains", drains).await;
        let_go.open();
        call.await.unwrap().unwrap()
    };
    let (drained, outcome) = tokio::join!(node.drain(PATIENCE), draining);
    assert_eq!((outcome, drained), (9, callboard_core::Drained::Completely));
}

#[tokio::test]
async fn a_client_of_an_outer_call_finds_room_on_a_full_node() {
    let asks = Stage::each_with_context("asks", |n: &u64, context: &CallContext| {
        let client = context.client()?;
        let route = client.route("/inner").expect("it is served");
        client.edge().check_room(&route, 8)?;
        assert!(client.edge().check_room(&route, u64::MAX).is_err(), "bytes are counted");
        Ok(*n)
    });
    let inner = Stage::each("inner", |n: &u64| Ok(n * 2));
    let node = App::new().route("/outer", asks).route("/inner", inner).limits(limits(1)).start().await.unwrap();
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/outer", 4).await.unwrap(), 4);
    let _full = client.edge().admit(&client.route("/inner").unwrap(), 0).unwrap();
    assert_eq!(
        client.edge().check_room(&client.route("/inner").unwrap(), 8).unwrap_err().kind(),
        ErrorKind::Overloaded
    );
}

#[tokio::test]
async fn an_inner_call_inherits_origin_priority_and_deadline() {
    let describe = |context: &CallContext| {
        let deadline = context.deadline();
        (
            context.request_id().map(str::to_owned),
            context.tag("tenant").map(str::to_owned),
            context.priority(),
            deadline,
        )
    };
    let contexts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (outer, inner) = (Arc::clone(&contexts), Arc::clone(&contexts));
    let asks = Stage::each_async_with_context("asks", move |n: Arc<u64>, context: CallContext| {
        outer.lock().unwrap().push(describe(&context));
        let options = CallOptions::new().with_tag("own", "x").with_timeout(PATIENCE);
        async move { Ok(context.client()?.call_with::<u64, u64>("/inner", *n, options).await?) }
    });
    let tells = Stage::each_with_context("tells", move |n: &u64, context: &CallContext| {
        inner.lock().unwrap().push(describe(context));
        assert_eq!(context.tag("own"), Some("x"));
        Ok(*n)
    });
    let node = App::new().route("/outer", asks).route("/inner", tells).start().await.unwrap();
    let options = CallOptions::new().with_request_id("r-1").with_tag("tenant", "acme").with_priority(Priority::Low);
    let options = options.with_timeout(PATIENCE / 2);
    assert_eq!(node.client().call_with::<u64, u64>("/outer", 1, options).await.unwrap(), 1);
    let contexts = contexts.lock().unwrap();
    assert_eq!(contexts[0], contexts[1]);
    assert_eq!((contexts[1].0.as_deref(), contexts[1].2), (Some("r-1"), Priority::Low));
}

#[tokio::test]
async fn an_inner_call_is_cancelled_with_its_outer_call() {
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let hangs = Stage::each_async("hangs", move |_: Arc<u64>| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<u64, Failure>>()
    });
    let node = App::new().route("/outer", asks("asks")).route("/inner", hangs).start().await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/outer", 1).await });
    until("the inner call runs", || started.load(Ordering::SeqCst) == 1).await;
    call.abort();
    let cancelled = "callboard_requests_total{route=\"/inner\",outcome=\"cancelled\"} 1";
    until("both have ended", || node.client().in_flight() == 0 && node.metrics().contains(cancelled)).await;
}

/// The worker cannot drop the call that it waits for.
#[tokio::test]
async fn an_inner_call_of_blocking_code_is_cancelled_with_its_outer_call() {
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let hangs = Stage::each_async("hangs", move |_: Arc<u64>| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<u64, Failure>>()
    });
    let blocks = Stage::each_with_context("blocks", |n: &u64, context: &CallContext| {
        Ok(context.client()?.blocking().call::<u64, u64>("/inner", *n)? + 1)
    });
    let app = App::new().route("/outer", blocks.on_threads()).route("/inner", hangs);
    let node = app.start().await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/outer", 1).await });
    until("the inner call runs", || started.load(Ordering::SeqCst) == 1).await;
    call.abort();
    let cancelled = "callboard_requests_total{route=\"/inner\",outcome=\"cancelled\"} 1";
    until("the inner call has ended", || node.metrics().contains(cancelled)).await;
    // The worker is free again.
    let client = node.client();
    let again = tokio::spawn(async move { client.call::<u64, u64>("/outer", 2).await });
    until("another inner call runs", || started.load(Ordering::SeqCst) == 2).await;
    again.abort();
}

#[tokio::test]
async fn a_client_of_another_node_takes_permits_of_that_node() {
    let inner = Stage::each_async("inner", |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let other = App::new().route("/inner", inner).limits(limits(1)).start().await.unwrap();
    let other_client = other.client();
    let holder = other.client();
    let held = tokio::spawn(async move { holder.call::<u64, u64>("/inner", 0).await });
    until("the other node is full", || other_client.in_flight() == 1).await;
    // With the same name as the stage on the other node.
    let outer = Stage::each_async_with_context("inner", move |n: Arc<u64>, context: CallContext| {
        let other_client = other_client.within(&context);
        async move { Ok(other_client.call::<u64, u64>("/inner", *n).await?) }
    });
    let node = App::new().route("/outer", outer).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/outer", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    held.abort();
}

async fn error_of(node: &Node) -> (ErrorKind, Option<ErrorReason>, String) {
    let error = node.client().call::<u64, u64>("/inner", 1).await.unwrap_err();
    (error.kind(), error.reason(), error.message().to_owned())
}

#[tokio::test]
async fn a_call_cannot_reenter_its_current_stage() {
    let node = App::new().route("/inner", asks("asks")).start().await.unwrap();
    let (kind, reason, message) = error_of(&node).await;
    assert_eq!((kind, reason), (ErrorKind::Failed, Some(ErrorReason::LoopDetected)));
    assert!(message.contains("`asks` is called from within itself"), "{message}");
    // Also through another stage.
    let around = Stage::each_async_with_context("around", |n: Arc<u64>, context: CallContext| async move {
        Ok(context.client()?.call::<u64, u64>("/around", *n).await?)
    });
    let node = App::new().route("/inner", around).route("/around", asks("asks")).start().await.unwrap();
    assert_eq!(error_of(&node).await.1, Some(ErrorReason::LoopDetected));
}

#[tokio::test]
async fn a_call_has_at_most_256_concurrent_inner_calls() {
    let hangs = Stage::each_async("hangs", |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let asks = Stage::each_async_with_context("asks", |_: Arc<u64>, context: CallContext| async move {
        let client = context.client()?;
        let options = || CallOptions::new().with_timeout(Duration::from_millis(50));
        let calls = (0..300).map(|n| client.call_with::<u64, u64>("/inner", n, options()));
        let outcomes = join_all(calls).await;
        let refused = outcomes.iter().filter(|outcome| {
            outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded && error.is_retryable())
        });
        Ok(refused.count() as u64)
    });
    let inner = hangs.concurrency(300).queue(300);
    let node = App::new().route("/outer", asks).route("/inner", inner).start().await.unwrap();
    assert_eq!(node.client().call::<u64, u64>("/outer", 1).await.unwrap(), 44);
    assert_eq!(node.client().in_flight(), 0);
}
