//! A body holds the bytes that have arrived, not the bytes that it announces.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_codec::wire::{Call, Fail, FrameHead, FrameKind, ResetCode, frame_head};
use callboard_core::{App, Caller, Limits, Stage};
use callboard_net::NetConfig;
use callboard_net::testing::RawStream;
use parking_lot::{Condvar, Mutex};

use crate::common::{LONG, ServingNode, patient, peer, until};

fn app() -> App {
    App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
}

/// The head of a call that may take an hour, of this route or stage.
fn head(name: &str, entry: u16, bytes: usize) -> Bytes {
    let mut call = Call { millis_left: 3_600_000, ..Call::default() };
    if name.starts_with('/') {
        call.route = name.to_owned();
    } else {
        call.stages = vec![name.to_owned()];
    }
    frame_head(FrameKind::Call, entry, &call, bytes).unwrap()
}

/// A complete call.
fn complete_call(name: &str, entry: u16, input: &str) -> [Bytes; 2] {
    let body = Value::from(input).to_envelope().unwrap().into_bytes();
    [head(name, entry, body.len()), body]
}

/// The beginning of an envelope with one text, and the announced length.
fn beginning(length: usize, sent: usize) -> (usize, Bytes) {
    let body = Value::from("a".repeat(length)).to_envelope().unwrap().into_bytes();
    (body.len(), body.slice(..sent))
}

async fn next_head(stream: &mut RawStream) -> FrameHead {
    tokio::time::timeout(LONG, stream.next_head()).await.expect("an answer").unwrap()
}

fn limited(max_in_flight: usize, max_in_flight_bytes: u64) -> App {
    let mut limits = Limits::default();
    (limits.max_in_flight, limits.max_in_flight_bytes) = (max_in_flight, max_in_flight_bytes);
    app().limits(limits)
}

fn slow_refusals(served: &ServingNode, count: usize) -> bool {
    let line = format!("callboard_net_streams_refused_total{{reason=\"slow_body\"}} {count}\n");
    served.edge.metrics().contains(&line)
}

const MIB: usize = 1 << 20;

/// Routes and stages announce as much as the node may have in flight; callers on other edges still have everything
/// except the bytes that have arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_hold_only_their_arrived_bytes() {
    for name in ["/shout", "shout"] {
        let served = ServingNode::start_with(limited(1_000, 64 * MIB as u64), patient()).await;
        let peer = peer(&served).await;
        let mut trickling = Vec::new();
        for _ in 0..4 {
            let (announced, first_bytes) = beginning(16 * MIB - 100, 1_200);
            trickling.push(peer.begin(vec![head(name, 0, announced), first_bytes]).await);
        }
        until(|| served.node.describe().in_flight == 4).await;
        for _ in 0..20 {
            for stream in &mut trickling {
                stream.write(vec![Bytes::from_static(&[b'a'; 1_200])]).await;
            }
        }
        until(|| served.node.describe().in_flight_bytes >= 4 * 1_200).await;
        let held = served.node.describe().in_flight_bytes;
        assert!(held <= 4 * 512 * 1024, "{held} bytes are held for {}", 4 * 21 * 1_200);
        let input = "a".repeat(48 * MIB);
        let loud: String = served.node.client().call("/shout", input).await.unwrap();
        assert_eq!(loud.len(), 48 * MIB);
        drop(trickling);
        served.until_idle().await;
        assert_eq!(served.node.describe().in_flight_bytes, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_without_a_body_holds_no_bytes() {
    let served = ServingNode::start_with(limited(1_000, MIB as u64), patient()).await;
    let peer = peer(&served).await;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(peer.begin(vec![head("/shout", 0, MIB / 2)]).await);
    }
    until(|| served.node.describe().in_flight == 10).await;
    assert_eq!(served.node.describe().in_flight_bytes, 0);
    drop(held);
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_without_room_is_refused_before_it_arrives() {
    for name in ["/shout", "shout"] {
        let served = ServingNode::start_with(limited(1_000, MIB as u64), patient()).await;
        let held = served.node.client().edge().held_bytes();
        held.grow(MIB as u64 / 2).unwrap();
        let peer = peer(&served).await;
        let mut stream = peer.begin(vec![head(name, 0, MIB / 2 + 1)]).await;
        let fail: Fail = next_head(&mut stream).await.header().unwrap();
        assert_eq!((fail.kind.as_str(), fail.started), ("overloaded", false));
        // More than the node ever has.
        let mut stream = peer.begin(vec![head(name, 0, MIB + 1)]).await;
        let fail: Fail = next_head(&mut stream).await.header().unwrap();
        assert_eq!((fail.kind.as_str(), fail.status), ("invalid_input", 413));
    }
}

/// While a body arrives, other calls take the node's bytes: its call is refused in the middle, later calls succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_runs_out_of_room_is_refused_and_the_next_call_is_read() {
    let served = ServingNode::start_with(limited(1_000, MIB as u64), patient()).await;
    let peer = peer(&served).await;
    let text = Value::from("a".repeat(MIB - 1_000)).to_envelope().unwrap().into_bytes();
    let mut stream = peer.begin(vec![head("/shout", 0, text.len()), text.slice(..1_000)]).await;
    until(|| served.node.describe().in_flight_bytes > 0).await;
    let others = served.node.client().edge().held_bytes();
    others.grow(MIB as u64 - served.node.describe().in_flight_bytes).unwrap();
    stream.write(vec![text.slice(1_000..)]).await;
    let fail: Fail = next_head(&mut stream).await.header().unwrap();
    assert_eq!((fail.kind.as_str(), fail.started), ("overloaded", false));
    until(|| served.node.describe().in_flight == 0).await;
    others.release();
    stream.write(complete_call("/shout", 1, "x").to_vec()).await;
    let done = next_head(&mut stream).await;
    assert_eq!((done.kind, done.entry), (FrameKind::Done, 1));
}

/// Applies to any pace and any deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_takes_at_most_the_body_timeout() {
    for name in ["/shout", "shout", "/nowhere"] {
        let mut config = patient();
        (config.body_timeout, config.min_bytes_per_second) = (Duration::from_millis(500), 0);
        let served = ServingNode::start_with(app(), config).await;
        let peer = peer(&served).await;
        let (announced, first_bytes) = beginning(MIB, 100);
        let mut stream = peer.begin(vec![head(name, 0, announced), first_bytes]).await;
        // 100 KiB would take ten seconds, and all of it a hundred.
        let trickling = stream.trickle(Bytes::from_static(&[b'a'; 100]), Duration::from_millis(10));
        let written = tokio::time::timeout(LONG, trickling).await.expect("it is stopped");
        assert!((1..1_000).contains(&written), "{written}");
        until(|| slow_refusals(&served, 1)).await;
        let ended = tokio::time::timeout(LONG, async {
            // The answer of a refused call comes first.
            loop {
                if let Err(code) = stream.next_frame().await {
                    return code;
                }
            }
        });
        assert_eq!(ended.await.unwrap(), Some(ResetCode::Deadline), "{name}");
        served.until_idle().await;
    }
}

/// Calls whose bodies are arriving have half of the node's permits; the other half is for complete calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arriving_bodies_leave_half_of_the_permits_to_other_calls() {
    let served = ServingNode::start_with(limited(4, MIB as u64), patient()).await;
    let peer = peer(&served).await;
    let (announced, first_bytes) = beginning(10_000, 100);
    let first = peer.begin(vec![head("/shout", 0, announced), first_bytes.clone()]).await;
    let second = peer.begin(vec![head("/shout", 0, announced), first_bytes.clone()]).await;
    until(|| served.node.describe().in_flight == 2).await;
    let mut third = peer.begin(vec![head("/shout", 0, announced), first_bytes]).await;
    let fail: Fail = next_head(&mut third).await.header().unwrap();
    assert_eq!((fail.kind.as_str(), fail.started), ("overloaded", false));
    assert!(fail.retry_after_millis > 0);
    assert_eq!(served.node.client().call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    drop((first, second, third));
    served.until_idle().await;
    assert_eq!(served.client().await.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
}

/// An input whose decoding waits for the test.
#[derive(Clone, Debug, serde::Serialize, schemars::JsonSchema)]
struct Slow(usize);

/// The number of started decodings, and whether they may end.
static READING: (AtomicUsize, Mutex<bool>, Condvar) = (AtomicUsize::new(0), Mutex::new(false), Condvar::new());

impl<'de> serde::Deserialize<'de> for Slow {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let length = <String as serde::Deserialize>::deserialize(deserializer)?.len();
        let (started, may_end, changed) = &READING;
        started.fetch_add(1, Ordering::SeqCst);
        let mut may_end = may_end.lock();
        changed.wait_while(&mut may_end, |may_end| !*may_end);
        Ok(Self(length))
    }
}

/// Its caller has left, but the decoding still takes a thread and its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_is_in_flight_while_its_input_is_decoded() {
    let app = App::new().route("/slow", Stage::each("slow", |input: &Slow| Ok(input.0)));
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let calling = {
        let client = client.clone();
        tokio::spawn(async move { client.call::<_, usize>("/slow", "a".repeat(MIB)).await })
    };
    until(|| READING.0.load(Ordering::SeqCst) == 1).await;
    calling.abort();
    until(|| served.edge.streams() == 0).await;
    let left = served.node.describe();
    assert!(left.in_flight == 1 && left.in_flight_bytes >= MIB as u64, "{left:?}");
    *READING.1.lock() = true;
    READING.2.notify_all();
    served.until_idle().await;
    assert_eq!(served.node.describe().in_flight_bytes, 0);
}

/// Written but unread bytes count in the node's budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_holds_its_bytes_until_it_is_sent() {
    let large = Stage::each("large", |bytes: &usize| Ok(Value::from(Bytes::from(vec![7_u8; *bytes]))));
    let served = ServingNode::start(App::new().route("/large", large)).await;
    let peer = peer(&served).await;
    let body = Value::from(40_i64 << 20).to_envelope().unwrap().into_bytes();
    // More than any window.
    let mut stream = peer.begin(vec![head("/large", 0, body.len()), body]).await;
    assert_eq!(next_head(&mut stream).await.kind, FrameKind::Done);
    assert_eq!(served.node.describe().in_flight, 0);
    let held = served.node.describe().in_flight_bytes;
    assert!((40 << 20..42 << 20).contains(&held), "{held}");
    drop(stream);
    until(|| served.node.describe().in_flight_bytes == 0).await;
}

#[test]
fn the_body_timeout_equals_that_of_http() {
    assert_eq!(NetConfig::default().body_timeout, Duration::from_secs(60));
}
