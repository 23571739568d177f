//! Peers that violate the protocol are refused with a reason and counted, and other callers are not affected.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_codec::wire::{Call, FrameKind, Hello, ResetCode, VERSION, Welcome, cancel_frame, frame_head};
use callboard_core::{App, Caller, Pipeline, Stage};
use callboard_net::Client;
use callboard_net::testing::{BareEndpoint, RawPeer};
use tokio::sync::Semaphore;

use crate::common::{IDENTITY, LONG, ServingNode, patient, until};

fn app() -> App {
    App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
}

fn hello() -> Hello {
    let cluster = IDENTITY.cluster().to_owned();
    Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }
}

fn call(bytes: usize) -> Bytes {
    frame_head(FrameKind::Call, 0, &Call { route: "/shout".to_owned(), ..Call::default() }, bytes).unwrap()
}

/// An honest caller is not affected.
async fn is_served(client: &Client) {
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
}

/// The counter of a refusal, in the metrics.
fn counted(served: &ServingNode, name: &str, reason: &str) -> bool {
    served.edge.metrics().contains(&format!("callboard_net_{name}_total{{reason=\"{reason}\"}}"))
}

/// The streams that were refused for any reason.
fn refused_streams(served: &ServingNode) -> u64 {
    let metrics = served.edge.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with("callboard_net_streams_refused_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_does_not_fit_is_refused_with_its_reason() {
    let served = ServingNode::start(app()).await;
    let wrong = [
        (Hello { cluster: "another".to_owned(), ..hello() }, "other_cluster"),
        (Hello { min_version: VERSION + 1, max_version: VERSION + 2, ..hello() }, "no_common_version"),
        (Hello { max_version: 0, ..hello() }, "no_common_version"),
    ];
    for (hello, reason) in wrong {
        let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
        let (code, text) = peer.greet(&hello).await.unwrap_err();
        assert_eq!((code, text.as_str()), (Some(ResetCode::Refused), reason));
        assert!(counted(&served, "connections_refused", reason), "{}", served.edge.metrics());
    }
    // A later version that supports this one, in a frame of the same layout.
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let welcome = peer.greet(&Hello { max_version: 9, ..hello() }).await.unwrap();
    assert_eq!(welcome.header::<Welcome>().unwrap().version, VERSION);
    is_served(&served.client().await).await;
}

/// Nobody reads them: QUIC drops the oldest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_empty_datagrams_closes_nothing() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    let endpoint = BareEndpoint::calling(&IDENTITY).unwrap();
    let connection = endpoint.connect(served.edge.address()).await.unwrap();
    let flooding = async {
        for _ in 0..20_000 {
            connection.send_datagram_wait(Bytes::new()).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, flooding).await.expect("all are sent");
    is_served(&client).await;
    assert!(connection.close_reason().is_none());
}

/// The bytes on a stream, and the reason that counts them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_stream_is_reset_and_counted() {
    let mut config = patient();
    config.frames.max_body_bytes = 1 << 20;
    let served = ServingNode::start_with(app(), config).await;
    let body = Value::from("x").to_envelope().unwrap().into_bytes();
    let with = |byte: usize, value: u8| {
        let mut head = call(0).to_vec();
        head[byte] = value;
        vec![Bytes::from(head)]
    };
    let mut bomb = call(0).to_vec();
    bomb.truncate(20);
    bomb[8..12].copy_from_slice(&40_000_u32.to_le_bytes());
    bomb.extend(vec![0x91; 40_000]);
    let wrong = [
        (vec![Bytes::from_static(&[0; 64])], "not_a_frame"),
        (with(3, 9), "version"),
        (with(4, 77), "kind"),
        (with(5, 1), "flags"),
        (vec![bomb.into()], "header"),
        (vec![call(body.len() + 1), body.clone()], "truncated"),
        (vec![frame_head(FrameKind::Done, 0, &Value::Null, 0).unwrap()], "unexpected_kind"),
        (vec![frame_head(FrameKind::Hello, 0, &hello(), 0).unwrap()], "unexpected_kind"),
    ];
    let client = served.client().await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    for (total, (pieces, reason)) in (1..).zip(wrong) {
        assert_eq!(peer.exchange(pieces).await.unwrap_err(), Some(ResetCode::Protocol), "{reason}");
        until(|| refused_streams(&served) == total).await;
        assert!(counted(&served, "streams_refused", reason), "{reason}: {}", served.edge.metrics());
        is_served(&client).await;
    }
    for (pieces, reason) in [(with(11, 0xff), "header_too_large"), (with(19, 0xff), "body_too_large")] {
        assert_eq!(peer.exchange(pieces).await.unwrap_err(), Some(ResetCode::TooLarge), "{reason}");
        until(|| counted(&served, "streams_refused", reason)).await;
    }
    // The connection itself continues.
    let answer = peer.exchange(vec![call(body.len()), body.clone()]).await.unwrap();
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0].0.kind, FrameKind::Done);
    // Cancelling an unknown or ended call is not a fault.
    let answer = peer.exchange(vec![cancel_frame(7), call(body.len()), body, cancel_frame(7)]).await.unwrap();
    assert_eq!(answer.len(), 1);
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_envelope_is_its_callers_error() {
    let served = ServingNode::start(app()).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let answer = peer.exchange(vec![call(30), Bytes::from_static(&[7; 30])]).await.unwrap();
    let fail: callboard_codec::wire::Fail = answer[0].0.header().unwrap();
    assert_eq!((fail.kind.as_str(), fail.started), ("invalid_input", false));
    assert!(fail.message.contains("envelope"), "{}", fail.message);
}

/// Streams that are opened with or without a byte and then abandoned, and one that holds a permit with half a body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_streams_are_closed() {
    let mut config = patient();
    config.head_timeout = Duration::from_millis(100);
    config.body_progress_timeout = Duration::from_secs(2);
    let served = ServingNode::start_with(app(), config).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let client = served.client().await;
    // As many streams as a connection without calls may have.
    let mut held = peer.begin_unwritten(8).await;
    for _ in 0..7 {
        held.push(peer.begin(vec![Bytes::from_static(b"C")]).await);
    }
    let soon = Call { route: "/shout".to_owned(), millis_left: 100, ..Call::default() };
    let head = frame_head(FrameKind::Call, 0, &soon, 1000).unwrap();
    let mut late = peer.begin(vec![head, Bytes::from_static(&[0x89])]).await;
    is_served(&client).await;
    until(|| counted(&served, "streams_refused", "silent")).await;
    // Its own deadline passed first, and its error says so.
    let (answer, _) = late.next_frame().await.unwrap();
    assert_eq!(answer.header::<callboard_codec::wire::Fail>().unwrap().kind, "deadline_exceeded");
    assert_eq!(late.next_frame().await.unwrap_err(), Some(ResetCode::Deadline));
    served.until_idle().await;
    for stream in &mut held {
        assert_eq!(stream.next_head().await.unwrap_err(), Some(ResetCode::Deadline));
    }
    is_served(&client).await;
    drop(held);
}

/// Half a body of a call that may take an hour: all callers share the permits that it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_holds_its_permits_only_while_it_makes_progress() {
    let mut config = patient();
    config.body_progress_timeout = Duration::from_millis(100);
    let served = ServingNode::start_with(app(), config).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let client = served.client().await;
    let held = peer.begin(vec![in_an_hour("/shout", 1000), Bytes::from_static(&[0x89])]).await;
    is_served(&client).await;
    until(|| counted(&served, "streams_refused", "slow_body")).await;
    served.until_idle().await;
    // The same after a call that is refused at once.
    let refused = peer.begin(vec![in_an_hour("/nowhere", 1000), Bytes::from_static(&[0x89])]).await;
    until(|| served.edge.metrics().contains("streams_refused_total{reason=\"slow_body\"} 2")).await;
    is_served(&client).await;
    served.until_idle().await;
    drop((held, refused));
}

/// An output larger than any window, for a caller that reads nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_an_answer_is_disconnected() {
    let mut config = patient();
    config.write_progress_timeout = Duration::from_millis(200);
    let large = Stage::each("large", |bytes: &usize| Ok(Value::from(Bytes::from(vec![0_u8; *bytes]))));
    let served = ServingNode::start_with(app().route("/large", large), config).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let body = Value::from(40_i64 << 20).to_envelope().unwrap().into_bytes();
    let client = served.client().await;
    let held = peer.begin(vec![in_an_hour("/large", body.len()), body]).await;
    is_served(&client).await;
    until(|| counted(&served, "streams_refused", "slow_reader")).await;
    is_served(&client).await;
    served.until_idle().await;
    drop(held);
}

/// The head of a call that may take an hour.
fn in_an_hour(route: &str, bytes: usize) -> Bytes {
    let call = Call { route: route.to_owned(), millis_left: 3_600_000, ..Call::default() };
    frame_head(FrameKind::Call, 0, &call, bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_no_hello_is_disconnected() {
    let mut config = patient();
    // As long as an honest hello may take on a busy machine.
    config.hello_timeout = Duration::from_secs(3);
    let served = ServingNode::start_with(app(), config).await;
    let client = served.client().await;
    let _peer = RawPeer::connect(served.edge.address(), &IDENTITY).await;
    is_served(&client).await;
    until(|| counted(&served, "connections_refused", "hello_timeout")).await;
    is_served(&client).await;
    assert_eq!(served.edge.connections(), 1, "the honest connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_datagrams_affect_no_other_caller() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut noise = 1_u64;
    for length in (0..20_000).map(|n| n % 1400) {
        let garbage: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        })
        .take(length)
        .collect();
        let _ = socket.send_to(&garbage, served.edge.address());
    }
    is_served(&client).await;
    served.until_idle().await;
}

/// Each call of a shared stream has its own outcome, and a cancelled one has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_of_a_shared_stream_are_answered_separately() {
    let never = Stage::<String, String>::each_async("never", |_| std::future::pending());
    let app = app().route("/never", never);
    let served = ServingNode::start(app.route("/more", Stage::each("more", |text: &String| Ok(text.len())))).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let body = Value::from("x").to_envelope().unwrap().into_bytes();
    let mut pieces = Vec::new();
    for (entry, route) in ["/shout", "/never", "/nowhere", "/more"].into_iter().enumerate() {
        let call = Call { route: route.to_owned(), ..Call::default() };
        pieces.push(frame_head(FrameKind::Call, entry as u16, &call, body.len()).unwrap());
        pieces.push(body.clone());
    }
    pieces.push(cancel_frame(1));
    let mut answers: Vec<_> =
        peer.exchange(pieces).await.unwrap().iter().map(|(head, _)| (head.entry, head.kind)).collect();
    answers.sort_by_key(|(entry, _)| *entry);
    assert_eq!(answers, [(0, FrameKind::Done), (2, FrameKind::Fail), (3, FrameKind::Done)]);
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_may_have_a_smaller_body_limit_and_refusals_are_counted() {
    let mut config = patient();
    config.max_body_bytes_by_route.insert("/shout".to_owned(), 100);
    let served =
        ServingNode::start_with(app().route("/more", Stage::each("more", |text: &String| Ok(text.len()))), config)
            .await;
    let client = served.client().await;
    for length in [1_000, 100_000] {
        let error = client.call::<_, String>("/shout", "a".repeat(length)).await.unwrap_err();
        assert_eq!((error.status(), error.was_started()), (Some(413), false));
        assert!(error.message().ends_with("/shout takes 100 (max_body_bytes)"), "{error}");
        assert_eq!(client.call::<_, usize>("/more", "a".repeat(length)).await.unwrap(), length);
    }
    assert_eq!(client.call::<_, String>("/shout", 7).await.unwrap_err().status(), None);
    let counted = "callboard_net_calls_refused_total{kind=\"invalid_input\"} 3";
    assert!(served.edge.metrics().contains(counted), "{}", served.edge.metrics());
    // No call is left.
    served.until_idle().await;
    assert!(served.edge.metrics().contains("callboard_net_streams_cancelled_total 0"), "{}", served.edge.metrics());
}

/// The calls of one stream, which stays open.
fn pack(calls: &[(&str, Value)]) -> Vec<Bytes> {
    let frames = calls.iter().enumerate().flat_map(|(entry, (route, input))| {
        let body = input.to_envelope().unwrap().into_bytes();
        let call = Call { route: (*route).to_owned(), millis_left: 3_600_000, ..Call::default() };
        [frame_head(FrameKind::Call, entry as u16, &call, body.len()).unwrap(), body]
    });
    frames.collect()
}

/// A caller that may still cancel leaves its stream open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_after_the_answer_to_its_last_call() {
    let never = Stage::<String, String>::each_async("never", |_| std::future::pending());
    let served = ServingNode::start(app().route("/never", never)).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let body = Value::from("x").to_envelope().unwrap().into_bytes();
    let last = |entry: u16, route: &str| {
        let call = Call { route: route.to_owned(), last: true, ..Call::default() };
        [frame_head(FrameKind::Call, entry, &call, body.len()).unwrap(), body.clone()]
    };
    let mut pieces = pack(&[("/shout", Value::from("x")), ("/shout", Value::from("y"))]);
    pieces.extend(last(2, "/shout"));
    let mut stream = peer.begin(pieces).await;
    for _ in 0..3 {
        let answer = tokio::time::timeout(LONG, stream.next_frame()).await.unwrap();
        assert_eq!(answer.unwrap().0.kind, FrameKind::Done);
    }
    let ended = tokio::time::timeout(LONG, stream.next_frame()).await.unwrap();
    assert_eq!(ended.unwrap_err(), None, "it was finished, not reset");
    // A call after the last one is refused.
    let mut stream = peer.begin(last(7, "/never").to_vec()).await;
    stream.write(pack(&[("/shout", Value::from("x"))])).await;
    let refused = tokio::time::timeout(LONG, stream.next_frame()).await.unwrap();
    assert_eq!(refused.unwrap_err(), Some(ResetCode::Protocol));
    assert!(counted(&served, "streams_refused", "call_behind_the_last"), "{}", served.edge.metrics());
    served.until_idle().await;
}

/// After all answers, an idle stream ends without discarding data in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answers_of_a_silent_shared_stream_can_still_be_read() {
    let mut config = patient();
    config.head_timeout = Duration::from_millis(100);
    let large = Stage::each("large", |bytes: &usize| Ok(Value::from(Bytes::from(vec![7_u8; *bytes]))));
    let served = ServingNode::start_with(app().route("/large", large), config).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    // Less than the window of a stream, so that all of it is written.
    let mut stream = peer.begin(pack(&[("/shout", Value::from("x")), ("/large", Value::from(4_i64 << 20))])).await;
    until(|| served.streams_started() == 1 && served.edge.streams() == 0).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (head, body) = stream.next_frame().await.unwrap();
        assert_eq!(head.kind, FrameKind::Done);
        answers.push((head.entry, body.len() > 4 << 20));
    }
    answers.sort_unstable();
    assert_eq!(answers, [(0, false), (1, true)]);
    assert_eq!(stream.next_frame().await.unwrap_err(), None, "it was finished, not reset");
    assert_eq!(refused_streams(&served), 0, "{}", served.edge.metrics());
}

/// While a caller does not read an answer, its other calls are cancelled or continue as usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_answer_delays_no_other_call_of_its_stream() {
    let mut config = patient();
    config.write_progress_timeout = Duration::from_secs(3600);
    let large = Stage::each("large", |bytes: &usize| Ok(Value::from(Bytes::from(vec![7_u8; *bytes]))));
    let never = Stage::<String, String>::each_async("never", |_| std::future::pending());
    let (open, passed) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gate = {
        let open = Arc::clone(&open);
        Stage::<String, String>::each_async("gate", move |text| {
            let open = Arc::clone(&open);
            async move {
                open.acquire().await.unwrap().forget();
                Ok(text.to_string())
            }
        })
    };
    let behind = {
        let passed = Arc::clone(&passed);
        Stage::each("behind", move |text: &String| {
            passed.add_permits(1);
            Ok(text.clone())
        })
    };
    let app = app().route("/large", large).route("/never", never).route("/gate", Pipeline::from(gate).then(behind));
    let served = ServingNode::start_with(app, config).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    peer.greet(&hello()).await.unwrap();
    let calls = [("/large", Value::from(40_i64 << 20)), ("/never", Value::from("x")), ("/gate", Value::from("x"))];
    let mut stream = peer.begin(pack(&calls)).await;
    // Larger than any window: it is written as long as it is not read.
    assert_eq!(stream.next_head().await.unwrap().entry, 0);
    open.add_permits(1);
    until(|| passed.available_permits() == 1).await;
    stream.write(vec![cancel_frame(1)]).await;
    until(|| served.node.describe().in_flight == 0).await;
    let metrics = served.edge.metrics();
    assert!(metrics.contains("callboard_net_calls_cancelled_total 1\n"), "{metrics}");
    assert_eq!(served.edge.streams(), 1);
    drop(stream);
    served.until_idle().await;
}
