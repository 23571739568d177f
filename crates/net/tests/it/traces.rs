//! One trace over several nodes: the caller's context crosses, and the caller's record includes the peer's report.

use std::sync::Arc;

use callboard_core::timeline::{BatchObserver, CallTracer, EndedBatch, Recorder, RunEnd, SpanId, Timeline};
use callboard_core::{App, CallContext, CallOptions, Caller, Instant, Pipeline, Priority, Stage};
use parking_lot::Mutex;

use crate::common::{Member, ServingNode, patient, until};

/// The traces of a node: the caller, the callee, and the record.
#[derive(Debug, Default)]
struct Traced(Mutex<Vec<(SpanId, String, SpanId, Timeline)>>);

#[derive(Debug)]
struct Tracer(Arc<Traced>);

#[derive(Debug)]
struct NoObserver;

impl BatchObserver for NoObserver {
    fn ended(&self, _: EndedBatch) {}
}

impl CallTracer for Tracer {
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder {
        let (traced, what) = (Arc::clone(&self.0), what.to_owned());
        let own = SpanId { trace: caller.trace, span: SpanId::new_span() };
        Recorder::with_on_complete(now, own, Arc::new(NoObserver), move |timeline| {
            traced.0.lock().push((caller, what, own, timeline));
        })
    }
}

fn trace(served: &ServingNode) -> Arc<Traced> {
    let traced = Arc::new(Traced::default());
    served.node.client().edge().trace_with(Arc::new(Tracer(Arc::clone(&traced))));
    traced
}

fn recorder() -> (SpanId, Recorder) {
    let span = SpanId::begin();
    (span, Recorder::for_span(Instant::now(), span, Arc::new(NoObserver)))
}

fn next() -> Stage<i64, i64> {
    Stage::each("next", |n: &i64| match n {
        13 => Err(callboard_core::Failure::new("13")),
        n => Ok(n + 1),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_context_of_a_client_crosses_and_the_node_records_the_call() {
    let served = ServingNode::start(App::new().route("/next", next())).await;
    let (client, traced) = (served.client().await, trace(&served));
    // A call without a trace is not recorded.
    assert_eq!(client.call::<_, i64>("/next", 1).await.unwrap(), 2);
    let (span, recorder) = recorder();
    for (input, end) in [(1, RunEnd::Done), (13, RunEnd::Failed)] {
        let options = CallOptions::new().with_recorder(recorder.clone());
        assert_eq!(client.call_with::<_, i64>("/next", input, options).await.is_ok(), end == RunEnd::Done);
        until(|| !traced.0.lock().is_empty()).await;
        let mut calls = std::mem::take(&mut *traced.0.lock());
        let (caller, what, own, timeline) = calls.remove(0);
        assert!(calls.is_empty(), "{calls:?}");
        assert_eq!((caller, what.as_str(), own.trace), (span, "/next", span.trace));
        assert_eq!(timeline.visits[0].runs[0].end, Some(end));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_continues_at_the_peer_and_the_record_has_its_name_and_times() {
    let mut config = patient();
    config.node = "second".to_owned();
    let worker = ServingNode::start_with(App::new().route("/there", Pipeline::from(next())), config).await;
    let traced = trace(&worker);
    let pipeline: Pipeline<i64, i64> = Pipeline::remote("next");
    let member = Member::start(App::new().route("/run", pipeline), &[&worker.edge]).await;
    member.until_offered("next").await;

    let (span, recorder) = recorder();
    let options = CallOptions::new().with_recorder(recorder.clone());
    assert_eq!(member.served.node.client().call_with::<i64, i64>("/run", 1, options).await.unwrap(), 2);
    let timeline = recorder.timeline(Instant::now());
    let [visit] = timeline.visits.as_slice() else { panic!("one visit: {timeline:?}") };
    assert!(visit.is_remote && visit.runs.is_empty(), "{visit:?}");
    let facts = visit.remote.clone().unwrap();
    assert_eq!(facts.node, "second");
    let remote_time = visit.left.unwrap() - visit.arrived;
    assert!(facts.timing.is_some_and(|timing| timing.total() <= remote_time), "{facts:?}");

    until(|| !traced.0.lock().is_empty()).await;
    let calls = traced.0.lock();
    let (caller, what, _, record) = &calls[0];
    assert_eq!((*caller, what.as_str()), (span, "next"));
    assert_eq!(record.visits[0].runs[0].end, Some(RunEnd::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_code_on_another_node_has_the_context_of_its_call() {
    let tells = || {
        Stage::each_with_context("tells", |_: &i64, context: &CallContext| {
            let (id, route) = (context.request_id().map(str::to_owned), context.route().map(|route| route.to_string()));
            Ok((id, context.traceparent(), route, context.priority() == Priority::High))
        })
    };
    type Received = (Option<String>, Option<String>, Option<String>, bool);
    let worker = ServingNode::start(App::new().route("/tells", tells())).await;
    let pipeline = Pipeline::<i64, Received>::remote("tells");
    let gateway = Member::start(App::new().route("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("tells").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let options = || CallOptions::new().with_request_id("r-1").with_traceparent(trace).with_priority(Priority::High);
    let known = (Some("r-1".to_owned()), Some(trace.to_owned()));
    // A client's call of a route, and a node's call of a stage.
    let (client, own) = (worker.client().await, gateway.served.node.client());
    let received: Received = client.call_with("/tells", 1_i64, options()).await.unwrap();
    assert_eq!(received, (known.0.clone(), known.1.clone(), Some("/tells".to_owned()), true));
    let received: Received = own.call_with("/run", 1_i64, options()).await.unwrap();
    assert_eq!(received, (known.0.clone(), known.1.clone(), None, true));
    let through: Received = gateway.served.client().await.call_with("/run", 1_i64, options()).await.unwrap();
    assert_eq!(through, received);
    // Texts that may not enter a log are not shown.
    let long = CallOptions::new().with_request_id("two words").with_traceparent("x".repeat(129));
    let received: Received = client.call_with("/tells", 1_i64, long).await.unwrap();
    assert_eq!((received.0, received.1), (None, None));
}

/// A remote stage makes calls here, and forwards none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_on_another_node_calls_routes_of_that_node() {
    let asks = Stage::each_async_with_context("asks", |n: Arc<i64>, context: CallContext| async move {
        Ok(context.client()?.call::<i64, i64>("/next", *n).await? * 10)
    });
    let worker = ServingNode::start(App::new().route("/asks", asks).route("/next", next())).await;
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("asks")), &[&worker.edge]).await;
    gateway.until_offered("asks").await;
    assert_eq!(gateway.call(4).await.unwrap(), 50);
    let error = gateway.call(13).await.unwrap_err();
    assert_eq!((error.message(), error.stage()), ("13", Some("asks > next")));
    worker.until_idle().await;
}
