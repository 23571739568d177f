//! Streaming stages on other nodes: order, end-to-end credit, and streams that are lost in
//! the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{
    App, CallOptions, Contract, ErrorKind, Failure, Limits, Pipeline, Stage, StreamPipeline, StreamStage,
};
use futures_util::{StreamExt, stream};

use crate::common::{LONG, Member, ServingNode, until};

const NEVER: u64 = u64::MAX;

type Count = Arc<AtomicUsize>;

fn count(count: &Count) -> usize {
    count.load(Ordering::SeqCst)
}

/// Counts from 0 to `n`, and counts the outputs taken from it. With an odd `n`, it raises an error there.
fn counting(outputs_taken: &Count) -> StreamStage<u64, u64> {
    let outputs_taken = Arc::clone(outputs_taken);
    StreamStage::each("count", move |n: &u64| {
        let (n, outputs_taken) = (*n, Arc::clone(&outputs_taken));
        stream::iter(0..=n).map(move |k| {
            outputs_taken.fetch_add(1, Ordering::SeqCst);
            if k == n && n % 2 == 1 && n != NEVER { Err(Failure::new("odd")) } else { Ok(k) }
        })
    })
}

fn remote() -> StreamPipeline<u64, u64> {
    StreamPipeline::remote("count")
}

/// A node whose `/count` runs on the other node.
async fn worker_and_gateway(outputs_taken: &Count) -> (ServingNode, Member) {
    let worker = ServingNode::start(App::new().route_streaming("/count", counting(outputs_taken).credit(2))).await;
    let gateway = Member::start(App::new().route_streaming("/count", remote()), &[&worker.edge]).await;
    gateway.until_offered("count").await;
    (worker, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_cross_in_order_and_an_error_is_the_last() {
    let (worker, gateway) = worker_and_gateway(&Count::default()).await;
    let client = gateway.served.node.client();
    let all: Vec<_> = client.replies::<u64, u64>("/count", 1_000).unwrap().map(Result::unwrap).collect().await;
    assert_eq!(all, (0..=1_000).collect::<Vec<_>>());
    let mut replies = client.replies::<u64, u64>("/count", 3).unwrap();
    for expected in 0..3 {
        assert_eq!(replies.next().await.unwrap().unwrap(), expected);
    }
    let error = replies.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.message(), error.stage()), (ErrorKind::Failed, "odd", Some("count")));
    assert!(replies.next().await.is_none());
    worker.until_idle().await;
    gateway.served.until_idle().await;
}

/// The reader takes one and waits: the owner has granted 16, the peer's stage holds 2 and makes 1, and half of the
/// grant may be renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_pauses_the_worker_on_the_peer() {
    let outputs_taken = Count::default();
    let (worker, gateway) = worker_and_gateway(&outputs_taken).await;
    let client = gateway.served.node.client();
    let mut replies = client.replies::<u64, u64>("/count", NEVER).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 0);
    until(|| count(&outputs_taken) >= 16).await;
    // Other calls show that both nodes had time to run.
    for _ in 0..20 {
        let all: Vec<_> = client.replies::<u64, u64>("/count", 0).unwrap().collect().await;
        assert_eq!(all.len(), 1);
    }
    let while_paused = count(&outputs_taken) - 20;
    assert!(while_paused <= 16 + 2 + 2, "{while_paused} outputs for a reader that has taken one");
    for expected in 1..200 {
        assert_eq!(replies.next().await.unwrap().unwrap(), expected);
    }
    assert!(
        count(&outputs_taken) - 20 <= 200 + 16 + 4,
        "{} outputs for a reader that has taken 200",
        count(&outputs_taken) - 20
    );
    // Dropped in the middle: it ends on the peer, although it would never end by itself.
    drop(replies);
    worker.until_idle().await;
    gateway.served.until_idle().await;
}

/// A local stage before it; after it a chained stage on the same peer, and a local one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_streaming_stage_runs_the_later_stages_with_it() {
    let squares = Count::default();
    let square = Stage::each("square", {
        let squares = Arc::clone(&squares);
        move |n: &u64| {
            squares.fetch_add(1, Ordering::SeqCst);
            Ok(n * n)
        }
    });
    let app = App::new().route_streaming("/count", counting(&Count::default())).route("/square", square);
    let worker = ServingNode::start(app).await;
    let parse = Stage::each("parse", |text: &String| Ok(text.parse::<u64>()?));
    let tell = Stage::each("tell", |n: &u64| Ok(format!("{n}!")));
    let pipeline = Pipeline::from(parse).then_stream(remote()).then(Pipeline::<u64, u64>::remote("square")).then(tell);
    assert_eq!(pipeline.to_string(), "parse → ↗count → ↗square → tell");
    let gateway = Member::start(App::new().route_streaming("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("square").await;
    let before = worker.streams_started();
    let client = gateway.served.node.client();
    let replies = client.replies::<String, String>("/run", "4".to_owned()).unwrap();
    let all: Vec<_> = replies.map(Result::unwrap).collect().await;
    assert_eq!(all, ["0!", "1!", "4!", "9!", "16!"]);
    assert_eq!((worker.streams_started() - before, count(&squares)), (1, 5), "all stages in one call");
    let error = client.replies::<String, String>("/run", "x".to_owned()).unwrap().next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_of_a_stream_crosses() {
    let outputs_taken = Count::default();
    let (worker, gateway) = worker_and_gateway(&outputs_taken).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(300));
    let client = gateway.served.node.client();
    let mut replies = client.replies_with::<u64, u64>("/count", NEVER, options).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 0);
    // No reader is left; both ends stop by themselves.
    worker.until_idle().await;
    let produced = count(&outputs_taken);
    let last = tokio::time::timeout(LONG, async {
        loop {
            match replies.next().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    });
    assert_eq!(last.await.unwrap().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(count(&outputs_taken), produced, "no output is made without a reader");
    gateway.served.until_idle().await;
}

/// The peer is cut off in the middle. Earlier outputs are delivered; then the error reports the loss and the number of
/// outputs. Nothing runs again although another peer could.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_lost_in_the_middle_reports_the_loss() {
    let outputs_taken: [Count; 2] = Default::default();
    let first = ServingNode::start(App::new().route_streaming("/count", counting(&outputs_taken[0]))).await;
    let second = ServingNode::start(App::new().route_streaming("/count", counting(&outputs_taken[1]))).await;
    let gateway = Member::start(App::new().route_streaming("/count", remote()), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    let client = gateway.served.node.client();
    let mut replies = client.replies::<u64, u64>("/count", NEVER).unwrap();
    for expected in 0..5 {
        assert_eq!(replies.next().await.unwrap().unwrap(), expected);
    }
    let (lost, rest, unused) = if count(&outputs_taken[0]) > 0 {
        (first, second, &outputs_taken[1])
    } else {
        (second, first, &outputs_taken[0])
    };
    lost.edge.shutdown(Duration::ZERO).await;
    let mut received = 5;
    let error = loop {
        match replies.next().await.expect("the loss is reported") {
            Ok(output) => {
                assert_eq!(output, received);
                received += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.message().contains(&format!("lost after {received} outputs")), "{error}");
    assert!(replies.next().await.is_none());
    assert_eq!(count(unused), 0);
    drop(rest);
    gateway.served.until_idle().await;
}

/// Its peer has begun it and is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_lost_before_its_first_output_runs_on_another_peer_if_its_contract_allows() {
    for contract in [Contract::Pure, Contract::AtMostOnce] {
        let begun = Count::default();
        let counted = Arc::clone(&begun);
        let silent = StreamStage::each("count", move |_: &u64| {
            counted.fetch_add(1, Ordering::SeqCst);
            stream::pending::<Result<u64, Failure>>()
        });
        let first = ServingNode::start(App::new().route_streaming("/count", silent.contract(contract))).await;
        let gateway = Member::start(App::new().route_streaming("/count", remote()), &[&first.edge]).await;
        gateway.until_offered("count").await;
        let mut replies = gateway.served.node.client().replies::<u64, u64>("/count", 2).unwrap();
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            while let Some(output) = replies.next().await {
                read.push(output);
            }
            read
        });
        until(|| count(&begun) == 1).await;
        let counting = counting(&Count::default()).contract(contract);
        let _second = Member::start(App::new().route_streaming("/count", counting), &[&gateway.served.edge]).await;
        gateway.until_connected(2).await;
        first.edge.shutdown(Duration::ZERO).await;
        let read = reading.await.unwrap();
        match contract {
            Contract::Pure => assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]),
            _ => {
                let error = read.into_iter().next().unwrap().unwrap_err();
                assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, true), "{error}");
                assert!(!error.is_retryable());
            }
        }
    }
}

/// Before the first output, a call that did not start goes to the next peer, or stays here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_a_peer_has_not_started_runs_on_another() {
    let outputs_taken: [Count; 2] = Default::default();
    let full = Limits { max_in_flight: 1, ..Limits::default() };
    let first =
        ServingNode::start(App::new().route_streaming("/count", counting(&outputs_taken[0])).limits(full)).await;
    let second = ServingNode::start(App::new().route_streaming("/count", counting(&outputs_taken[1]))).await;
    let gateway = Member::start(App::new().route_streaming("/count", remote()), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    let mut filler = first.node.client().replies::<u64, u64>("/count", NEVER).unwrap();
    filler.next().await.unwrap().unwrap();
    let client = gateway.served.node.client();
    for _ in 0..10 {
        let all: Vec<_> = client.replies::<u64, u64>("/count", 2).unwrap().map(Result::unwrap).collect().await;
        assert_eq!(all, [0, 1, 2]);
    }
    assert_eq!(count(&outputs_taken[1]), 30);
}

/// Its own stage is busy; the peer's is free. Without the peer, it runs locally again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_local_room_runs_on_a_peer() {
    let outputs_taken: [Count; 2] = Default::default();
    let narrow = |outputs_taken| counting(outputs_taken).concurrency(1).queue(1);
    let worker = ServingNode::start(App::new().route_streaming("/count", counting(&outputs_taken[1]))).await;
    let gateway = Member::start(App::new().route_streaming("/count", narrow(&outputs_taken[0])), &[&worker.edge]).await;
    gateway.until_offered("count").await;
    let client = gateway.served.node.client();
    let mut runs = client.replies::<u64, u64>("/count", NEVER).unwrap();
    runs.next().await.unwrap().unwrap();
    let mut waits = client.replies::<u64, u64>("/count", 2).unwrap();
    let waiting = tokio::spawn(async move { waits.next().await });
    until(|| gateway.served.node.describe().stages[0].queued == 1).await;
    let all: Vec<_> = client.replies::<u64, u64>("/count", 4).unwrap().map(Result::unwrap).collect().await;
    assert_eq!((all.len(), count(&outputs_taken[1])), (5, 5));
    drop(runs);
    assert_eq!(waiting.await.unwrap().unwrap().unwrap(), 0);
    worker.until_idle().await;
}

/// The local stage is full, and the only peer with the same revision is busy: the call still gets the revision that was
/// drawn for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_local_room_keeps_its_drawn_revision() {
    let started: [Count; 3] = Default::default();
    let counting = |started: &Count, revision: u64| {
        let started = Arc::clone(started);
        let stage = StreamStage::each("count", move |n: &u64| {
            started.fetch_add(1, Ordering::SeqCst);
            stream::iter((0..=*n).map(Ok::<u64, Failure>))
        });
        stage.revision(revision)
    };
    let serve = |stage| ServingNode::start(App::new().route_streaming("/count", stage));
    let same = serve(counting(&started[1], 1).concurrency(8)).await;
    let other = serve(counting(&started[2], 2).concurrency(8)).await;
    let local = counting(&started[0], 1).concurrency(1).queue(1);
    let app = App::new().route_streaming("/count", local);
    let gateway = Member::start(app, &[&same.edge, &other.edge]).await;
    gateway.until_connected(2).await;
    let client = gateway.served.node.client();
    gateway.cluster.split("count", [(1, 1)]);
    let mut runs = client.replies::<u64, u64>("/count", NEVER).unwrap();
    runs.next().await.unwrap().unwrap();
    let mut waits = client.replies::<u64, u64>("/count", 0).unwrap();
    let waiting = tokio::spawn(async move { waits.next().await });
    until(|| gateway.served.node.describe().stages[0].queued == 1).await;
    // Busy enough that no call is forwarded to it before this node has refused it.
    let mut busy = client.replies::<u64, u64>("/count", NEVER).unwrap();
    busy.next().await.unwrap().unwrap();
    assert_eq!(count(&started[1]), 1);
    gateway.cluster.split("count", [(1, 1), (2, 1)]);
    for _ in 0..10 {
        let all: Vec<_> = client.replies::<u64, u64>("/count", 1).unwrap().map(Result::unwrap).collect().await;
        assert_eq!(all, [0, 1]);
    }
    assert_eq!((count(&started[1]) - 1, count(&started[2])), (5, 5));
    drop((runs, busy));
    assert_eq!(waiting.await.unwrap().unwrap().unwrap(), 0);
}
