//! Functions that make a stage's inputs: in parallel, on other threads than its workers, each item independently.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use callboard_codec::Data;
use callboard_core::testing::TestApp;
use callboard_core::timeline::{Recorder, RunEnd};
use callboard_core::{
    App, Batch, CallContext, CallError, CallOptions, ErrorKind, Failure, Instant, LocalClient, Stage, StreamStage,
    Worker,
};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::task::JoinHandle;

use super::context::{LogBuffer, subscriber};
use super::support::{Gate, gated, hide_panics, until};

fn cores() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Doubles, and returns the size of its batch.
struct Doubler;

impl Worker for Doubler {
    type In = u64;
    type Out = (u64, usize);

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<(u64, usize), Failure>> {
        batch.iter().map(|n| Ok((n * 2, batch.len()))).collect()
    }
}

fn doubles() -> Stage<u64, (u64, usize)> {
    Stage::worker("doubles", |_| Ok(Doubler))
}

fn spawned<In: Data, Out: Data + Clone>(
    client: LocalClient,
    route: &'static str,
    input: In,
) -> JoinHandle<Result<Out, CallError>> {
    tokio::spawn(async move { client.call(route, input).await })
}

#[tokio::test(start_paused = true)]
async fn it_gives_another_type_to_the_batch_and_fails_its_own_item_only() {
    let stage = doubles().max_batch_size(3).max_delay(Duration::from_secs(3600));
    let pipeline = stage.preprocess("parse", |text: &String, _: &CallContext| Ok(text.parse::<u64>()?));
    assert_eq!(pipeline.to_string(), "parse → doubles");
    let node = TestApp::new(App::new().route("/route", pipeline)).start().await.unwrap();
    let client = node.client();
    let calls = ["1", "two", "3", "4"].map(|text| client.call::<_, (u64, usize)>("/route", text.to_owned()));
    let mut outcomes = join_all(calls).await;
    let error = outcomes.remove(1).unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Failed, Some("parse")));
    let doubled: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(doubled, [(2, 3), (6, 3), (8, 3)], "the invalid item takes no place in the batch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_on_every_core_while_the_worker_is_busy() {
    let gate = Gate::default();
    let (stage, held) = (doubles(), gate.clone());
    let prepared = stage.clone().preprocess("held", move |text: &String, _: &CallContext| {
        held.pass();
        Ok(text.len() as u64)
    });
    let node = App::new().route("/prepared", prepared).route("/plain", stage).start().await.unwrap();
    let client = node.client();
    let calls: Vec<JoinHandle<Result<(u64, usize), CallError>>> =
        (0..cores()).map(|_| spawned(client.clone(), "/prepared", "four".to_owned())).collect();
    until("one item is on each core", || gate.arrived() == cores()).await;
    assert_eq!(client.call::<u64, (u64, usize)>("/plain", 5).await.unwrap(), (10, 1));
    gate.open();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().0, 8);
    }
}

#[tokio::test]
async fn a_panic_ends_its_item_and_no_replica() {
    hide_panics();
    let picky = doubles().preprocess("picky", |text: &String, _: &CallContext| match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => panic!("meant to panic"),
    });
    let node = App::new().route("/route", picky).start().await.unwrap();
    let client = node.client();
    for _ in 0..20 {
        let recorder = Recorder::new(Instant::now());
        let options = CallOptions::new().with_recorder(recorder.clone());
        let call = client.call_with::<_, (u64, usize)>("/route", "x".to_owned(), options);
        let error = call.await.unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::WorkerFailed, Some("picky")));
        assert_eq!(error.message(), "the worker panicked: meant to panic");
        assert!(error.remote_trace().is_some_and(|trace| trace.contains("preprocess.rs")), "{error:?}");
        assert!(error.was_started() && !error.is_retryable(), "it would panic again");
        let timeline = recorder.timeline(Instant::now());
        assert_eq!(timeline.visits[0].runs[0].end, Some(RunEnd::Panicked));
    }
    assert_eq!(client.call::<_, (u64, usize)>("/route", "4".to_owned()).await.unwrap(), (8, 1));
    let described = node.describe();
    assert!(node.health().ready && described.stages.iter().all(|stage| stage.restarts == 0), "{described:?}");
}

#[tokio::test]
async fn its_panics_are_logged_and_counted() {
    hide_panics();
    let written = LogBuffer::default();
    // With only one subscriber, a thread of another test without a subscriber decides what is logged.
    let _second = tracing::Dispatch::new(subscriber(&LogBuffer::default()));
    let _here = tracing::subscriber::set_default(subscriber(&written));
    let picky = doubles()
        .preprocess("picky", |_: &String, _: &CallContext| -> Result<u64, Failure> { panic!("meant to panic") });
    // On this thread, which reads the log.
    let node = TestApp::new(App::new().route("/route", picky)).start().await.unwrap();
    for _ in 0..3 {
        node.client().call::<_, (u64, usize)>("/route", "x".to_owned()).await.unwrap_err();
    }
    let log = written.take();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(lines.len(), 3, "{log}");
    assert!(lines.iter().all(|line| line.contains("picky") && line.contains("meant to panic")), "{log}");
    let metrics = node.metrics();
    assert!(metrics.contains("callboard_stage_poison_entries_total{stage=\"picky\"} 3"), "{metrics}");
}

#[tokio::test]
async fn a_call_that_is_refused_after_it_may_be_sent_again() {
    let gate = Gate::default();
    let stage = gated(&gate).queue(1);
    let lengths = stage.clone().preprocess("length", |text: &String, _: &CallContext| Ok(text.len() as u64));
    let node = App::new().route("/lengths", lengths).route("/plain", stage).start().await.unwrap();
    let client = node.client();
    let working = spawned::<u64, u64>(client.clone(), "/plain", 1);
    until("the worker is busy", || gate.arrived() == 1).await;
    let waiting = spawned::<u64, u64>(client.clone(), "/plain", 2);
    until("the queue is full", || node.describe().stages.iter().any(|stage| stage.queued == 1)).await;
    let error = client.call::<_, u64>("/lengths", "four".to_owned()).await.unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Overloaded, Some("gated")));
    assert!(error.is_retryable(), "preprocessing has no side effect: {error:?}");
    gate.open();
    assert_eq!((working.await.unwrap().unwrap(), waiting.await.unwrap().unwrap()), (1, 2));
}

#[tokio::test]
async fn it_has_the_context_of_its_call_and_also_precedes_streaming_stages() {
    let repeated =
        StreamStage::each("repeat", |text: &String| stream::iter((0..2).map(|_| Ok(text.clone())).collect::<Vec<_>>()));
    let greeting = repeated.preprocess("greet", |name: &String, context: &CallContext| {
        let greeting = context.tag("greeting").ok_or_else(|| Failure::new("no tag"))?;
        Ok(format!("{greeting} {name}"))
    });
    let node = App::new().route_streaming("/route", greeting).start().await.unwrap();
    let options = CallOptions::new().with_tag("greeting", "hello");
    let replies = node.client().replies_with::<String, String>("/route", "Ada".to_owned(), options).unwrap();
    let outputs: Vec<_> = replies.map(Result::unwrap).collect().await;
    assert_eq!(outputs, ["hello Ada", "hello Ada"]);
}
