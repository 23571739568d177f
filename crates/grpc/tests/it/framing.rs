//! Prefixes, codings and limits of messages.

use std::io::Write as _;

use bytes::Bytes;
use callboard_core::{App, Limits, Stage};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use prost::Message as _;

use crate::client::{INFER, Server, config, framed, framed_as};
use crate::messages::{Infer, Inferred};

fn app() -> App {
    App::new().route("/bytes", Stage::each("bytes", |value: &Vec<u8>| Ok(value.clone())))
}

fn request(bytes: usize) -> Infer {
    Infer::raw("bytes", "UINT8", &[bytes as i64], vec![7; bytes])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_compressed_request_gets_a_compressed_answer() {
    let server = Server::start(app()).await;
    for (coding, packed) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("deflate", deflate)] {
        let client = server.connect().await.with("grpc-encoding", coding);
        let message = request(100_000).encode_to_vec();
        let answer = client.send(INFER, framed_as(1, &packed(&message))).await;
        assert_eq!((answer.grpc().0, &answer.headers["grpc-encoding"]), (0, &coding.parse().unwrap()));
        let [(1, packed)] = &answer.frames()[..] else { panic!("{answer:?}") };
        assert!(packed.len() < 2_000, "{coding}: {}", packed.len());
        // A message may be uncompressed all the same.
        let plain: Inferred = client.infer(&request(3)).await.message();
        assert_eq!(plain.raw[0], [7; 3][..]);
    }
}

#[tokio::test]
async fn unknown_codings_and_reserved_flags_are_unimplemented() {
    let server = Server::start(app()).await;
    let message = request(3).encode_to_vec();
    let client = server.connect().await.with("grpc-encoding", "snappy");
    let answer = client.infer(&request(3)).await;
    assert_eq!(answer.refused(12), "messages in `snappy` are not read here; accepted: identity, deflate, gzip");
    assert_eq!(answer.headers["grpc-accept-encoding"], "identity,deflate,gzip");
    let client = server.connect().await;
    for flag in [2, 3, 128, 255] {
        assert!(client.send(INFER, framed_as(flag, &message)).await.refused(12).contains("reserved"));
    }
    client.send(INFER, framed_as(1, &gzip(&message))).await.refused(13);
}

#[tokio::test]
async fn a_message_beyond_the_limits_is_refused_by_its_prefix() {
    let server = Server::with(app(), config(|config| config.max_body_bytes = 10_000)).await;
    let client = server.connect().await;
    // Four gigabytes are announced, and never sent.
    for announced in [u32::MAX, 10_001] {
        let prefix: Bytes = [&[0][..], &announced.to_be_bytes(), b"few"].concat().into();
        assert_eq!(client.send(INFER, prefix).await.refused(8), "the body exceeds the limit of 10000 bytes");
    }
    let long = request(10_000).encode_to_vec();
    client.send(INFER, framed(&long)).await.refused(8);
    let client = client.with("grpc-encoding", "gzip");
    assert!(gzip(&long).len() < 500);
    client.send(INFER, framed_as(1, &gzip(&long))).await.refused(8);
    client.send(INFER, framed_as(1, &gzip(&[0; 1_000_000]))).await.refused(8);
    server.connect().await.infer(&request(9_000)).await.message::<Inferred>();
    assert_eq!(server.node.client().edge().charged_bytes(), 0);
}

#[tokio::test]
async fn a_message_without_room_is_refused_by_its_prefix() {
    let limits = Limits { max_in_flight_bytes: 64 * 1024, ..Limits::default() };
    let server = Server::start(app().limits(limits)).await;
    let client = server.connect().await;
    let prefix: Bytes = [&[0][..], &60_000_u32.to_be_bytes(), b"few"].concat().into();
    client.send(INFER, prefix).await.refused(3);
    let _held = server.node.client().edge().held_bytes();
    _held.grow(60_000).unwrap();
    let answer = client.infer(&request(10_000)).await;
    answer.refused(8);
    assert!(answer.pushback().is_some_and(|millis| millis > 0));
    client.infer(&request(100)).await.message::<Inferred>();
}

#[tokio::test]
async fn what_is_no_single_message_is_invalid() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let whole = framed(&request(3).encode_to_vec());
    for (body, message) in [
        (Bytes::new(), "the request has no message"),
        (Bytes::from_static(b"\0\0\0"), "the request ends within the prefix of a message"),
        (whole.slice(..whole.len() - 1), "the request ends within a message"),
        ([&whole[..], &whole].concat().into(), "the request has more than one message"),
        (framed(b"\x0a\x05ab"), "the message cannot be read: the message ends within a field"),
        (framed(b"\x08\x01"), "the message cannot be read: a field has another type than it is declared with"),
        (framed(b""), "Request for unknown model: '' is not found"),
    ] {
        let refused = client.send(INFER, body).await;
        let status = if message.starts_with("Request") { 5 } else { 3 };
        assert_eq!(refused.refused(status), message);
    }
    let many = Infer { raw: vec![Bytes::new(); 1025], ..request(1) };
    assert_eq!(client.infer(&many).await.refused(3), "a request has at most 1024 raw_input_contents");
}

#[tokio::test]
async fn a_content_type_may_have_a_suffix_and_other_types_are_415() {
    let server = Server::start(app()).await;
    for content_type in ["application/grpc+proto", "application/grpc;charset=utf-8", "Application/GRPC"] {
        let mut client = server.connect().await;
        client.content_type = content_type;
        client.infer(&request(3)).await.message::<Inferred>();
    }
    for content_type in ["application/grpc-web", "application/json"] {
        let mut client = server.connect().await;
        client.content_type = content_type;
        assert_eq!(client.infer(&request(3)).await.status, 415, "{content_type}");
    }
}
