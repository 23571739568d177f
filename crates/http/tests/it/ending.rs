//! Requests that outlast the shutdown timeout are answered, each in its protocol.

use std::time::Duration;

use callboard_core::{App, StreamStage};
use callboard_http::HttpConfig;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::functions::{call, frames, open_stream};
use crate::support::app::{Hold, HoldControl, app};
use crate::support::{Server, config};

fn short_grace() -> HttpConfig {
    config(|config| config.shutdown_grace = Duration::from_millis(50))
}

async fn holding() -> (Server, HoldControl) {
    let (app, holding) = Hold::with_queue(10).split();
    (Server::for_app(app, short_grace()).await, holding)
}

fn assert_node_ending(problem: &Value) {
    assert_eq!((&problem["status"], &problem["kind"]), (&503.into(), &"unavailable".into()), "{problem}");
    assert_eq!(problem["retryable"], false, "it may have run: {problem}");
    assert!(problem["message"].as_str().unwrap().starts_with("the node is ending"), "{problem}");
}

const HEAD: &str = "POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n";

#[tokio::test]
async fn a_call_that_runs_too_long_is_answered() {
    let (mut server, holding) = holding().await;
    let mut client = server.connect().await;
    client.send(format!("{HEAD}\"a\"")).await;
    holding.wait_until_held().await;
    server.begin_shutdown();
    let answer = client.answer().await;
    assert_node_ending(&answer.problem());
    assert_eq!(answer.header("connection"), Some("close"));
    server.ended().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_answered() {
    let mut server = Server::for_app(app(), short_grace()).await;
    let mut client = server.connect().await;
    client.send(format!("{}\"a", HEAD.replace("/hold", "/mirror"))).await;
    // The metric shows that the request was read and not refused.
    server.metric_becomes("callboard_in_flight", 1.0).await;
    server.begin_shutdown();
    assert_node_ending(&client.answer().await.problem());
    server.ended().await;
}

#[tokio::test]
async fn a_call_over_http2_is_answered_on_its_stream() {
    let (mut server, holding) = holding().await;
    let socket = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{}/hold", server.address)).header("content-type", "application/json");
    let answer = client.send_request(request.body("\"a\"".to_owned()).unwrap());
    let ending = async {
        holding.wait_until_held().await;
        server.begin_shutdown();
    };
    let (answer, ()) = tokio::join!(answer, ending);
    let body = answer.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_node_ending(&serde_json::from_slice(&body).unwrap());
    server.ended().await;
}

#[tokio::test]
async fn a_stream_that_runs_too_long_ends_with_the_error() {
    let endless = || {
        let endless = StreamStage::each("endless", |n: &i64| stream::iter([Ok(*n)]).chain(stream::pending()));
        App::new().route_streaming("/endless", endless)
    };
    for (path, accept, body) in [
        ("/endless", "text/event-stream", "7"),
        ("/endless", "application/x-ndjson", "7"),
        ("/v2/models/endless/generate_stream", "*/*", "{\"input\": 7}"),
    ] {
        let mut server = Server::for_app(endless(), short_grace()).await;
        let mut client = server.connect().await;
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\naccept: {accept}");
        client.send(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        client.read_past("7").await;
        server.begin_shutdown();
        client.read_past("the node is ending").await;
        client.read_past("0\r\n\r\n").await;
        server.ended().await;
    }
}

#[tokio::test]
async fn a_stream_of_calls_that_runs_too_long_ends_with_the_error() {
    let (mut server, holding) = holding().await;
    let mut client = open_stream(&server, "hold").await;
    client.send(call(["a".into()])).await;
    holding.wait_until_held().await;
    server.begin_shutdown();
    let frames = frames(&client.answer().await.body);
    let [(1, Some(problem))] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(problem.get("kind"), Some(&"unavailable".into()), "{problem:?}");
    server.ended().await;
}
