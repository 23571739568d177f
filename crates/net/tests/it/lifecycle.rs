//! Starts, restarts, drains and losses, from a client's view.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::Value;
use callboard_codec::wire::{Hello, ResetCode, VERSION};
use callboard_core::{
    App, Batch, CallError, CallOptions, Caller, ErrorKind, Failure, Limits, Replica, RouteSpec, Stage, StreamStage,
    Worker,
};
use callboard_net::testing::RawPeer;
use callboard_net::{CallFailure, Client, ConnectError, QuicEdge};
use futures_util::StreamExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::common::{IDENTITY, LONG, ServingNode, builder, loopback, patient, until};
use crate::lab::total;

fn app() -> App {
    App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
}

async fn shouts(client: &impl Caller) -> Result<String, CallError> {
    client.call("/shout", "a".to_owned()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_waits_for_a_node_that_has_not_started() {
    let address = std::net::UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let mut connecting = tokio::spawn(async move { builder().connect(&format!("quic://{address}")).await });
    let early = tokio::time::timeout(Duration::from_millis(50), &mut connecting).await;
    assert!(early.is_err(), "there is no node to connect to: {early:?}");
    let edge = QuicEdge::bind(address, IDENTITY.clone(), patient()).unwrap();
    let node = app().start().await.unwrap();
    edge.open(node.client());
    let client = connecting.await.unwrap().unwrap();
    assert_eq!(shouts(&client).await.unwrap(), "A");
}

#[tokio::test]
async fn the_start_up_wait_ends_and_reports_the_last_error() {
    let address = std::net::UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let (begun, wait) = (Instant::now(), Duration::from_secs(1));
    let error = builder().start_up_wait(wait).connect(&format!("quic://{address}")).await.unwrap_err();
    let ConnectError::NoAnswer { waited, last } = &error else { panic!("{error:?}") };
    assert!(last.contains("refused"), "{last}");
    // The last pause before the end of the wait is left out.
    assert!((wait / 4..=begun.elapsed()).contains(waited), "{waited:?} of {:?}", begun.elapsed());
    let text = format!("no node answered within {waited:?}; the last try: {last}");
    assert_eq!(error.to_string(), text);
    assert_eq!(waited.subsec_nanos() % 1_000_000, 0, "whole milliseconds: {text}");
}

#[tokio::test]
async fn an_unknown_host_fails_without_a_wait() {
    let error = builder().connect("quic://nowhere.invalid:4433").await.unwrap_err();
    assert!(matches!(error, ConnectError::Address(callboard_net::AddressError::Unresolved { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_waits_for_a_node_that_reports_its_start() {
    let edge = QuicEdge::bind(loopback(), IDENTITY.clone(), patient()).unwrap();
    let url = format!("quic://{}", edge.address());
    let error = builder().start_up_wait(Duration::ZERO).connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("starting: its stages are not up yet"), "{error}");
    let mut connecting = tokio::spawn(async move { builder().connect(&url).await });
    let early = tokio::time::timeout(Duration::from_millis(50), &mut connecting).await;
    assert!(early.is_err(), "there is no node to call: {early:?}");
    let node = counting().start().await.unwrap();
    edge.open(node.client());
    let client = connecting.await.unwrap().unwrap();
    assert_eq!(shouts(&client).await.unwrap(), "A");
    // It learns of the routes, and of new ones.
    assert!(client.is_streaming("/count").await.unwrap() && !client.is_streaming("/later").await.unwrap());
    let later = StreamStage::each("later", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
    node.add_route(RouteSpec::streaming("/later", later)).await.unwrap();
    let hearing = async {
        while !client.is_streaming("/later").await.unwrap() {
            tokio::time::sleep(Duration::from_millis(2)).await
        }
    };
    tokio::time::timeout(LONG, hearing).await.expect("it is notified");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_node_finishes_running_calls_and_its_callers_use_other_nodes() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let held = Stage::each_async("held", {
        let (open, started) = (Arc::clone(&open), Arc::clone(&started));
        move |n: Arc<i64>| {
            let (open, started) = (Arc::clone(&open), Arc::clone(&started));
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                Ok(*n)
            }
        }
    });
    let first = ServingNode::start(app().route("/held", held)).await;
    let second = ServingNode::start(app()).await;
    let both = format!("{},{}", first.url(), second.edge.address());
    let client = builder().connect(&both).await.unwrap();
    let in_flight = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, i64>("/held", 5).await }
    });
    until(|| started.load(Ordering::SeqCst) == 1).await;

    first.edge.drain();
    let calls = |served: &ServingNode| served.node.describe().admitted;
    let (before, second_before) = (calls(&first), calls(&second));
    for _ in 0..20 {
        assert_eq!(shouts(&client).await.unwrap(), "A");
    }
    assert_eq!((calls(&first) - before, calls(&second) - second_before), (0, 20));
    open.add_permits(1);
    assert_eq!(in_flight.await.unwrap().unwrap(), 5);
    first.edge.shutdown(LONG).await;
}

/// A failed attempt that was not a call does not change the recorded reason of the lost connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_stream_does_not_change_the_drain_of_a_node() {
    let served = ServingNode::start(app()).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let cluster = IDENTITY.cluster().to_owned();
    peer.greet(&Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }).await.unwrap();
    served.edge.drain();
    let refused = peer.exchange(vec![Bytes::from_static(b"GET / HTTP/1.1\r\nhost: a.test\r\n")]).await.unwrap_err();
    assert_eq!(refused, Some(ResetCode::Protocol));
    served.edge.shutdown(LONG).await;
    assert_eq!(peer.closed().await.0, Some(ResetCode::Draining));
}

/// A stage whose calls never end, and the number of started calls.
fn held() -> (Arc<AtomicUsize>, Stage<i64, i64>) {
    let started = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&started);
    let held = Stage::each_async("held", move |_: Arc<i64>| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<i64, Failure>>()
    });
    (started, held)
}

fn never_ending() -> (Arc<AtomicUsize>, App) {
    let (started, held) = held();
    (started, App::new().route("/held", held))
}

/// The error of a call whose connection is lost after it has started.
async fn error_of_a_lost_call((started, app): (Arc<AtomicUsize>, App)) -> CallError {
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let calling = tokio::spawn(async move { client.call::<_, i64>("/held", 5).await });
    until(|| started.load(Ordering::SeqCst) == 1).await;
    served.edge.shutdown(Duration::ZERO).await;
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), CallFailure::classify(&error)),
        (ErrorKind::Unavailable, CallFailure::ConnectionLost),
        "{error}"
    );
    assert_eq!(started.load(Ordering::SeqCst), 1);
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_connection_is_cut_may_have_run_and_is_not_repeated() {
    let error = error_of_a_lost_call(never_ending()).await;
    assert!(error.was_started() && !error.is_retryable());
}

/// A route whose calls never end, and may run again.
fn never_ending_and_pure() -> (Arc<AtomicUsize>, App) {
    let (started, held) = held();
    (started, App::new().route("/held", held.pure()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_retryable_call_is_reported_as_retryable_without_another_node() {
    let error = error_of_a_lost_call(never_ending_and_pure()).await;
    assert!(error.was_started() && error.is_retryable(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_retryable_call_runs_again_on_another_node() {
    let (started, app) = never_ending_and_pure();
    let first = ServingNode::start(app).await;
    let answers = Stage::each("held", |n: &i64| Ok(n + 1));
    let second = ServingNode::start(App::new().route("/held", answers)).await;
    let urls = format!("{},{}", first.url(), second.edge.address());
    let client = builder().connect(&urls).await.unwrap();
    let calling = tokio::spawn(async move { client.call::<_, i64>("/held", 5).await });
    until(|| started.load(Ordering::SeqCst) == 1).await;
    first.edge.shutdown(Duration::ZERO).await;
    assert_eq!(calling.await.unwrap().unwrap(), 6);
}

/// The node waits neither for the deadline nor for the idle timeout of a closed client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_cancels_its_calls() {
    let (started, app) = never_ending();
    let mut config = patient();
    config.tuning.idle_timeout = LONG * 5;
    let served = ServingNode::start_with(app, config).await;
    let client = served.client().await;
    let calling = tokio::spawn({
        let client = client.clone();
        let options = CallOptions::new().with_timeout(LONG * 10);
        async move { client.call_with::<_, i64>("/held", 5, options).await }
    });
    until(|| started.load(Ordering::SeqCst) == 1).await;
    client.close().await;
    served.until_idle().await;
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!(CallFailure::classify(&error), CallFailure::ConnectionLost, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarts_at_its_address_is_connected_again() {
    let served = ServingNode::start(app()).await;
    let (client, address) = (served.client().await, served.edge.address());
    assert_eq!(shouts(&client).await.unwrap(), "A");
    served.edge.shutdown(LONG).await;
    let edge = rebind(address).await;
    let node = app().start().await.unwrap();
    edge.open(node.client());
    assert_eq!(shouts(&client).await.unwrap(), "A");
}

/// Inputs that come while the node is away wait for it. Those in flight as it leaves are answered or were not started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_waits_for_a_node_that_restarts() {
    let served = ServingNode::start(app()).await;
    let (client, address) = (served.client().await, served.edge.address());
    let mut outcomes = client.stream::<_, String>("/shout", std::iter::repeat_n("a".to_owned(), 200)).unwrap();
    assert_eq!(outcomes.next().await.unwrap().unwrap(), "A");
    served.edge.shutdown(LONG).await;
    let (outcomes, _restarted) = tokio::join!(outcomes.collect::<Vec<_>>(), async {
        // Longer than the attempts of a plain call.
        until_refused(&client).await;
        let edge = rebind(address).await;
        let node = app().start().await.unwrap();
        edge.open(node.client());
        (edge, node)
    });
    assert_eq!(outcomes.len(), 199);
    outcomes.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), "A"));
}

async fn until_refused(client: &Client) {
    let refused = async {
        loop {
            match shouts(client).await {
                Err(error) if error.is_refusal() => break,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(LONG, refused).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_waits_once_for_a_node_that_stays_away() {
    let served = ServingNode::start(app()).await;
    let client = builder().attempts(1).start_up_wait(Duration::from_millis(300));
    let client = client.connect(&served.url()).await.unwrap();
    assert_eq!(shouts(&client).await.unwrap(), "A");
    served.edge.shutdown(LONG).await;
    let calling = client.stream::<_, String>("/shout", std::iter::repeat_n("a".to_owned(), 500)).unwrap().look_ahead(2);
    let outcomes = tokio::time::timeout(LONG, calling.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(outcomes.len(), 500);
    outcomes.iter().for_each(|outcome| assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::Unavailable));
}

/// Ends with its first batch.
struct Dies;

impl Worker for Dies {
    type In = String;
    type Out = String;

    fn call(&mut self, _batch: Batch<String>) -> Vec<Result<String, Failure>> {
        panic!("as it always does")
    }
}

/// The node is there: only its stage is not, which a wait would not mend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_does_not_wait_for_a_stage_that_has_failed() {
    let dies = Stage::worker("dies", |replica: &Replica| match replica.generation() {
        0 => Ok(Dies),
        _ => Err(Failure::new("its file is gone")),
    });
    let served = ServingNode::start(App::new().route("/shout", dies)).await;
    let client = builder().attempts(1).connect(&served.url()).await.unwrap();
    let failed = async { while shouts(&client).await.unwrap_err().kind() != ErrorKind::Unavailable {} };
    tokio::time::timeout(LONG, failed).await.unwrap();
    // The start-up wait of this client is as long as a test may take.
    let outcomes = client.stream::<_, String>("/shout", std::iter::repeat_n("a".to_owned(), 3)).unwrap();
    let outcomes = tokio::time::timeout(LONG / 2, outcomes.collect::<Vec<_>>()).await.unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap_err().stage() == Some("dies")), "{outcomes:?}");
}

async fn rebind(address: SocketAddr) -> QuicEdge {
    let coming_back = async {
        loop {
            // The socket is closed with the last task of the old endpoint.
            match QuicEdge::bind(address, IDENTITY.clone(), patient()) {
                Ok(edge) => break edge,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(LONG, coming_back).await.unwrap()
}

/// A second; routes without a timeout have half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_connection_have_the_timeout_of_their_route() {
    let stuck = || {
        let never = StreamStage::each("never", |_: &i64| futures_util::stream::pending::<Result<i64, Failure>>());
        let limits = Limits { default_timeout: Duration::from_secs(1), ..Limits::default() };
        never_ending().1.route_streaming("/never", never).limits(limits)
    };
    let served = ServingNode::start(stuck()).await;
    let (one, other, address) = (served.client().await, served.client().await, served.edge.address());
    served.edge.shutdown(LONG).await;
    let edge = rebind(address).await;
    let node = stuck().start().await.unwrap();
    edge.open(node.client());
    let calling = async {
        let mut replies = other.replies::<i64, i64>("/never", 5).unwrap();
        let (call, first) = tokio::join!(one.call::<i64, i64>("/held", 5), replies.next());
        [call.unwrap_err(), first.unwrap().unwrap_err()]
    };
    let errors = tokio::time::timeout(Duration::from_secs(20), calling).await.expect("it ends long before");
    assert!(errors.iter().all(|error| error.kind() == ErrorKind::DeadlineExceeded), "{errors:?}");
}

/// A node with room for one call, which runs until it is released.
async fn full() -> (Arc<Semaphore>, ServingNode, JoinHandle<Result<i64, CallError>>) {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let held = Stage::each_async("held", {
        let (open, started) = (Arc::clone(&open), Arc::clone(&started));
        move |n: Arc<i64>| {
            let (open, started) = (Arc::clone(&open), Arc::clone(&started));
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                Ok(*n)
            }
        }
    });
    let limits = Limits { max_in_flight: 1, ..Limits::default() };
    let served = ServingNode::start(counting().route("/held", held).limits(limits)).await;
    let client = served.node.client();
    let in_flight = tokio::spawn(async move { client.call::<_, i64>("/held", 5).await });
    until(|| started.load(Ordering::SeqCst) == 1).await;
    (open, served, in_flight)
}

fn counting() -> App {
    let count = StreamStage::each("count", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
    app().route_streaming("/count", count)
}

/// The client does not know yet that the second address does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_full_is_called_again_if_no_other_node_answers() {
    let (open, first, in_flight) = full().await;
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let url = format!("{},{}", first.url(), silent.local_addr().unwrap());
    let client = builder().attempts(1).connect(&url).await.unwrap();
    assert_eq!(shouts(&client).await.unwrap_err().kind(), ErrorKind::Overloaded);
    open.add_permits(1);
    assert_eq!(in_flight.await.unwrap().unwrap(), 5);
    // A handshake with it has far more time.
    let options = CallOptions::new().with_timeout(Duration::from_secs(10));
    assert_eq!(client.call_with::<_, String>("/shout", "a".to_owned(), options).await.unwrap(), "A");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_and_streams_are_repeated_on_another_node() {
    let (_open, first, _in_hand) = full().await;
    let second = ServingNode::start(counting()).await;
    let both = format!("{},{}", first.url(), second.edge.address());
    let clients = [builder().attempts(1).connect(&both).await.unwrap(), builder().connect(&both).await.unwrap()];
    let streaming = async {
        loop {
            let mut replies = clients[0].replies::<i64, i64>("/count", 1).unwrap();
            match replies.next().await.unwrap() {
                Ok(output) => break output,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}"),
            }
        }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), streaming).await.expect("there is room"), 0);
    let calling = async {
        loop {
            match shouts(&clients[1]).await {
                Ok(loud) => break loud,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}"),
            }
        }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), calling).await.expect("there is room"), "A");
}

/// Any pause is longer than the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_time_for_a_retry_do_not_use_the_retry_budget() {
    let (_open, served, _in_hand) = full().await;
    let client = served.client().await;
    for _ in 0..400 {
        let options = CallOptions::new().with_timeout(Duration::from_millis(5));
        client.call_with::<_, String>("/shout", "a".to_owned(), options).await.unwrap_err();
    }
    let refused = || total(&served.edge, r#"calls_refused_total{kind="overloaded"}"#);
    let before = refused();
    assert_eq!(shouts(&client).await.unwrap_err().kind(), ErrorKind::Overloaded);
    assert_eq!(refused() - before, 3);
}

/// One of two nodes is restarted while calls arrive all the time, with a stream of outputs larger than any
/// congestion window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_loses_no_call_and_no_output() {
    let with_stream = || {
        let large = StreamStage::each("large", |n: &u64| {
            futures_util::stream::iter((0..*n).map(|_| Ok(Value::from(Bytes::from(vec![7_u8; 1 << 20])))))
        });
        app().route_streaming("/large", large)
    };
    let (first, second) = (ServingNode::start(with_stream()).await, ServingNode::start(with_stream()).await);
    let client = builder().connect(&format!("{},{}", first.url(), second.edge.address())).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (client, over) = (client.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                let mut calls = 0;
                while !over.load(Ordering::SeqCst) {
                    shouts(&client).await?;
                    calls += 1;
                }
                Ok::<u64, CallError>(calls)
            })
        })
        .collect();
    let mut replies = client.replies::<u64, Value>("/large", 24).unwrap();
    replies.next().await.unwrap().unwrap();
    let reading = tokio::spawn(async move {
        let mut outputs = 1;
        while let Some(output) = replies.next().await {
            output?;
            outputs += 1;
        }
        Ok::<u64, CallError>(outputs)
    });
    until(|| first.node.describe().admitted > 50).await;
    first.edge.shutdown(LONG).await;
    // The calls in flight have moved to the other node by then.
    until(|| second.node.describe().admitted > 50).await;
    over.store(true, Ordering::SeqCst);
    assert_eq!(reading.await.unwrap().unwrap(), 24);
    for caller in callers {
        assert!(caller.await.unwrap().unwrap() > 0);
    }
}

/// The second of three nodes is silent, and calls have less time than it takes to notice that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_short_deadlines_pass_over_a_silent_node() {
    let (first, third) = (ServingNode::start(app()).await, ServingNode::start(app()).await);
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let url = format!("{},{},{}", first.url(), silent.local_addr().unwrap(), third.edge.address());
    let client = builder().connect_timeout(Duration::from_secs(4)).connect(&url).await.unwrap();
    assert_eq!(shouts(&client).await.unwrap(), "A");
    first.edge.shutdown(LONG).await;
    let calling = async {
        loop {
            let options = CallOptions::new().with_timeout(Duration::from_millis(300));
            match client.call_with::<_, String>("/shout", "a".to_owned(), options).await {
                Ok(loud) => break loud,
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Unavailable), "{error}")
                }
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG, calling).await.unwrap(), "A");
}

/// Names often have addresses of both families.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_may_mix_address_families() {
    let served = ServingNode::start(app()).await;
    // No process listens at this address of the other family, which precedes the node's address.
    let url = format!("quic://[::1]:1,{}", served.edge.address());
    let client = builder().connect_timeout(Duration::from_secs(4)).connect(&url).await.unwrap();
    assert_eq!(shouts(&client).await.unwrap(), "A");
}
