//! `/v1/call`: arguments in each form, ordered streams of calls, and the recorded examples of `docs/wire.md`.

use std::time::Duration;

use callboard_codec::{DataType, DecodeLimits, Format, Map, Parameters, Tensor, Value};
use callboard_core::{App, FunctionCall, Limits, Stage};
use callboard_http::{ApiKeys, HttpConfig, HttpEdge};
use serde_json::json;
use tokio::sync::oneshot;

use crate::access::LogText;
use crate::support::app::{Hold, app};
use crate::support::{Raw, Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");
const ENVELOPE: (&str, &str) = ("content-type", "application/vnd.callboard.envelope");
const FRAMES: &str = "application/vnd.callboard.envelope-stream";

/// The routes of the other tests, and `/scale`: `x` times `factor`, which defaults to 2.
fn functions() -> App {
    let scale = Stage::each("scale", |call: &FunctionCall| {
        call.check_names(&["x", "factor"])?;
        let x: f64 = call.arg(0, "x")?;
        Ok(x * call.optional_arg(1, "factor")?.unwrap_or(2.0))
    });
    app().route("/math/scale", scale)
}

async fn server() -> Server {
    Server::for_app(functions(), HttpConfig::default()).await
}

pub(crate) fn envelope(value: &Value) -> Vec<u8> {
    value.encode(Format::Envelope).unwrap().into()
}

fn decode_envelope(envelope: &[u8]) -> Value {
    Value::decode(Format::Envelope, &envelope.to_vec().into(), &DecodeLimits::default()).unwrap()
}

pub(crate) fn arguments(args: impl IntoIterator<Item = Value>) -> Value {
    let args = Value::List(args.into_iter().collect());
    Value::Map(Map::from_iter([("args", args), ("kwargs", Value::Map(Map::new()))]))
}

#[tokio::test]
async fn arguments_are_positional_or_named() {
    let server = server().await;
    let mut client = server.connect().await;
    for (body, expected) in [
        (r#"{"args": [3.0], "kwargs": {}}"#, "6.0"),
        (r#"{"args": [3.0], "kwargs": {"factor": 3}}"#, "9.0"),
        (r#"{"kwargs": {"factor": 0.5, "x": 3.0}}"#, "1.5"),
    ] {
        let answer = client.post("/v1/call/math/scale", &[JSON], body).await;
        assert_eq!((answer.status, answer.text()), (200, expected), "{body}");
    }
    for (body, message) in [
        ("{}", "argument `x` is missing: give it as positional argument 1 or by name"),
        (r#"{"args": ["a"]}"#, "argument `x`: "),
        (r#"{"args": [1, 2, 3]}"#, "got 3 positional arguments"),
        (r#"{"kwargs": {"z": 1}}"#, "unexpected argument `z`: the function takes `x`, `factor`"),
    ] {
        let refused = client.post("/v1/call/math/scale", &[JSON], body).await;
        let problem = refused.problem();
        assert_eq!((refused.status, problem["kind"].as_str()), (400, Some("invalid_input")), "{body}");
        assert!(problem["message"].as_str().unwrap().starts_with(message), "{problem}");
    }
    let unknown = client.post("/v1/call/math/scale", &[JSON], r#"{"arguments": []}"#).await;
    assert_eq!(unknown.status, 422);
}

#[tokio::test]
async fn decimals_keep_their_digits_on_every_way_of_json() {
    let decimal = || json!({ "type": "string", "format": "decimal" });
    let pay = DataType::value()
        .with_schema(json!({ "properties": { "rate": { "type": "number" }, "amount": decimal() } }))
        .with_parameters(Parameters { names: ["rate", "amount"].map(str::to_owned).to_vec(), is_value: false });
    let one = DataType::value()
        .with_schema(decimal())
        .with_parameters(Parameters { names: vec!["amount".to_owned()], is_value: true });
    let echo = |name: &str| Stage::each(name, |value: &Value| Ok(value.clone()));
    let app = App::new().route_described("/pay", echo("pay"), pay, DataType::value()).route_described(
        "/one",
        echo("one"),
        one,
        DataType::value(),
    );
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    let both = r#"{"rate":1.1,"amount":"12345678901234567890.12"}"#;
    for (path, body, expected) in [
        ("/pay", r#"{"rate": 1.10, "amount": 12345678901234567890.12}"#, both),
        ("/v1/call/pay", r#"{"args": [1.10, 12345678901234567890.12]}"#, both),
        ("/v1/call/pay", r#"{"args": [{"rate": 1.10, "amount": 12345678901234567890.12}]}"#, both),
        ("/v1/call/pay", r#"{"args": [1.10], "kwargs": {"amount": 12345678901234567890.12}}"#, both),
        ("/one", "1.10", r#""1.10""#),
        ("/v1/call/one", r#"{"args": [1.10]}"#, r#""1.10""#),
        ("/v1/call/one", r#"{"kwargs": {"amount": 12345678901234567890123}}"#, r#""12345678901234567890123""#),
    ] {
        let answer = client.post(path, &[JSON], body).await;
        assert_eq!((answer.status, answer.text()), (200, expected), "{path} {body}");
    }
    let part = |name: &str, json: &str| {
        format!(
            "--xyz\r\ncontent-disposition: form-data; name={name}\r\ncontent-type: application/json\r\n\r\n{json}\r\n"
        )
    };
    let form = part("rate", "1.10") + &part("amount", "12345678901234567890.12") + "--xyz--\r\n";
    for path in ["/pay", "/v1/call/pay"] {
        let answer = client.post(path, &[("content-type", "multipart/form-data; boundary=xyz")], &*form).await;
        assert_eq!((answer.status, answer.text()), (200, both), "{path}");
    }
}

#[tokio::test]
async fn any_route_is_a_function_of_its_input() {
    let server = server().await;
    let mut client = server.connect().await;
    for body in [r#"{"args": [{"name": "Ada"}]}"#, r#"{"kwargs": {"name": "Ada"}}"#] {
        assert_eq!(client.post("/v1/call/greet", &[JSON], body).await.json(), json!({ "text": "hello Ada" }));
    }
    let wrong = client.post("/v1/call/greet", &[JSON], r#"{"kwargs": {"name": 7}}"#).await;
    assert_eq!((wrong.status, wrong.problem()["details"]["fields"][0]["path"].as_str()), (422, Some("$.name")));
    let form = "--xyz\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nAda\r\n--xyz--\r\n";
    let form = client.post("/v1/call/greet", &[("content-type", "multipart/form-data; boundary=xyz")], form).await;
    assert_eq!(form.json(), json!({ "text": "hello Ada" }));
}

#[tokio::test]
async fn a_function_answers_in_the_format_of_its_arguments_by_default() {
    let server = server().await;
    let mut client = server.connect().await;
    let tensor = Value::from(Tensor::from_vec(&[1000], vec![0.5_f32; 1000]).unwrap());
    let body = envelope(&arguments([tensor.clone()]));
    for headers in [&[ENVELOPE][..], &[ENVELOPE, ("accept", "*/*")]] {
        let answer = client.post("/v1/call/mirror", headers, &body).await;
        assert_eq!((answer.header("content-type"), decode_envelope(&answer.body)), (Some(ENVELOPE.1), tensor.clone()));
    }
    let answer = client.post("/v1/call/mirror", &[JSON, ("accept", ENVELOPE.1)], r#"{"args": [1]}"#).await;
    assert_eq!(decode_envelope(&answer.body), Value::Int(1));
}

#[tokio::test]
async fn a_failure_has_its_kind_type_and_trace() {
    let server = server().await;
    let mut client = server.connect().await;
    let failed = client.post("/v1/call/fail", &[ENVELOPE], envelope(&arguments(["plainly".into()]))).await;
    let problem = failed.problem();
    assert_eq!((failed.status, &problem["kind"]), (500, &json!("failed")));
    assert_eq!(problem["error_type"], "core::num::error::ParseIntError");
    let panicked = client.post("/v1/call/fail", &[ENVELOPE], envelope(&arguments(["by_panic".into()]))).await.problem();
    assert_eq!(panicked["kind"], "worker_failed");
    assert!(panicked["remote_trace"].as_str().unwrap().contains("the worker panics"), "{panicked}");

    let unknown = client.post("/v1/call/nowhere", &[JSON], "{}").await;
    assert_eq!((unknown.status, unknown.problem()["kind"].as_str()), (404, Some("not_found")));
    client.send("GET /v1/call/greet HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 405);
    let text = client.post("/v1/call/greet", &[("content-type", "text/plain")], "Ada").await;
    assert_eq!(text.status, 415);
}

/// One frame, as a chunk of an HTTP/1 body.
fn frame(kind: u8, envelope: &[u8]) -> Vec<u8> {
    let head = [[kind, 0, 0, 0], (envelope.len() as u32).to_le_bytes()].concat();
    let chunk = [head, envelope.to_vec()].concat();
    [format!("{:x}\r\n", chunk.len()).as_bytes(), &chunk, b"\r\n"].concat()
}

pub(crate) fn call(args: impl IntoIterator<Item = Value>) -> Vec<u8> {
    frame(0, &envelope(&arguments(args)))
}

/// A stream of calls to this function, before its first call.
pub(crate) async fn open_stream(server: &Server, name: &str) -> Raw {
    open_stream_at(server, &format!("/v1/call/{name}")).await
}

async fn open_stream_at(server: &Server, path: &str) -> Raw {
    let mut client = server.connect().await;
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: {FRAMES}\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(head).await;
    client
}

/// Kind and value of each frame; the end frame has no value.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(u8, Option<Value>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(8) {
        let length = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        frames.push((head[0], (length > 0).then(|| decode_envelope(&rest[..length]))));
        bytes = &rest[length..];
    }
    frames
}

#[tokio::test]
async fn a_stream_of_calls_is_answered_in_order_and_errors_in_their_place() {
    let server = server().await;
    let mut client = open_stream(&server, "math/scale").await;
    let calls = [call([1.0.into()]), call([]), frame(0, b"no envelope"), call([4.0.into()])];
    client.send([calls.concat(), frame(2, b""), b"0\r\n\r\n".to_vec()].concat()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(FRAMES)));
    let frames = frames(&answer.body);
    assert_eq!(frames.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 1, 1, 0, 2]);
    assert_eq!((&frames[0].1, &frames[3].1), (&Some(Value::Float(2.0)), &Some(Value::Float(8.0))));
    let problem = |frame: usize, member: &str| frames[frame].1.as_ref().unwrap().get(member).cloned();
    assert_eq!(problem(1, "kind"), Some("invalid_input".into()));
    assert_eq!((problem(2, "status"), problem(2, "error_type")), (Some(400.into()), Some("malformed_body".into())));
    server.metric_becomes("callboard_in_flight", 0.0).await;
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
}

#[tokio::test]
async fn a_stream_of_calls_at_the_path_of_a_route_has_inputs() {
    let server = server().await;
    let mut client = open_stream_at(&server, "/greet").await;
    let named = |name: Value| envelope(&Value::Map(Map::from_iter([("name", name)])));
    let calls = [frame(0, &named("Ada".into())), frame(0, &named(7.into())), frame(0, &envelope(&arguments([])))];
    client.send([calls.concat(), b"0\r\n\r\n".to_vec()].concat()).await;
    let frames = frames(&client.answer().await.body);
    assert_eq!(frames.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert_eq!(frames[0].1.as_ref().unwrap().get("text"), Some(&"hello Ada".into()));
    let path = |problem: &Value| {
        let Some(Value::List(fields)) = problem.get("details")?.get("fields") else { return None };
        fields.first()?.get("path").cloned()
    };
    assert_eq!(path(frames[1].1.as_ref().unwrap()), Some("$.name".into()));
    assert_eq!(frames[2].1.as_ref().unwrap().get("status"), Some(&422.into()));
}

#[tokio::test]
async fn a_node_that_callers_are_to_leave_answers_what_it_has_read_and_reads_no_more() {
    let (edges, mut edge) = oneshot::channel();
    let prepare = |edge: &HttpEdge| edges.send(edge.clone()).unwrap();
    let (app, holding) = Hold::with_queue(8).split();
    let server = Server::for_app_beside(app, HttpConfig::default(), Vec::new(), prepare).await;
    let mut client = open_stream(&server, "hold").await;
    client.send(call(["a".into()])).await;
    holding.wait_until_held().await;
    edge.try_recv().unwrap().withdraw();
    client.send(call(["b".into()])).await;
    holding.release();
    let frames = frames(&client.answer().await.body);
    let [(0, Some(_)), (1, Some(problem))] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((problem.get("status"), problem.get("retryable")), (Some(&503.into()), Some(&true.into())));
}

#[tokio::test]
async fn a_call_is_answered_before_the_next_is_sent() {
    let server = server().await;
    let mut client = open_stream(&server, "math/scale").await;
    client.read_past("HTTP/1.1 200 OK\r\n").await;
    client.read_past("\r\n\r\n").await;
    for n in 1..20 {
        client.send(call([f64::from(n).into()])).await;
        let answer = client.next_chunk().await.unwrap();
        assert_eq!(frames(&answer), [(0, Some(Value::Float(f64::from(2 * n))))]);
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(frames(&client.next_chunk().await.unwrap()), [(2, None)]);
    assert_eq!(client.next_chunk().await, None);
}

#[tokio::test]
async fn an_invalid_frame_ends_the_stream_after_the_earlier_answers() {
    let limits = config(|c| c.max_body_bytes = 1000);
    let server = Server::for_app(functions(), limits).await;
    let too_long = [&[0, 0, 0, 0][..], &2000_u32.to_le_bytes()].concat();
    let truncated = [&[0, 0, 0, 0][..], &100_u32.to_le_bytes(), b"too little"].concat();
    for (bytes, error_type) in
        [(&[9; 8][..], "bad_frame"), (&[1; 3], "bad_frame"), (&truncated, "bad_frame"), (&too_long, "body_too_large")]
    {
        let mut client = open_stream(&server, "math/scale").await;
        let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n0\r\n\r\n"].concat();
        client.send([call([1.0.into()]), chunk].concat()).await;
        let frames = frames(&client.answer().await.body);
        assert_eq!((frames.len(), &frames[0]), (2, &(0, Some(Value::Float(2.0)))), "{bytes:?}");
        let (kind, problem) = &frames[1];
        assert_eq!((*kind, problem.as_ref().unwrap().get("error_type")), (1, Some(&error_type.into())), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_stream_has_a_bounded_look_ahead() {
    let (app, hold) = Hold::with_queue(200).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = open_stream(&server, "hold").await;
    let calls: Vec<u8> = (0..100).flat_map(|n| call([format!("{n}").into()])).collect();
    client.send(calls).await;
    client.send("0\r\n\r\n").await;
    hold.wait_until_held().await;
    server.metric_becomes("callboard_in_flight", 16.0).await;
    // The end of each call admits one more; the count in flight never grows.
    for _ in 0..20 {
        hold.release();
        hold.wait_until_held().await;
        let in_flight = server.metric("callboard_in_flight").await.unwrap();
        assert!(in_flight <= 16.0, "{in_flight}");
    }
    for _ in 20..100 {
        hold.release();
    }
    let frames = frames(&client.answer().await.body);
    let texts: Vec<_> = frames.into_iter().filter_map(|(_, value)| Some(value?.as_str().unwrap().to_owned())).collect();
    assert_eq!(texts, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn announced_frames_hold_no_bytes_before_they_arrive() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(functions().limits(limits), HttpConfig::default()).await;
    let announced = [&[0; 4][..], &900_000_u32.to_le_bytes()].concat();
    let mut holders = Vec::new();
    for _ in 0..4 {
        let mut holder = open_stream(&server, "mirror").await;
        let chunk = [b"8\r\n", &announced[..], b"\r\n"].concat();
        holder.send([call([1.into()]), chunk].concat()).await;
        // The answer to the first call: the announced frame arrived with it and is read next.
        holder.read_past("HTTP/1.1 200 OK\r\n").await;
        holder.read_past("\r\n\r\n").await;
        assert_eq!(frames(&holder.next_chunk().await.unwrap()), [(0, Some(Value::Int(1)))]);
        holders.push(holder);
    }
    let body = format!("[{}1]", " ".repeat(500_000));
    for _ in 0..5 {
        assert_eq!(server.post_json("/mirror", &body).await.status, 200);
    }
    assert_eq!(server.metric("callboard_in_flight_bytes").await, Some(0.0));
}

/// Frames of 20 KiB with a budget for few of them: a call starts when an earlier call ends.
#[tokio::test]
async fn a_frame_waits_until_bytes_are_free() {
    let (app, hold) = Hold::with_queue(200).split();
    let limits = Limits { max_in_flight_bytes: 200 * 1024, ..Limits::default() };
    let server = Server::for_app(app.limits(limits), HttpConfig::default()).await;
    let mut client = open_stream(&server, "hold").await;
    let calls: Vec<u8> = (0..12).flat_map(|n| call([format!("{n:20480}").into()])).collect();
    client.send(calls).await;
    client.send("0\r\n\r\n").await;
    hold.wait_until_held().await;
    // At most nine fit at once. The other frames wait and are not refused.
    assert!(server.metric("callboard_in_flight").await.unwrap() <= 9.0);
    for _ in 0..12 {
        hold.release();
    }
    let kinds: Vec<u8> = frames(&client.answer().await.body).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [&[0; 12][..], &[2]].concat());
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

/// A frame that gets no bytes is answered by an error in its position; its call does not start.
#[tokio::test]
async fn a_frame_waits_at_most_for_the_timeout_of_its_call() {
    let (app, hold) = Hold::with_queue(8).split();
    let limits = Limits { max_in_flight_bytes: 64 * 1024, ..Limits::default() };
    let server = Server::for_app(app.limits(limits), HttpConfig::default()).await;
    let mut other = server.connect().await;
    let body = format!("\"{}\"", "x".repeat(16_000));
    other
        .send(format!(
            "POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    hold.wait_until_held().await;
    let head = format!(
        "POST /v1/call/hold HTTP/1.1\r\nhost: test\r\ncontent-type: {FRAMES}\r\nx-request-timeout-ms: 300\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    let mut client = server.connect().await;
    client.send([head.into_bytes(), call(["y".repeat(56_000).into()])].concat()).await;
    let frames = frames(&client.answer().await.body);
    let [(1, Some(problem))] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(problem.get("kind"), Some(&"overloaded".into()));
    hold.release();
}

#[tokio::test]
async fn a_client_that_leaves_its_stream_cancels_its_calls() {
    let (app, hold) = Hold::with_queue(200).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = open_stream(&server, "hold").await;
    client.send([call(["a".into()]), call(["b".into()])].concat()).await;
    hold.wait_until_held().await;
    drop(client);
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    server.metric_becomes("callboard_requests_total{route=\"/hold\",outcome=\"cancelled\"}", 2.0).await;
    hold.release();
}

#[tokio::test]
async fn a_stream_that_cannot_be_answered_is_refused() {
    let server = server().await;
    let mut client = server.connect().await;
    let refused =
        client.post("/v1/call/math/scale", &[("content-type", FRAMES), ("accept", "application/json")], "").await;
    assert_eq!(refused.status, 406);
    let headers = [("content-type", FRAMES), ("content-encoding", "gzip")];
    let packed = client.post("/v1/call/math/scale", &headers, "").await;
    assert_eq!(
        (packed.status, packed.problem()["message"].as_str()),
        (415, Some("a stream of calls cannot be compressed: send its frames as they are"))
    );
    let empty = client.post("/v1/call/math/scale", &[("content-type", FRAMES)], "").await;
    assert_eq!(frames(&empty.body), [(2, None)]);
}

/// Runs on one thread, so that the test collects all log lines.
#[tokio::test]
async fn failures_within_a_stream_are_logged_up_to_a_maximum() {
    let log = LogText::default();
    let _subscriber = tracing::subscriber::set_default(log.clone());
    let server = server().await;
    let mut client = open_stream(&server, "fail").await;
    let calls = vec![call(["plainly".into()]); 30].concat();
    client.send([calls, b"0\r\n\r\n".to_vec()].concat()).await;
    let kinds: Vec<u8> = frames(&client.answer().await.body).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [&[1; 30][..], &[2]].concat());
    assert_eq!(log.count("message=invalid digit found in string\n"), 10);
}

#[tokio::test]
async fn the_name_of_a_function_may_be_encoded_as_one_segment() {
    let server = server().await;
    let mut client = server.connect().await;
    let answer = client.post("/v1/call/math%2Fscale", &[JSON], r#"{"args": [3.0]}"#).await;
    assert_eq!((answer.status, answer.text()), (200, "6.0"));
    assert_eq!(client.post("/v1/call/livez", &[JSON], "{}").await.status, 404);
    assert_eq!(client.post("/v1/call/%ff", &[JSON], "{}").await.status, 404);
}

/// One recorded exchange of `docs/wire.md`: a request and its answer, bodies as text or as lines of hexadecimal bytes.
struct Exchange {
    path: String,
    content_type: String,
    body: Vec<u8>,
    status: u16,
    answer_type: String,
    answer: Vec<u8>,
}

impl Exchange {
    fn parse(block: &str) -> Self {
        let (request, answer) = block.split_once("\n---\n").expect("a request, `---`, an answer");
        let (first, content_type, body) = Self::message(request);
        let (status, answer_type, answer) = Self::message(answer);
        let path = first.strip_prefix("POST ").unwrap().to_owned();
        Self { path, content_type, body, status: status.parse().unwrap(), answer_type, answer }
    }

    /// The first line, the content type, and the body.
    fn message(text: &str) -> (String, String, Vec<u8>) {
        let (head, body) = text.split_once("\n\n").unwrap();
        let (first, content_type) = head.split_once("\ncontent-type: ").unwrap();
        let bytes = if content_type.contains("envelope") {
            body.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
        } else {
            body.trim_end().as_bytes().to_vec()
        };
        (first.to_owned(), content_type.to_owned(), bytes)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    bytes.chunks(16).map(line).collect::<Vec<_>>().join("\n")
}

/// Removes the source line of a panic, which changes with this file.
fn without_location(mut problem: serde_json::Value) -> serde_json::Value {
    if let Some(trace) = problem["remote_trace"].as_str() {
        let (location, message) = trace.split_once(":\n").expect("a location and a message");
        assert!(location.starts_with("panicked at ") && location.contains(".rs:"), "{location}");
        problem["remote_trace"] = message.into();
    }
    problem
}

#[tokio::test]
async fn the_recorded_examples_match_the_answers() {
    let page = include_str!("../../../../docs/wire.md");
    let exchanges: Vec<Exchange> =
        page.split("```exchange\n").skip(1).map(|rest| Exchange::parse(rest.split("```").next().unwrap())).collect();
    assert_eq!(exchanges.len(), 6, "every exchange of the page");
    let server = server().await;
    let mut client = server.connect().await;
    for exchange in exchanges {
        // A fixed request id, because the recorded problems contain it.
        let headers = [("content-type", exchange.content_type.as_str()), ("x-request-id", "wire-1")];
        let answer = client.post(&exchange.path, &headers, &exchange.body).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (exchange.status, Some(exchange.answer_type.as_str()))
        );
        if exchange.answer_type.ends_with("json") {
            // The page wraps lines that are one line on the wire.
            let expected = serde_json::from_slice(&exchange.answer).unwrap();
            assert_eq!(without_location(answer.json()), without_location(expected));
        } else {
            assert_eq!(hexadecimal(&answer.body), hexadecimal(&exchange.answer), "{}", exchange.path);
        }
    }
}

/// A key's limit counts calls: the calls of a stream wait for it, and are refused at their timeout.
#[tokio::test]
async fn each_call_of_a_stream_counts_and_waits_for_its_turn() {
    let keys = ApiKeys::parse("quick a-key-for-streams-of-calls 50/s\nslow another-key-for-the-streams 2/h").unwrap();
    let server = Server::for_app(functions(), config(|c| c.api_keys = Some(keys))).await;
    let open_stream = async |key: &str| {
        let mut client = server.connect().await;
        let head =
            "POST /v1/call/mirror HTTP/1.1\r\nhost: test\r\nx-request-timeout-ms: 10000\r\ntransfer-encoding: chunked";
        client.send(format!("{head}\r\ncontent-type: {FRAMES}\r\nx-api-key: {key}\r\n\r\n")).await;
        client
    };
    let calls = |count: i64| [(0..count).flat_map(|n| call([n.into()])).collect(), b"0\r\n\r\n".to_vec()].concat();
    let start = std::time::Instant::now();
    let mut client = open_stream("a-key-for-streams-of-calls").await;
    client.send(calls(80)).await;
    let answers = frames(&client.answer().await.body);
    assert_eq!((answers.len(), answers.last().map(|(kind, _)| *kind)), (81, Some(2)));
    assert!(start.elapsed() >= Duration::from_millis(500), "30 beyond the first 50 take 600 ms: {:?}", start.elapsed());

    let mut client = open_stream("another-key-for-the-streams").await;
    client.send(calls(3)).await;
    let answers = frames(&client.answer().await.body);
    let kinds: Vec<u8> = answers.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0, 0, 1], "the third would wait for half an hour");
    assert_eq!(answers[2].1.as_ref().unwrap().get("error_type"), Some(&"rate_limited".into()));
}
