//! Pipelines with remote stages: their placement, and calls that a peer refuses or loses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{DecodeLimits, Encoded, Format, Payload, Tensor, Value};
use callboard_core::edge::DeclaredResponse;
use callboard_core::{
    App, CallContext, CallOptions, Caller, Contract, ErrorKind, Failure, Instant, Limits, Pipeline, ResponseFields,
    RouteSpec, Stage, StreamStage,
};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::{Notify, Semaphore};

use crate::common::{LONG, Member, ServingNode, patient, until};

/// Doubles, and counts its runs.
fn doubling(runs: &Arc<AtomicUsize>) -> Stage<i64, i64> {
    let runs = Arc::clone(runs);
    Stage::each("double", move |n: &i64| {
        runs.fetch_add(1, Ordering::SeqCst);
        match *n {
            13 => Err(Failure::new("unlucky").with_type("Superstition")),
            n => Ok(n * 2),
        }
    })
}

fn runs(count: &Arc<AtomicUsize>) -> usize {
    count.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_stage_is_a_step_like_any_other() {
    let remote = Arc::default();
    let worker = ServingNode::start(App::new().route("/double", doubling(&remote))).await;
    let add = Stage::each("add", |n: &i64| Ok(n + 1));
    let pipeline = Pipeline::from(add.clone()).then(Pipeline::<i64, i64>::remote("double")).then(add);
    let gateway = Member::start(App::new().route("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("double").await;
    assert_eq!(gateway.call(4).await.unwrap(), 11);
    let error = gateway.call(12).await.unwrap_err();
    assert_eq!((error.kind(), error.message(), error.stage()), (ErrorKind::Failed, "unlucky", Some("double")));
    assert_eq!(error.error_type(), Some("Superstition"));
    assert_eq!(runs(&remote), 2);
    worker.until_idle().await;
    gateway.served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_learns_at_once_that_no_node_runs_a_stage() {
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("double")), &[]).await;
    let client = gateway.served.client().await;
    let started = Instant::now();
    let error = client.call::<_, i64>("/run", 1_i64).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, false));
    assert!(error.message().contains("no node is connected"), "{error}");
    // The error has a retry-after of a second, which the client does not wait by itself.
    assert!(started.elapsed() < Duration::from_millis(900), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_without_a_node_is_unavailable_and_the_call_is_not_started() {
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("double")), &[]).await;
    let error = gateway.call(4).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, false), "{error}");
    assert!(error.message().contains("`double`") && error.message().ends_with("no node is connected"), "{error}");
    assert_eq!(error.stage(), Some("double"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)), "a node may connect soon");
}

/// A misspelt stage name must not look like a lost connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_no_connected_node_runs_differs_from_a_missing_node() {
    let worker = ServingNode::start(App::new().route("/double", doubling(&Arc::default()))).await;
    let app = App::new().route("/run", Pipeline::<i64, i64>::remote("duoble"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_connected(1).await;
    let error = gateway.call(4).await.unwrap_err();
    assert!(error.message().ends_with("runs the stage `duoble`: the connected node does not"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streaming_stage_does_not_serve_as_a_stage_with_one_output() {
    let counting = StreamStage::each("count", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
    let worker = ServingNode::start(App::new().route_streaming("/count", counting)).await;
    let app = App::new().route("/run", Pipeline::<i64, i64>::remote("count"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("count").await;
    let error = gateway.call(4).await.unwrap_err();
    assert!(error.message().ends_with("`count` answer with a stream, and it was called as if not"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_ready_while_a_peer_runs_each_of_its_remote_stages() {
    let app = || App::new().route("/run", Pipeline::<i64, i64>::remote("double"));
    let alone = app().start().await.unwrap();
    assert_eq!(alone.health().remote_stages[0].reason.as_deref(), Some("this node has not joined others"));

    let worker = ServingNode::start(App::new().route("/double", doubling(&Arc::default()))).await;
    let gateway = Member::start(app(), &[&worker.edge]).await;
    let health = || gateway.served.node.health();
    until(|| health().ready).await;
    assert!(health().remote_stages.iter().all(|stage| stage.ready && stage.reason.is_none()), "{:?}", health());
    drop(worker);
    until(|| !health().ready).await;
    assert!(health().live, "a restart would not help");
    assert_eq!(health().remote_stages[0].reason.as_deref(), Some("no node that runs it can be reached"));
}

/// A short envelope may decode to a large value: a list of nulls takes 32 times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_peer_is_charged_to_the_call() {
    let nulls = Stage::each("nulls", |n: &i64| Ok(vec![(); usize::try_from(*n).unwrap()]));
    let worker = ServingNode::start(App::new().route("/nulls", nulls)).await;
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let count = Stage::each("count", |nulls: &Value| Ok(nulls.as_list().map_or(0, <[_]>::len) as i64));
    let pipeline = Pipeline::<i64, Value>::remote("nulls").then(Pipeline::from(count));
    let gateway = Member::start(App::new().limits(limits).route("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("nulls").await;
    let call = |n: i64| gateway.call(n);
    assert_eq!(call(10_000).await.unwrap(), 10_000);
    let error = call(200_000).await.unwrap_err();
    assert!(error.was_started() && error.message().contains("max_in_flight_bytes"), "{error}");
    gateway.served.until_idle().await;
    assert_eq!(gateway.served.node.describe().in_flight_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_input_for_a_peer_is_charged_to_the_call() {
    let length = Stage::each("length", |nulls: &Vec<()>| Ok(nulls.len() as i64));
    let worker = ServingNode::start(App::new().route("/length", length)).await;
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let app = App::new().limits(limits).route("/run", Pipeline::<Vec<()>, i64>::remote("length"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("length").await;
    assert_eq!(gateway.call(vec![(); 10_000]).await.unwrap(), 10_000);
    let error = gateway.call(vec![(); 3 << 20]).await.unwrap_err();
    assert!(error.message().contains("max_in_flight_bytes"), "{error}");
    assert_eq!(error.stage(), Some("length"));
    gateway.served.until_idle().await;
    assert_eq!(gateway.served.node.describe().in_flight_bytes, 0);
}

static IS_WRITTEN: Notify = Notify::const_new();
static HAVE_OTHERS_RUN: AtomicBool = AtomicBool::new(false);

/// Panics while it is written if it is empty, else waits until another task of the runtime has run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Patient(String, bool);

impl Serialize for Patient {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.0.is_empty(), "there is nothing");
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&self.0)?;
        IS_WRITTEN.notify_one();
        let have_run = (0..10_000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(1));
            HAVE_OTHERS_RUN.load(Ordering::SeqCst)
        });
        pair.serialize_element(&have_run)?;
        pair.end()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_large_input_for_a_peer_is_encoded_off_the_runtime_and_its_panic_contained() {
    let stage = Stage::each("patient", |Patient(_, have_run): &Patient| Ok(i64::from(*have_run)));
    let worker = ServingNode::start(App::new().route("/patient", stage)).await;
    let app = App::new().route("/run", Pipeline::<Patient, i64>::remote("patient"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("patient").await;
    let call = |text: String| {
        let client = gateway.served.node.client();
        tokio::spawn(async move { client.call::<_, i64>("/run", Patient(text, false)).await })
    };
    tokio::spawn(async {
        IS_WRITTEN.notified().await;
        HAVE_OTHERS_RUN.store(true, Ordering::SeqCst);
    });
    assert_eq!(call("x".repeat(1 << 20)).await.unwrap().unwrap(), 1);
    let error = call(String::new()).await.expect("no panic reaches the caller").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.message().ends_with("there is nothing"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_cross_to_a_typed_stage_and_back() {
    let sum = Stage::each("sum", |tensor: &Tensor| {
        let numbers = tensor.view::<f32>().map_err(|error| Failure::new(error.to_string()))?;
        Ok(numbers.sum() as i64)
    });
    let worker = ServingNode::start(App::new().route("/sum", sum)).await;
    let gateway =
        Member::start(App::new().route("/run", Pipeline::<Tensor, i64>::remote("sum")), &[&worker.edge]).await;
    gateway.until_offered("sum").await;
    let tensor = Tensor::from_vec(&[1000, 300], vec![1.0_f32; 300_000]).unwrap();
    assert_eq!(gateway.call(tensor).await.unwrap(), 300_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_stays_on_a_free_local_stage() {
    let (local, remote) = (Arc::default(), Arc::default());
    let worker = ServingNode::start(App::new().route("/run", doubling(&remote))).await;
    let gateway = Member::start(App::new().route("/run", doubling(&local)), &[&worker.edge]).await;
    gateway.until_offered("double").await;
    for n in 0..10 {
        assert_eq!(gateway.call(n).await.unwrap(), n * 2);
    }
    assert_eq!((runs(&local), runs(&remote)), (10, 0));
}

/// A stage whose calls wait until they are released.
fn held(open: &Arc<Semaphore>, started: &Arc<AtomicUsize>) -> Stage<i64, i64> {
    let (open, started) = (Arc::clone(open), Arc::clone(started));
    Stage::each_async("held", move |n: Arc<i64>| {
        let (open, started) = (Arc::clone(&open), Arc::clone(&started));
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            open.acquire().await.unwrap().forget();
            match *n {
                13 => Err(Failure::new("unlucky").with_type("Superstition")),
                // Like code that passes on the error of another call.
                14 => Err(Failure::new("downstream").with_type("connection_lost")),
                n => Ok(n),
            }
        }
    })
}

/// Only one node is configured with the other; they learn of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_local_room_runs_on_a_peer_and_is_not_forwarded_again() {
    let open = Arc::new(Semaphore::new(0));
    let (local, remote): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
    let small = |started| held(&open, started).queue(1).concurrency(1);
    let first = Member::start(App::new().route("/run", small(&remote)), &[]).await;
    let second = Member::start(App::new().route("/run", small(&local)), &[&first.served.edge]).await;
    first.until_offered("held").await;
    second.until_offered("held").await;
    // One runs and one waits on each of the two; the fifth has no room.
    let mut calls = Vec::new();
    for n in 0..4_i64 {
        let client = second.served.node.client();
        calls.push(tokio::spawn(async move { client.call::<_, i64>("/run", n).await }));
        until(|| {
            let queued = |member: &Member| member.served.node.describe().stages[0].queued;
            runs(&local) + runs(&remote) + queued(&first) + queued(&second) > n as usize
        })
        .await;
    }
    assert_eq!((runs(&local), runs(&remote)), (1, 1));
    let error = second.call(9).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Overloaded, false), "{error}");
    open.add_permits(4);
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), n as i64);
    }
    assert_eq!((runs(&local), runs(&remote)), (2, 2));
    first.served.until_idle().await;
    second.served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_and_cancellation_cross_to_the_peer() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::default());
    let worker = ServingNode::start(App::new().route("/held", held(&open, &started).concurrency(8))).await;
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("held")), &[&worker.edge]).await;
    gateway.until_offered("held").await;
    let client = gateway.served.node.client();
    let options = CallOptions::new().with_timeout(Duration::from_millis(100));
    let error = client.call_with::<_, i64>("/run", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    worker.until_idle().await;

    let before = runs(&started);
    let call = tokio::spawn(async move { client.call::<_, i64>("/run", 2).await });
    until(|| runs(&started) == before + 1).await;
    call.abort();
    // The gate stays closed.
    worker.until_idle().await;
    gateway.served.until_idle().await;
}

/// Two workers; the one with the call is cut off. A started call runs again only if that is allowed.
async fn lost_with_a_call(contract: Contract, n: i64) -> (Result<i64, callboard_core::CallError>, usize) {
    let open = Arc::new(Semaphore::new(0));
    let started: [Arc<AtomicUsize>; 2] = Default::default();
    let worker = |started| {
        let stage = held(&open, started);
        let stage = if contract == Contract::Idempotent { stage.idempotent() } else { stage };
        ServingNode::start(App::new().route("/held", stage))
    };
    let (first, second) = (worker(&started[0]).await, worker(&started[1]).await);
    let pipeline = Pipeline::<i64, i64>::remote("held");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    until(|| gateway.cluster.connected_peers() == 2).await;
    let client = gateway.served.node.client();
    let call = tokio::spawn(async move { client.call::<_, i64>("/run", n).await });
    until(|| runs(&started[0]) + runs(&started[1]) == 1).await;
    let (lost, rest) = if runs(&started[0]) == 1 { (first, second) } else { (second, first) };
    lost.edge.shutdown(Duration::ZERO).await;
    // One for the call, and one for the lost call, which may take it before it notices.
    open.add_permits(2);
    let outcome = tokio::time::timeout(LONG, call).await.unwrap().unwrap();
    drop(rest);
    (outcome, runs(&started[0]) + runs(&started[1]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_lost_with_its_peer_runs_again_if_its_stage_permits_it() {
    let (outcome, started) = lost_with_a_call(Contract::Idempotent, 5).await;
    assert_eq!((outcome.unwrap(), started), (5, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_peers_outcome_of_a_lost_call_is_final() {
    let (outcome, started) = lost_with_a_call(Contract::Idempotent, 13).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.error_type(), started), (ErrorKind::Failed, Some("Superstition"), 2), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_an_outcome_although_its_type_resembles_a_loss() {
    let (open, started) = (Arc::new(Semaphore::new(2)), Arc::default());
    let worker = || ServingNode::start(App::new().route("/held", held(&open, &started).idempotent()));
    let (first, second) = (worker().await, worker().await);
    let pipeline = Pipeline::<i64, i64>::remote("held");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    let error = gateway.call(14).await.unwrap_err();
    assert_eq!((error.kind(), runs(&started)), (ErrorKind::Failed, 1), "{error}");
    let metrics = gateway.served.edge.metrics();
    assert!(metrics.contains("callboard_net_peer_calls_total{outcome=\"answered\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_may_have_run_does_not_run_again() {
    let (outcome, started) = lost_with_a_call(Contract::AtMostOnce, 5).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.was_started(), started), (ErrorKind::Unavailable, true, 1), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_drains_refuses_and_the_next_one_runs_the_call() {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let first = ServingNode::start(App::new().route("/double", doubling(&counts[0]))).await;
    let second = ServingNode::start(App::new().route("/double", doubling(&counts[1]))).await;
    let pipeline = Pipeline::<i64, i64>::remote("double");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    until(|| gateway.cluster.connected_peers() == 2).await;
    first.edge.drain();
    for n in 0..40 {
        assert_eq!(gateway.call(n * 100).await.unwrap(), n * 200);
    }
    assert_eq!((runs(&counts[0]), runs(&counts[1])), (0, 40));
}

/// It has no QUIC callers: its calls arrived by another edge, and are at a peer or in transit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_keeps_its_calls_to_peers_until_its_requests_are_done() {
    let (open, [started, after]) = (Arc::new(Semaphore::new(0)), Default::default());
    let app = App::new().route("/held", held(&open, &started)).route("/double", doubling(&after));
    let worker = ServingNode::start(app).await;
    let remote = |stage| Pipeline::<i64, i64>::remote(stage);
    let gateway = Member::start(App::new().route("/run", remote("held").then(remote("double"))), &[&worker.edge]).await;
    gateway.until_offered("double").await;
    let client = gateway.served.node.client();
    let mut calling = tokio::spawn(async move { client.call::<i64, i64>("/run", 5).await });
    until(|| runs(&started) == 1).await;
    let edge = gateway.served.edge.clone();
    let mut ending = tokio::spawn(edge.shutdown(LONG));
    let early = tokio::time::timeout(Duration::from_millis(300), async {
        tokio::select! {
            outcome = &mut calling => format!("{outcome:?}"),
            ended = &mut ending => format!("{ended:?}"),
        }
    });
    assert_eq!(early.await.ok(), None, "running calls finish first");
    open.add_permits(1);
    assert_eq!(calling.await.unwrap().unwrap(), 10);
    ending.await.unwrap();
}

/// Every node is full: the error reports it, and no call is started twice or lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_through_two_workers_end_exactly_once() {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let limits = || Limits { max_in_flight: 8, ..Limits::default() };
    let first = ServingNode::start(App::new().route("/double", doubling(&counts[0])).limits(limits())).await;
    let second = ServingNode::start(App::new().route("/double", doubling(&counts[1])).limits(limits())).await;
    let pipeline = Pipeline::<i64, i64>::remote("double");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    until(|| gateway.cluster.connected_peers() == 2).await;
    let client = gateway.served.node.client();
    let calls = (0..2_000_i64).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { (n * 100, client.call::<_, i64>("/run", n * 100).await) })
    });
    let (mut done, mut refused) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            (n, Ok(doubled)) => {
                assert_eq!(doubled, n * 2);
                done += 1;
            }
            (_, Err(error)) => {
                assert!(error.is_retryable(), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!(done + refused, 2_000);
    assert_eq!(runs(&counts[0]) + runs(&counts[1]), done);
    for served in [&first, &second, &gateway.served] {
        served.until_idle().await;
    }
}

/// The peer's connection has room for one stream, which is in use. The node runs the first stage itself, although not
/// the next, and does not wait for room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_also_runs_locally_does_not_wait_for_a_peers_connection() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::default());
    let (local, remote): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let add = Stage::each("add", |n: &i64| Ok(n + 1));
    let mut narrow = patient();
    narrow.tuning.max_streams = 1;
    let app =
        App::new().route("/held", held(&open, &started)).route("/double", doubling(&remote).idempotent().revision(2));
    let worker = ServingNode::start_with(app.route("/add", add), narrow).await;
    let pipeline = Pipeline::from(doubling(&local).idempotent().revision(1)).then(Pipeline::<i64, i64>::remote("add"));
    let app = App::new().route("/run", pipeline).route("/held", Pipeline::<i64, i64>::remote("held"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("add").await;
    // Each call prefers the peer.
    gateway.cluster.split("double", [(2, 1)]);
    let call = |route: &'static str, n: i64| {
        let client = gateway.served.node.client();
        tokio::spawn(async move { client.call::<_, i64>(route, n).await })
    };
    let occupying = call("/held", 1);
    until(|| runs(&started) == 1).await;
    let calling = call("/run", 4);
    until(|| runs(&local) == 1).await;
    open.add_permits(1);
    assert_eq!((calling.await.unwrap().unwrap(), occupying.await.unwrap().unwrap()), (9, 1));
    assert_eq!(runs(&remote), 0);
}

/// More calls are in flight than the peers take: the rest waits, and none is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_through_a_remote_stage_keeps_its_order() {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let limits = || Limits { max_in_flight: 2, ..Limits::default() };
    let first = ServingNode::start(App::new().route("/double", doubling(&counts[0])).limits(limits())).await;
    let second = ServingNode::start(App::new().route("/double", doubling(&counts[1])).limits(limits())).await;
    let add = Stage::each("add", |n: &i64| Ok(n + 1));
    let pipeline = Pipeline::from(add.clone()).then(Pipeline::<i64, i64>::remote("double")).then(add);
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    let results = gateway.served.node.client().stream::<_, i64>("/run", 0_i64..300).unwrap().look_ahead(32);
    let results: Vec<_> = results.collect().await;
    assert_eq!(results.len(), 300);
    for (n, result) in (0_i64..).zip(results) {
        match result {
            Ok(output) => assert_eq!(output, (n + 1) * 2 + 1),
            // An error in its place does not end the stream.
            Err(error) => assert_eq!((n, error.kind(), error.message()), (12, ErrorKind::Failed, "unlucky")),
        }
    }
    assert_eq!(runs(&counts[0]) + runs(&counts[1]), 300);
    assert!(counts.iter().all(|count| runs(count) > 0), "both workers got calls");
    for served in [&first, &second, &gateway.served] {
        served.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_that_is_dropped_ends_them_on_the_peer() {
    let started = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&started);
    let held = Stage::each_async("held", move |n: Arc<i64>| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { if *n == 0 { Ok(0) } else { std::future::pending().await } }
    });
    let worker = ServingNode::start(App::new().route("/held", held.concurrency(8))).await;
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("held")), &[&worker.edge]).await;
    gateway.until_offered("held").await;
    let mut results = gateway.served.node.client().stream::<_, i64>("/run", 0_i64..).unwrap().look_ahead(4);
    assert_eq!(tokio::time::timeout(LONG, results.next()).await.unwrap().unwrap().unwrap(), 0);
    until(|| runs(&started) == 5).await;
    drop(results);
    worker.until_idle().await;
    gateway.served.until_idle().await;
    assert_eq!(runs(&started), 5);
}

/// Both are full, and each is called once for each call, within the retry budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_peer_gets_the_same_call_twice() {
    let count = Arc::default();
    let full = || {
        let limits = Limits { max_in_flight: 1, ..Limits::default() };
        ServingNode::start(App::new().route("/double", doubling(&count)).limits(limits))
    };
    let (first, second) = (full().await, full().await);
    let _permits = [&first, &second].map(|peer| {
        let client = peer.node.client();
        let route = client.route("/double").unwrap();
        client.edge().admit(&route, 0).unwrap()
    });
    let pipeline = Pipeline::<i64, i64>::remote("double");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    for _ in 0..5 {
        let error = gateway.call(1).await.unwrap_err();
        assert_eq!((error.kind(), error.was_started()), (ErrorKind::Overloaded, false), "{error}");
    }
    let metrics = gateway.served.edge.metrics();
    assert!(metrics.contains("callboard_net_peer_calls_total{outcome=\"overloaded\"} 10\n"), "{metrics}");
    assert_eq!(runs(&count), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envelope_goes_to_a_peer_and_back_without_a_tree() {
    let echo = Stage::each("echo", |value: &Value| Ok(value.clone()));
    let worker = ServingNode::start(App::new().route("/echo", echo)).await;
    let app = App::new().route("/run", Pipeline::<Value, Value>::remote("echo"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("echo").await;
    let client = gateway.served.node.client();
    let route = client.route("/run").unwrap();
    let item = Value::List(vec![Value::from("a"), Value::Bytes(vec![7; 5000].into())]);
    let bytes = item.encode(Format::Envelope).unwrap();
    let input = route.input().decode(Format::Envelope, &bytes, &DecodeLimits::default()).unwrap();
    assert!(input.is::<Encoded>());
    let admission = client.edge().admit(&route, bytes.len() as u64).unwrap();
    let output = client.edge().submit(admission, input, CallOptions::new()).await.unwrap().payload;
    assert!(output.is::<Encoded>());
    assert_eq!(output.into_inner::<Value>().unwrap(), item);
}

/// The format that it was read from.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct ReadFrom(String);

impl<'de> Deserialize<'de> for ReadFrom {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?;
        Ok(Self(std::any::type_name::<D>().to_owned()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_typed_stage_for_a_peer_is_read_straight_into_its_type() {
    let is_direct = Stage::each("direct", |input: &ReadFrom| Ok(i64::from(input.0.contains("rmp_serde"))));
    let worker = ServingNode::start(App::new().route("/direct", is_direct)).await;
    let app = App::new().route("/run", Pipeline::<ReadFrom, i64>::remote("direct"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("direct").await;
    assert_eq!(gateway.call(ReadFrom(String::new())).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_that_a_stage_on_another_node_chooses_reaches_the_edge_of_its_caller() {
    let named = |name: &str, value: &'static str| {
        Stage::each_with_context(name, move |n: &i64, context: &CallContext| {
            context.set_response(ResponseFields::new().with_status(201).with_header("x-model", value));
            Ok(*n)
        })
    };
    let declared =
        |status, media: &str| DeclaredResponse { status, media_type: Some(media.to_owned()), ..Default::default() };
    let there = RouteSpec::new("/there", named("there", "far")).response(declared(Some(203), "text/csv"));
    let worker = ServingNode::start(App::new().mount(there)).await;
    let pipeline = Pipeline::from(named("here", "near")).then(Pipeline::<i64, i64>::remote("there"));
    let run = RouteSpec::new("/run", pipeline).response(declared(Some(202), "text/markdown"));
    let gateway = Member::start(App::new().mount(run), &[&worker.edge]).await;
    gateway.until_offered("there").await;
    let client = gateway.served.node.client();
    let admission = client.edge().admit(&client.route("/run").unwrap(), 0).unwrap();
    let (_, unwritten) =
        client.edge().submit_unwritten(admission, Payload::new(1_i64), CallOptions::new()).await.unwrap();
    let expected = ResponseFields::new().with_status(201).with_header("x-model", "far");
    let expected = expected.with_header("content-type", "text/markdown");
    assert_eq!(unwritten.response(), Some(expected), "with what its own route declares");
    unwritten.end(Ok(()));
}
