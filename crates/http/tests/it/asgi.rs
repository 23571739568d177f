//! Apps that answer HTTP by themselves, mounted below a path: what they get, and what their clients get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_core::{App, Failure, RouteChange, RouteSpec, Stage, StreamStage};
use callboard_http::{
    AUTH_ROUTE, ApiInfo, ApiKeys, AsgiPart, AsgiRequest, AuthCaller, AuthRequest, Cors, HttpConfig, HttpEdge,
};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{Server, TEST_TIMEOUT, config};

type Parts = BoxStream<'static, Result<AsgiPart, Failure>>;

/// What the test tells the app at `/legacy`, and learns of it.
#[derive(Clone, Default)]
struct Control {
    /// A permit for each further chunk.
    chunks: Arc<Permits>,
    /// Whether the stream of the last request was dropped.
    dropped: Arc<AtomicBool>,
}

struct Permits(Semaphore);

impl Default for Permits {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn answer(request: &AsgiRequest, control: &Control) -> Parts {
    let (head, body) = (AsgiPart::head(200), AsgiPart::body);
    let parts = |parts: Vec<AsgiPart>| stream::iter(parts.into_iter().map(Ok)).boxed();
    match request.path.strip_prefix(&request.root_path).unwrap_or_default() {
        "/chunks" | "/endless" => {
            let (chunks, leaving) = (Arc::clone(&control.chunks), Dropped(Arc::clone(&control.dropped)));
            let pieces = stream::unfold((chunks, leaving, 0), async |(chunks, leaving, n)| {
                chunks.0.acquire().await.unwrap().forget();
                (n < 3).then(|| (Ok(AsgiPart::body(n.to_string())), (chunks, leaving, n + 1)))
            });
            stream::once(async { Ok(AsgiPart::head(200)) }).chain(pieces).boxed()
        }
        "/floods" => {
            let (chunks, leaving) = (Arc::clone(&control.chunks), Dropped(Arc::clone(&control.dropped)));
            let pieces = stream::unfold((chunks, leaving), async |(chunks, leaving)| {
                chunks.0.add_permits(1);
                Some((Ok(AsgiPart::body(vec![0; 1 << 16])), (chunks, leaving)))
            });
            stream::once(async { Ok(AsgiPart::head(200)) }).chain(pieces).boxed()
        }
        "/never" => stream::pending().boxed(),
        "/fails" => stream::iter([Err(Failure::new("no paper"))]).boxed(),
        "/breaks" => stream::iter([Ok(head), Ok(body("some")), Err(Failure::new("no paper"))]).boxed(),
        "/empty" => parts(vec![AsgiPart::head(204)]),
        "/exact" => parts(vec![head.with_header("content-length", "5"), body("fo"), body("ur!")]),
        "/short" => parts(vec![head.with_header("content-length", "5"), body("four")]),
        "/long" => parts(vec![head.with_header("content-length", "5"), body("more than five")]),
        "/nothing" => parts(Vec::new()),
        "/headless" => parts(vec![body("x")]),
        "/many" => parts(vec![(0..200).fold(head, |head, n| head.with_header(format!("x-{n}"), "1"))]),
        "/split" => parts(vec![head.with_header("x-a", "1\r\nx-b: 2")]),
        "/signed" => parts(vec![head.with_header("content-length", "+1"), body("x")]),
        "/lengths" => {
            parts(vec![head.with_header("content-length", "1").with_header("content-length", "2"), body("x")])
        }
        "/twice" => parts(vec![head.with_header("content-length", "01").with_header("content-length", "1"), body("x")]),
        "/no-content" => parts(vec![AsgiPart::head(204).with_header("content-length", "5")]),
        "/reset-content" => parts(vec![AsgiPart::head(205).with_header("content-length", "5")]),
        found @ ("/goes-on" | "/zero" | "/no-content-goes-on") => {
            let head = if found.starts_with("/no") { AsgiPart::head(204) } else { head };
            let first = if found == "/goes-on" { "four" } else { "" };
            let head = head.with_header("content-length", first.len().to_string());
            let chunks = Arc::clone(&control.chunks);
            let later = stream::once(async move {
                chunks.0.acquire().await.unwrap().forget();
                Ok(AsgiPart::default())
            });
            stream::iter([Ok(head), Ok(body(first))]).chain(later).boxed()
        }
        "/informational" => parts(vec![AsgiPart::head(101)]),
        "/headers" => {
            let head = AsgiPart::head(201).with_header("set-cookie", "a=1").with_header("Set-Cookie", "b=2");
            let head = head.with_header("connection", "x-hop").with_header("x-hop", "1").with_header("keep-alive", "1");
            parts(vec![head.with_header("transfer-encoding", "gzip").with_header("x-name", "caf\u{c3}\u{a9}")])
        }
        "/seen" => {
            let lines = request.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
            let AsgiRequest { method, scheme, http_version, root_path, path, query, client, body, .. } = request;
            let text = String::from_utf8_lossy(body.bytes());
            let seen = format!("{method} {scheme} {http_version} {root_path} {path} {query} {client:?} {text}\n");
            let seen = seen + &lines.collect::<String>();
            parts(vec![head.with_header("content-length", seen.len().to_string()), AsgiPart::body(seen)])
        }
        _ => parts(vec![AsgiPart::head(404)]),
    }
}

fn app(control: &Control) -> App {
    let control = control.clone();
    let legacy = StreamStage::each("legacy", move |request: &AsgiRequest| answer(request, &control));
    App::new()
        .route("/double", Stage::each("double", |number: &i64| Ok(number * 2)))
        .route_streaming("@asgi/legacy", legacy)
}

async fn server(change: impl FnOnce(&mut HttpConfig)) -> (Server, Control) {
    let control = Control::default();
    (Server::for_app(app(&control), config(change)).await, control)
}

#[tokio::test]
async fn an_app_gets_every_request_below_its_path_whole() {
    let (server, _) = server(|_| ()).await;
    let mut client = server.connect().await;
    let headers = [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("content-encoding", "br"),
        ("content-type", "application/vnd.callboard.envelope-stream"),
        ("te", "trailers"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-name", "caf\u{e9}"),
    ];
    for method in ["POST", "PUT", "DELETE", "PURGE", "OPTIONS", "GET"] {
        let seen = client.request(method, "/legacy/seen?a=%20b&a=", &headers, "body").await;
        let (first, lines) = seen.text().split_once('\n').unwrap();
        assert_eq!(first, format!("{method} http 1.1 /legacy /legacy/seen a=%20b&a= Some(\"127.0.0.1\") body"));
        let mut lines: Vec<&str> = lines.lines().collect();
        lines.sort_unstable();
        // The two bytes of one character are two characters.
        let expected = [
            "content-encoding: br",
            "content-length: 4",
            "content-type: application/vnd.callboard.envelope-stream",
            "cookie: a=1; b=2",
            "host: test",
            "x-hop: 1",
            "x-name: caf\u{c3}\u{a9}",
        ];
        assert_eq!(lines, expected);
    }
    for path in ["/legacy", "/legacy/", "/legacy/a%2fb/../c//d"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
        assert_eq!(client.get(path).await.header("content-type"), None, "an answer of the app: {path}");
    }
    assert!(client.get("/legacyx").await.problem()["message"].as_str().unwrap().contains("no route"));
    assert_eq!(client.post("/double", &[("content-type", "application/json")], "2").await.text(), "4");
    server.metric_becomes("callboard_requests_total{route=\"@asgi/legacy\",outcome=\"ok\"}", 12.0).await;
}

#[tokio::test]
async fn the_head_of_a_response_is_the_apps_but_for_headers_of_the_connection() {
    let (server, _) = server(|_| ()).await;
    let mut client = server.connect().await;
    let answer = client.get("/legacy/headers").await;
    let cookies: Vec<&str> = answer.head.lines().filter(|line| line.starts_with("set-cookie")).collect();
    assert_eq!((answer.status, cookies), (201, vec!["set-cookie: a=1", "set-cookie: b=2"]));
    for dropped in ["connection", "keep-alive"] {
        assert_eq!(answer.header(dropped), None, "{dropped}");
    }
    assert_eq!(answer.header("x-hop"), Some("1"), "the edge is no hop");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    assert!(answer.header("x-request-id").is_some() && answer.header("x-name") == Some("café"));
    let exact = client.get("/legacy/exact").await;
    assert_eq!((exact.header("content-length"), exact.header("transfer-encoding")), (Some("5"), None));
    assert_eq!((exact.text(), client.get("/legacy/empty").await.status), ("four!", 204));
    for answer in [&answer, &exact, &client.get("/legacy/empty").await] {
        assert!(answer.header("server-timing").unwrap().starts_with("first;dur="), "{answer:?}");
    }
    // A head without a body: the next answer is read from the same connection.
    client.send("HEAD /legacy/seen HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("content-length: ").await;
    client.read_past("server-timing: first;dur=").await;
    client.read_past("\r\n\r\n").await;
    assert_eq!(client.get("/legacy/headers").await.status, 201);
    assert_eq!(
        server.metric("callboard_requests_total{route=\"@asgi/legacy\",outcome=\"cancelled\"}").await,
        Some(0.0)
    );
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
}

#[tokio::test]
async fn a_head_that_http_does_not_have_is_500() {
    let (server, _) = server(|_| ()).await;
    for (path, said) in [
        ("nothing", "without a response"),
        ("headless", "has no status"),
        ("many", "has 200 headers"),
        ("split", "\"x-a\" has characters"),
        ("informational", "is not from 200 to 599"),
        ("fails", "no paper"),
    ] {
        let answer = server.get(&format!("/legacy/{path}")).await;
        assert_eq!(answer.status, 500, "{path}");
        assert!(answer.problem()["message"].as_str().unwrap().contains(said), "{answer:?}");
    }
}

#[tokio::test]
async fn a_body_is_sent_piece_by_piece() {
    let (server, control) = server(|_| ()).await;
    let mut client = server.connect().await;
    client.send("GET /legacy/chunks HTTP/1.1\r\nhost: test\r\n\r\n").await;
    // The head does not wait for the body.
    client.read_past("HTTP/1.1 200 OK").await;
    client.read_past("\r\n\r\n").await;
    for n in ["0", "1", "2"] {
        control.chunks.0.add_permits(1);
        assert_eq!(client.next_chunk().await.as_deref(), Some(n.as_bytes()));
    }
    control.chunks.0.add_permits(1);
    assert_eq!(client.next_chunk().await, None);
}

#[tokio::test]
async fn a_body_that_ends_in_another_way_than_its_head_says_is_cut() {
    let (server, _) = server(|_| ()).await;
    for (path, body) in [("breaks", "some"), ("short", "four"), ("long", "")] {
        let mut client = server.connect().await;
        client.send(format!("GET /legacy/{path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        let received = String::from_utf8(client.closed().await).unwrap();
        assert!(received.starts_with("HTTP/1.1 200 OK") && received.contains(body), "{received}");
        assert!(!received.ends_with("0\r\n\r\n"), "{received}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let (server, control) = server(|_| ()).await;
    let mut client = server.connect().await;
    client.send("GET /legacy/chunks HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("\r\n\r\n").await;
    drop(client);
    server.metric_becomes("callboard_requests_total{route=\"@asgi/legacy\",outcome=\"cancelled\"}", 1.0).await;
    let until_dropped = async {
        while !control.dropped.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_dropped).await.expect("the work is dropped");
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(1.0));
}

#[tokio::test]
async fn a_head_is_due_in_time_and_a_body_is_not() {
    let control = Control::default();
    let own = control.clone();
    let legacy = StreamStage::each("legacy", move |request: &AsgiRequest| answer(request, &own));
    let route = RouteSpec::streaming("@asgi/legacy", legacy)
        .default_timeout(Duration::from_millis(100))
        .max_timeout(Duration::from_millis(250));
    let server = Server::for_app(App::new().mount(route), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.send("GET /legacy/chunks HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("\r\n\r\n").await;
    // It takes as long as the timeout of the route, which began later.
    let late = server.get("/legacy/never").await;
    assert_eq!((late.status, late.problem()["kind"].as_str()), (504, Some("deadline_exceeded")));
    control.chunks.0.add_permits(4);
    assert_eq!(client.next_chunk().await.as_deref(), Some(&b"0"[..]));
    // A client that says how long it waits means the whole answer.
    let mut client = server.connect().await;
    client.send("GET /legacy/endless HTTP/1.1\r\nhost: test\r\nx-request-timeout-ms: 200\r\n\r\n").await;
    let received = String::from_utf8(client.closed().await).unwrap();
    assert!(received.starts_with("HTTP/1.1 200 OK") && !received.ends_with("0\r\n\r\n"), "{received}");
}

#[tokio::test]
async fn the_end_of_the_node_ends_a_body_and_a_request_without_an_answer() {
    let (mut server, _) = server(|config| config.shutdown_grace = Duration::from_millis(50)).await;
    let (mut client, mut unanswered) = (server.connect().await, server.connect().await);
    client.send("GET /legacy/endless HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("\r\n\r\n").await;
    unanswered.send("GET /legacy/never HTTP/1.1\r\nhost: test\r\n\r\n").await;
    server.metric_becomes("callboard_in_flight", 2.0).await;
    server.begin_shutdown();
    assert!(!client.closed().await.ends_with(b"0\r\n\r\n"));
    assert_eq!(unanswered.answer().await.status, 503);
    server.ended().await;
}

/// A revision of the app at a path that says `name`.
fn mounted(path: &str, name: &'static str, control: &Control) -> RouteSpec {
    let own = control.clone();
    let stage = StreamStage::each(format!("stage{}", path.replace('/', "-")), move |request: &AsgiRequest| {
        if request.path.ends_with("/name") {
            return stream::iter([Ok(AsgiPart::head(200)), Ok(AsgiPart::body(name))]).boxed();
        }
        answer(request, &own)
    });
    RouteSpec::streaming(&format!("@asgi{path}"), stage)
}

#[tokio::test]
async fn an_app_that_was_replaced_ends_with_its_last_stream_or_after_the_time_of_a_drain() {
    let control = Control::default();
    let app = App::new().mount(mounted("/legacy", "first", &control));
    let server = Server::for_app(app, config(|config| config.shutdown_grace = Duration::from_millis(100))).await;
    let mut client = server.connect().await;
    client.send("GET /legacy/endless HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("\r\n\r\n").await;
    control.chunks.0.add_permits(1);
    assert_eq!(client.next_chunk().await.as_deref(), Some(&b"0"[..]));
    assert_eq!(server.get("/legacy/name").await.text(), "first");
    let change = RouteChange::new().replace_route(mounted("/legacy", "second", &control));
    let changed = server.node().change(change).await.unwrap();
    assert_eq!(server.get("/legacy/name").await.text(), "second");
    tokio::time::timeout(TEST_TIMEOUT, changed.settled()).await.expect("the first revision ends with its stream");
    assert!(!client.closed().await.ends_with(b"0\r\n\r\n"));
    assert!(control.dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_no_app_that_was_replaced() {
    let control = Control::default();
    let app = App::new().mount(mounted("/legacy", "first", &control));
    let server = Server::for_app(app, config(|config| config.shutdown_grace = Duration::from_millis(50))).await;
    let mut client = server.connect().await;
    client.send("GET /legacy/floods HTTP/1.1\r\nhost: test\r\n\r\n").await;
    // The buffers of the connection are full when no more is asked of the app.
    let until_full = async {
        let mut asked = 0;
        while asked == 0 || control.chunks.0.available_permits() > asked {
            asked = control.chunks.0.available_permits();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_full).await.expect("the connection is full");
    assert!(!control.dropped.load(Ordering::SeqCst));
    let change = RouteChange::new().replace_route(mounted("/legacy", "second", &control));
    let changed = server.node().change(change).await.unwrap();
    tokio::time::timeout(TEST_TIMEOUT, changed.settled()).await.expect("the first revision ends");
    assert!(control.dropped.load(Ordering::SeqCst));
    // The client finds that its response was cut.
    assert!(!client.closed().await.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn an_app_moves_to_another_path_while_the_node_serves() {
    let control = Control::default();
    let server = Server::for_app(App::new().mount(mounted("/old", "old", &control)), HttpConfig::default()).await;
    assert_eq!(server.get("/old/name").await.text(), "old");
    let change = RouteChange::new().remove_route("@asgi/old").add_route(mounted("/new", "new", &control));
    server.node().change(change).await.unwrap();
    assert_eq!((server.get("/old/name").await.status, server.get("/new/name").await.text()), (404, "new"));
    // One that does not stream answers nothing.
    let whole = RouteSpec::new("@asgi/whole", Stage::each("whole", |_: &AsgiRequest| Ok(AsgiPart::head(200))));
    server.node().change(RouteChange::new().add_route(whole)).await.unwrap();
    assert_eq!(server.get("/whole").await.status, 404);
}

#[tokio::test]
async fn requests_pass_the_guards_and_limits_of_the_node() {
    let keys = ApiKeys::parse("ada secret-of-ada-0123456789").unwrap();
    let (server, _) = server(|config| (config.api_keys, config.max_body_bytes) = (Some(keys), 10)).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/legacy/seen").await.status, 401);
    let key = ("x-api-key", "secret-of-ada-0123456789");
    assert_eq!(client.post("/legacy/seen", &[key], "0123456789").await.status, 200);
    let large = server.connect().await.post("/legacy/seen", &[key], "01234567890").await;
    assert_eq!((large.status, large.problem()["error_type"].as_str()), (413, Some("body_too_large")));
    let mut client = server.connect().await;
    let head = "POST /legacy/seen HTTP/1.1\r\nhost: test\r\nx-api-key: secret-of-ada-0123456789\r\n";
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 413);
    let upgrade = [key, ("connection", "upgrade"), ("upgrade", "websocket")];
    let refused = server.connect().await.request("GET", "/legacy/seen", &upgrade, "").await;
    assert_eq!((refused.status, refused.problem()["error_type"].as_str()), (501, Some("no_websocket")));
}

#[tokio::test]
async fn a_page_of_another_site_asks_no_app_on_loopback() {
    let (server, _) = server(|_| ()).await;
    for headers in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        let refused = server.connect().await.request("GET", "/legacy/seen", &[headers], "").await;
        assert_eq!(refused.status, 403, "{headers:?}");
    }
}

#[tokio::test]
async fn pages_of_the_listed_origins_may_send_any_header_to_an_app() {
    let (server, _) = server(|config| config.cors = Some(Cors::parse(["https://app.example"]).unwrap())).await;
    let ask = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "x-csrf-token"),
    ];
    let mut client = server.connect().await;
    let permission = client.request("OPTIONS", "/legacy/seen", &ask, "").await;
    assert_eq!(permission.status, 204);
    assert_eq!(permission.header("access-control-allow-headers"), Some("x-csrf-token"));
    let permission = client.request("OPTIONS", "/double", &ask, "").await;
    assert!(!permission.header("access-control-allow-headers").unwrap().contains("x-csrf-token"));
    let seen = client.request("PUT", "/legacy/seen", &ask, "").await;
    assert_eq!((seen.status, seen.header("access-control-allow-origin")), (200, Some("https://app.example")));
}

#[tokio::test]
async fn an_app_is_asked_over_http2_as_over_http1() {
    let (server, _) = server(|_| ()).await;
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    for method in ["GET", "HEAD"] {
        let request = Request::builder().method(method).uri(format!("http://{}/legacy/seen", server.address));
        let request = request.body(http_body_util::Empty::<hyper::body::Bytes>::new()).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        let expected = format!("GET http 2 /legacy /legacy/seen  Some(\"127.0.0.1\") \nhost: {}\n", server.address);
        assert_eq!(text, if method == "HEAD" { "" } else { &expected });
    }
}

#[tokio::test]
async fn an_app_that_hides_a_route_or_cannot_stream_is_refused_with_both_names() {
    let refused = async |app: App| {
        let node = app.start().await.unwrap();
        let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), Vec::new());
        edge.unwrap_err().to_string()
    };
    let app = || app(&Control::default());
    let route = Stage::each("items", |number: &i64| Ok(*number));
    assert_eq!(
        refused(app().route("/legacy/items", route)).await,
        "`/legacy/items` is a path of the app that is mounted at `/legacy`"
    );
    let reserved = StreamStage::each("docs", |request: &AsgiRequest| answer(request, &Control::default()));
    assert_eq!(
        refused(App::new().route_streaming("@asgi/docs", reserved)).await,
        "route `/docs` has a path that is reserved for the http edge"
    );
    let whole = Stage::each("whole", |_: &AsgiRequest| Ok(AsgiPart::head(200)));
    assert!(refused(App::new().route("@asgi/whole", whole)).await.contains("it has to stream the parts"));
    // The node and the other edges do not know it.
    let (server, _) = server(|_| ()).await;
    for path in ["/@asgi/legacy", "/v1/call/@asgi/legacy", "/v2/models/@asgi/legacy/infer"] {
        assert_eq!(server.post_json(path, "{}").await.status, 404, "{path}");
    }
    assert!(!server.get("/openapi.json").await.text().contains("legacy"));
    assert_eq!(server.get("/").await.json()["pages"][5], "/legacy");
    let page = server.connect().await.request("GET", "/", &[("accept", "text/html")], "").await;
    assert!(page.text().contains("<a href=\"legacy\">/legacy</a>"), "{page:?}");
}

#[tokio::test]
async fn connection_takes_no_header_away() {
    let (server, _) = server(|_| ()).await;
    let mut client = server.connect().await;
    let named = "host, content-length, authorization, cookie, forwarded, x-forwarded-for, sec-fetch-site, x-user";
    let headers = [
        ("connection", named),
        ("authorization", "Basic eA=="),
        ("cookie", "a=1"),
        ("forwarded", "for=1"),
        ("x-forwarded-for", "1.2.3.4"),
        ("sec-fetch-site", "same-origin"),
        ("x-user", "ada"),
    ];
    let seen = client.request("POST", "/legacy/seen", &headers, "body").await;
    let kept = ["host: test", "content-length: 4", "cookie: a=1", "sec-fetch-site: same-origin", "x-user: ada"];
    for kept in kept.into_iter().chain(["authorization: Basic eA==", "forwarded: for=1", "x-forwarded-for: 1.2.3.4"]) {
        assert!(seen.text().lines().any(|line| line == kept), "{kept}: {}", seen.text());
    }
    assert!(!seen.text().contains("connection: "));
}

#[tokio::test]
async fn a_response_says_one_length_in_digits_or_is_500() {
    let (server, _) = server(|_| ()).await;
    for path in ["signed", "lengths"] {
        let answer = server.get(&format!("/legacy/{path}")).await;
        assert_eq!(answer.status, 500, "{path}");
        assert!(answer.problem()["message"].as_str().unwrap().contains("is not one number of bytes"), "{answer:?}");
    }
    assert_eq!(server.get("/legacy/twice").await.header("content-length"), Some("1"));
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    for (path, status) in [("no-content", 204), ("reset-content", 205), ("seen", 200)] {
        let request = Request::builder().uri(format!("http://{}/legacy/{path}", server.address));
        let request = request.body(http_body_util::Empty::<hyper::body::Bytes>::new()).unwrap();
        let response = client.send_request(request).await.unwrap();
        let length = response.headers().get("content-length").cloned();
        assert_eq!(response.status(), status, "{path}");
        assert!(length.is_some_and(|it| it != "5") || status == 204, "{path}");
        response.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn a_whole_response_does_not_wait_for_the_end_of_its_call() {
    let (server, control) = server(|_| ()).await;
    let mut client = server.connect().await;
    for (path, status, body) in [("goes-on", 200, "four"), ("zero", 200, ""), ("no-content-goes-on", 204, "")] {
        let answer = client.get(&format!("/legacy/{path}")).await;
        assert_eq!((answer.status, answer.text()), (status, body), "{path}");
    }
    control.chunks.0.add_permits(3);
    server.metric_becomes("callboard_requests_total{route=\"@asgi/legacy\",outcome=\"ok\"}", 3.0).await;
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
}

#[tokio::test]
async fn a_key_of_the_node_beside_a_token_of_the_app_admits_and_is_not_the_apps() {
    let keys = ApiKeys::parse("ada secret-of-ada-0123456789").unwrap();
    let (server, _) = server(|config| config.api_keys = Some(keys)).await;
    let mut client = server.connect().await;
    let headers = [("x-api-key", "secret-of-ada-0123456789"), ("authorization", "Bearer the-apps")];
    let seen = client.request("GET", "/legacy/seen", &headers, "").await;
    assert!(seen.status == 200 && seen.text().contains("authorization: Bearer the-apps"), "{seen:?}");
    let bearer = ("authorization", "Bearer secret-of-ada-0123456789");
    for text in [seen.text(), client.request("GET", "/legacy/seen", &[bearer], "").await.text()] {
        assert!(text.starts_with("GET") && !text.contains("secret-of-ada"), "{text}");
    }
    let wrong = [("x-api-key", "wrong"), ("authorization", "Bearer the-apps")];
    assert_eq!(client.request("GET", "/legacy/seen", &wrong, "").await.status, 401);
}

#[tokio::test]
async fn rules_on_paths_of_an_app_judge_the_path_that_it_sees() {
    let who = Stage::each("who", |request: &AuthRequest| match request.path.as_str() {
        "/legacy/admin" => Err(Failure::new("not here").with_status(403)),
        _ => Ok(AuthCaller::new("anyone")),
    });
    let server = Server::for_app(app(&Control::default()).route(AUTH_ROUTE, who), HttpConfig::default()).await;
    for (path, status) in [("admin", 403), ("%61dmin", 403), ("%2561dmin", 404)] {
        assert_eq!(server.get(&format!("/legacy/{path}")).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn what_an_app_is_never_asked_for_is_501() {
    let (server, _) = server(|_| ()).await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "foo, WebSocket")];
    let refused = server.connect().await.request("GET", "/legacy/seen", &upgrade, "").await;
    assert_eq!(refused.status, 501);
    let mut client = server.connect().await;
    let head = "POST /legacy/seen HTTP/1.1\r\nhost: test\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n";
    client.send(head).await;
    assert_eq!(client.answer().await.status, 501);
}
