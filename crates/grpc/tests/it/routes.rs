//! `callboard.v1.Inference`.

use std::collections::HashMap;

use bytes::Bytes;
use callboard_codec::{Format, Value};
use callboard_core::{App, Failure, Stage, StreamStage};
use futures_util::stream;
use prost::Message;

use crate::client::{Server, config};

const CALL: &str = "/callboard.v1.Inference/Call";
const STREAM: &str = "/callboard.v1.Inference/Stream";

#[derive(Clone, PartialEq, Message)]
struct CallRequest {
    #[prost(string, tag = "1")]
    route: String,
    #[prost(string, tag = "2")]
    content_type: String,
    #[prost(bytes = "bytes", tag = "3")]
    body: Bytes,
    #[prost(map = "string, string", tag = "4")]
    options: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct CallReply {
    #[prost(string, tag = "1")]
    content_type: String,
    #[prost(bytes = "bytes", tag = "2")]
    body: Bytes,
    #[prost(uint32, tag = "3")]
    status: u32,
}

fn json(route: &str, body: &'static str) -> CallRequest {
    CallRequest { route: route.to_owned(), body: body.into(), ..CallRequest::default() }
}

fn with(request: CallRequest, name: &str, value: &str) -> CallRequest {
    CallRequest { options: HashMap::from([(name.to_owned(), value.to_owned())]), ..request }
}

fn app() -> App {
    let double = Stage::each("double", |number: &i64| match number {
        13 => Err(Failure::new("unlucky").with_status(409)),
        number => Ok(number * 2),
    });
    let count = StreamStage::each("count", |count: &i64| {
        stream::iter((0..*count).map(|n| if n == 3 { Err(Failure::new("enough")) } else { Ok(n) }))
    });
    App::new().route("/double", double).route_streaming("/count", count)
}

#[tokio::test]
async fn a_route_is_called_in_any_form_that_it_takes() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    for route in ["/double", "double"] {
        let reply: CallReply = client.call(CALL, &json(route, "21")).await.message();
        assert_eq!((&*reply.content_type, &reply.body[..], reply.status), ("application/json", &b"42"[..], 200));
    }
    let accept = with(json("/double", "21"), "Accept", "application/msgpack");
    let reply: CallReply = client.call(CALL, &accept).await.message();
    assert_eq!((&*reply.content_type, &reply.body[..]), ("application/msgpack", &[42][..]));
    let envelope = Value::Int(4).encode(Format::Envelope).unwrap();
    let content_type = Format::Envelope.media_type().to_owned();
    let request = CallRequest { body: envelope, content_type, ..json("/double", "") };
    let reply: CallReply = client.call(CALL, &request).await.message();
    assert_eq!(reply.body, "8");
}

#[tokio::test]
async fn each_output_of_a_stream_is_a_message_and_an_error_its_status() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let replies: Vec<CallReply> = client.call(STREAM, &json("/count", "3")).await.messages();
    let bodies: Vec<&[u8]> = replies.iter().map(|reply| &reply.body[..]).collect();
    assert_eq!(bodies, [b"0", b"1", b"2"]);
    let replies: Vec<CallReply> = client.call(STREAM, &json("/double", "4")).await.messages();
    assert_eq!(replies[0].body, "8");
    let failed = client.call(STREAM, &json("/count", "9")).await;
    assert_eq!((failed.grpc(), failed.frames().len()), ((2, "enough".to_owned()), 3));
    let accept = with(json("/count", "1"), "accept", "application/msgpack");
    assert_eq!(client.call(STREAM, &accept).await.message::<CallReply>().body, [0][..]);
    let refused = client.call(CALL, &json("/count", "3")).await.refused(12);
    assert_eq!(refused, "route `/count` answers with a stream: use Stream");
}

#[tokio::test]
async fn mistakes_are_those_of_the_route() {
    let server = Server::with(app(), config(|config| config.max_body_bytes = 1_000)).await;
    let client = server.connect().await;
    client.call(CALL, &json("/double", "\"a word\"")).await.refused(3);
    assert_eq!(client.call(CALL, &json("/double", "13")).await.refused(10), "unlucky");
    let near = client.call(CALL, &json("/doubel", "1")).await.refused(5);
    assert!(near.contains("/double"), "{near}");
    let html = CallRequest { content_type: "text/html".to_owned(), ..json("/double", "1") };
    client.call(CALL, &html).await.refused(12);
    client.call(STREAM, &html).await.refused(12);
    let option = client.call(CALL, &with(json("/double", "1"), "cookie", "a=b")).await.refused(3);
    assert!(option.starts_with("option `cookie` is not read by route `/double`"), "{option}");
    let large = CallRequest { body: vec![b' '; 1_001].into(), ..json("/double", "") };
    client.call(CALL, &large).await.refused(8);
    let many = (0..33).map(|n| (n.to_string(), String::new())).collect();
    client.call(CALL, &CallRequest { options: many, ..json("/double", "1") }).await.refused(3);
    client.call("/callboard.v1.Inference/Other", &json("/double", "1")).await.refused(12);
    assert_eq!(server.node.client().edge().charged_bytes(), 0);
}
