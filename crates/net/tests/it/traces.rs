//! One trace over several nodes: the caller's context crosses, and the caller's record includes the peer's report.

use std::sync::Arc;

use callboard_core::timeline::{BatchObserver, CallTracer, EndedBatch, Recorder, RunEnd, SpanId, Timeline};
use callboard_core::{App, CallContext, CallOptions, Caller, Instant, Pipeline, Priority, Stage};
use parking_lot::Mutex;

use crate::common::{Member, Served, patient, until};

/// The traces of a node: the caller, the callee, and the record.
#[derive(Debug, Default)]
struct Traced(Mutex<Vec<(SpanId, String, SpanId, Timeline)>>);

#[derive(Debug)]
struct Tracer(Arc<Traced>);

#[derive(Debug)]
struct Nobody;

impl BatchObserver for Nobody {
    fn ended(&self, _: EndedBatch) {}
}

impl CallTracer for Tracer {
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder {
        let (traced, what) = (Arc::clone(&self.0), what.to_owned());
        let own = SpanId { trace: caller.trace, span: SpanId::new_span() };
        Recorder::with_on_complete(now, own, Arc::new(Nobody), move |timeline| {
            traced.0.lock().push((caller, what, own, timeline));
        })
    }
}

fn trace(served: &Served) -> Arc<Traced> {
    let traced = Arc::new(Traced::default());
    served.edge.trace_with(Arc::new(Tracer(Arc::clone(&traced))));
    traced
}

fn recorder() -> (SpanId, Recorder) {
    let span = SpanId::begin();
    (span, Recorder::for_span(Instant::now(), span, Arc::new(Nobody)))
}

fn next() -> Stage<i64, i64> {
    Stage::each("next", |n: &i64| match n {
        13 => Err(callboard_core::Failure::new("13")),
        n => Ok(n + 1),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_place_in_a_trace_crosses_and_the_node_records_the_call() {
    let served = Served::start(App::new().route("/next", next())).await;
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
async fn a_trace_goes_on_at_the_peer_and_the_record_says_which_and_where_the_time_went() {
    let mut config = patient();
    config.node = "second".to_owned();
    let there = Served::start_with(App::new().route("/there", Pipeline::from(next())), config).await;
    let traced = trace(&there);
    let pipeline: Pipeline<i64, i64> = Pipeline::remote("next");
    let member = Member::start(App::new().route("/run", pipeline), &[&there.edge]).await;
    member.sees("next").await;

    let (span, recorder) = recorder();
    let options = CallOptions::new().with_recorder(recorder.clone());
    assert_eq!(member.served.node.client().call_with::<i64, i64>("/run", 1, options).await.unwrap(), 2);
    let timeline = recorder.timeline(Instant::now());
    let [visit] = timeline.visits.as_slice() else { panic!("one visit: {timeline:?}") };
    assert!(visit.is_remote && visit.runs.is_empty(), "{visit:?}");
    let facts = visit.remote.clone().unwrap();
    assert_eq!(facts.node, "second");
    let away = visit.left.unwrap() - visit.arrived;
    assert!(facts.timing.is_some_and(|timing| timing.total() <= away), "{facts:?}");

    until(|| !traced.0.lock().is_empty()).await;
    let calls = traced.0.lock();
    let (caller, what, _, record) = &calls[0];
    assert_eq!((*caller, what.as_str()), (span, "next"));
    assert_eq!(record.visits[0].runs[0].end, Some(RunEnd::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_code_on_another_node_knows_whose_call_it_works_for() {
    let tells = || {
        Stage::each_with_context("tells", |_: &i64, context: &CallContext| {
            let (id, route) = (context.request_id().map(str::to_owned), context.route().map(|route| route.to_string()));
            Ok((id, context.traceparent(), route, context.priority() == Priority::High))
        })
    };
    type Told = (Option<String>, Option<String>, Option<String>, bool);
    let worker = Served::start(App::new().route("/tells", tells())).await;
    let there = Pipeline::<i64, Told>::remote("tells");
    let gateway = Member::start(App::new().route("/run", there), &[&worker.edge]).await;
    gateway.sees("tells").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let options = || CallOptions::new().with_request_id("r-1").with_traceparent(trace).with_priority(Priority::High);
    let known = (Some("r-1".to_owned()), Some(trace.to_owned()));
    // A client's call of a route, and a node's call of a stage.
    let (client, own) = (worker.client().await, gateway.served.node.client());
    let told: Told = client.call_with("/tells", 1_i64, options()).await.unwrap();
    assert_eq!(told, (known.0.clone(), known.1.clone(), Some("/tells".to_owned()), true));
    let told: Told = own.call_with("/run", 1_i64, options()).await.unwrap();
    assert_eq!(told, (known.0.clone(), known.1.clone(), None, true));
    let through: Told = gateway.served.client().await.call_with("/run", 1_i64, options()).await.unwrap();
    assert_eq!(through, told);
    // Texts that may not enter a log are not shown.
    let long = CallOptions::new().with_request_id("two words").with_traceparent("x".repeat(129));
    let told: Told = client.call_with("/tells", 1_i64, long).await.unwrap();
    assert_eq!((told.0, told.1), (None, None));
}

/// A remote stage makes calls here, and forwards none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_on_another_node_calls_routes_of_that_node() {
    let asks = Stage::each_async_with_context("asks", |n: Arc<i64>, context: CallContext| async move {
        Ok(context.client()?.call::<i64, i64>("/next", *n).await? * 10)
    });
    let worker = Served::start(App::new().route("/asks", asks).route("/next", next())).await;
    let gateway = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("asks")), &[&worker.edge]).await;
    gateway.sees("asks").await;
    assert_eq!(gateway.call(4).await.unwrap(), 50);
    let error = gateway.call(13).await.unwrap_err();
    assert_eq!((error.message(), error.stage()), ("13", Some("asks > next")));
    worker.comes_to_rest().await;
}
