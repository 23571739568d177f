//! Streaming replies: the three forms, their ends, slow readers, and readers that leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use callboard_codec::{DecodeLimits, Format, Map, Value};
use callboard_core::edge::ErrorTraces;
use callboard_core::{App, Failure, Stage, StreamPipeline, StreamStage};
use callboard_http::HttpConfig;
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::support::{Answer, Raw, Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");

/// `/count` returns the numbers below its input, with an error after 3; a negative input is refused.
fn counting() -> App {
    let check = Stage::each("check", |n: &i64| match n {
        0.. => Ok(*n),
        _ => Err(Failure::invalid_input("count upward")),
    });
    let count = StreamStage::each("count", |below: &i64| {
        let items = (0..*below).map(|n| if n < 3 { Ok(n) } else { Err(Failure::new("beyond three").with_status(418)) });
        stream::iter(items.collect::<Vec<_>>())
    });
    let pipeline = callboard_core::Pipeline::from(check).then_stream(count);
    let pipeline = pipeline.map("shown", |n| Ok(Value::from(Map::from_iter([("n", *n)]))));
    App::new().route_streaming("/count", pipeline)
}

async fn counted(below: i64, accept: &str) -> Answer {
    let server = Server::for_app(counting(), HttpConfig::default()).await;
    let answer = server.connect().await.post("/count", &[JSON, ("accept", accept)], below.to_string()).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
    answer
}

#[tokio::test]
async fn events_have_an_index_and_an_end() {
    for accept in ["text/event-stream", "*/*"] {
        let answer = counted(2, accept).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
        assert!(answer.header("server-timing").unwrap().starts_with("first;dur="), "{answer:?}");
        let expected = "id: 0\ndata: {\"n\":0}\n\nid: 1\ndata: {\"n\":1}\n\nevent: end\ndata: {\"items\":2}\n\n";
        assert_eq!(answer.text(), expected);
    }
    assert_eq!(counted(0, "text/event-stream").await.text(), "event: end\ndata: {\"items\":0}\n\n");
}

/// `/fails` fails at once, `/count` after an item, both with a trace.
fn traced() -> App {
    let failure = || Failure::new("no paper").with_trace("File \"app.py\", line 3");
    let count = StreamStage::each("count", move |n: &i64| stream::iter([Ok(*n), Err(failure())]));
    App::new()
        .route("/fails", Stage::each("fails", move |_: &i64| Err::<i64, _>(failure())))
        .route_streaming("/count", count)
}

#[tokio::test]
async fn a_trace_is_sent_on_loopback_unless_the_setting_says_otherwise() {
    for (traces, is_sent) in [(ErrorTraces::Loopback, true), (ErrorTraces::Callers, true), (ErrorTraces::Log, false)] {
        let server = Server::for_app(traced(), config(|config| config.error_traces = traces)).await;
        let ask = async |path: &str, accept: &str| {
            let answer = server.connect().await.post(path, &[JSON, ("accept", accept)], "1").await;
            assert!(answer.text().contains("no paper"), "{answer:?}");
            answer.text().contains("remote_trace") && answer.text().contains("app.py")
        };
        for (path, accept) in
            [("/fails", "application/json"), ("/count", "text/event-stream"), ("/count", "application/x-ndjson")]
        {
            assert_eq!(ask(path, accept).await, is_sent, "{traces:?} {path} {accept}");
        }
    }
}

#[tokio::test]
async fn an_error_after_the_first_event_is_the_last_event() {
    let answer = counted(5, "text/event-stream").await;
    assert_eq!(answer.status, 200);
    let (items, error) = answer.text().split_once("event: error\ndata: ").unwrap();
    assert_eq!(items.matches("\n\n").count(), 3);
    let problem: serde_json::Value = serde_json::from_str(error.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!(
        (&problem["kind"], &problem["status"], &problem["message"]),
        (&json!("failed"), &json!(418), &json!("beyond three"))
    );
    assert_eq!(problem["request_id"], answer.header("x-request-id").unwrap());
}

#[tokio::test]
async fn lines_are_documents_and_the_last_may_be_an_error() {
    let answer = counted(2, "application/x-ndjson").await;
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(answer.text(), "{\"n\":0}\n{\"n\":1}\n");
    let answer = counted(4, "application/x-ndjson").await;
    let lines: Vec<serde_json::Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[3]["error"]["kind"]), (4, &json!("failed")));
}

#[tokio::test]
async fn envelopes_are_sent_in_frames() {
    let answer = counted(4, "application/vnd.callboard.envelope-stream").await;
    let mut frames = frames(&answer.body);
    let (kind, problem) = frames.pop().unwrap();
    assert_eq!((kind, problem.get("kind")), (1, Some(&Value::from("failed"))));
    let item = |n: i64| (0, Value::from(Map::from_iter([("n", n)])));
    assert_eq!(frames, [item(0), item(1), item(2)]);
    let ended = counted(1, "application/vnd.callboard.envelope-stream").await;
    assert_eq!(ended.body[ended.body.len() - 8..], [2, 0, 0, 0, 0, 0, 0, 0]);
}

/// Kind and value of each frame; the end frame has no value.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Value)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(8) {
        let length = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        let envelope = rest[..length].to_vec().into();
        frames.push((head[0], Value::decode(Format::Envelope, &envelope, &DecodeLimits::default()).unwrap()));
        bytes = &rest[length..];
    }
    frames
}

#[tokio::test]
async fn an_error_before_the_first_item_is_a_status() {
    let refused = counted(-1, "text/event-stream").await;
    assert_eq!((refused.status, refused.problem()["message"].as_str()), (400, Some("count upward")));
    let unacceptable = counted(1, "application/json").await;
    assert_eq!(unacceptable.status, 406);
    assert!(unacceptable.problem()["message"].as_str().unwrap().contains("text/event-stream, application/x-ndjson"));
}

#[tokio::test]
async fn a_silent_stream_has_a_heartbeat() {
    let stage = StreamStage::each("silent", |_: &i64| stream::pending::<Result<i64, Failure>>());
    let limits = config(|c| c.stream_heartbeat = Duration::from_millis(20));
    let server = Server::for_app(App::new().route_streaming("/silent", stage), limits).await;
    let mut client = server.connect().await;
    begin(&mut client, "/silent", 1).await;
    client.read_past("HTTP/1.1 200 OK\r\n").await;
    for _ in 0..3 {
        client.read_past("3\r\n:\n\n\r\n").await;
    }
    // The same for a model.
    let mut client = server.connect().await;
    let head =
        "POST /v2/models/silent/generate_stream HTTP/1.1\r\nhost: test\r\ncontent-length: 12\r\n\r\n{\"input\": 1}";
    client.send(head).await;
    client.read_past("HTTP/1.1 200 OK\r\n").await;
    for _ in 0..3 {
        client.read_past("3\r\n:\n\n\r\n").await;
    }
}

/// Requests a stream without waiting for the answer.
async fn begin(client: &mut Raw, route: &str, input: i64) {
    let body = input.to_string();
    let length = body.len();
    let head = format!(
        "POST {route} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send([head, body].concat()).await;
}

/// `/endless` returns texts of 256 KiB without end. For the input 1, it counts the texts and records the drop of its
/// work.
fn endless(produced: &Arc<AtomicU64>, dropped: &Arc<AtomicBool>) -> App {
    let (produced, dropped) = (Arc::clone(produced), Arc::clone(dropped));
    let stage = StreamStage::each("endless", move |input: &i64| {
        let produced = (*input == 1).then(|| Arc::clone(&produced));
        let leaving = (*input == 1).then(|| Dropped(Arc::clone(&dropped)));
        stream::repeat_with(move || {
            let _ = &leaving;
            if let Some(produced) = &produced {
                produced.fetch_add(1, Ordering::SeqCst);
            }
            Ok("x".repeat(256 * 1024))
        })
    });
    App::new().route_streaming("/endless", StreamPipeline::from(stage))
}

struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_slows_only_its_own_stream() {
    let (produced, dropped) = (Arc::default(), Arc::default());
    let server = Server::for_app(endless(&produced, &dropped), HttpConfig::default()).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = Raw::new(socket.connect(server.address).await.unwrap());
    begin(&mut slow, "/endless", 1).await;
    slow.read_past("id: 0\n").await;

    let mut quick = server.connect().await;
    begin(&mut quick, "/endless", 2).await;
    for n in [10, 50, 100] {
        quick.read_past(&format!("id: {n}\n")).await;
    }
    // The credit of 16, plus the buffers of hyper and the kernel: a few megabytes.
    let items = produced.load(Ordering::SeqCst);
    assert!(items < 80, "{items} items were produced for a client that does not read");
    for n in [1, 3] {
        slow.read_past(&format!("id: {n}\n")).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_stream() {
    let (produced, dropped) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let server = Server::for_app(endless(&produced, &dropped), HttpConfig::default()).await;
    let mut client = server.connect().await;
    begin(&mut client, "/endless", 1).await;
    client.read_past("id: 2\n").await;
    drop(client);
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_requests_total{route=\"/endless\",outcome=\"cancelled\"}", 1.0).await;
    let until_dropped = async {
        while !dropped.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::TEST_TIMEOUT, until_dropped).await.expect("the work is dropped");
}

/// A number whose serialization panics at 1.
#[derive(Clone, Deserialize, JsonSchema)]
struct Fragile(i64);

impl Serialize for Fragile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert_ne!(self.0, 1, "a user's codec panics");
        self.0.serialize(serializer)
    }
}

#[tokio::test]
async fn a_panic_while_an_item_is_encoded_ends_its_stream_and_not_the_connection() {
    let fragile = StreamStage::each("fragile", |from: &i64| stream::iter((*from..3).map(|n| Ok(Fragile(n)))));
    let server = Server::for_app(App::new().route_streaming("/fragile", fragile), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let answer = client.post("/fragile", &[JSON], "0").await;
    let (items, error) = answer.text().split_once("event: error\ndata: ").unwrap();
    assert_eq!((answer.status, items), (200, "id: 0\ndata: 0\n\n"));
    let problem: serde_json::Value = serde_json::from_str(error.trim_end()).unwrap();
    assert_eq!((&problem["kind"], &problem["status"]), (&json!("internal"), &json!(500)));
    let first_item = client.post("/fragile", &[JSON], "1").await;
    assert_eq!((first_item.status, first_item.problem()["kind"].as_str()), (500, Some("internal")));
    assert_eq!(client.post("/fragile", &[JSON], "2").await.status, 200, "on the same connection");
    server.metric_becomes("callboard_http_panics_total", 2.0).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_panic_while_an_event_of_a_model_is_encoded_ends_its_stream() {
    let fragile = StreamStage::each("fragile", |from: &i64| stream::iter((*from..3).map(|n| Ok(Fragile(n)))));
    let server = Server::for_app(App::new().route_streaming("/fragile", fragile), HttpConfig::default()).await;
    let answer = server.post_json("/v2/models/fragile/generate_stream", r#"{"input": 0}"#).await;
    let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
    assert_eq!((answer.status, events.len()), (200, 2), "{answer:?}");
    assert!(events[0].contains("\"output\":0") && events[1].starts_with("data: {\"error\":"), "{events:?}");
    server.metric_becomes("callboard_http_panics_total", 1.0).await;
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn the_document_has_each_form_of_a_stream_and_of_a_call() {
    let server = Server::for_app(counting(), HttpConfig::default()).await;
    let document = server.get("/openapi.json").await.json();
    let forms = |pointer: &str, media_type: &str| -> Vec<String> {
        let content = document.pointer(pointer).unwrap().as_object().unwrap();
        assert_eq!(content.keys().collect::<Vec<_>>(), [media_type], "one format, so that clients get one type");
        let also = content[media_type]["x-callboard-media-types"].as_array().unwrap();
        also.iter().map(|also| also.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        forms("/paths/~1count/post/responses/200/content", "text/event-stream"),
        ["application/x-ndjson", "application/vnd.callboard.envelope-stream", "text/plain"]
    );
    assert_eq!(
        forms("/paths/~1count/post/requestBody/content", "application/json"),
        [
            "application/msgpack",
            "application/vnd.callboard.envelope",
            "multipart/form-data",
            "application/x-www-form-urlencoded"
        ]
    );
    let calls = forms("/paths/~1v1~1call~1{name}/post/requestBody/content", "application/json");
    assert!(calls.contains(&"application/vnd.callboard.envelope-stream".to_owned()), "{calls:?}");
}

/// A text that is already JSON, with its own white space.
#[derive(Clone, Deserialize, JsonSchema)]
struct RawJson(#[schemars(with = "i64")] Box<serde_json::value::RawValue>);

impl Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[tokio::test]
async fn an_item_with_line_breaks_is_one_line() {
    let stage = StreamStage::each("written", |_: &i64| {
        let raw = serde_json::value::RawValue::from_string("{\n  \"n\":\r\n 1\n}".to_owned()).unwrap();
        stream::iter([Ok(RawJson(raw))])
    });
    let server = Server::for_app(App::new().route_streaming("/written", stage), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let events = client.post("/written", &[JSON], "0").await;
    assert_eq!(events.text(), "id: 0\ndata: {   \"n\":   1 }\n\nevent: end\ndata: {\"items\":1}\n\n");
    let lines = client.post("/written", &[JSON, ("accept", "application/x-ndjson")], "0").await;
    assert_eq!(lines.text(), "{   \"n\":   1 }\n");
}

/// A slow serialization runs on another thread, where a panic is caught as well.
#[tokio::test]
async fn a_large_item_is_one_event() {
    let stage = StreamStage::each("large", |n: &i64| stream::iter([Ok(Value::from("x".repeat(*n as usize)))]));
    let server = Server::for_app(App::new().route_streaming("/large", stage), HttpConfig::default()).await;
    let answer = server.post_json("/large", "600000").await;
    let data = answer.text().strip_prefix("id: 0\ndata: \"").unwrap();
    assert!(data.starts_with(&"x".repeat(600_000)) && data.ends_with("event: end\ndata: {\"items\":1}\n\n"));
}

/// A chunk for each event would cost more than the event.
#[tokio::test]
async fn ready_events_are_sent_together() {
    let quick = StreamStage::each("quick", |n: &i64| stream::iter((0..*n).map(Ok::<_, Failure>)));
    let server = Server::for_app(App::new().route_streaming("/quick", quick), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send("POST /quick HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n200")
        .await;
    client.read_past("HTTP/1.1 200 OK\r\n").await;
    client.read_past("\r\n\r\n").await;
    let mut pieces = Vec::new();
    while let Some(piece) = client.next_chunk().await {
        pieces.push(String::from_utf8(piece).unwrap());
    }
    let events: Vec<String> = (0..200).map(|n| format!("id: {n}\ndata: {n}\n\n")).collect();
    assert_eq!(pieces.concat(), events.concat() + "event: end\ndata: {\"items\":200}\n\n");
    assert!(pieces.len() < 100, "{} pieces", pieces.len());
}

/// A finished event does not wait for the large event after it.
#[tokio::test]
async fn a_large_item_does_not_delay_the_events_before_it() {
    let stage = StreamStage::each("mixed", |n: &i64| {
        stream::iter([Ok(Value::from("small")), Ok(Value::from("x".repeat(*n as usize))), Ok(Value::from("last"))])
    });
    let server = Server::for_app(App::new().route_streaming("/mixed", stage), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send("POST /mixed HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\n600000")
        .await;
    client.read_past("\r\n\r\n").await;
    let mut pieces = Vec::new();
    while let Some(piece) = client.next_chunk().await {
        pieces.push(String::from_utf8(piece).unwrap());
    }
    assert_eq!(pieces[0], "id: 0\ndata: \"small\"\n\n");
    let large = "x".repeat(600_000);
    let rest = format!("id: 1\ndata: \"{large}\"\n\nid: 2\ndata: \"last\"\n\nevent: end\ndata: {{\"items\":3}}\n\n");
    assert_eq!(pieces[1..].concat(), rest);
}
