//! Streaming routes over the network: order, credit, and streams without a reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::Value;
use callboard_codec::wire::{Call, Fail, FrameKind, Hello, VERSION, frame_head};
use callboard_core::{App, CallOptions, Caller, ErrorKind, Failure, Stage, StreamStage};
use callboard_net::testing::RawPeer;
use futures_util::{StreamExt, stream};

use crate::common::{IDENTITY, LONG, ServingNode, builder, patient, until};

const NEVER: u64 = u64::MAX;

/// Counts from 0 to `n`, and counts the outputs taken from it. With an odd `n`, it raises an error there.
fn counting(taken: &Arc<AtomicUsize>) -> App {
    let taken = Arc::clone(taken);
    let count = StreamStage::each("count", move |n: &u64| {
        let (n, taken) = (*n, Arc::clone(&taken));
        stream::iter(0..=n).map(move |k| {
            taken.fetch_add(1, Ordering::SeqCst);
            if k == n && n % 2 == 1 && n != NEVER { Err(Failure::new("odd")) } else { Ok(k) }
        })
    });
    App::new().route_streaming("/count", count.credit(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_arrive_in_order_and_an_error_is_the_last() {
    let served = ServingNode::start(counting(&Arc::default())).await;
    let client = served.client().await;
    let all: Vec<_> = client.replies::<u64, u64>("/count", 1_000).unwrap().map(Result::unwrap).collect().await;
    assert_eq!(all, (0..=1_000).collect::<Vec<_>>());

    let mut replies = client.replies::<u64, u64>("/count", 3).unwrap();
    for expected in 0..3 {
        assert_eq!(replies.next().await.unwrap().unwrap(), expected);
    }
    let error = replies.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Failed, "odd"));
    assert!(replies.next().await.is_none());

    let error = client.replies::<u64, u64>("/nowhere", 3).unwrap().next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = client.replies::<u64, String>("/count", 3).unwrap().next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Internal, true), "{error}");
    let expected = "route `/count` gives a value that cannot be read as `alloc::string::String`: ";
    assert!(error.message().starts_with(expected), "{error}");
    served.until_idle().await;
}

/// The reader has room for 4, the node for 2 more in transit; a reader that stops reading gets no more out of a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_makes_the_worker_wait() {
    let taken = Arc::default();
    let served = ServingNode::start(counting(&taken)).await;
    let client = builder().credit(4).connect(&served.url()).await.unwrap();
    let mut replies = client.replies::<u64, u64>("/count", NEVER).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 0);
    // It takes all it may, so this can be awaited; another call shows that the node had its turns.
    until(|| taken.load(Ordering::SeqCst) >= 4).await;
    for _ in 0..20 {
        let all: Vec<_> = client.replies::<u64, u64>("/count", 0).unwrap().collect().await;
        assert_eq!(all.len(), 1);
    }
    let while_paused = taken.load(Ordering::SeqCst) - 20;
    assert!(while_paused <= 4 + 4, "{while_paused} outputs for a reader with room for 4");
    for expected in 1..50 {
        assert_eq!(replies.next().await.unwrap().unwrap(), expected);
    }
    // Dropped in the middle: the call ends on the node, although it would never end by itself.
    drop(replies);
    served.until_idle().await;
}

/// A reader that never grants credit: its call ends at the deadline, and holds nothing after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_stream_ends_at_its_deadline() {
    let served = ServingNode::start(counting(&Arc::default())).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let cluster = IDENTITY.cluster().to_owned();
    peer.greet(&Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }).await.unwrap();
    let body = Value::from(1_i64 << 60).to_envelope().unwrap().into_bytes();
    let call = Call { route: "/count".to_owned(), millis_left: 300, credit: 1, ..Call::default() };
    let head = frame_head(FrameKind::Call, 0, &call, body.len()).unwrap();
    let frames = tokio::time::timeout(LONG, peer.exchange(vec![head, body])).await.unwrap().unwrap();
    let kinds: Vec<FrameKind> = frames.iter().map(|(head, _)| head.kind).collect();
    assert_eq!(kinds, [FrameKind::Item, FrameKind::Fail]);
    let fail: Fail = frames[1].0.header().unwrap();
    assert_eq!(fail.kind, "deadline_exceeded");
    served.until_idle().await;
}

/// More outputs in flight than a connection used to have room for, without a reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_pause_delay_no_other_call() {
    let large = StreamStage::each("large", |bytes: &usize| {
        let bytes = *bytes;
        stream::iter((0..16).map(move |_| Ok(Value::from(bytes::Bytes::from(vec![7_u8; bytes])))))
    });
    let echo = Stage::each("echo", |value: &Value| Ok(value.clone()));
    let served = ServingNode::start(App::new().route_streaming("/large", large).route("/echo", echo)).await;
    let client = served.client().await;
    let mut paused = Vec::new();
    // Sooner than the node's timeout for slow readers.
    let soon = patient().write_progress_timeout * 2 / 3;
    for _ in 0..6 {
        // These calls outlast the call that they must not delay.
        let options = CallOptions::new().with_timeout(LONG * 10);
        let mut replies = client.replies_with::<_, Value>("/large", 1_usize << 20, options).unwrap();
        tokio::time::timeout(soon, replies.next()).await.unwrap().unwrap().unwrap();
        paused.push(replies);
    }
    let value = Value::from(bytes::Bytes::from(vec![1_u8; 2 << 20]));
    let soon = CallOptions::new().with_timeout(soon);
    assert_eq!(client.call_with::<_, Value>("/echo", value.clone(), soon).await.unwrap(), value);
    drop(paused);
    served.until_idle().await;
}
