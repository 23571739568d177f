//! The unread bytes that callers may send: few before a call of theirs is admitted, and bounded for all callers
//! together.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_codec::wire::{Call, FrameKind, frame_head};
use callboard_core::{App, Caller, Limits, Stage};
use callboard_net::NetConfig;
use callboard_net::testing::{RawPeer, RawStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::common::{LONG, ServingNode, patient, peer, until};
use crate::lab::gauge;

const MIB: usize = 1 << 20;

/// The bytes that a connection may always send, and the bytes after an admitted call.
const BASE_WINDOW: usize = 128 << 10;
const CALL_WINDOW: usize = MIB - BASE_WINDOW;

fn app() -> App {
    App::new().route("/count", Stage::each("count", |text: &String| Ok(text.len())))
}

fn head(bytes: usize) -> Bytes {
    let call = Call { route: "/count".to_owned(), millis_left: 3_600_000, ..Call::default() };
    frame_head(FrameKind::Call, 0, &call, bytes).unwrap()
}

/// An admitted call of which only the head has arrived.
async fn started(served: &ServingNode, peer: &RawPeer, bytes: usize) -> RawStream {
    let before = served.node.describe().in_flight;
    let stream = peer.begin(vec![head(bytes)]).await;
    until(|| served.node.describe().in_flight > before).await;
    stream
}

/// A node on a runtime that can be stopped: connections stay alive, but streams are not read.
struct PausableNode {
    served: ServingNode,
    runtime: Option<Runtime>,
}

impl PausableNode {
    async fn start(app: App, config: NetConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let served = runtime.spawn(ServingNode::start_with(app, config)).await.unwrap();
        Self { served, runtime: Some(runtime) }
    }

    /// Until the guard is dropped.
    async fn stop(&self) -> mpsc::Sender<()> {
        let (go_on, gate) = mpsc::channel();
        let (stopped, has_stopped) = tokio::sync::oneshot::channel();
        self.runtime.as_ref().unwrap().spawn(async move {
            stopped.send(()).unwrap();
            let _ = gate.recv();
        });
        has_stopped.await.unwrap();
        go_on
    }
}

impl Drop for PausableNode {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

const SILENCE: Duration = Duration::from_millis(300);

fn given(served: &ServingNode) -> usize {
    gauge(&served.edge, "windows_bytes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_calls_may_send_little_and_on_few_streams() {
    let pausable = PausableNode::start(app(), patient()).await;
    let peer = peer(&pausable.served).await;
    let _stopped = pausable.stop().await;
    let (streams, bytes) = peer.fill(SILENCE).await;
    assert_eq!(streams, 16);
    assert!((1..=BASE_WINDOW).contains(&bytes), "{bytes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_permits_its_body_and_no_more() {
    let pausable = PausableNode::start(app(), patient()).await;
    let peer = peer(&pausable.served).await;
    let mut stream = started(&pausable.served, &peer, MIB).await;
    until(|| given(&pausable.served) == MIB + CALL_WINDOW).await;
    let stopped = pausable.stop().await;
    let sent = stream.fill(SILENCE).await;
    assert!((MIB..=2 * MIB).contains(&sent), "{sent}");
    assert_eq!(peer.fill(SILENCE).await.1, 0, "other streams have no window");
    drop(stopped);
    // Read bytes no longer count, for any outcome of the call.
    until(|| given(&pausable.served) < CALL_WINDOW + 64 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_together_share_the_windows_of_the_node() {
    let mut config = patient();
    config.tuning.windows_bytes = 4 * MIB as u64;
    let pausable = PausableNode::start(app(), config).await;
    let mut peers = Vec::new();
    for _ in 0..16 {
        let peer = peer(&pausable.served).await;
        let stream = started(&pausable.served, &peer, 32 * MIB).await;
        peers.push((peer, stream));
    }
    assert!((MIB..=4 * MIB).contains(&given(&pausable.served)), "{}", given(&pausable.served));
    let _stopped = pausable.stop().await;
    let mut sent = 0;
    for (_, stream) in &mut peers {
        sent += stream.fill(Duration::from_millis(50)).await;
    }
    // A little of it may have been read before.
    assert!(sent <= 4 * MIB + 16 * (BASE_WINDOW + 1024), "{sent}");
}

/// The bound follows the node's budget of bytes for calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_have_at_most_half_of_the_bytes_in_flight() {
    let limits = Limits { max_in_flight_bytes: 2 * MIB as u64, ..Limits::default() };
    let served = ServingNode::start(app().limits(limits)).await;
    let mut peers = Vec::new();
    for _ in 0..30 {
        let peer = peer(&served).await;
        let stream = started(&served, &peer, MIB).await;
        peers.push((peer, stream));
    }
    assert!((MIB / 2..=MIB).contains(&given(&served)), "{}", given(&served));
    drop(peers);
    until(|| given(&served) == 0).await;
}

/// Bodies arrive with any rest of the windows, and no window leaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_arrive_concurrently_and_leak_no_window() {
    for windows in [0, MIB as u64, 128 * MIB as u64] {
        let mut config = patient();
        config.tuning.windows_bytes = windows;
        let served = ServingNode::start_with(app(), config).await;
        let client = served.client().await;
        let calls = (0..8).map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, usize>("/count", "a".repeat((n + 1) * MIB)).await })
        });
        for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(tokio::time::timeout(LONG, call).await.unwrap().unwrap().unwrap(), (n + 1) * MIB);
        }
        served.until_idle().await;
        // Bytes with the head were read before there was a window for them.
        assert!(given(&served) <= CALL_WINDOW + 8 * 64 * 1024, "{}", given(&served));
    }
}

/// A cancelled body keeps the rest of its window, once; later calls use it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unused_window_is_not_granted_twice() {
    let served = ServingNode::start(app()).await;
    let peer = peer(&served).await;
    for _ in 0..50 {
        drop(started(&served, &peer, 8 * MIB).await);
        until(|| served.node.describe().in_flight == 0).await;
    }
    assert!(given(&served) <= 32 * MIB - BASE_WINDOW, "{}", given(&served));
    let text = Value::from("a".repeat(8 * MIB)).to_envelope().unwrap().into_bytes();
    let before = given(&served);
    for _ in 0..3 {
        let answer = peer.exchange(vec![head(text.len()), text.clone()]).await.unwrap();
        assert_eq!(answer[0].0.kind, FrameKind::Done);
    }
    assert!(given(&served) < before, "{} after {before}", given(&served));
    drop(peer);
    until(|| given(&served) == 0).await;
}

/// Streams that wait for calls of a peer with some calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_calls_gets_more_streams_on_demand() {
    let gate = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&gate);
    let stage = Stage::<String, usize>::each_async("wait", move |text| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire().await.unwrap().forget();
            Ok(text.len())
        }
    });
    let served = ServingNode::start(App::new().route("/wait", stage)).await;
    let client = served.client().await;
    // Too large to share, so that each has its own stream.
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, usize>("/wait", "a".repeat(20_000)).await })
        })
        .collect();
    until(|| served.edge.streams() == 200).await;
    gate.add_permits(200);
    for call in calls {
        assert_eq!(tokio::time::timeout(LONG, call).await.unwrap().unwrap().unwrap(), 20_000);
    }
    served.until_idle().await;
}
