//! A server in a program: it answers while it starts, and nothing is served after its shutdown.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard::call::Instant;
use callboard::edge::{Edge, EdgeDescription, EdgeError, EdgeFuture, EdgeServer};
use callboard::http::{ApiInfo, HttpConfig};
use callboard::{App, Drained, Failure, NodeHandle, Replica, RouteSpec, Server, Stage, StreamStage, Task};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The timeout of each wait. Only a failing test reaches it.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A call that is held until the sender is dropped, and a notification of its start.
fn held_app() -> (App, Arc<Notify>, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let started = Arc::new(Notify::new());
    let (signal_start, released) = (Arc::clone(&started), Mutex::new(released));
    let hold = Stage::each("hold", move |text: &String| {
        signal_start.notify_one();
        wait_for_release(&released);
        Ok(text.clone())
    });
    (App::new().route("/hold", hold.on_threads()), started, release)
}

fn wait_for_release(released: &Mutex<Receiver<()>>) {
    // Also ends when the sender is dropped.
    _ = released.lock().unwrap().recv();
}

async fn send(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).await.unwrap();
}

const CALL: &str =
    "POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"a\"";

/// All data until the server closes.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    // A reset closes the connection too.
    _ = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await.expect("closed in time");
    String::from_utf8_lossy(&received).into_owned()
}

/// The status of one request on its own connection.
async fn status_of(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    send(&mut stream, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")).await;
    until_closed(&mut stream).await.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_address_that_is_in_use_is_named_with_the_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = callboard::serve(App::new(), address).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("could not listen on {address}: ")) && error.contains("in use"), "{error}");
}

/// The next answer on a connection: its status, and whether the connection ends with it. Refusals have a length.
async fn answer(stream: &mut TcpStream) -> (String, bool) {
    let mut received = Vec::new();
    let reading = async {
        loop {
            let text = String::from_utf8_lossy(&received);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let field = |name: &str| Some(head.split_once(&format!("\r\n{name}: "))?.1.lines().next()?.to_owned());
                let length = field("content-length").map_or(0, |length| length.parse().unwrap());
                if body.len() >= length {
                    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    return (status, field("connection").as_deref() == Some("close"));
                }
            }
            assert!(stream.read_buf(&mut received).await.unwrap() > 0, "{}", String::from_utf8_lossy(&received));
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an answer in time")
}

/// One listener has all doors, and each refuses early in its own form.
#[tokio::test]
async fn a_refusal_at_any_door_never_costs_the_next_request_on_its_connection() {
    let echo = RouteSpec::new("/echo", Stage::each("echo", |text: &String| Ok(text.clone()))).task(Task::Complete);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = App::new().mount(echo);
    let server = Server::start_on(listener, app, HttpConfig::default(), ApiInfo::default()).await.unwrap();
    for (line, fields, expected) in [
        ("POST /nowhere", "content-type: application/json", "404"),
        ("POST /v1/call/nothing", "content-type: application/json", "404"),
        ("PUT /v1/completions", "content-type: application/json", "405"),
        ("POST /v1/completions", "content-type: image/png", "415"),
        ("POST /v2/models/nothing/infer", "content-type: application/json", "404"),
        ("PUT /mcp", "content-type: application/json", "405"),
        ("POST /mcp", "content-type: image/png", "415"),
        // Its status is in a header.
        ("POST /inference.GRPCInferenceService/ModelInfer", "content-type: application/grpc", "200"),
    ] {
        for body in [1_000, 0] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let length = format!("content-length: {body}");
            send(&mut stream, &format!("{line} HTTP/1.1\r\nhost: test\r\n{fields}\r\n{length}\r\n\r\n")).await;
            let (status, ends) = answer(&mut stream).await;
            assert_eq!(status, expected, "{line}");
            if ends {
                // Only what was announced and not read may end it.
                assert!(body > 0, "{line}");
                stream.shutdown().await.unwrap();
                assert_eq!(until_closed(&mut stream).await, "", "{line}");
                continue;
            }
            send(&mut stream, &"x".repeat(body)).await;
            send(&mut stream, "GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await;
            assert_eq!(answer(&mut stream).await.0, "200", "{line}");
        }
    }
    assert_eq!(server.shutdown(TEST_TIMEOUT).await, Drained::Completely);
}

/// A caller of such a listener may be anybody, also where its address is that of this machine: it may be a proxy.
#[tokio::test]
async fn a_traceback_leaves_a_listener_on_loopback_only_by_default() {
    let fails = || Failure::new("no paper").with_trace("File \"app.py\", line 3");
    for (address, is_sent) in [("127.0.0.1:0", true), ("0.0.0.0:0", false)] {
        let items = StreamStage::each("items", move |n: &i64| stream::iter([Ok(*n), Err(fails())]));
        let app = App::new().route("/fails", Stage::each("fails", move |_: &i64| Err::<i64, _>(fails())));
        let app = app.route_streaming("/items", items);
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server::start_on(listener, app, HttpConfig::default(), ApiInfo::default()).await.unwrap();
        for (path, accept) in [("/fails", "application/json"), ("/items", "text/event-stream")] {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}");
            let rest = "content-type: application/json\r\ncontent-length: 1\r\nconnection: close\r\n\r\n1";
            send(&mut stream, &format!("{head}\r\n{rest}")).await;
            let answer = until_closed(&mut stream).await;
            assert!(answer.contains("no paper"), "{answer}");
            assert_eq!(answer.contains("remote_trace") && answer.contains("app.py"), is_sent, "{address} {answer}");
            assert_eq!(answer.contains("remote_trace") || answer.contains("app.py"), is_sent, "{address} {answer}");
        }
        assert_eq!(server.shutdown(TEST_TIMEOUT).await, Drained::Completely);
    }
}

#[tokio::test]
async fn health_is_answered_while_a_worker_is_being_built() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let slow = Stage::worker("slow", move |_: &Replica| {
        wait_for_release(&released);
        Ok(Echo)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = App::new().route("/echo", slow);
    let starting = tokio::spawn(Server::start_on(listener, app, HttpConfig::default(), ApiInfo::default()));

    assert_eq!(status_of(address, "/livez").await, "200");
    assert_eq!(status_of(address, "/readyz").await, "503");
    assert_eq!(status_of(address, "/docs/").await, "503");
    drop(release);
    let server = tokio::time::timeout(TEST_TIMEOUT, starting).await.unwrap().unwrap().unwrap();
    assert_eq!(status_of(address, "/readyz").await, "200");
    assert_eq!(server.shutdown(TEST_TIMEOUT).await, Drained::Completely);
}

struct Echo;

impl callboard::Worker for Echo {
    type In = i64;
    type Out = i64;

    fn call(&mut self, batch: callboard::Batch<i64>) -> Vec<Result<i64, Failure>> {
        batch.iter().map(|number| Ok(*number)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_after_shutdown() {
    let (app, started, release) = held_app();
    let server = callboard::serve(app, "127.0.0.1:0").await.unwrap();
    let address = server.address();
    let mut client = TcpStream::connect(address).await.unwrap();
    send(&mut client, CALL).await;
    started.notified().await;

    // Far below the grace of the edge, 30 s.
    let drained = server.shutdown(Duration::from_millis(100)).await;
    assert_eq!(drained, Drained::TimedOut { in_flight: 1 });
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
    // The connection has ended: this data was sent before its end.
    let received = tokio::time::timeout(Duration::from_secs(2), until_closed(&mut client)).await.expect("it is closed");
    assert!(received.starts_with("HTTP/1.1 503") && received.contains("the node is ending"), "{received}");
    drop(release);
}

#[tokio::test]
async fn dropping_a_server_closes_its_connections() {
    let server = callboard::serve(App::new().route("/x", Stage::each("x", |x: &i64| Ok(*x))), "127.0.0.1:0").await;
    let server = server.unwrap();
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    send(&mut client, "GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let mut first = [0; 12];
    client.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    drop(server);
    // The connection is idle, so only the end of the server closes it in time.
    tokio::time::timeout(Duration::from_secs(5), until_closed(&mut client)).await.expect("closed with the server");
}

/// The edge is the state of the program's own handlers, and gives them the client of the node, once it has started.
#[tokio::test]
async fn a_handler_beside_the_edge_calls_stages_and_answers_their_errors() {
    use axum::Router;
    use axum::extract::{Path, State};
    use axum::routing::get;
    use callboard::http::{HttpEdge, Problem};

    async fn mine(State(edge): State<HttpEdge>, Path(route): Path<String>) -> Result<String, Problem> {
        Ok(edge.client()?.call::<String, String>(&format!("/{route}"), "ada".to_owned()).await?)
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mount = |edge: HttpEdge| {
        Router::new().route("/mine/{route}", get(mine)).with_state(edge.clone()).fallback_service(edge)
    };
    let starting = Server::builder().mount(mount).open(listener).unwrap();
    let page = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        send(&mut stream, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")).await;
        until_closed(&mut stream).await
    };
    let early = page("/mine/shout").await;
    assert!(early.starts_with("HTTP/1.1 503") && early.contains("retry-after: 1"), "{early}");
    assert!(early.contains("the node is starting"), "{early}");

    let app = App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())));
    let server = starting.start(app).await.unwrap();
    let answer = page("/mine/shout").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ADA"), "{answer}");
    let missing = page("/mine/shrt").await;
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("did you mean"), "{missing}");
    assert_eq!(server.shutdown(TEST_TIMEOUT).await, Drained::Completely);
}

/// A directory that is removed with the test.
#[cfg(feature = "net")]
struct Scratch(std::path::PathBuf);

#[cfg(feature = "net")]
impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread")]
async fn a_built_server_has_custom_routes_metrics_both_protocols_and_a_shutdown_future() {
    use axum::Router;
    use axum::response::Response;
    use axum::routing::get;
    use callboard::net::{Identity, NetConfig, QuicEdge};
    use callboard::{Caller, Client};

    let scratch = Scratch(std::env::temp_dir().join(format!("callboard-built-{}", std::process::id())));
    let identity = || Identity::development_in(&scratch.0).unwrap();
    let quic = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity(), NetConfig::default()).unwrap();
    let quic_address = quic.address();
    let app = App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)));
    let mark = |mut response: Response| async {
        response.headers_mut().insert("x-layer", "passed".parse().unwrap());
        response
    };
    let server = Server::builder()
        .mount(move |edge| {
            let router = Router::new().route("/version", get(|| async { "seven" })).fallback_service(edge);
            router.layer(axum::middleware::map_response(mark))
        })
        .metrics(|| "# TYPE mine counter\nmine_total 1\n".to_owned())
        .metrics(|| "# TYPE yours counter\nyours_total 2\n# EOF\n".to_owned())
        .drain_delay(Duration::from_secs(2))
        .quic(quic)
        .start(app, "127.0.0.1:0")
        .await
        .unwrap();
    let address = server.address();
    let page = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        send(&mut stream, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")).await;
        until_closed(&mut stream).await
    };
    let version = page("/version").await;
    assert!(version.ends_with("seven") && version.contains("x-layer: passed"), "{version}");
    let ready = page("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("x-layer: passed"), "{ready}");
    let metrics = page("/metrics").await;
    for line in ["mine_total 1", "yours_total 2", "callboard_http_responses_total", "callboard_net_connections"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let client = Client::builder().identity(identity()).connect(&format!("quic://{quic_address}")).await.unwrap();
    assert_eq!(client.call::<i64, i64>("/double", 21).await.unwrap(), 42);
    let line = "callboard_http_responses_total{door=\"quic\",status=\"200\"} 1\n";
    assert!(page("/metrics").await.contains(line), "a door like the others");
    assert_eq!(server.client().call::<i64, i64>("/double", 4).await.unwrap(), 8);

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(server.run_until(async { stopped.await.unwrap() }, TEST_TIMEOUT));
    assert_eq!(client.call::<i64, i64>("/double", 1).await.unwrap(), 2);
    stop.send(()).unwrap();
    // During the drain delay, a balancer learns that the server is not ready, and calls are answered.
    while page("/readyz").await.starts_with("HTTP/1.1 200") {}
    assert!(page("/version").await.ends_with("seven"));
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, running).await.unwrap().unwrap(), Drained::Completely);
    assert!(TcpStream::connect(address).await.is_err(), "HTTP is closed");
    // The endpoint's own thread sends the last packets.
    let is_free = || QuicEdge::bind(quic_address, identity(), NetConfig::default()).is_ok();
    let until_free = async {
        while !is_free() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_free).await.expect("the port of QUIC is free again");
}

/// The parts of a server, seen from outside.
#[cfg(feature = "net")]
#[derive(Clone)]
struct Doors {
    http: std::net::SocketAddr,
    quic: std::net::SocketAddr,
    identity: callboard::net::Identity,
}

#[cfg(feature = "net")]
impl Doors {
    /// The status of a call over HTTP, or that the port is closed; and the same for QUIC. Blocks.
    fn look(&self) -> String {
        let doors = self.clone();
        let looking = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { format!("HTTP {}, QUIC {}", doors.http().await, doors.quic().await) })
        });
        looking.join().unwrap()
    }

    async fn http(&self) -> String {
        let Ok(mut stream) = TcpStream::connect(self.http).await else { return "closed".to_owned() };
        let head = "POST /local HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1";
        send(&mut stream, &format!("{head}\r\nconnection: close\r\n\r\n0")).await;
        until_closed(&mut stream).await.split(' ').nth(1).unwrap_or("closed").to_owned()
    }

    async fn quic(&self) -> &'static str {
        if std::net::UdpSocket::bind(self.quic).is_ok() {
            return "closed";
        }
        let client = callboard::Client::builder().identity(self.identity.clone()).start_up_wait(Duration::ZERO);
        if client.connect(&format!("quic://{}", self.quic)).await.is_ok() { "answers" } else { "refuses" }
    }
}

/// Looks at the server when it is built and when it cleans up. Its call of 1 is held.
#[cfg(feature = "net")]
struct Witness {
    doors: Doors,
    seen: Arc<Mutex<Vec<String>>>,
    begun: Arc<Notify>,
    released: Arc<Mutex<Receiver<()>>>,
}

#[cfg(feature = "net")]
impl callboard::Worker for Witness {
    type In = i64;
    type Out = i64;

    fn call(&mut self, batch: callboard::Batch<i64>) -> Vec<Result<i64, Failure>> {
        if batch.iter().any(|number| *number == 1) {
            self.begun.notify_one();
            wait_for_release(&self.released);
        }
        batch.iter().map(|number| Ok(*number)).collect()
    }

    fn cleanup(&mut self) {
        let seen = format!("a worker ends: {}", self.doors.look());
        self.seen.lock().unwrap().push(seen);
    }
}

/// A call that is admitted before the shutdown may need the peers, so these stay until the workers have ended.
#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_parts_of_a_server_start_and_end_in_the_documented_order() {
    use callboard::Pipeline;
    use callboard::net::{Cluster, Identity, NetConfig, QuicEdge, StaticView};

    let scratch = Scratch(std::env::temp_dir().join(format!("callboard-order-{}", std::process::id())));
    let identity = Identity::development_in(&scratch.0).unwrap();
    let edge = || QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
    let double = App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)));
    let other = Server::builder().quic(edge()).start(double, "127.0.0.1:0").await.unwrap();
    let peers = StaticView::try_new([other.quic().unwrap().address()]).unwrap();

    let (listener, quic) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), edge());
    let address = listener.local_addr().unwrap();
    let doors = Doors { http: address, quic: quic.address(), identity: identity.clone() };
    let (seen, begun) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Notify::new()));
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let witness = Stage::worker("witness", {
        let (doors, seen, begun) = (doors.clone(), Arc::clone(&seen), Arc::clone(&begun));
        move |_: &Replica| {
            seen.lock().unwrap().push(format!("a worker starts: {}", doors.look()));
            let (doors, seen, begun) = (doors.clone(), Arc::clone(&seen), Arc::clone(&begun));
            Ok(Witness { doors, seen, begun, released: Arc::clone(&released) })
        }
    });
    let doubled = Pipeline::from(witness.clone()).then(Pipeline::<i64, i64>::remote("double"));
    let app = App::new().route("/local", witness).route("/doubled", doubled);
    let connect = {
        let (doors, seen) = (doors.clone(), Arc::clone(&seen));
        move |edge: &QuicEdge| {
            seen.lock().unwrap().push(format!("peers start: {}", doors.look()));
            Cluster::start(edge, Arc::new(peers))
        }
    };
    let server = Server::builder().quic_with_peers(quic, connect).start_on(app, listener).await.unwrap();
    let ready = async {
        while !server.node().health().ready {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, ready).await.expect("the peer is connected");

    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST /doubled HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1";
    send(&mut client, &format!("{head}\r\nconnection: close\r\n\r\n1")).await;
    begun.notified().await;
    let ending = tokio::spawn(server.shutdown(TEST_TIMEOUT));
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, closed).await.expect("HTTP takes no new connections");
    release.send(()).unwrap();
    let answer = until_closed(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n2"), "{answer}");
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, ending).await.unwrap().unwrap(), Drained::Completely);
    let expected = [
        "a worker starts: HTTP 503, QUIC refuses",
        "peers start: HTTP 503, QUIC refuses",
        "a worker ends: HTTP closed, QUIC refuses",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
    let ends = async {
        while doors.quic().await != "closed" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, ends).await.expect("QUIC is closed");
}

/// Notes what its server does with it.
#[derive(Debug)]
struct Noting {
    name: &'static str,
    events: Arc<Mutex<Vec<String>>>,
    /// Whether its calls never end.
    hangs: bool,
}

impl Noting {
    fn new(name: &'static str, events: &Arc<Mutex<Vec<String>>>) -> Self {
        Self { name, events: Arc::clone(events), hangs: false }
    }

    fn note(&self, event: &str) {
        self.events.lock().unwrap().push(format!("{} {event}", self.name));
    }
}

impl Edge for Noting {
    fn describe(&self) -> EdgeDescription {
        EdgeDescription::new(self.name).at("nowhere")
    }

    fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError> {
        self.note("opens");
        if node.client().route("/hold").is_some() { Ok(()) } else { Err("there is no route to hold".into()) }
    }

    fn withdraw(&self) {
        self.note("withdraws");
    }

    fn finish(&mut self, _: Instant) -> EdgeFuture<'_> {
        self.note("finishes");
        if self.hangs { Box::pin(std::future::pending()) } else { Box::pin(std::future::ready(())) }
    }

    fn abort(&mut self) {
        self.note("aborts");
    }

    fn close(&mut self, _: Instant) -> EdgeFuture<'_> {
        self.note("closes");
        Box::pin(std::future::ready(()))
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.note("is dropped");
    }
}

#[tokio::test]
async fn edges_open_and_end_in_the_order_of_their_list_and_a_running_call_is_finished_before_an_abort() {
    let (app, started, release) = held_app();
    let events = Arc::default();
    let edges: Vec<Box<dyn Edge>> = vec![Box::new(Noting::new("a", &events)), Box::new(Noting::new("b", &events))];
    let server = EdgeServer::start(app, edges).await.unwrap();
    assert!(server.edges().map(|edge| edge.name).eq(["a", "b"]));
    let client = server.client();
    let call = tokio::spawn(async move { client.call::<String, String>("/hold", "x".to_owned()).await });
    started.notified().await;

    let ending = tokio::spawn(server.shutdown(TEST_TIMEOUT));
    let finished = async {
        while events.lock().unwrap().len() < 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, finished).await.unwrap();
    let so_far = ["a opens", "b opens", "a withdraws", "b withdraws", "a finishes", "b finishes"];
    assert_eq!(*events.lock().unwrap(), so_far);
    drop(release);
    assert_eq!(call.await.unwrap().unwrap(), "x");
    assert_eq!(ending.await.unwrap(), Drained::Completely);
    let rest = ["a aborts", "b aborts", "a closes", "b closes", "a is dropped", "b is dropped"];
    assert_eq!(events.lock().unwrap()[6..], rest);
}

#[tokio::test]
async fn an_edge_that_does_not_finish_is_waited_for_no_longer_than_the_grace_period() {
    let (app, _, _release) = held_app();
    let events = Arc::default();
    let mut stuck = Noting::new("stuck", &events);
    stuck.hangs = true;
    let server = Server::builder().edge(stuck).start(app, "127.0.0.1:0").await.unwrap();
    assert!(server.edges().map(|edge| edge.name).eq(["http", "stuck"]));
    let ended = tokio::time::timeout(TEST_TIMEOUT, server.shutdown(Duration::from_millis(20))).await.unwrap();
    assert_eq!(ended, Drained::Completely);
    assert_eq!(events.lock().unwrap().last().unwrap(), "stuck is dropped");
}

#[tokio::test]
async fn an_edge_that_does_not_open_is_named_with_its_reason_and_nothing_is_served() {
    let events = Arc::default();
    let double = App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let started = Server::builder().edge(Noting::new("lines", &events)).start_on(double, listener).await;
    assert_eq!(started.unwrap_err().to_string(), "the edge `lines` does not open: there is no route to hold");
    assert_eq!(*events.lock().unwrap(), ["lines opens", "lines is dropped"]);
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, closed).await.expect("HTTP is closed");
}
