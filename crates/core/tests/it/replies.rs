//! Streaming stages: order, the reader's pace, every kind of end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{
    App, Batch, BatchPolicy, CallOptions, ErrorKind, Failure, NotEmitted, Outputs, Pipeline, Stage, StageSettings,
    StreamPipeline, StreamStage, StreamWorker,
};
use futures_util::{Stream, StreamExt, stream};

use super::support::{Gate, PATIENCE, hide_panics, until};

/// Counts up without end, and records how far.
fn endless(made: &Arc<AtomicU64>) -> StreamStage<u64, u64> {
    let made = Arc::clone(made);
    StreamStage::each("endless", move |from: &u64| {
        let made = Arc::clone(&made);
        stream::iter(*from..).map(move |n| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(n)
        })
    })
}

/// All outputs until the stream ends, with or without an error.
async fn all<T>(
    mut replies: impl Stream<Item = Result<T, callboard_core::CallError>> + Unpin,
) -> (Vec<T>, Option<ErrorKind>) {
    let mut items = Vec::new();
    while let Some(item) = replies.next().await {
        match item {
            Ok(item) => items.push(item),
            Err(error) => {
                assert!(replies.next().await.is_none(), "an error is the last item");
                return (items, Some(error.kind()));
            }
        }
    }
    (items, None)
}

fn first(n: u64) -> StreamStage<u64, u64> {
    StreamStage::each("first", move |from: &u64| stream::iter(*from..*from + n).map(Ok))
}

#[tokio::test(start_paused = true)]
async fn outputs_keep_their_order_through_earlier_and_later_stages() {
    let before = Stage::each("before", |n: &u64| Ok(n * 10));
    let behind = Stage::each_async("behind", |n: Arc<u64>| async move {
        // The later items are quicker, and could overtake.
        tokio::time::sleep(Duration::from_millis(100 - *n)).await;
        Ok(n.to_string())
    });
    let pipeline = Pipeline::from(before).then_stream(first(5)).then(behind).map("mark", |text| Ok(format!("{text}!")));
    assert_eq!(pipeline.to_string(), "before → first → behind → [mark]");
    let node = App::new().route_streaming("/count", pipeline).start().await.unwrap();
    let replies = node.client().replies::<u64, String>("/count", 1).unwrap();
    let expected: Vec<String> = (10..15).map(|n| format!("{n}!")).collect();
    assert_eq!(all(replies).await, (expected, None));
    let description = node.describe();
    assert_eq!((description.in_flight, description.outcomes, description.admitted), (0, 1, 1));
    assert!(node.metrics().contains(r#"callboard_requests_total{route="/count",outcome="ok"} 1"#));
}

#[tokio::test(start_paused = true)]
async fn an_idle_reader_stops_only_its_own_stream_at_its_credit() {
    let made = Arc::default();
    let node = App::new().route_streaming("/endless", endless(&made).credit(4)).start().await.unwrap();
    let client = node.client();
    let mut slow = client.replies::<u64, u64>("/endless", 0).unwrap();
    assert_eq!(slow.next().await.unwrap().unwrap(), 0);
    until("the stream has used its credit", || made.load(Ordering::SeqCst) == 5).await;

    let quick = client.replies::<u64, u64>("/endless", 1000).unwrap();
    let (items, error) = all(quick.take(100)).await;
    assert_eq!((items.len(), error), (100, None));
    let made_for_the_quick = made.load(Ordering::SeqCst) - 5;
    assert!((100..=105).contains(&made_for_the_quick), "{made_for_the_quick}");

    assert_eq!(slow.next().await.unwrap().unwrap(), 1);
    assert_eq!(slow.next().await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_ends_the_work() {
    let made = Arc::default();
    let node = App::new().route_streaming("/endless", endless(&made)).start().await.unwrap();
    let mut replies = node.client().replies::<u64, u64>("/endless", 0).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 0);
    drop(replies);
    until("the worker is free", || !node.describe().stages[0].replicas[0].busy).await;
    let description = node.describe();
    assert_eq!((description.in_flight, description.outcomes), (0, 1));
    assert!(node.metrics().contains(r#"callboard_requests_total{route="/endless",outcome="cancelled"} 1"#));
}

#[tokio::test(start_paused = true)]
async fn a_failure_follows_the_outputs_before_it() {
    let stage = StreamStage::each("breaks", |n: &u64| {
        let n = *n;
        stream::iter((0..=n).map(move |i| if i < n { Ok(i) } else { Err(Failure::new("enough")) }))
    });
    let behind = Stage::each("behind", |n: &u64| if *n == 7 { Err(Failure::invalid_input("not 7")) } else { Ok(*n) });
    let node = App::new().route_streaming("/breaks", StreamPipeline::from(stage).then(behind)).start().await.unwrap();
    let client = node.client();
    let replies = client.replies::<u64, u64>("/breaks", 3).unwrap();
    assert_eq!(all(replies).await, (vec![0, 1, 2], Some(ErrorKind::Failed)));
    let replies = client.replies::<u64, u64>("/breaks", 100).unwrap();
    assert_eq!(all(replies).await, ((0..7).collect(), Some(ErrorKind::InvalidInput)));
    until("nothing is left", || node.describe().in_flight == 0).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_covers_the_whole_stream_whether_it_is_read_or_not() {
    let stage = StreamStage::each("ticks", |n: &u64| {
        stream::unfold(*n, |n| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(n), n + 1))
        })
    });
    let node = App::new().route_streaming("/ticks", stage.credit(1)).start().await.unwrap();
    let client = node.client();
    let options = || CallOptions::new().with_timeout(Duration::from_millis(3500));
    let replies = client.replies_with::<u64, u64>("/ticks", 0, options()).unwrap();
    assert_eq!(all(replies).await, (vec![0, 1, 2], Some(ErrorKind::DeadlineExceeded)));

    let mut unread = client.replies_with::<u64, u64>("/ticks", 0, options()).unwrap();
    assert_eq!(unread.next().await.unwrap().unwrap(), 0);
    until("the worker is free without a reader", || !node.describe().stages[0].replicas[0].busy).await;
    drop(unread);

    let impatient = CallOptions::new().with_first_item_timeout(Duration::from_millis(500));
    let replies = client.replies_with::<u64, u64>("/ticks", 0, impatient).unwrap();
    assert_eq!(all(replies).await, (vec![], Some(ErrorKind::DeadlineExceeded)));
    let patient = CallOptions::new().with_first_item_timeout(Duration::from_millis(1500));
    let replies = client.replies_with::<u64, u64>("/ticks", 5, patient).unwrap();
    assert_eq!(all(replies.take(3)).await, (vec![5, 6, 7], None), "it reads only the first item");
}

#[tokio::test(start_paused = true)]
async fn an_absent_reader_holds_no_permit_beyond_the_deadline() {
    let made = Arc::default();
    let node = App::new().route_streaming("/endless", endless(&made)).start().await.unwrap();
    let options = || CallOptions::new().with_timeout(Duration::from_secs(1));
    let never_read = node.client().replies_with::<u64, u64>("/endless", 0, options()).unwrap();
    let mut half_read = node.client().replies_with::<u64, u64>("/endless", 0, options()).unwrap();
    assert_eq!(half_read.next().await.unwrap().unwrap(), 0);
    assert_eq!(node.describe().in_flight, 2);

    tokio::time::sleep(Duration::from_millis(1001)).await;
    let description = node.describe();
    assert_eq!((description.in_flight, description.outcomes), (0, 2));
    let counted = "callboard_requests_total{route=\"/endless\",outcome=\"deadline_exceeded\"} 2";
    assert!(node.client().metrics().contains(counted));
    for replies in [never_read, half_read] {
        assert_eq!(all(replies).await, (vec![], Some(ErrorKind::DeadlineExceeded)), "a late reader gets the deadline");
    }
    assert_eq!(node.describe().outcomes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_plain_call_of_a_streaming_route_is_refused_with_the_remedy() {
    let plain = Stage::each("plain", |n: &u64| Ok(n + 1));
    let node = App::new().route("/plain", plain).route_streaming("/first", first(2)).start().await.unwrap();
    let client = node.client();
    let replies = client.replies::<u64, u64>("/plain", 1).unwrap();
    assert_eq!(all(replies).await, (vec![2], None), "a plain route gives one output");
    let error = client.call::<u64, u64>("/first", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.message(), "stage `first` streams its outputs: read the call's replies one by one");
    let error = client.replies::<u64, u64>("/none", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Emits for all of its items in turn; some inputs fail, some kill.
struct Rounds {
    batches: Arc<AtomicUsize>,
}

impl StreamWorker for Rounds {
    type In = u64;
    type Out = (u64, u64);

    fn call(&mut self, batch: Batch<u64>, outputs: &mut Outputs<(u64, u64)>) {
        self.batches.fetch_add(1, Ordering::SeqCst);
        for round in 0..3 {
            for (index, item) in batch.iter().enumerate() {
                if *item == 13 {
                    outputs.fail(index, Failure::invalid_input("not 13"));
                }
                assert_ne!((*item, round), (666, 1), "meant to panic");
                match outputs.emit(index, (*item, round)) {
                    Err(NotEmitted::Gone(_)) => assert!(!outputs.is_wanted(index)),
                    emitted => emitted.unwrap(),
                }
                if (*item, round) == (77, 1) {
                    outputs.fail(index, Failure::new("77 ends early"));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_streams_for_a_whole_batch_and_each_item_ends_its_own_way() {
    hide_panics();
    let batches = Arc::default();
    let stage = {
        let batches = Arc::clone(&batches);
        StreamStage::worker("rounds", move |_| Ok(Rounds { batches: Arc::clone(&batches) })).max_batch_size(4)
    };
    let batching = BatchPolicy { max_delay: Duration::from_secs(20), ..stage.settings().batching().clone() };
    let stage = stage.map_settings(|settings| settings.with_batching(batching));
    let node = App::new().route_streaming("/rounds", stage).start().await.unwrap();
    let client = node.client();
    let read = async |n: u64| all(client.replies::<u64, (u64, u64)>("/rounds", n).unwrap()).await;

    let (one, bad, early, two) = tokio::join!(read(1), read(13), read(77), read(2));
    assert_eq!(batches.load(Ordering::SeqCst), 1, "they ran in one batch");
    let rounds = |n: u64, rounds: u64| (0..rounds).map(|round| (n, round)).collect::<Vec<_>>();
    assert_eq!(one, (rounds(1, 3), None));
    assert_eq!(bad, (vec![], Some(ErrorKind::InvalidInput)));
    assert_eq!(early, (rounds(77, 2), Some(ErrorKind::Failed)));
    assert_eq!(two, (rounds(2, 3), None));

    let (one, killer, two, three) = tokio::join!(read(1), read(666), read(2), read(3));
    assert_eq!(killer, (rounds(666, 1), Some(ErrorKind::WorkerFailed)));
    assert_eq!(one, (rounds(1, 2), Some(ErrorKind::WorkerFailed)), "sent outputs remain, and nothing runs again");
    assert_eq!((two.1, three.1), (Some(ErrorKind::WorkerFailed), Some(ErrorKind::WorkerFailed)));
    until("nothing is left", || node.describe().in_flight == 0).await;
}

/// Emits without end, or hangs.
struct Endless {
    gate: Gate,
}

impl StreamWorker for Endless {
    type In = bool;
    type Out = u64;

    fn call(&mut self, batch: Batch<bool>, outputs: &mut Outputs<u64>) {
        for n in 0.. {
            if outputs.emit(0, n).is_err() {
                return;
            }
            if batch[0] {
                self.gate.pass();
            }
        }
    }
}

fn endless_worker(gate: &Gate) -> StreamStage<bool, u64> {
    let gate = gate.clone();
    StreamStage::worker("endless", move |_| Ok(Endless { gate: gate.clone() }))
        .credit(1)
        .timeout(Duration::from_secs(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_reader_fails_alone_and_does_not_count_as_a_hung_worker() {
    let node = App::new().route_streaming("/endless", endless_worker(&Gate::default())).start().await.unwrap();
    let client = node.client();
    for _ in 0..3 {
        let mut unread = client.replies::<bool, u64>("/endless", false).unwrap();
        assert_eq!(unread.next().await.unwrap().unwrap(), 0);
        until("the worker has abandoned it", || !node.describe().stages[0].replicas[0].busy).await;
        let (items, error) = all(unread).await;
        assert!(!items.is_empty(), "emitted outputs can still be read");
        assert_eq!(error, Some(ErrorKind::Failed));
    }
    let stage = &node.describe().stages[0];
    assert_eq!((stage.health.state, stage.restarts), (callboard_core::description::StageState::Ready, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_gets_the_error_of_a_hung_stream_at_once() {
    let gate = Gate::default();
    let node = App::new().route_streaming("/endless", endless_worker(&gate)).start().await.unwrap();
    let replies = node.client().replies::<bool, u64>("/endless", true).unwrap();
    let received =
        tokio::time::timeout(Duration::from_secs(10), all(replies)).await.expect("it waits for its own deadline");
    assert_eq!(received, (vec![0], Some(ErrorKind::DeadlineExceeded)));
    gate.open();
}

/// Emits from its own thread, like a worker whose library calls back from a thread.
struct OwnThread;

impl StreamWorker for OwnThread {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>, outputs: &mut Outputs<u64>) {
        std::thread::scope(|scope| {
            let end = *batch.iter().next().unwrap();
            scope.spawn(move || (0..end).all(|n| outputs.emit(0, n).is_ok()));
        });
    }
}

#[tokio::test]
async fn a_worker_may_wait_for_credit_on_its_own_thread() {
    let stage = StreamStage::worker("elsewhere", |_| Ok(OwnThread)).credit(1);
    let node = App::new().route_streaming("/count", stage).start().await.unwrap();
    let replies = node.client().replies::<u64, u64>("/count", 20).unwrap();
    assert_eq!(all(replies).await, ((0..20).collect(), None));
}

#[tokio::test]
async fn ended_replies_stay_ended() {
    let node = App::new().route_streaming("/first", first(1)).start().await.unwrap();
    let client = node.client();
    let mut replies = client.replies::<u64, u64>("/first", 3).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 3);
    assert!(replies.next().await.is_none());
    assert!(replies.next().await.is_none());

    let admission = client.edge().admit(&client.route("/first").unwrap(), 0).unwrap();
    let mut payloads =
        client.edge().submit_streaming(admission, callboard_codec::Payload::new(3u64), CallOptions::new());
    assert!(payloads.next().await.unwrap().is_ok());
    assert!(payloads.next().await.is_none());
    assert!(payloads.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn slow_readers_do_not_affect_the_admission_of_the_next_call() {
    let node = App::new().route_streaming("/first", first(8).credit(1)).start().await.unwrap();
    let client = node.client();
    let mut slow: Vec<_> = (0..10).map(|_| client.replies::<u64, u64>("/first", 0).unwrap()).collect();
    for replies in &mut slow {
        assert!(replies.next().await.unwrap().is_ok());
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    for replies in slow {
        assert_eq!(all(replies).await, ((1..8).collect(), None));
    }
    let options = CallOptions::new().with_timeout(Duration::from_secs(5));
    let quick = client.replies_with::<u64, u64>("/first", 0, options).unwrap();
    assert_eq!(all(quick).await, ((0..8).collect(), None));
}

#[tokio::test]
async fn a_stage_may_have_the_largest_timeout() {
    let stage = StreamStage::worker("elsewhere", |_| Ok(OwnThread)).timeout(Duration::MAX);
    let node = App::new().route_streaming("/count", stage).start().await.unwrap();
    let replies = node.client().replies::<u64, u64>("/count", 3).unwrap();
    assert_eq!(all(replies).await, ((0..3).collect(), None));
}

#[test]
fn a_streaming_function_has_batches_of_one_despite_its_settings() {
    let batching = BatchPolicy { max_batch_size: 8.try_into().unwrap(), ..BatchPolicy::default() };
    let many = |settings: StageSettings| settings.with_batching(batching.clone());
    let size = |stage: StreamStage<u64, u64>| stage.settings().batching().max_batch_size.get();
    assert_eq!(size(first(1).map_settings(many)), 1);
    assert_eq!(size(first(1).max_batch_size(8)), 1);
    assert_eq!(size(StreamStage::worker("elsewhere", |_| Ok(OwnThread)).map_settings(many)), 8);
}

#[tokio::test]
async fn a_stream_for_a_stalled_peer_occupies_no_stage_beyond_the_deadline() {
    let made = Arc::default();
    let behind = Stage::each("behind", |n: &u64| Ok(*n));
    let app = App::new().route_streaming("/endless", endless(&made)).route("/behind", behind);
    let node = app.start().await.unwrap();
    let client = node.client();
    let admission = client.edge().admit_stages(&["endless", "behind"], 0).unwrap();
    let options = CallOptions::new().with_timeout(Duration::from_millis(200));
    let mut replies = client.edge().submit_stages_streaming(admission, callboard_codec::Payload::new(0u64), options);
    assert!(replies.next().await.unwrap().is_ok());
    for route in ["/endless", "/behind"] {
        let removed = node.remove_route(route).await.unwrap();
        tokio::time::timeout(PATIENCE, removed.settled()).await.expect("the reader occupies a stage");
    }
    assert!(node.describe().stages.is_empty());
    drop(replies);
}
