//! `callboard.v1.Inference`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use callboard_codec::{Format, Value};
use callboard_core::{App, Failure, Stage, StreamStage};
use callboard_telemetry::{AccessLog, AccessRecord, AccessSink};
use futures_util::stream;
use prost::Message;

use crate::client::{Server, config, framed};
use crate::messages::{Infer, Inferred};

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
    let words = StreamStage::each("words", |value: &Value| {
        let text = match value {
            Value::Map(fields) => fields.get("text").and_then(Value::as_str),
            value => value.as_str(),
        };
        let words = text.unwrap_or_default().split(' ');
        stream::iter(words.map(|word| Ok(Value::from(word))).collect::<Vec<_>>())
    });
    App::new().route("/double", double).route_streaming("/count", count).route_streaming("/words", words)
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

/// An answer ends with its trailers. Only calls that a client cancels count against `max_cancelled_streams`.
#[tokio::test]
async fn a_connection_carries_any_number_of_calls() {
    let server = Server::with(app(), config(|config| config.max_cancelled_streams = 5)).await;
    let client = server.connect().await;
    for _ in 0..20 {
        assert_eq!(client.call(CALL, &json("/double", "21")).await.message::<CallReply>().body, "42");
        assert_eq!(client.call(STREAM, &json("/count", "2")).await.messages::<CallReply>().len(), 2);
        assert_eq!(client.call(CALL, &json("/double", "13")).await.refused(10), "unlucky");
    }
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
async fn a_stream_takes_and_gives_the_forms_of_its_route() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let form = "--b\r\ncontent-disposition: form-data; name=\"text\"\r\n\r\na b\r\n--b--\r\n";
    for (content_type, body) in [
        ("application/json", &br#"{"text": "a b"}"#[..]),
        ("text/plain", b"a b"),
        ("text/plain; charset=utf-8", b"a b"),
        ("application/msgpack", b"\xa3a b"),
        ("multipart/form-data; boundary=b", form.as_bytes()),
    ] {
        let content_type = content_type.to_owned();
        let call = CallRequest { content_type: content_type.clone(), body: body.into(), ..json("/words", "") };
        for (accept, media, first) in [
            ("application/json, */*", "application/json", "\"a\""),
            ("text/plain", "text/plain; charset=utf-8", "a"),
            ("application/x-npy;q=0.1, text/*", "text/plain; charset=utf-8", "a"),
        ] {
            let replies: Vec<CallReply> = client.call(STREAM, &with(call.clone(), "accept", accept)).await.messages();
            assert_eq!(replies.len(), 2, "{content_type} {accept}");
            assert_eq!((&*replies[0].content_type, &replies[0].body[..]), (media, first.as_bytes()), "{content_type}");
        }
        let refused = client.call(STREAM, &with(call, "accept", "image/png")).await.refused(3);
        assert!(refused.contains("text/plain"), "{refused}");
    }
    assert_eq!(server.node.client().edge().charged_bytes(), 0);
}

#[derive(Debug, Default)]
struct Records(Mutex<Vec<String>>);

impl AccessSink for Records {
    fn put(&self, record: &AccessRecord<'_>) {
        let text = format!("{:?} {} {:?}", record.route, record.status, record.grpc_status);
        self.0.lock().unwrap().push(text);
    }
}

/// Of a failed call HTTP says 200.
#[tokio::test]
async fn the_access_log_has_the_route_and_the_status_of_grpc() {
    let records = Arc::new(Records::default());
    let log = AccessLog::To(Arc::clone(&records) as Arc<dyn AccessSink>);
    let server = Server::with(app(), config(|config| config.access_log = log)).await;
    let client = server.connect().await;
    let infer = Infer::raw("double", "INT64", &[1], 13_i64.to_le_bytes().to_vec());
    client.infer(&infer).await.refused(10);
    client.infer(&Infer { raw: vec![vec![0; 8].into()], ..infer }).await.message::<Inferred>();
    client.call(CALL, &json("/double", "13")).await.refused(10);
    client.call(CALL, &json("/double", "1")).await.message::<CallReply>();
    client.call(CALL, &json("/other", "1")).await.refused(5);
    assert_eq!(client.call(STREAM, &json("/count", "9")).await.grpc().0, 2);
    client.call(STREAM, &json("/count", "1")).await.message::<CallReply>();
    let expected = [
        r#"Some("/double") 200 Some(10)"#,
        r#"Some("/double") 200 None"#,
        r#"Some("/double") 200 Some(10)"#,
        r#"Some("/double") 200 None"#,
        "None 200 Some(5)",
        r#"Some("/count") 200 Some(2)"#,
        r#"Some("/count") 200 None"#,
    ];
    assert_eq!(*records.0.lock().unwrap(), expected);
}

/// An option of two bytes for each of its fields would be a long work.
#[tokio::test]
async fn texts_and_options_are_short() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let long = "x".repeat(1_025);
    client.call(CALL, &json(&long[1..], "1")).await.refused(5);
    client.call(CALL, &json(&long, "1")).await.refused(3);
    client.call(CALL, &CallRequest { content_type: long.clone(), ..json("/double", "1") }).await.refused(3);
    let empty_fields = b"\x0a\x00".repeat(40_000);
    let mut length = Vec::new();
    prost::encoding::encode_varint(empty_fields.len() as u64, &mut length);
    let message = [&b"\x0a\x06double\x22"[..], &length, &empty_fields].concat();
    let refused = client.send(CALL, framed(&message)).await.refused(3);
    assert_eq!(refused, "the options of a call have at most 65536 bytes");
}

/// Such as the one that computes a method of a keyed class, whose caller gives the state.
#[tokio::test]
async fn a_private_route_is_not_there() {
    let inner = Stage::each("inner", |n: &u64| Ok(*n));
    let server = Server::with(app().route("@keyed/inner", inner), config(|_| {})).await;
    let client = server.connect().await;
    for name in ["@keyed/inner", "/@keyed/inner"] {
        client.call(CALL, &json(name, "1")).await.refused(5);
        client.call(STREAM, &json(name, "1")).await.refused(5);
    }
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
