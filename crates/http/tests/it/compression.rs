//! Compressed bodies, compressed answers, and a decompression bomb.

use std::io::{Read, Write};

use callboard_codec::{DataFrame, Format, Map, Value};
use callboard_core::{App, Limits, StreamPipeline, StreamStage};
use callboard_http::HttpConfig;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use futures_util::stream;

use crate::support::app::app;
use crate::support::{Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

fn packed(coding: &str, bytes: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        _ => zstd::stream::encode_all(bytes, 3).unwrap(),
    }
}

fn unpacked(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    match coding {
        "gzip" => MultiGzDecoder::new(bytes).read_to_end(&mut whole).map(|_| ()).unwrap(),
        "deflate" => ZlibDecoder::new(bytes).read_to_end(&mut whole).map(|_| ()).unwrap(),
        _ => whole = zstd::stream::decode_all(bytes).unwrap(),
    }
    whole
}

const CODINGS: [&str; 3] = ["gzip", "deflate", "zstd"];

#[tokio::test]
async fn bodies_and_answers_may_be_compressed() {
    let server = server().await;
    let mut client = server.connect().await;
    let json = serde_json::to_string(&(0..100_000).collect::<Vec<u32>>()).unwrap();
    for coding in CODINGS {
        let headers = [JSON, ("content-encoding", coding), ("accept-encoding", coding)];
        let answer = client.post("/mirror", &headers, packed(coding, json.as_bytes())).await;
        assert_eq!((answer.status, answer.header("content-encoding")), (200, Some(coding)), "{answer:?}");
        assert_eq!(answer.header("vary"), Some("accept-encoding"));
        assert!(answer.body.len() < json.len() / 2);
        assert_eq!(unpacked(coding, &answer.body), json.as_bytes(), "{coding}");
    }
    let form = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--xyz--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=xyz"), ("content-encoding", "gzip")];
    assert_eq!(client.post("/mirror", &headers, packed("gzip", form.as_bytes())).await.text(), r#"{"a":"1"}"#);
}

#[tokio::test]
async fn short_and_dense_answers_are_not_compressed() {
    let server = server().await;
    let mut client = server.connect().await;
    let short = client.post("/mirror", &[JSON, ("accept-encoding", "gzip, zstd")], "[1, 2, 3]").await;
    assert_eq!((short.header("content-encoding"), short.text()), (None, "[1,2,3]"));
    assert_eq!(short.header("vary"), None);
    let zeros = format!("[{}0]", "0,".repeat(10_000));
    let plain = client.post("/mirror", &[JSON], &zeros).await;
    let headers = (plain.header("content-encoding"), plain.header("vary"));
    assert_eq!(headers, (None, Some("accept-encoding")), "the answer depends on accept-encoding");
    let mut encoding = async |accept: &str, accept_encoding: &str| {
        let headers = [JSON, ("accept", accept), ("accept-encoding", accept_encoding)];
        let answer = client.post("/mirror", &headers, &zeros).await;
        answer.header("content-encoding").map(str::to_owned)
    };
    assert_eq!(encoding("application/msgpack", "gzip, zstd").await, None);
    assert_eq!(encoding("application/msgpack", "gzip, identity;q=0.5").await.as_deref(), Some("gzip"));
    assert_eq!(encoding("application/vnd.callboard.envelope", "zstd, identity;q=0").await.as_deref(), Some("zstd"));
    assert_eq!(encoding("application/json", "gzip;q=0.1, deflate;q=0.9").await.as_deref(), Some("deflate"));
}

/// RFC 9110 §12.5.3. The default of HTTP libraries (`gzip, deflate`) costs a large table more time than it saves.
#[tokio::test]
async fn a_table_is_compressed_by_zstd_on_request() {
    let server = server().await;
    let words = (0..20_000).map(|row| Value::from(format!("row {}", row % 7))).collect();
    let table = DataFrame::from_value(&Map::from_iter([("words", Value::List(words))]).into()).unwrap();
    for format in [Format::ArrowStream, Format::ArrowFile] {
        let body = Value::DataFrame(table.clone()).encode(format).unwrap();
        let ask = async |accept_encoding: &str| {
            let headers = [("content-type", format.media_type()), ("accept", format.media_type())];
            let headers = [headers[0], headers[1], ("accept-encoding", accept_encoding)];
            server.connect().await.post("/mirror", &headers, body.clone()).await
        };
        let answer = ask("gzip, deflate, br, zstd").await;
        assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("zstd")), "{format}");
        assert!(answer.body.len() < body.len() / 2, "{format}: {} of {} bytes", answer.body.len(), body.len());
        assert_eq!(unpacked("zstd", &answer.body), body, "{format}");
        let plain = ask("gzip, deflate").await;
        assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, Some("accept-encoding")));
    }
}

#[tokio::test]
async fn a_decompression_bomb_is_413_at_the_limit_and_frees_its_bytes() {
    let server = Server::for_app(app(), config(|c| c.max_body_bytes = 1 << 20)).await;
    let zeros = vec![b' '; 30 << 20];
    for coding in CODINGS {
        let bomb = packed(coding, &zeros);
        assert!(bomb.len() < 100_000);
        let answer = server.connect().await.post("/mirror", &[JSON, ("content-encoding", coding)], bomb).await;
        assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (413, Some("body_too_large")), "{coding}");
    }
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn a_decompressed_body_takes_permits_like_any_other() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let post = async |bytes: usize| {
        let body = packed("gzip", &vec![b' '; bytes]);
        server.connect().await.post("/mirror", &[JSON, ("content-encoding", "gzip")], body).await
    };
    // Its decompressor is charged, too: the request alone exceeds the limit.
    let refused = post(1 << 20).await;
    let problem = refused.problem();
    assert_eq!((refused.status, &problem["retryable"]), (413, &false.into()), "{problem}");
    assert!(problem["detail"].as_str().unwrap().ends_with("more than max_in_flight_bytes = 1048576"), "{problem}");
    let others = server.node().client().edge().held_bytes();
    others.grow(512 << 10).unwrap();
    let refused = post(600 << 10).await;
    assert_eq!((refused.status, refused.problem()["kind"].as_str()), (429, Some("overloaded")));
    drop(others);
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

/// Even a body of two bytes has a decompressor, which costs memory.
#[tokio::test]
async fn a_decompressor_holds_permits_until_its_body_is_decompressed() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let mut clients = Vec::new();
    for coding in CODINGS {
        let body = packed(coding, b"[1]");
        let (first, rest) = body.split_at(2);
        let mut client = server.connect().await;
        let head = format!(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             content-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n2\r\n"
        );
        client.send([head.as_bytes(), first, b"\r\n"].concat()).await;
        clients.push((client, rest.to_vec()));
    }
    server.metric_becomes("callboard_in_flight_bytes", 3.0 * 128.0 * 1024.0).await;
    for (mut client, rest) in clients {
        client.send([format!("{:x}\r\n", rest.len()).as_bytes(), &rest, b"\r\n0\r\n\r\n"].concat()).await;
        assert_eq!(client.answer().await.text(), "[1]");
    }
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn a_broken_compressed_body_is_400_and_an_unknown_coding_415() {
    let server = server().await;
    for coding in CODINGS {
        let whole = packed(coding, b"[1, 2, 3]");
        for body in [&b"no such thing"[..], b"", &whole[..whole.len() - 2], &[&whole, &b"more of it"[..]].concat()] {
            let answer = server.connect().await.post("/mirror", &[JSON, ("content-encoding", coding)], body).await;
            assert_eq!(
                (answer.status, answer.problem()["error_type"].as_str()),
                (400, Some("malformed_body")),
                "{coding}"
            );
        }
    }
    for coding in ["br", "gzip, gzip"] {
        let answer = server.connect().await.post("/mirror", &[JSON, ("content-encoding", coding)], "1").await;
        assert_eq!((answer.status, answer.header("accept-encoding")), (415, Some("gzip, deflate, zstd")));
    }
}

#[tokio::test]
async fn each_event_of_a_compressed_stream_can_be_read_when_it_is_sent() {
    // Without a flush, the only event would never arrive.
    let stage =
        StreamStage::each("one", |n: &i64| futures_util::StreamExt::chain(stream::iter([Ok(*n)]), stream::pending()));
    let server =
        Server::for_app(App::new().route_streaming("/one", StreamPipeline::from(stage)), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let headers = "content-type: application/json\r\naccept-encoding: gzip, identity;q=0.5\r\ncontent-length: 1";
    client.send(format!("POST /one HTTP/1.1\r\nhost: test\r\n{headers}\r\n\r\n7")).await;
    client.read_past("content-encoding: gzip\r\n").await;
    client.read_past("\r\n\r\n").await;
    let mut received = Vec::new();
    let event = b"id: 0\ndata: 7\n\n";
    loop {
        received.extend(client.next_chunk().await.unwrap());
        let mut decompressed = Vec::new();
        let _truncated = MultiGzDecoder::new(&received[..]).read_to_end(&mut decompressed);
        if decompressed == event {
            return;
        }
    }
}
