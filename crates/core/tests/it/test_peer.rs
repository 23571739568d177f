//! Remote stages in an app's own tests: a peer that answers, is full, or is lost, on virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::Local;
use callboard_core::testing::{TestApp, TestPeer};
use callboard_core::{
    App, CallError, CallOptions, Contract, ErrorKind, Node, Pipeline, Stage, StreamPipeline, StreamStage,
};
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};

/// How long a call runs on the peer.
const WORK: Duration = Duration::from_secs(2);

/// Doubles slowly, and counts its runs.
fn double(contract: Contract, runs: &Arc<AtomicUsize>) -> Stage<u64, u64> {
    let runs = Arc::clone(runs);
    let double = Stage::each_async("double", move |n: Arc<u64>| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(WORK).await;
            Ok(*n * 2)
        }
    });
    double.contract(contract)
}

async fn peer(app: App) -> TestPeer {
    TestPeer::start(TestApp::new(app)).await.unwrap()
}

async fn joined(app: App, peer: &TestPeer) -> Node {
    let node = TestApp::new(app).start().await.unwrap();
    node.handle().join(peer.clone()).unwrap();
    node
}

/// A node whose stage `double` runs on a peer only.
async fn gateway(contract: Contract, runs: &Arc<AtomicUsize>) -> (TestPeer, Node) {
    let peer = peer(App::new().route("/double", double(contract, runs))).await;
    let next = Stage::each("next", |n: &u64| Ok(n + 1));
    let app = App::new().route("/run", Pipeline::<u64, u64>::remote("double").then(next));
    let node = joined(app, &peer).await;
    (peer, node)
}

/// A call, and the time that it takes. It has a minute.
async fn run(node: &Node) -> (Result<u64, CallError>, Duration) {
    let (began, options) = (Instant::now(), CallOptions::new().with_timeout(Duration::from_secs(60)));
    (node.client().call_with::<u64, u64>("/run", 1, options).await, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_peer_answers_or_refuses_as_the_test_says() {
    let runs = Arc::default();
    let (peer, node) = gateway(Contract::AtMostOnce, &runs).await;
    assert!(node.health().ready);
    assert_eq!(run(&node).await.0.unwrap(), 3);
    peer.overload();
    let error = run(&node).await.0.unwrap_err();
    assert_eq!((error.kind(), error.is_refusal()), (ErrorKind::Overloaded, true));
    peer.disconnect();
    assert!(!node.health().ready);
    let (outcome, took) = run(&node).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.is_refusal(), error.stage()), (ErrorKind::Unavailable, true, Some("double")));
    assert!((Duration::from_secs(3)..Duration::from_secs(4)).contains(&took), "it waits for the peer: {took:?}");
    assert!(run(&node).await.1 < Duration::from_secs(1), "the peer was away for long");
    peer.recover();
    assert_eq!(run(&node).await.0.unwrap(), 3);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// Loses the peer while it runs a call, for 10 s.
async fn lost_with_a_call(contract: Contract) -> (Result<u64, CallError>, Duration, usize) {
    let runs = Arc::default();
    let (peer, node) = gateway(contract, &runs).await;
    let away = async {
        sleep(WORK / 2).await;
        peer.disconnect();
        sleep(Duration::from_secs(10)).await;
        peer.recover();
    };
    let ((outcome, took), ()) = tokio::join!(run(&node), away);
    (outcome, took, runs.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn the_contract_decides_the_outcome_of_a_call_that_is_lost_with_its_peer() {
    let (outcome, took, runs) = lost_with_a_call(Contract::AtMostOnce).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.was_started(), error.is_retryable()), (ErrorKind::Unavailable, true, false));
    assert!(took < WORK && runs == 1, "{took:?}, {runs}");
    let (outcome, took, runs) = lost_with_a_call(Contract::Pure).await;
    assert_eq!(outcome.unwrap(), 3);
    assert!(took > Duration::from_secs(12) && runs == 2, "it runs again when the peer is back: {took:?}, {runs}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_noticed_although_it_is_back_at_once() {
    let runs = Arc::default();
    let (peer, node) = gateway(Contract::AtMostOnce, &runs).await;
    let blink = async {
        sleep(WORK / 2).await;
        peer.disconnect();
        peer.recover();
    };
    let ((outcome, _), ()) = tokio::join!(run(&node), blink);
    assert!(outcome.unwrap_err().was_started());
}

#[tokio::test(start_paused = true)]
async fn a_stage_on_both_nodes_goes_to_the_peer_when_it_is_full() {
    let (here, there) = (Arc::default(), Arc::default());
    let peer = peer(App::new().route("/run", double(Contract::AtMostOnce, &there))).await;
    // Calls wait for others, so that the queue is full.
    let waiting = double(Contract::AtMostOnce, &here).max_batch_size(2).max_delay(Duration::from_millis(1));
    let node = joined(App::new().route("/run", waiting.queue(1)), &peer).await;
    let calls = || async { futures_util::future::join_all((0..6).map(|_| run(&node))).await };
    assert!(calls().await.iter().all(|(outcome, _)| outcome.is_ok()));
    assert!(here.load(Ordering::SeqCst) > 0 && there.load(Ordering::SeqCst) > 0);
    peer.disconnect();
    let refused = calls().await.into_iter().filter_map(|(outcome, took)| Some((outcome.err()?, took)));
    let refused: Vec<_> = refused.map(|(error, took)| (error.kind(), took)).collect();
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|(kind, took)| *kind == ErrorKind::Overloaded && took.is_zero()), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn values_are_converted_as_for_a_network() {
    let keep = Stage::each("keep", |n: &Local<u64>| Ok(n.0));
    let peer = peer(
        App::new()
            .route("/narrow", Stage::each("narrow", |n: &u8| Ok(n.to_string())))
            .route("/keep", Pipeline::from(Stage::each("open", |n: &u64| Ok(Local(*n)))).then(keep)),
    )
    .await;
    let local = Stage::each("local", |n: &u64| Ok(Local(*n)));
    let app = App::new()
        .route("/narrow", Pipeline::<u64, String>::remote("narrow"))
        .route("/local", Pipeline::from(local).then(Pipeline::<Local<u64>, u64>::remote("keep")));
    let node = joined(app, &peer).await;
    let client = node.client();
    assert_eq!(client.call::<u64, String>("/narrow", 7).await.unwrap(), "7");
    assert_eq!(client.call::<u64, String>("/narrow", 700).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = client.call::<u64, u64>("/local", 7).await.unwrap_err();
    assert!(error.message().starts_with("the input of stage `keep` cannot be sent: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_an_error_when_its_peer_is_lost() {
    let count = StreamStage::each("count", |n: &u64| {
        stream::iter(0..*n).then(|n| async move {
            sleep(Duration::from_secs(1)).await;
            Ok(n)
        })
    });
    let peer = peer(App::new().route_streaming("/count", count)).await;
    let remote = StreamPipeline::<u64, u64>::remote("count").then(Stage::each("next", |n: &u64| Ok(n + 1)));
    let node = joined(App::new().route_streaming("/count", remote), &peer).await;
    let read = || node.client().replies::<u64, u64>("/count", 5).unwrap().collect::<Vec<_>>();
    assert_eq!(read().await.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let leave = async {
        sleep(Duration::from_millis(2_500)).await;
        peer.disconnect();
    };
    let (outputs, ()) = tokio::join!(read(), leave);
    assert_eq!(outputs.iter().flatten().copied().collect::<Vec<_>>(), [1, 2]);
    let error = outputs.last().unwrap().as_ref().unwrap_err();
    assert_eq!((error.kind(), error.was_started(), error.is_retryable()), (ErrorKind::Unavailable, true, false));
    assert!(error.message().starts_with("the stream was lost after 2 outputs: "), "{error}");
}
