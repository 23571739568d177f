//! The records of a request: its line in the access log, and its trace.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use callboard_core::{App, StreamStage};
use callboard_http::{AccessLog, AccessRecord, AccessSink, ApiKeys, AsgiPart, AsgiRequest, HttpConfig, TrustedProxies};
use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber, span};

use crate::support::app::{Hold, app};
use crate::support::{Server, TEST_TIMEOUT, config};

/// Collects the access log lines of this thread until it is dropped.
struct Lines {
    lines: Arc<Mutex<Vec<Line>>>,
    _subscriber: DefaultGuard,
    /// With only one subscriber, `tracing` lets a thread without a subscriber decide which events are enabled.
    _second: tracing::Dispatch,
}

type Line = BTreeMap<&'static str, String>;

#[derive(Clone)]
struct EventCollector(Arc<Mutex<Vec<Line>>>);

impl Lines {
    fn collect() -> Self {
        let lines: Arc<Mutex<Vec<Line>>> = Arc::default();
        let _second = tracing::Dispatch::new(EventCollector(Arc::default()));
        Self { _subscriber: tracing::subscriber::set_default(EventCollector(Arc::clone(&lines))), _second, lines }
    }

    fn take(&self) -> Vec<Line> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    async fn next(&self) -> Line {
        let waiting = async {
            loop {
                if let Some(line) = self.lines.lock().unwrap().pop() {
                    return line;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("a line in time")
    }
}

impl Subscriber for EventCollector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "callboard_http::access"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Fields(Line);
        impl Visit for Fields {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut fields = Fields(Line::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test]
async fn a_request_has_one_line_with_all_its_fields() {
    let lines = Lines::collect();
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let server = Server::for_app(
        app(),
        config(|c| {
            c.access_log = AccessLog::Events;
            c.api_keys = Some(keys);
        }),
    )
    .await;
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", "a-key-that-nobody-guesses"),
        ("x-request-id", "mine-1"),
        ("traceparent", &traceparent),
    ];
    let answer = server.connect().await.post("/mirror?secret=1", &headers, "[1]").await;
    assert_eq!(answer.status, 200);
    let line = lines.next().await;
    let expected = [
        ("method", "POST"),
        ("path", "/mirror"),
        ("route", "/mirror"),
        ("status", "200"),
        ("request_bytes", "3"),
        ("bytes", "3"),
        ("client", "127.0.0.1"),
        ("key", "web"),
        ("request_id", "mine-1"),
        ("trace_id", TRACE),
    ];
    for (name, value) in expected {
        assert_eq!(line.get(name).map(String::as_str), Some(value), "{name} of {line:?}");
    }
    assert_eq!(line["timing"], answer.header("server-timing").unwrap());
    assert!(line["milliseconds"].parse::<f64>().unwrap() > 0.0);
    assert!(!format!("{line:?}").contains("secret"));
    assert!(lines.take().is_empty(), "one line");

    server.get("/livez").await;
    let page = lines.next().await;
    assert_eq!((page["path"].as_str(), page.get("route"), page.get("key")), ("/livez", None, None));
    server.get("/mirror").await;
    assert_eq!(lines.next().await["status"], "401");
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client_in_the_log() {
    for (trusted, client) in [(vec![], "127.0.0.1"), (vec!["loopback"], "203.0.113.7")] {
        let lines = Lines::collect();
        let limits = config(|c| {
            c.access_log = AccessLog::Events;
            c.trusted_proxies = TrustedProxies::parse(trusted).unwrap();
            c.max_connections_per_address = 1;
        });
        let server = Server::for_app(app(), limits).await;
        let forwarded = [("content-type", "application/json"), ("x-forwarded-for", "198.51.100.9, 203.0.113.7")];
        assert_eq!(server.connect().await.post("/mirror", &forwarded, "1").await.status, 200);
        assert_eq!(lines.next().await["client"], client);
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_logged_with_499() {
    let lines = Lines::collect();
    let (app, holding) = Hold::with_queue(1).split();
    let server = Server::for_app(app, config(|c| c.access_log = AccessLog::Events)).await;
    let mut client = server.connect().await;
    client
        .send("POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"x\"")
        .await;
    holding.wait_until_held().await;
    drop(client);
    let line = lines.next().await;
    assert_eq!((line["status"].as_str(), line["route"].as_str()), ("499", "/hold"));
    holding.release();
}

#[tokio::test]
async fn a_trace_is_continued_with_a_new_span_id() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [("content-type", "application/json"), ("traceparent", traceparent.as_str())];
    let answer = server.connect().await.post("/mirror", &headers, "1").await;
    let continued = answer.header("traceparent").unwrap();
    assert!(
        continued.starts_with(&format!("00-{TRACE}-")) && continued.ends_with("-01") && continued != traceparent,
        "{continued}"
    );

    let json = ("content-type", "application/json");
    let first = ("traceparent", traceparent.as_str());
    let second = ("traceparent", "00-00000000000000000000000000000001-0000000000000001-01");
    for invalid in [&[json, ("traceparent", "00-nonsense")][..], &[json, first, second], &[json, first, first]] {
        let answer = server.connect().await.post("/mirror", invalid, "1").await;
        assert_eq!((answer.status, answer.header("traceparent")), (200, None));
    }
}

#[tokio::test]
async fn without_an_access_log_nothing_is_written() {
    let lines = Lines::collect();
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let answer = server.post_json("/mirror", "1").await;
    assert_eq!((answer.status, answer.header("traceparent")), (200, None));
    assert!(lines.take().is_empty());
}

/// A sink that collects whole lines.
#[derive(Debug, Default)]
pub(crate) struct LineSink(Mutex<Vec<u8>>);

impl AccessSink for LineSink {
    fn put(&self, record: &AccessRecord<'_>) {
        record.write_line(&mut self.0.lock().unwrap());
    }
}

impl LineSink {
    /// All lines so far, without their dates.
    pub(crate) async fn lines(&self, count: usize) -> Vec<String> {
        let waiting = async {
            loop {
                let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
                if text.lines().count() == count {
                    return text.lines().map(|line| line.split_once("Z ").expect("a date").1.to_owned()).collect();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("lines in time")
    }
}

#[tokio::test]
async fn a_sink_gets_whole_lines_and_a_request_without_a_trace_has_its_id() {
    let events = Lines::collect();
    let sink = Arc::new(LineSink::default());
    let log = AccessLog::To(Arc::clone(&sink) as Arc<dyn AccessSink>);
    let server = Server::for_app(app(), config(|c| c.access_log = log)).await;
    let answer = server.post_json("/mirror?secret=1", "[1]").await;
    assert_eq!((answer.status, answer.header("traceparent")), (200, None));
    let lines = sink.lines(1).await;
    let expected = [
        "callboard_http::access: method=\"POST\" path=\"/mirror\" route=\"/mirror\" status=200 milliseconds=",
        &format!(" timing=\"{}\"", answer.header("server-timing").unwrap()),
        " request_bytes=3 bytes=3 client=127.0.0.1",
        &format!(" request_id=\"{}\"", answer.header("x-request-id").unwrap()),
    ];
    assert!(expected.iter().all(|part| lines[0].contains(part)), "{lines:?} without one of {expected:?}");
    assert!(!lines[0].contains("trace_id") && !lines[0].contains("secret"), "{lines:?}");
    assert!(events.take().is_empty(), "a sink replaces the events");
}

/// At its end, so that the line has its items and its whole time; a client that leaves within it has status 499.
#[tokio::test]
async fn a_stream_has_one_line_with_its_items_when_it_ends() {
    let sink = Arc::new(LineSink::default());
    let log = AccessLog::To(Arc::clone(&sink) as Arc<dyn AccessSink>);
    let endless = StreamStage::each("endless", |_: &u64| stream::iter(0..3_u64).map(Ok).chain(stream::pending()));
    let count = StreamStage::each("count", |n: &u64| stream::iter(0..*n).map(Ok));
    let app = App::new().route_streaming("/count", count).route_streaming("/endless", endless);
    let server = Server::for_app(app, config(|c| c.access_log = log)).await;
    assert_eq!(server.post_json("/count", "7").await.status, 200);
    let lines = sink.lines(1).await;
    assert!(lines[0].contains(" status=200 ") && lines[0].contains(" items=7 client="), "{lines:?}");

    let mut client = server.connect().await;
    client
        .send("POST /endless HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1")
        .await;
    client.read_past("data: 2\n").await;
    assert_eq!(sink.lines(1).await.len(), 1, "it has not ended");
    drop(client);
    let lines = sink.lines(2).await;
    assert!(lines[1].contains(" status=499 ") && lines[1].contains(" items=3 client="), "{lines:?}");
}

#[tokio::test]
async fn a_response_of_an_app_has_its_line_at_its_end_with_its_bytes() {
    let sink = Arc::new(LineSink::default());
    let log = AccessLog::To(Arc::clone(&sink) as Arc<dyn AccessSink>);
    let more = Arc::new(Semaphore::new(0));
    let pieces = Arc::clone(&more);
    let legacy = StreamStage::each("legacy", move |request: &AsgiRequest| {
        let (more, is_short) = (Arc::clone(&pieces), request.path.ends_with("short"));
        let first = [AsgiPart::head(200).with_header("content-length", "5"), AsgiPart::body("fo")];
        let second = stream::once(async move {
            more.acquire().await.unwrap().forget();
            Ok(AsgiPart::body(if is_short { "u" } else { "ur!" }))
        });
        stream::iter(first.map(Ok)).chain(second)
    });
    let app = App::new().route_streaming("@asgi/legacy", legacy);
    let server = Server::for_app(app, config(|c| c.access_log = log)).await;
    for (number, (path, bytes)) in [("whole", 5), ("short", 3)].into_iter().enumerate() {
        let mut client = server.connect().await;
        client.send(format!("GET /legacy/{path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        client.read_past("\r\n\r\nfo").await;
        assert_eq!(sink.lines(number).await.len(), number, "it has not ended");
        more.add_permits(1);
        let line = sink.lines(number + 1).await.remove(number);
        assert!(line.contains(" status=200 ") && line.contains(&format!(" bytes={bytes} ")), "{line}");
    }
}

/// Text from a client cannot end a log line, hide a part of it, or make it long.
#[tokio::test]
async fn hostile_heads_have_one_line_each() {
    let sink = Arc::new(LineSink::default());
    let log = AccessLog::To(Arc::clone(&sink) as Arc<dyn AccessSink>);
    let server = Server::for_app(app(), config(|c| c.access_log = log)).await;
    let text = "x".repeat(10_000);
    let heads = [
        format!("GET /{text}?{text} HTTP/1.1\r\nhost: test\r\nx-request-id: {}\r\n", &text[..200]),
        "GET /%0a%1b[2J\"quoted\\ HTTP/1.1\r\nhost: test\r\nx-request-id: a\tb\r\n".to_owned(),
        "BREW\"\\ /x HTTP/1.1\r\nhost: test\r\n".to_owned(),
        "G!#$%&'*+-.^_`|~T /x HTTP/1.1\r\nhost: test\r\nx-request-id: \";id=\\\r\n".to_owned(),
        "POST /mirror HTTP/1.1\r\nhost: test\r\ntraceparent: 00-\u{e9}\r\ntraceparent: 01\r\ncontent-length: 0\r\n"
            .to_owned(),
        "OPTIONS * HTTP/1.1\r\nhost: test\r\n".to_owned(),
        format!("{text} /mirror HTTP/1.1\r\nhost: test\r\n"),
    ];
    let mut answered = 0;
    for head in &heads {
        let mut client = server.connect().await;
        client.send(&format!("{head}connection: close\r\n\r\n")).await;
        let answer = String::from_utf8(client.closed().await).unwrap();
        // Requests that are not HTTP never reach the edge and have no line.
        answered += usize::from(answer.contains("x-request-id: "));
    }
    assert!(answered >= 5, "{answered}");
    let lines = sink.lines(answered).await;
    for line in &lines {
        assert!(line.len() < 600 && line.is_ascii() && !line.contains(|c: char| c.is_control()), "{line:?}");
        assert!(line.starts_with("callboard_http::access: method=\"") && line.contains(" request_id=\""), "{line:?}");
    }
    assert!(lines[0].contains(&format!(" path=\"/{}\" ", &text[..199])), "{}", lines[0]);
    assert!(lines.iter().any(|line| line.ends_with(r#" request_id="\";id=\\""#)), "{lines:?}");
}
