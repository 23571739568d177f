//! Calls that are stopped half way, and calls with every kind of end: the sum of all charges equals the bytes alive,
//! and is zero at the end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{Data, Format, Map, Tensor, Value};
use callboard_core::{App, Failure, Limits, LocalClient, Node, Stage, StreamStage};
use callboard_http::HttpEdge;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tower::Service as _;

use super::node::edge_of;
use crate::heap;
use crate::mutate::Random;

/// The kind of memory that a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Tensor,
    Text,
    Bytes,
    /// A dynamic value of many small parts.
    Tree,
    /// The same input as a Rust type.
    Typed,
}

use Class::{Bytes as Binary, Tensor as Array, Text, Tree, Typed};

/// The tolerated difference between the charge and the bytes alive, as a share of the latter. One buffer is charged
/// exactly, a collection by its possible capacity.
fn tolerance(class: Class) -> f64 {
    match class {
        Array | Text | Binary => 0.05,
        Tree => 0.1,
        Typed => 1.0,
    }
}

/// Bytes of each call in addition to its charge.
const CALL_BYTES: f64 = 8.0 * 1024.0;

fn body_of(class: Class, size: usize) -> (&'static str, &'static str, Vec<u8>) {
    let json = "application/json";
    match class {
        Array => {
            let tensor = Value::from(Tensor::from_vec(&[size / 8], vec![0.5_f64; size / 8]).unwrap());
            ("/tensor", "application/x-npy", tensor.encode(Format::Npy).unwrap().to_vec())
        }
        Text => ("/text", "text/plain", vec![b'a'; size]),
        Binary => ("/value", "application/octet-stream", vec![7; size]),
        Tree => ("/value", json, format!("[{}[]]", "{\"key\":[1,2.5,\"text\"]},".repeat(size / 200)).into_bytes()),
        Typed => {
            let entries: Vec<String> = (0..size / 200).map(|n| format!("\"{n}\":[{n},1,2,3]")).collect();
            ("/typed", json, format!("{{{}}}", entries.join(",")).into_bytes())
        }
    }
}

/// An edge whose stages wait to be released.
struct Held {
    runtime: Runtime,
    edge: HttpEdge,
    client: LocalClient,
    gate: Arc<Semaphore>,
    _node: Node,
}

fn waiting<T: Data + Clone>(name: &str, gate: &Arc<Semaphore>) -> Stage<T, T> {
    let gate = Arc::clone(gate);
    let stage = Stage::each_async(name, move |value: Arc<T>| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, Failure>(Arc::unwrap_or_clone(value))
        }
    });
    stage.queue(10_000)
}

impl Held {
    fn start(limits: Limits) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let gate = Arc::new(Semaphore::new(0));
        let app = App::new()
            .limits(limits)
            .route("/value", waiting::<Value>("value", &gate))
            .route("/text", waiting::<String>("text", &gate))
            .route("/tensor", waiting::<Tensor>("tensor", &gate))
            .route("/typed", waiting::<BTreeMap<String, Vec<u32>>>("typed", &gate));
        let node = runtime.block_on(app.start()).unwrap();
        let client = node.client();
        let edge = edge_of(&client);
        Self { runtime, edge, client, gate, _node: node }
    }

    fn answer(&self, request: Request<Body>) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let answer = self.edge.clone().call(request);
        Box::pin(async { answer.await.unwrap_or_else(|never: Infallible| match never {}) })
    }

    /// Waits until all work is pending, also on the threads for large payloads.
    async fn settle(&self) {
        let (mut before, mut unchanged) = (0, 0);
        while unchanged < 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = heap::live();
            unchanged = if now == before { unchanged + 1 } else { 0 };
            before = now;
        }
    }
}

/// A body of which the first `arrived` bytes have arrived.
fn arriving(body: &[u8], arrived: usize) -> (Body, mpsc::Sender<Bytes>) {
    let (send, receive) = mpsc::channel(1);
    let pieces: Vec<Bytes> = body[..arrived].chunks(16 * 1024).map(Bytes::copy_from_slice).collect();
    let first = stream::iter(pieces);
    let rest = stream::unfold(receive, async |mut receive| Some((receive.recv().await?, receive)));
    (Body::from_stream(first.chain(rest).map(Ok::<_, Infallible>)), send)
}

/// A call that is stopped half way, with the value that holds it.
enum HeldCall {
    Arriving(tokio::task::JoinHandle<Response>, #[expect(dead_code, reason = "held")] mpsc::Sender<Bytes>),
    Waiting(tokio::task::JoinHandle<Response>),
    Unread(#[expect(dead_code, reason = "held")] Response),
}

async fn hold_calls(held: &Held, class: Class, random: &mut Random) -> Vec<HeldCall> {
    let mut states: Vec<usize> = (0..6 + random.below(10)).map(|_| random.below(3)).collect();
    // Unread answers come first: a permit goes to the call that has waited longest.
    states.sort_unstable();
    let mut calls = Vec::new();
    for state in states {
        let (path, media_type, body) = body_of(class, 100_000 + random.below(400_000));
        let request = Request::post(path).header("content-type", media_type).header("accept", media_type);
        calls.push(match state {
            2 => {
                let (body, rest) = arriving(&body, 1 + random.below(body.len() - 1));
                HeldCall::Arriving(tokio::spawn(held.answer(request.body(body).unwrap())), rest)
            }
            1 => HeldCall::Waiting(tokio::spawn(held.answer(request.body(Body::from(body)).unwrap()))),
            _ => {
                held.gate.add_permits(1);
                HeldCall::Unread(held.answer(request.body(Body::from(body)).unwrap()).await)
            }
        });
    }
    held.settle().await;
    calls
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_sum_of_all_charges_equals_the_bytes_alive() {
    let _turn = heap::turn();
    let seed = number("CALLBOARD_SEED").unwrap_or(1);
    println!("CALLBOARD_SEED={seed}");
    let mut random = Random::new(seed);
    let mut extremes: BTreeMap<Class, (f64, f64)> = BTreeMap::new();
    for round in 0..number("CALLBOARD_ROUNDS").unwrap_or(3) {
        for class in [Array, Text, Binary, Tree, Typed] {
            let held = Held::start(Limits::default());
            let (charged, alive, calls) = held.runtime.block_on(async {
                // One-time allocations belong to no call.
                held.gate.add_permits(1);
                let (path, media_type, body) = body_of(class, 500_000);
                let request = Request::post(path).header("content-type", media_type).body(Body::from(body)).unwrap();
                assert_eq!(held.answer(request).await.status(), 200);
                held.settle().await;
                assert_eq!(held.client.edge().charged_bytes(), 0);
                let base = heap::live();
                let calls = hold_calls(&held, class, &mut random).await;
                let sums =
                    (held.client.edge().charged_bytes() as f64, (heap::live() - base) as f64, calls.len() as f64);
                for call in calls {
                    if let HeldCall::Arriving(task, _) | HeldCall::Waiting(task) = call {
                        task.abort();
                    }
                }
                held.settle().await;
                assert_eq!((held.client.edge().charged_bytes(), held.client.in_flight()), (0, 0), "{class:?}");
                sums
            });
            let deviation = ((charged - alive).abs() - calls * CALL_BYTES).max(0.0) / alive;
            let (least, most) = extremes.entry(class).or_insert((f64::MAX, 0.0));
            (*least, *most) = (least.min(charged / alive), most.max(charged / alive));
            let allowed = tolerance(class);
            assert!(
                deviation <= allowed,
                "round {round}, {class:?}: {charged} bytes charged and {alive} alive with {calls} calls"
            );
        }
    }
    for (class, (least, most)) in extremes {
        println!("{class:?}: the charge is {least:.3} to {most:.3} times the bytes alive");
    }
}

/// Each compressed stream that is not read holds its own compressor.
#[test]
fn a_compressed_stream_is_charged_for_its_compressor() {
    let _turn = heap::turn();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endless =
            StreamStage::each("endless", |text: &String| stream::iter([Ok(text.clone())]).chain(stream::pending()));
        let limits = Limits { max_in_flight_bytes: 2 << 20, ..Limits::default() };
        let node = App::new().limits(limits).route_streaming("/endless", endless).start().await.unwrap();
        let client = node.client();
        let mut edge = edge_of(&client);
        let mut streams = Vec::new();
        let base = heap::live();
        for _ in 0..10 {
            let request = Request::post("/endless").header("content-type", "application/json");
            let request = request.header("accept-encoding", "gzip, identity;q=0.5").body(Body::from("\"a\"")).unwrap();
            let Ok(answer) = edge.call(request).await;
            assert_eq!(answer.status(), 200);
            streams.push(answer);
            let (alive, charged) = (heap::live() - base, client.edge().charged_bytes() as usize);
            assert!(alive <= charged + 64 * 1024 + 16 * 1024 * streams.len(), "{alive} bytes alive, {charged} charged");
        }
        let packed = streams.iter().filter(|answer| answer.headers().contains_key("content-encoding")).count();
        assert!((1..10).contains(&packed), "{packed} of 10 are packed");
        drop(streams);
        for _ in 0..1000 {
            if client.edge().charged_bytes() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} bytes remain charged", client.edge().charged_bytes());
    });
}

/// The ends of calls, and the count of each.
type EndCounts = BTreeMap<&'static str, u32>;

#[test]
fn many_concurrent_calls_end_with_every_charge_at_zero() {
    let _turn = heap::turn();
    let seed = number("CALLBOARD_SEED").unwrap_or(1);
    let calls = number("CALLBOARD_CALLS").unwrap_or(400);
    println!("CALLBOARD_SEED={seed} CALLBOARD_CALLS={calls}");
    let held = Held::start(Limits { max_in_flight_bytes: 16 << 20, ..Limits::default() });
    let mut random = Random::new(seed);
    let mut ends = EndCounts::new();
    held.runtime.block_on(async {
        for round in 0..calls.div_ceil(40) {
            let mut calls_in_flight = Vec::new();
            for _ in 0..40 {
                calls_in_flight.push(start_call(&held, &mut random));
                if random.below(4) > 0 {
                    held.gate.add_permits(1);
                }
                tokio::task::yield_now().await;
            }
            // Calls that still wait for a permit run into their deadline or are cancelled.
            for call in calls_in_flight {
                *ends.entry(call.await.unwrap()).or_default() += 1;
            }
            wait_until_zero(&held, round).await;
        }
    });
    println!("{ends:?}");
    let expected = ["answered", "body broke off", "client left", "expired", "partly read", "refused"];
    assert!(expected.iter().all(|end| ends.contains_key(end)), "some ends are missing: {ends:?}");
}

async fn wait_until_zero(held: &Held, round: u64) {
    for _ in 0..2000 {
        if (held.client.edge().charged_bytes(), held.client.in_flight()) == (0, 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("round {round}: {} bytes and {} calls remain", held.client.edge().charged_bytes(), held.client.in_flight());
}

/// One call, and how it ends.
fn start_call(held: &Held, random: &mut Random) -> tokio::task::JoinHandle<&'static str> {
    let class = [Array, Text, Binary, Tree, Typed][random.below(5)];
    let (path, media_type, mut body) = body_of(class, 1000 + random.below(400_000));
    let mut request = Request::post(path).header("content-type", media_type).header("x-request-timeout-ms", 200);
    let kind = random.below(8);
    if kind == 0 {
        let calls = random.below(20);
        request = Request::post(format!("/v1/call{path}"))
            .header("content-type", "application/vnd.callboard.envelope-stream")
            .header("x-request-timeout-ms", 200);
        body = frames(calls, random.below(50_000));
    } else if kind == 1 {
        // Not the input of the route.
        body = [b"{\"broken\": [", &body[..]].concat();
        request = request.header("content-encoding", ["gzip", "zstd", "deflate"][random.below(3)]);
    }
    let cut = random.below(body.len());
    let breaks = AtomicBool::new(kind == 2);
    let pieces: Vec<Bytes> = body.chunks(20_000).map(Bytes::copy_from_slice).collect();
    let count = pieces.len().max(1) * cut / body.len().max(1);
    let pieces = stream::iter(pieces.into_iter().enumerate()).map(move |(number, piece)| {
        if breaks.load(SeqCst) && number >= count {
            Err(std::io::Error::other("the client has left"))
        } else {
            Ok(piece)
        }
    });
    let pieces = pieces.then(async |piece| {
        tokio::task::yield_now().await;
        piece
    });
    let answer = held.answer(request.body(Body::from_stream(Box::pin(pieces))).unwrap());
    let leaves_after = match kind {
        3 | 4 => Some(random.below(30)),
        _ => None,
    };
    let reads = random.below(4);
    tokio::spawn(async move {
        let Some(answer) = poll_at_most(answer, leaves_after).await else { return "client left" };
        let status = answer.status();
        let mut body = answer.into_body();
        if reads == 0 && status == 200 {
            let _first = body.frame().await;
            return "partly read";
        }
        while let Some(Ok(_)) = body.frame().await {}
        match status.as_u16() {
            200 => "answered",
            504 => "expired",
            _ if kind == 2 => "body broke off",
            _ => "refused",
        }
    })
}

/// The outcome of the future, or nothing if it is dropped after this many polls.
async fn poll_at_most<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>, max_polls: Option<usize>) -> Option<T> {
    let mut polls = 0;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if max_polls.is_some_and(|max_polls| polls >= max_polls) => Poll::Ready(None),
        Poll::Pending => {
            polls += 1;
            if max_polls.is_some() {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        }
    })
    .await
}

/// A stream of `calls` calls, without its end frame if the count is odd.
fn frames(calls: usize, size: usize) -> Vec<u8> {
    let text = Value::List(vec![Value::from("a".repeat(size))]);
    let call = Value::Map(Map::from_iter([("args", text), ("kwargs", Value::Map(Map::new()))]));
    let envelope = call.encode(Format::Envelope).unwrap();
    let head = [[0; 4], (envelope.len() as u32).to_le_bytes()].concat();
    let mut frames = [head, envelope.to_vec()].concat().repeat(calls);
    if calls.is_multiple_of(2) {
        frames.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    }
    frames
}
