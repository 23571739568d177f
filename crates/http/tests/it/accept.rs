//! The accept loop alone: versions, timers, the connection limit, and the orderly end.

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use callboard_http::{HttpConfig, serve_router};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use crate::support::app::{Hold, app};
use crate::support::{Raw, Server, TEST_TIMEOUT, bind, config};

/// Short enough to wait for, and long enough for an honest request on a loaded machine.
const SHORT: Duration = Duration::from_millis(200);

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn speaks_http1_and_http2_on_one_port() {
    let server = Server::for_router(hello(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.text(), "hello");
    let with_body = client.post("/", &[], "an unread body").await;
    assert_eq!(with_body.status, 405);
    assert_eq!(client.get("/").await.text(), "hello", "the connection still works");

    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get(format!("http://{}/", server.address)).body(Empty::<Bytes>::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.version(), hyper::Version::HTTP_2);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn the_version_is_recognized_when_bytes_arrive_one_by_one() {
    let server = Server::for_router(hello(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.socket.set_nodelay(true).unwrap();
    // `P` is also the first letter of the HTTP/2 preface.
    for byte in b"PUT / HTTP/1.1\r\nhost: test\r\n\r\n" {
        client.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer().await.status, 405);
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_disconnected() {
    let server = Server::for_router(hello(), config(|c| c.idle_timeout = SHORT)).await;
    assert_eq!(server.connect().await.closed().await, b"");
}

#[tokio::test]
async fn a_client_that_stops_within_the_http2_preface_is_disconnected() {
    let server = Server::for_router(hello(), config(|c| c.header_read_timeout = SHORT)).await;
    let mut client = server.connect().await;
    client.send("PRI * HT").await;
    assert_eq!(client.closed().await, b"");
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_disconnected() {
    let server = Server::for_router(hello(), config(|c| c.header_read_timeout = SHORT)).await;
    let client = server.connect().await;
    let (mut reading, mut writing) = client.socket.into_split();
    let trickle = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let head = b"GET / HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'z'));
        for byte in head {
            ticks.tick().await;
            if writing.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    });
    let mut received = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut received);
    _ = tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("cut in time");
    assert_eq!(received, b"");
    tokio::time::timeout(TEST_TIMEOUT, trickle).await.expect("the trickle ends").unwrap();
}

#[tokio::test]
async fn a_connection_that_is_idle_between_requests_is_closed() {
    let server = Server::for_router(hello(), config(|c| c.idle_timeout = SHORT)).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(client.closed().await, b"");
}

/// Proxies keep connections, and open them in advance, for longer than a head may take.
#[tokio::test]
async fn an_idle_connection_outlives_the_time_of_a_head() {
    let server = Server::for_router(hello(), config(|c| c.header_read_timeout = SHORT)).await;
    let (mut kept, mut early) = (server.connect().await, server.connect().await);
    assert_eq!(kept.get("/").await.status, 200);
    // A head that trickles for its whole time is the clock of this test.
    let mut slow = server.connect().await;
    for _ in 0..3 {
        slow.send("GET / HTTP/1.1\r\n").await;
        assert_eq!(slow.closed().await, b"");
        slow = server.connect().await;
    }
    assert_eq!((kept.get("/").await.status, early.get("/").await.status), (200, 200));
}

#[tokio::test]
async fn garbage_is_answered_with_400_and_closed() {
    let server = Server::for_router(hello(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is no HTTP\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 400);
    assert_eq!(client.closed().await, b"");
}

#[tokio::test]
async fn endless_headers_are_answered_with_431() {
    let server = Server::for_router(hello(), config(|c| c.max_header_bytes = 4096)).await;
    let mut client = server.connect().await;
    client.send(format!("GET / HTTP/1.1\r\nhost: test\r\nx-long: {}\r\n\r\n", "z".repeat(8192))).await;
    assert_eq!(client.answer().await.status, 431);
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_still_sends_its_body() {
    let refusing =
        Router::new().route("/", post(|| async { (axum::http::StatusCode::PAYLOAD_TOO_LARGE, "too large") }));
    let server = Server::for_router(refusing, HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1073741824\r\n\r\n").await;
    let block = vec![0; 64 * 1024];
    for _ in 0..8 {
        client.send(&block).await;
    }
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (413, "too large"));
}

#[tokio::test]
async fn new_clients_wait_when_the_connection_limit_is_reached() {
    let server = Server::for_router(hello(), config(|c| c.max_connections = 1)).await;
    let mut first = server.connect().await;
    assert_eq!(first.get("/").await.status, 200);

    let mut second = server.connect().await;
    second.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert_eq!(first.get("/").await.status, 200, "an open connection stays open");
    assert!(second.socket.try_read(&mut [0]).is_err(), "the second is not served yet");

    drop(first);
    assert_eq!(second.answer().await.status, 200);
}

/// A handler that reports its start and waits for its release.
struct Held {
    started: Arc<Notify>,
    release: Arc<Notify>,
    router: Router,
}

fn held() -> Held {
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (signal_start, wait) = (Arc::clone(&started), Arc::clone(&release));
    let handler = move || async move {
        signal_start.notify_one();
        wait.notified().await;
        "done"
    };
    Held { started, release, router: Router::new().route("/", get(handler)) }
}

#[tokio::test]
async fn shutdown_finishes_the_running_request_and_accepts_no_other() {
    let held = held();
    let mut server = Server::for_router(held.router, HttpConfig::default()).await;
    let address = server.address;
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    held.started.notified().await;

    server.begin_shutdown();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    held.release.notify_one();
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(client.closed().await, b"");
    drop(client);
    server.ended().await;
}

#[tokio::test]
async fn shutdown_lets_a_busy_client_finish_on_its_kept_alive_connection() {
    let mut server = Server::for_router(hello(), config(|c| c.shutdown_linger = TEST_TIMEOUT)).await;
    let address = server.address;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.header("connection"), None);

    server.begin_shutdown();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let answer = client.get("/").await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    drop(client);
    server.ended().await;
}

#[tokio::test]
async fn shutdown_closes_idle_connections_after_the_linger() {
    let mut server = Server::for_router(hello(), config(|c| c.shutdown_linger = SHORT)).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    server.begin_shutdown();
    assert_eq!(client.closed().await, b"");
    drop(client);
    server.ended().await;
}

#[tokio::test]
async fn shutdown_cuts_requests_that_outlast_the_grace() {
    let held = held();
    let mut server = Server::for_router(held.router, config(|c| c.shutdown_grace = SHORT)).await;
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    held.started.notified().await;
    server.begin_shutdown();
    assert_eq!(client.closed().await, b"");
    server.ended().await;
}

#[tokio::test]
async fn shutdown_answers_clients_in_the_backlog() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(512).unwrap();
    let mut clients = Vec::new();
    // More clients than the loop accepts before it yields.
    for _ in 0..200 {
        let mut client = Raw::connect(listener.local_addr().unwrap()).await;
        client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
        clients.push(client);
    }
    // The accept loop sees the shutdown before the clients.
    let serving = tokio::spawn(serve_router(listener, hello(), HttpConfig::default(), ready(())));
    for mut client in clients {
        assert_eq!(client.answer().await.header("connection"), Some("close"));
    }
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn invalid_limits_are_refused() {
    let invalid = config(|c| c.max_connections = 0);
    let refused = serve_router(bind().await, hello(), invalid, pending()).await.unwrap_err();
    assert_eq!(std::error::Error::source(&refused).unwrap().to_string(), "`max_connections` must be above zero");
}

const RESTING: &str = "callboard_http_connections_resting";

/// An idle connection is parked and continues later: with a request in one piece, in several pieces, and with two at
/// once.
#[tokio::test]
async fn a_connection_that_rests_answers_its_next_request() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/livez").await.status, 200);
    let post =
        "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n[1,2]";
    let twice = post.repeat(2);
    for (pieces, answers) in [(vec![post], 1), (vec![&post[..1], &post[1..70], &post[70..]], 1), (vec![&twice[..]], 2)]
    {
        server.metric_becomes(RESTING, 1.0).await;
        for piece in pieces {
            client.send(piece).await;
            // A round trip on another connection: the server has read this piece before the next.
            assert_eq!(server.get("/livez").await.status, 200);
        }
        for _ in 0..answers {
            assert_eq!(client.answer().await.text(), "[1,2]");
        }
    }
    server.metric_becomes(RESTING, 1.0).await;
    drop(client);
    server.metric_becomes(RESTING, 0.0).await;
}

/// Half a request after a whole one is kept, and gets no extra time.
#[tokio::test]
async fn a_connection_with_half_a_request_does_not_rest() {
    let server = Server::for_app(
        app(),
        config(|c| (c.header_read_timeout, c.idle_timeout) = (Duration::from_secs(2), Duration::from_secs(2))),
    )
    .await;
    let mut client = server.connect().await;
    client.send("GET /livez HTTP/1.1\r\nhost: test\r\n\r\nGET /livez HT").await;
    assert_eq!(client.answer().await.status, 200);
    let mut other = server.connect().await;
    other.send("GET /livez HT").await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/livez").await.status, 200);
    server.metric_becomes(RESTING, 1.0).await;
    client.send("TP/1.1\r\nhost: test\r\n\r\nGET /li").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!((client.closed().await.is_empty(), other.closed().await.is_empty()), (true, true), "cut in time");
    assert_eq!(idle.closed().await, b"", "closed like a resting connection");
}

/// A connection whose answer is pending or being written is not idle either.
#[tokio::test]
async fn a_connection_at_work_does_not_rest() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut held = server.connect().await;
    held.send("POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"a\"")
        .await;
    hold.wait_until_held().await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/livez").await.status, 200);
    server.metric_becomes(RESTING, 1.0).await;
    drop(idle);
    server.metric_becomes(RESTING, 0.0).await;
    hold.release();
    assert_eq!(held.answer().await.status, 200);
    server.metric_becomes(RESTING, 1.0).await;
}

/// A closing connection is not idle: further bytes are discarded and never become a request.
#[tokio::test]
async fn a_connection_that_lingers_does_not_rest() {
    let limits = config(|c| {
        c.max_body_bytes = 1_000;
        c.close_linger = TEST_TIMEOUT;
    });
    let server = Server::for_app(app(), limits).await;
    let mut client = server.connect().await;
    let head = "host: test\r\ncontent-type: application/json\r\ncontent-length: 1000000";
    client.send(format!("POST /mirror HTTP/1.1\r\n{head}\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 413);
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/livez").await.status, 200);
    server.metric_becomes(RESTING, 1.0).await;
    // That connection became idle after the other was answered. As requests, each of these would be refused by a reset.
    for _ in 0..20 {
        client.send(vec![b'x'; 1_000]).await;
        assert_eq!(server.get("/livez").await.status, 200);
    }
    assert_eq!(server.metric(RESTING).await, Some(1.0));
    client.socket.shutdown().await.unwrap();
    assert_eq!(client.closed().await, b"");
}

#[tokio::test]
async fn shutdown_closes_connections_that_rest_after_the_linger() {
    let mut server = Server::for_app(app(), HttpConfig::default()).await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    assert_eq!((idle.get("/livez").await.status, busy.get("/livez").await.status), (200, 200));
    server.metric_becomes(RESTING, 2.0).await;
    server.begin_shutdown();
    busy.send("GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert_eq!(busy.answer().await.status, 200, "its request may already have been sent");
    assert_eq!((idle.closed().await, busy.closed().await), (Vec::new(), Vec::new()));
    server.ended().await;
}
