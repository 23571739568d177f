//! The spans of requests and batches, as a collector gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use callboard_core::timeline::SpanId;
use callboard_core::{App, CallContext, CallOptions, Failure, Instant, RouteSpec, Stage, StreamStage};
use callboard_http::{AccessLog, AccessSink, ApiInfo, Attribute, HttpConfig, HttpEdge, SampleRatio, Span, SpanSink};
use futures_util::stream;

use crate::observed::LineSink;
use crate::support::app::{Hold, app};
use crate::support::{Server, TEST_TIMEOUT, config};

const JSON: (&str, &str) = ("content-type", "application/json");
const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PARENT: u64 = 0x00f0_67aa_0ba9_02b7;

/// Stores the spans it gets.
#[derive(Clone, Debug, Default)]
struct SpanStore(Arc<Mutex<Vec<Span>>>);

impl SpanSink for SpanStore {
    fn put(&self, spans: Vec<Span>) {
        self.0.lock().unwrap().extend(spans);
    }
}

impl SpanStore {
    async fn server(&self, app: App, ratio: SampleRatio) -> Server {
        let sink = Arc::new(self.clone());
        Server::for_app_with(app, HttpConfig::default(), |edge| edge.give_spans_to(sink, ratio)).await
    }

    /// Waits for this count of request spans; returns all spans so far.
    async fn after_requests(&self, count: usize) -> Vec<Span> {
        let waiting = async {
            loop {
                let spans = self.0.lock().unwrap().clone();
                if spans.iter().filter(|span| span.is_server).count() >= count {
                    return spans;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("spans in time: {self:?}"))
    }
}

fn by_name(spans: &[Span]) -> BTreeMap<&str, &Span> {
    spans.iter().map(|span| (span.name.as_str(), span)).collect()
}

fn text<'a>(span: &'a Span, name: &str) -> &'a str {
    match span.attributes.iter().find(|(key, _)| *key == name) {
        Some((_, Attribute::Text(text))) => text,
        other => panic!("{name}: {other:?} of {span:?}"),
    }
}

fn number(span: &Span, name: &str) -> i64 {
    match span.attributes.iter().find(|(key, _)| *key == name) {
        Some((_, Attribute::Number(number))) => *number,
        other => panic!("{name}: {other:?} of {span:?}"),
    }
}

fn traceparent(sampled: bool) -> String {
    format!("00-{TRACE:032x}-{PARENT:016x}-{:02x}", u8::from(sampled))
}

#[tokio::test]
async fn a_sampled_request_joins_the_trace_of_its_caller_with_stages_and_a_linked_batch() {
    let store = SpanStore::default();
    let server = store.server(app(), SampleRatio::NONE).await;
    let traceparent = traceparent(true);
    let headers = [JSON, ("traceparent", traceparent.as_str()), ("x-request-id", "mine")];
    let answer = server.connect().await.post("/mirror?secret=1", &headers, "7").await;
    assert_eq!(answer.status, 200);

    let spans = store.after_requests(1).await;
    let named = by_name(&spans);
    assert_eq!(
        named.keys().copied().collect::<Vec<_>>(),
        ["POST /mirror", "batch mirror", "compute mirror", "queue mirror"]
    );
    let request = named["POST /mirror"];
    assert_eq!((request.id.trace, request.parent, request.is_server), (TRACE, Some(PARENT), true));
    assert_eq!(answer.header("traceparent"), Some(format!("00-{TRACE:032x}-{:016x}-01", request.id.span).as_str()));
    assert_eq!((text(request, "http.route"), text(request, "url.path")), ("/mirror", "/mirror"));
    assert_eq!((number(request, "http.response.status_code"), text(request, "callboard.request_id")), (200, "mine"));
    assert!(!format!("{spans:?}").contains("secret"));

    let (queue, compute, batch) = (named["queue mirror"], named["compute mirror"], named["batch mirror"]);
    for part in [queue, compute] {
        assert_eq!((part.id.trace, part.parent), (TRACE, Some(request.id.span)));
        assert!(request.start <= part.start && part.start <= part.end && part.end <= request.end, "{part:?}");
        assert_eq!(text(part, "callboard.stage"), "mirror");
    }
    assert!(queue.end <= compute.start);
    assert_eq!((&compute.links, &batch.links), (&vec![batch.id], &vec![request.id]));
    assert_eq!((batch.parent, batch.id.trace == TRACE), (None, false), "its own trace");
    for span in [compute, batch] {
        assert_eq!((number(span, "callboard.batch.size"), number(span, "callboard.replica")), (1, 0));
        assert_eq!((text(span, "callboard.run.end"), span.error.as_ref()), ("done", None));
    }
}

/// The edge does not know where it is mounted, and its client knows no other path.
#[tokio::test]
async fn below_a_mount_a_span_a_log_line_and_a_stage_have_the_path_as_the_client_wrote_it() {
    let (store, log) = (SpanStore::default(), Arc::new(LineSink::default()));
    let tells =
        Stage::each_with_context("tells", |_: &i64, context: &CallContext| Ok(context.path().map(str::to_owned)));
    let route = RouteSpec::new("/tells", tells).query(["q"]);
    let node = App::new().mount(route).start().await.unwrap();
    let access_log = AccessLog::To(Arc::clone(&log) as Arc<dyn AccessSink>);
    let config = config(|config| config.access_log = access_log);
    let edge = HttpEdge::try_new(node.client(), config, ApiInfo::default(), vec![]).unwrap();
    edge.give_spans_to(Arc::new(store.clone()), SampleRatio::ALL);
    let router = axum::Router::new().nest_service("/api", edge);
    let server = Server::for_router(router, HttpConfig::default()).await;
    let answer = server.connect().await.post("/api/tells?q=1", &[JSON], "7").await;
    assert_eq!((answer.status, answer.json()), (200, serde_json::json!("/api/tells")));
    let spans = store.after_requests(1).await;
    let request = by_name(&spans)["POST /tells"];
    assert_eq!((text(request, "http.route"), text(request, "url.path")), ("/tells", "/api/tells"));
    assert!(log.lines(1).await[0].contains("path=\"/api/tells\" route=\"/tells\""), "{log:?}");
}

/// A method may be as long as a head, and the span queue is bounded by count, not by bytes.
#[tokio::test]
async fn an_unknown_method_is_not_a_span_name() {
    let store = SpanStore::default();
    let server = store.server(app(), SampleRatio::ALL).await;
    let mut client = server.connect().await;
    let method = "X".repeat(10_000);
    client.send(&format!("{method} /mirror HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")).await;
    client.closed().await;
    let spans = store.after_requests(1).await;
    assert_eq!((spans[0].name.as_str(), text(&spans[0], "http.request.method")), ("HTTP /mirror", "_OTHER"));
    assert!(!format!("{spans:?}").contains("XX"), "{spans:?}");
}

#[tokio::test]
async fn a_call_of_another_protocol_joins_the_trace_of_its_caller_with_its_stages() {
    let store = SpanStore::default();
    let sink = Arc::new(store.clone());
    let server =
        Server::for_app_with(app(), HttpConfig::default(), |edge| edge.give_spans_to(sink, SampleRatio::NONE)).await;
    let tracer = server.node().client().edge().tracer().unwrap();
    let fail = Stage::each("fail", |_: &u64| Err::<u64, _>(Failure::new("no")));
    let double = Stage::each("double", |n: &u64| Ok(2 * n));
    let node = App::new().route("/double", double).route("/fail", fail).start().await.unwrap();
    assert!(node.client().edge().tracer().is_none(), "this node has no sink");
    for (route, error) in [("/double", None), ("/fail", Some("failed"))] {
        store.0.lock().unwrap().clear();
        let caller = SpanId { trace: TRACE, span: PARENT };
        let recorder = tracer.trace(caller, route, Instant::now());
        let options = CallOptions::new().with_recorder(recorder);
        assert_eq!(node.client().call_with::<u64, u64>(route, 21, options).await.is_ok(), error.is_none());

        let spans = store.after_requests(1).await;
        let (named, stage) = (by_name(&spans), &route[1..]);
        let call = named[format!("CALL {route}").as_str()];
        assert_eq!((call.id.trace, call.parent, call.is_server), (TRACE, Some(PARENT), true));
        assert_eq!((text(call, "rpc.system"), call.error.as_deref()), ("callboard", error));
        for part in [named[format!("queue {stage}").as_str()], named[format!("compute {stage}").as_str()]] {
            assert_eq!((part.id.trace, part.parent), (TRACE, Some(call.id.span)));
        }
        assert_eq!(named[format!("batch {stage}").as_str()].links, [call.id]);
    }
}

#[tokio::test]
async fn a_batch_is_one_span_linked_to_each_sampled_request() {
    let store = SpanStore::default();
    let (gate, opened) = std::sync::mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let stage = Stage::batch("gated", move |batch: callboard_core::Batch<u64>| {
        let _ = opened.lock().unwrap().recv();
        batch.iter().map(|n| Ok(*n)).collect()
    });
    let app = App::new().route("/gated", stage.on_threads().max_batch_size(8));
    let server = store.server(app, SampleRatio::NONE).await;
    let (sampled, unsampled) = (traceparent(true), traceparent(false));
    let call = |traceparent: String| {
        let address = server.address;
        tokio::spawn(async move {
            let mut client = crate::support::Raw::connect(address).await;
            client.post("/gated", &[JSON, ("traceparent", &traceparent)], "1").await.status
        })
    };
    let first = call(unsampled.clone());
    server.metric_becomes("callboard_stage_replica_states{stage=\"gated\",state=\"busy\"}", 1.0).await;
    let calls = [call(sampled.clone()), call(sampled), call(unsampled)];
    server.metric_becomes("callboard_stage_queued{stage=\"gated\"}", 3.0).await;
    gate.send(()).unwrap();
    gate.send(()).unwrap();
    for call in calls.into_iter().chain([first]) {
        assert_eq!(call.await.unwrap(), 200);
    }
    let spans = store.after_requests(2).await;
    let batches: Vec<&Span> = spans.iter().filter(|span| span.name == "batch gated").collect();
    let requests: Vec<_> = spans.iter().filter(|span| span.is_server).map(|span| span.id).collect();
    assert_eq!((batches.len(), requests.len(), number(batches[0], "callboard.batch.size")), (1, 2, 3));
    assert!(requests.iter().all(|id| batches[0].links.contains(id)) && batches[0].links.len() == 2, "{batches:?}");
    let computes = spans.iter().filter(|span| span.name == "compute gated");
    assert!(computes.clone().count() == 2 && computes.into_iter().all(|span| span.links == [batches[0].id]));
}

#[tokio::test]
async fn an_unsampled_request_has_no_span_nor_has_a_page() {
    let store = SpanStore::default();
    let server = store.server(app(), SampleRatio::NONE).await;
    let unsampled = traceparent(false);
    assert_eq!(server.connect().await.post("/mirror", &[JSON, ("traceparent", &unsampled)], "7").await.status, 200);
    assert_eq!(server.post_json("/mirror", "7").await.status, 200);
    assert!(store.0.lock().unwrap().is_empty());

    let store = SpanStore::default();
    let server = store.server(app(), SampleRatio::ALL).await;
    assert_eq!(server.get("/livez").await.status, 200);
    let answer = server.post_json("/mirror", "7").await;
    let spans = store.after_requests(1).await;
    let request = by_name(&spans)["POST /mirror"].clone();
    assert_eq!((request.parent, spans.len()), (None, 4), "{spans:?}");
    assert!(answer.header("traceparent").unwrap().ends_with(&format!("-{:016x}-01", request.id.span)), "{answer:?}");
}

#[tokio::test]
async fn the_spans_of_a_request_show_that_it_expired_in_the_queue() {
    let store = SpanStore::default();
    let (app, holding) = Hold::with_queue(4).split();
    let server = store.server(app, SampleRatio::ALL).await;
    for body in ["\"x\"", "\"y\""] {
        let headers = [JSON, ("x-request-timeout-ms", "50")];
        assert_eq!(server.connect().await.post("/hold", &headers, body).await.status, 504);
    }
    holding.wait_until_held().await;
    let spans = store.after_requests(2).await;
    let requests: Vec<&Span> = spans.iter().filter(|span| span.is_server).collect();
    assert!(requests.iter().all(|span| span.error.as_deref() == Some("504")), "{requests:?}");
    let computes: Vec<&Span> = spans.iter().filter(|span| span.name == "compute hold").collect();
    assert_eq!((computes.len(), computes[0].parent), (1, Some(requests[0].id.span)), "only the first call started");
    assert_eq!(spans.iter().filter(|span| span.name == "queue hold").count(), 2);
    holding.release();
}

#[tokio::test]
async fn the_span_of_a_models_stream_ends_with_it() {
    let store = SpanStore::default();
    let count = StreamStage::each("count", |n: &u8| stream::iter((0..*n).map(Ok::<_, Failure>)));
    let app = App::new().route_streaming("/count", count);
    let server = store.server(app, SampleRatio::ALL).await;
    let answer = server.post_json("/v2/models/count/generate_stream", "{\"input\": 5}").await;
    assert_eq!(answer.text().matches("data:").count(), 5, "{answer:?}");
    let spans = store.after_requests(1).await;
    let compute = by_name(&spans)["compute count"].clone();
    assert_eq!(text(&compute, "callboard.run.end"), "done", "{spans:?}");
    let request = spans.iter().find(|span| span.is_server).unwrap();
    assert!(compute.end <= request.end, "{spans:?}");
}

#[tokio::test]
async fn the_span_of_a_stream_ends_with_it() {
    let store = SpanStore::default();
    let count = StreamStage::each("count", |n: &u8| stream::iter((0..*n).map(Ok::<_, Failure>)));
    let app = App::new().route_streaming("/count", count);
    let server = store.server(app, SampleRatio::ALL).await;
    let answer = server.post_json("/count", "5").await;
    assert!(answer.text().matches("data:").count() >= 5, "{answer:?}");
    let spans = store.after_requests(1).await;
    let compute = by_name(&spans)["compute count"].clone();
    assert_eq!(text(&compute, "callboard.run.end"), "done", "{spans:?}");
    assert!(compute.end <= by_name(&spans)["POST /count"].end);
}
