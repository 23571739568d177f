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

use crate::functions::{begun, call, frames};
use crate::support::app::{Hold, Holding, app};
use crate::support::{Server, config};

fn in_short() -> HttpConfig {
    config(|config| config.shutdown_grace = Duration::from_millis(50))
}

async fn holding() -> (Server, Holding) {
    let (app, holding) = Hold::with_queue(10).split();
    (Server::of_app(app, in_short()).await, holding)
}

fn says_that_it_ends(problem: &Value) {
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
    holding.one_is_held().await;
    server.begin_shutdown();
    let answer = client.answer().await;
    says_that_it_ends(&answer.problem());
    assert_eq!(answer.header("connection"), Some("close"));
    server.ended().await;
}

#[tokio::test]
async fn a_body_that_is_not_there_in_time_is_answered() {
    let mut server = Server::of_app(app(), in_short()).await;
    let mut client = server.connect().await;
    client.send(format!("{}\"a", HEAD.replace("/hold", "/mirror"))).await;
    // The metric shows that the request was read and not refused.
    server.metric_becomes("callboard_in_flight", 1.0).await;
    server.begin_shutdown();
    says_that_it_ends(&client.answer().await.problem());
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
        holding.one_is_held().await;
        server.begin_shutdown();
    };
    let (answer, ()) = tokio::join!(answer, ending);
    let body = answer.unwrap().into_body().collect().await.unwrap().to_bytes();
    says_that_it_ends(&serde_json::from_slice(&body).unwrap());
    server.ended().await;
}

#[tokio::test]
async fn a_stream_that_goes_on_too_long_ends_with_the_error() {
    let endless = || {
        let endless = StreamStage::each("endless", |n: &i64| stream::iter([Ok(*n)]).chain(stream::pending()));
        App::new().route_streaming("/endless", endless)
    };
    for (path, accept, body) in [
        ("/endless", "text/event-stream", "7"),
        ("/endless", "application/x-ndjson", "7"),
        ("/v2/models/endless/generate_stream", "*/*", "{\"input\": 7}"),
    ] {
        let mut server = Server::of_app(endless(), in_short()).await;
        let mut client = server.connect().await;
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\naccept: {accept}");
        client.send(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        client.hears("7").await;
        server.begin_shutdown();
        client.hears("the node is ending").await;
        client.hears("0\r\n\r\n").await;
        server.ended().await;
    }
}

#[tokio::test]
async fn a_stream_of_calls_that_goes_on_too_long_ends_with_the_error() {
    let (mut server, holding) = holding().await;
    let mut client = begun(&server, "hold").await;
    client.send(call(["a".into()])).await;
    holding.one_is_held().await;
    server.begin_shutdown();
    let frames = frames(&client.answer().await.body);
    let [(1, Some(problem))] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(problem.get("kind"), Some(&"unavailable".into()), "{problem:?}");
    server.ended().await;
}
