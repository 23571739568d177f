//! One call's record: its stages and batches, and the part of it that an error reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::timeline::{BatchObserver, EndedBatch, Recorder, RunEnd, SpanId};
use callboard_core::{App, CallOptions, ErrorKind, Instant, Node, Pipeline, ReleaseReason, Stage, StreamStage};
use futures_util::stream;

use super::support::{Gate, gated, hide_panics, serve, until};

async fn record(node: &Node, input: u64, timeout: Duration) -> (Recorder, Result<u64, callboard_core::CallError>) {
    let recorder = Recorder::new(Instant::now());
    let options = CallOptions::new().with_timeout(timeout).with_recorder(recorder.clone());
    let outcome = node.client().call_with::<u64, u64>("/route", input, options).await;
    (recorder, outcome)
}

/// Keeps a worker's thread busy for `time`.
fn work(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::hint::spin_loop();
    }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_timeline_shows_each_stage_with_its_batch_and_times() {
    let double = Stage::each("double", |n: &u64| Ok(2 * n)).on_threads();
    let slow = Stage::each("slow", |n: &u64| {
        work(Duration::from_millis(3));
        Ok(n + 1)
    });
    let node = serve(Pipeline::from(double).then(slow.on_threads().max_batch_size(8))).await;
    let (recorder, outcome) = record(&node, 20, LONG).await;
    assert_eq!(outcome.unwrap(), 41);

    let timeline = recorder.timeline(Instant::now());
    let stages: Vec<&str> = timeline.visits.iter().map(|visit| visit.stage.as_str()).collect();
    assert_eq!((stages, timeline.omitted), (vec!["double", "slow"], 0));
    let (first, second) = (&timeline.visits[0], &timeline.visits[1]);
    assert!(first.arrived <= first.left.unwrap() && first.left.unwrap() <= second.arrived, "{timeline:?}");
    assert!(second.left.unwrap() <= timeline.total);
    let run = &second.runs[0];
    assert_eq!((second.runs.len(), run.end), (1, Some(RunEnd::Done)));
    assert!(run.compute.unwrap() >= Duration::from_millis(3) && run.batch_wait.is_some(), "{run:?}");
    let batch = run.batch.unwrap();
    assert_eq!((batch.id, batch.size, batch.replica, batch.reason), (1, 1, 0, Some(ReleaseReason::Idle)));
}

#[tokio::test]
async fn the_timeline_of_an_expired_call_shows_whether_it_waited_or_ran() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let (recorder, running) = record(&node, 1, Duration::from_millis(40)).await;
    assert_eq!(gate.arrived(), 1, "it ran");
    let timing = running.unwrap_err().timing().unwrap();
    assert!(timing.compute > Duration::ZERO && timing.total() <= Duration::from_millis(40), "{timing:?}");
    let run = recorder.timeline(Instant::now()).visits[0].runs[0].clone();
    assert_eq!((run.end, run.batch.map(|batch| batch.size)), (None, Some(1)), "its end is unknown");
    assert!(run.compute.unwrap() > Duration::ZERO);

    let (recorder, waiting) = record(&node, 2, Duration::from_millis(40)).await;
    let error = waiting.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let timing = error.timing().unwrap();
    assert!(timing.queue > Duration::ZERO && timing.compute == Duration::ZERO, "{timing:?}");
    until("the queue has removed it", || {
        recorder.timeline(Instant::now()).visits[0].runs[0].end == Some(RunEnd::Expired)
    })
    .await;
    assert!(recorder.timeline(Instant::now()).visits[0].runs[0].batch.is_none());
    gate.open();
}

#[tokio::test]
async fn an_error_of_a_later_stage_includes_the_times_of_earlier_stages() {
    let slow = Stage::each("slow", |n: &u64| {
        work(Duration::from_millis(5));
        Ok(*n)
    });
    let refuse = Stage::each("refuse", |_: &u64| Err::<u64, _>(callboard_core::Failure::new("no")));
    let node = serve(Pipeline::from(slow.on_threads()).then(refuse)).await;
    let (recorder, outcome) = record(&node, 1, LONG).await;
    assert!(outcome.unwrap_err().timing().unwrap().compute >= Duration::from_millis(5));
    let timeline = recorder.timeline(Instant::now());
    let ends: Vec<_> = timeline.visits.iter().map(|visit| visit.runs[0].end.unwrap()).collect();
    assert_eq!(ends, [RunEnd::Done, RunEnd::Failed]);

    let bare = node.client().call::<u64, u64>("/route", 1).await.unwrap_err();
    assert!(bare.timing().unwrap().compute >= Duration::from_millis(5), "also without a record");
}

/// The first batch holds all four, and one of them kills it.
#[tokio::test]
async fn a_timeline_shows_each_run_of_a_call_whose_batch_was_killed() {
    hide_panics();
    let gate = Gate::default();
    let pass = gate.clone();
    let stage = Stage::batch("poisoned", move |batch: callboard_core::Batch<u64>| {
        pass.pass();
        assert!(!batch.iter().any(|n| *n == 13), "meant to panic");
        batch.iter().map(|n| Ok(*n)).collect()
    });
    let node = serve(stage.on_threads().max_batch_size(4).idempotent()).await;
    let client = node.client();
    let holder = tokio::spawn(async move { client.call::<u64, u64>("/route", 0).await });
    until("the worker is busy", || gate.arrived() == 1).await;
    let calls = [1, 2, 13, 4].map(|n| record(&node, n, LONG));
    let opened = async {
        until("all wait", || node.describe().stages[0].queued == 4).await;
        gate.open();
    };
    let (outcomes, ()) = futures_util::future::join(futures_util::future::join_all(calls), opened).await;
    holder.await.unwrap().unwrap();

    let timelines: Vec<_> = outcomes.iter().map(|(recorder, _)| recorder.timeline(Instant::now())).collect();
    for ((_, outcome), timeline) in outcomes.iter().zip(&timelines) {
        let runs = &timeline.visits[0].runs;
        let (last, earlier) = runs.split_last().unwrap();
        assert!(!earlier.is_empty(), "{runs:?}");
        assert!(earlier.iter().all(|run| run.end == Some(RunEnd::Panicked)), "{runs:?}");
        assert_eq!(earlier[0].batch.unwrap().reason, Some(ReleaseReason::Full));
        assert_eq!((last.batch.unwrap().reason, earlier[0].batch.unwrap().size), (None, 4), "{runs:?}");
        let end = if outcome.is_ok() { RunEnd::Done } else { RunEnd::Panicked };
        assert_eq!(last.end, Some(end));
    }
    assert_eq!(outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count(), 1);
    let first_batches: Vec<u64> = timelines.iter().map(|line| line.visits[0].runs[0].batch.unwrap().id).collect();
    assert!(first_batches.iter().all(|id| *id == first_batches[0]), "one batch: {first_batches:?}");
}

#[derive(Debug, Default)]
struct Batches(Mutex<Vec<EndedBatch>>);

impl BatchObserver for Batches {
    fn ended(&self, batch: EndedBatch) {
        self.0.lock().unwrap().push(batch);
    }
}

#[tokio::test]
async fn a_batch_with_traced_calls_is_reported_once_and_names_them() {
    let gate = Gate::default();
    let node = serve(gated(&gate).max_batch_size(8)).await;
    let batches = Arc::new(Batches::default());
    let call = |n: u64, span: Option<SpanId>| {
        let observer = Arc::clone(&batches) as Arc<dyn BatchObserver>;
        let recorder = span.map(|span| Recorder::for_span(Instant::now(), span, observer));
        let options = recorder.clone().into_iter().fold(CallOptions::new(), CallOptions::with_recorder);
        let client = node.client();
        tokio::spawn(async move { (client.call_with::<u64, u64>("/route", n, options).await, recorder) })
    };
    let holder = call(0, None);
    until("the worker is busy", || gate.arrived() == 1).await;
    let spans = [SpanId::begin(), SpanId::begin()];
    let calls = [call(1, Some(spans[0])), call(2, None), call(3, Some(spans[1]))];
    until("all wait", || node.describe().stages[0].queued == 3).await;
    gate.open();
    holder.await.unwrap().0.unwrap();
    let mut facts = Vec::new();
    for call in calls {
        let (outcome, recorder) = call.await.unwrap();
        outcome.unwrap();
        facts.extend(recorder.map(|recorder| recorder.timeline(Instant::now()).visits[0].runs[0].batch.unwrap()));
    }
    let batches = batches.0.lock().unwrap();
    assert_eq!(batches.len(), 1, "{batches:?}");
    let batch = &batches[0];
    assert_eq!((batch.stage.as_str(), batch.facts.size, batch.end), ("gated", 3, RunEnd::Done));
    assert!(spans.iter().all(|span| batch.members.contains(span)) && batch.members.len() == 2, "{batch:?}");
    assert!(batch.formed_at <= batch.started_at && batch.started_at <= batch.ended_at);
    assert!(facts.iter().all(|facts| *facts == batch.facts && facts.span.is_some()), "{facts:?}");
}

#[tokio::test]
async fn a_long_stream_counts_the_outputs_that_it_does_not_record() {
    let count = StreamStage::each("count", |n: &u64| stream::iter((0..*n).map(Ok)));
    let double = Stage::each("double", |n: &u64| Ok(2 * n));
    let pipeline = callboard_core::StreamPipeline::from(count).then(double);
    let node = App::new().route_streaming("/count", pipeline).start().await.unwrap();
    let recorder = Recorder::new(Instant::now());
    let options = CallOptions::new().with_recorder(recorder.clone());
    let mut replies = node.client().replies_with::<u64, u64>("/count", 100, options).unwrap();
    while let Some(output) = replies.next().await {
        output.unwrap();
    }
    let timeline = recorder.timeline(Instant::now());
    assert_eq!((timeline.visits.len(), timeline.omitted), (64, 101 - 64));
}

#[tokio::test(start_paused = true)]
async fn the_timeline_of_a_late_stream_shows_that_it_ran() {
    let ticks = StreamStage::each("ticks", |n: &u64| {
        stream::unfold(*n, |n| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok(n), n + 1))
        })
    });
    let node = App::new().route_streaming("/ticks", ticks).start().await.unwrap();
    let recorder = Recorder::new(Instant::now());
    let timeout = Duration::from_millis(2500);
    let options = CallOptions::new().with_timeout(timeout).with_recorder(recorder.clone());
    let mut replies = node.client().replies_with::<u64, u64>("/ticks", 0, options).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), 0);
    until("its run has ended", || recorder.timeline(Instant::now()).visits[0].runs[0].end.is_some()).await;
    assert_eq!(recorder.timeline(Instant::now()).visits[0].runs[0].end, Some(RunEnd::Late));
    let never_ran = r#"callboard_stage_discarded_total{stage="ticks",place="worker",reason="expired"} 1"#;
    assert!(!node.metrics().contains(never_ran), "{}", node.metrics());
}
