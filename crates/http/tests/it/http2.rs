//! The edge over HTTP/2 with prior knowledge.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, StreamStage};
use callboard_http::HttpConfig;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::support::app::{Hold, app};
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
    let server = Server::of_app(app(), HttpConfig::default()).await;
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

#[tokio::test]
async fn a_body_that_stalls_is_408() {
    let server = Server::of_app(app(), config(|c| c.body_progress_timeout = Duration::from_millis(200))).await;
    let begun = stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"[1,")))]);
    let stalled = futures_util::StreamExt::chain(begun, stream::pending());
    let mut client = connect(&server).await;
    let response = client.send_request(post(&server, "/mirror", StreamBody::new(Box::pin(stalled)))).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn a_stream_that_is_reset_cancels_its_call_and_no_other() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::of_app(app, HttpConfig::default()).await;
    let mut client = connect(&server).await;
    let kept = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"kept\""))));
    hold.one_is_held().await;
    let left = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"left\""))));
    server.metric_becomes("callboard_in_flight", 2.0).await;

    left.abort();
    server.metric_becomes("callboard_in_flight", 1.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    hold.release_one();
    assert_eq!(kept.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn shutdown_finishes_the_request_in_hand() {
    let (app, hold) = Hold::with_queue(8).split();
    let mut server = Server::of_app(app, HttpConfig::default()).await;
    let mut client = connect(&server).await;
    let call = tokio::spawn(client.send_request(post(&server, "/hold", Full::from("\"a\""))));
    hold.one_is_held().await;
    server.begin_shutdown();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    hold.release_one();
    assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
    // GOAWAY has told the client: its connection takes no further request.
    assert!(client.send_request(post(&server, "/hold", Full::from("\"b\""))).await.is_err());
    server.ended().await;
}

/// An item now and then, at less than the least rate, is an answer in hand and no idle connection.
#[tokio::test]
async fn a_stream_that_says_little_is_heard_to_its_end() {
    let slow = StreamStage::each("slow", |items: Arc<i64>| {
        stream::unfold(0, move |n| {
            let is_over = n == *items;
            async move {
                tokio::time::sleep(Duration::from_millis(if is_over { 0 } else { 300 })).await;
                (!is_over).then_some((Ok(n), n + 1))
            }
        })
    });
    let limits = config(|c| c.header_read_timeout = Duration::from_millis(100));
    let server = Server::of_app(App::new().route_streaming("/slow", slow), limits).await;
    let mut client = connect(&server).await;
    let response = client.send_request(post(&server, "/slow", Full::<Bytes>::from("5"))).await.unwrap();
    let events = response.into_body().collect().await.expect("heard to its end").to_bytes();
    assert!(events.ends_with(b"id: 4\ndata: 4\n\nevent: end\ndata: {\"items\":5}\n\n"), "{events:?}");
}

#[tokio::test]
async fn a_connection_that_wants_nothing_is_told_to_go() {
    let server = Server::of_app(app(), config(|c| c.header_read_timeout = Duration::from_millis(200))).await;
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let response = client.send_request(post(&server, "/mirror", Full::<Bytes>::from("1"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    // The client is there and answers pings, but asks for nothing more.
    let ended = tokio::time::timeout(crate::support::PATIENCE, connection).await.expect("told to go");
    ended.unwrap().unwrap();
    drop(client);
}
