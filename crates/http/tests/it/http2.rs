//! The edge over HTTP/2 with prior knowledge.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::{App, Stage, StreamStage};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tower::Service as _;

use crate::functions::{arguments, envelope};
use crate::support::app::{Hold, app};
use crate::support::frames::{ACK, DATA, Frames, GOAWAY, PING, SETTINGS, WINDOW_UPDATE, frame};
use crate::support::{Server, config};

async fn connect<B>(server: &Server) -> SendRequest<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    client
}

fn post<B>(server: &Server, path: &str, body: B) -> Request<B> {
    Request::post(format!("http://{}{path}", server.address))
        .header("content-type", "application/json")
        .body(body)
        .unwrap()
}

#[tokio::test]
async fn calls_share_one_connection() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = connect(&server).await;
    let calls =
        ["1", "[2]", "\"three\""].map(|json| (json, client.send_request(post(&server, "/mirror", Full::from(json)))));
    for (json, call) in calls {
        let response = call.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().contains_key("x-request-id"));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), json);
    }
    assert_eq!(server.metric("callboard_http_connections_accepted_total").await, Some(2.0));
}

/// A connection of HTTP/1 has one request at a time, so its request may run quick code of batches in its own poll.
#[tokio::test]
async fn a_request_is_not_alone_in_the_task_of_its_connection() {
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tasks);
    let stage = Stage::each("tasks", move |n: &u64| {
        seen.lock().unwrap().push(tokio::task::id());
        Ok(*n)
    });
    let server = Server::for_app(App::new().route("/tasks", stage.max_batch_size(8)), HttpConfig::default()).await;
    // The first request, before the code is known to be quick.
    let runs_in_replica = || {
        let tasks = tasks.lock().unwrap();
        tasks.first() == tasks.last()
    };
    let mut http1 = server.connect().await;
    for number in 0.. {
        assert_eq!(http1.post("/tasks", &[("content-type", "application/json")], "1").await.status, 200);
        if !runs_in_replica() {
            break;
        }
        assert!(number < 1000, "no request of HTTP/1 runs it");
    }
    let mut http2 = connect(&server).await;
    for _ in 0..50 {
        let response = http2.send_request(post(&server, "/tasks", Full::from("1"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(runs_in_replica());
    }
}

/// A sensitive value is never kept there.
#[tokio::test]
async fn values_of_one_response_are_not_kept_in_the_table_of_headers() {
    let node = app().start().await.unwrap();
    let mut edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), Vec::new()).unwrap();
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let request = Request::post("http://localhost/mirror").version(version).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(Full::from("1")).unwrap();
        let Ok(response) = edge.call(request.map(axum::body::Body::new)).await;
        assert_eq!(response.status(), StatusCode::OK);
        for (name, is_its_own) in [("x-request-id", true), ("server-timing", true), ("content-type", false)] {
            let is_kept_out = is_its_own && version == Version::HTTP_2;
            assert_eq!(response.headers()[name].is_sensitive(), is_kept_out, "{name} over {version:?}");
        }
    }
}

/// Without frames of data, or with an empty one.
#[tokio::test]
async fn a_route_that_needs_no_input_needs_no_body() {
    #[derive(Clone, Serialize, Deserialize, JsonSchema)]
    struct Page {
        size: Option<u8>,
    }
    let page = Stage::each("page", |page: &Page| Ok(page.size.unwrap_or(10)));
    let server = Server::for_app(app().route("/page", page), HttpConfig::default()).await;
    let mut client = connect(&server).await;
    for path in ["/page", "/v1/call/page"] {
        for (frames, status) in [(&[][..], 200), (&[""], 200), (&["", ""], 200), (&["", "{}"], 415)] {
            let frames: Vec<_> =
                frames.iter().map(|data| Ok::<_, std::io::Error>(Frame::data(Bytes::from(*data)))).collect();
            let mut request = post(&server, path, StreamBody::new(stream::iter(frames)));
            request.headers_mut().remove("content-type");
            let response = client.send_request(request).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
        }
    }
}

#[tokio::test]
async fn a_body_that_stalls_is_408() {
    let server = Server::for_app(app(), config(|c| c.body_progress_timeout = Duration::from_millis(200))).await;
    let first_bytes = stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"[1,")))]);
    let stalled = futures_util::StreamExt::chain(first_bytes, stream::pending());
    let mut client = connect(&server).await;
    let response = client.send_request(post(&server, "/mirror", StreamBody::new(Box::pin(stalled)))).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn a_stream_that_is_reset_cancels_its_call_and_no_other() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = connect(&server).await;
    let running = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"a\""))));
    hold.wait_until_held().await;
    let cancelled = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"b\""))));
    server.metric_becomes("callboard_in_flight", 2.0).await;

    cancelled.abort();
    server.metric_becomes("callboard_in_flight", 1.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn shutdown_finishes_the_running_request() {
    let (app, hold) = Hold::with_queue(8).split();
    let mut server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = connect(&server).await;
    let call = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"a\""))));
    hold.wait_until_held().await;
    server.begin_shutdown();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    hold.release();
    assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
    // After the GOAWAY, the client refuses to send a request.
    assert!(client.send_request(post(&server, "/hold", Full::from("\"b\""))).await.is_err());
    server.ended().await;
}

/// A stream below the minimum rate is an answer in progress, not an idle connection.
#[tokio::test]
async fn a_stream_with_rare_items_is_not_cut() {
    let slow = StreamStage::each("slow", |items: &i64| {
        let items = *items;
        stream::unfold(0, move |n| {
            let is_over = n == items;
            async move {
                tokio::time::sleep(Duration::from_millis(if is_over { 0 } else { 300 })).await;
                (!is_over).then_some((Ok(n), n + 1))
            }
        })
    });
    let limits = config(|c| c.idle_timeout = Duration::from_millis(100));
    let server = Server::for_app(App::new().route_streaming("/slow", slow), limits).await;
    let mut client = connect(&server).await;
    let response = client.send_request(post(&server, "/slow", Full::<Bytes>::from("5"))).await.unwrap();
    let events = response.into_body().collect().await.expect("a complete answer").to_bytes();
    assert!(events.ends_with(b"id: 4\ndata: 4\n\nevent: end\ndata: {\"items\":5}\n\n"), "{events:?}");
}

#[tokio::test]
async fn an_idle_connection_gets_a_goaway() {
    let server = Server::for_app(app(), config(|c| c.idle_timeout = Duration::from_millis(200))).await;
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let response = client.send_request(post(&server, "/mirror", Full::<Bytes>::from("1"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    // The client answers pings, but opens no window.
    let ended = tokio::time::timeout(crate::support::TEST_TIMEOUT, connection).await.expect("a GOAWAY");
    ended.unwrap().unwrap();
    drop(client);
}

/// Windows are outside the account of any call, so they are small, or shares of a budget.
#[tokio::test]
async fn the_windows_of_a_connection_are_small_without_a_share_of_the_budget() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const MAX_HEADER_LIST_SIZE: u16 = 6;
    let small = config(|c| c.http2_windows_bytes = 0);
    let larger = HttpConfig { http2_stream_window_bytes: 256 * 1024, ..small.clone() };
    for (config, stream_kib) in [(HttpConfig::default(), 1024), (small, 64), (larger, 256)] {
        let server = Server::for_app(app(), config).await;
        let mut client = Frames::connect(server.address).await;
        let (_, settings) = client.next_of(&[SETTINGS]).await.unwrap();
        let setting = |id: u16| {
            let pair = settings.chunks(6).find(|pair| pair[..2] == id.to_be_bytes())?;
            Some(u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]))
        };
        assert_eq!(setting(INITIAL_WINDOW_SIZE), Some(stream_kib * 1024));
        assert_eq!(setting(MAX_HEADER_LIST_SIZE), Some(64 * 1024));
        let (_, increment) = client.next_of(&[WINDOW_UPDATE]).await.unwrap();
        // Each connection begins with 65,535 bytes (RFC 9113 §6.9.2).
        assert_eq!(u32::from_be_bytes(increment.try_into().unwrap()) + 65_535, 9 * stream_kib * 1024);
    }
}

/// A repeated header field is one byte on the wire and a hundred in memory.
#[tokio::test]
async fn a_head_has_at_most_as_many_fields_as_in_http1() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = connect(&server).await;
    for (count, status) in [(99, StatusCode::OK), (101, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)] {
        let mut request = post(&server, "/mirror", Full::from("1"));
        for n in request.headers().len()..count {
            request
                .headers_mut()
                .insert(HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap(), HeaderValue::from(n));
        }
        assert_eq!(client.send_request(request).await.unwrap().status(), status, "{count}");
    }
}

/// Each call of an ordered stream may be its own DATA frame. A window of them stays unread while the stage is busy.
#[tokio::test]
async fn small_calls_that_wait_in_their_window_are_not_a_flood() {
    let (app, hold) = Hold::with_queue(1).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = Frames::connect(server.address).await;
    // The window of its streams grows when it has confirmed the setting.
    client.next_of(&[SETTINGS]).await.unwrap();
    client.socket.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
    let call = envelope(&arguments(["x".into()]));
    let call = [&[0; 4], &(call.len() as u32).to_le_bytes()[..], &call].concat();
    let head = client.request_head(
        0,
        &[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/v1/call/hold"),
            (":authority", "localhost"),
            ("content-type", "application/vnd.callboard.envelope-stream"),
        ],
    );
    client.socket.write_all(&head).await.unwrap();
    let calls = frame(DATA, 0, 1, &call).repeat((1 << 20) / call.len());
    client.socket.write_all(&calls).await.unwrap();
    hold.wait_until_held().await;
    client.socket.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
    assert_eq!(client.read_until(&[(PING, ACK), (GOAWAY, 0)]).await, Some(PING));
}
