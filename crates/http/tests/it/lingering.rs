//! Clients that still send a body after a refusal: the server reads on for a limited time.

use std::time::Duration;

use callboard_http::HttpConfig;
use tokio::io::AsyncWriteExt as _;

use crate::support::app::app;
use crate::support::frames::{ACK, DATA, END_STREAM, Frames, PING, RST_STREAM, frame};
use crate::support::{Raw, Server, TEST_TIMEOUT, config};

/// More than all buffers of a connection hold.
const LARGE: usize = 20_000_000;

async fn refused(server: &Server) -> Raw {
    let mut client = server.connect().await;
    client.send(format!("POST /nowhere HTTP/1.1\r\nhost: test\r\ncontent-length: {LARGE}\r\n\r\n")).await;
    // More than the bytes that are skipped with the head.
    client.send(vec![0; 10_000]).await;
    assert_eq!(client.answer().await.status, 404);
    client
}

#[tokio::test]
async fn a_client_that_sends_its_whole_body_first_reads_the_refusal() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let too_large = Server::for_app(app(), config(|c| c.max_body_bytes = 1024 * 1024)).await;
    let body = vec![b' '; LARGE];
    let json = [("content-type", "application/json")];
    assert_eq!(server.connect().await.post("/nowhere", &[], &body).await.status, 404);
    assert_eq!(server.connect().await.post("/mirror", &[("content-type", "image/png")], &body).await.status, 415);
    assert_eq!(too_large.connect().await.post("/mirror", &json, &body).await.status, 413);
}

#[tokio::test]
async fn connections_over_the_linger_limit_are_closed_at_once() {
    // A tenth of the limit is one connection.
    let limits = |c: &mut HttpConfig| (c.max_connections, c.close_linger) = (10, TEST_TIMEOUT);
    let server = Server::for_app(app(), config(limits)).await;
    let mut first = refused(&server).await;
    let mut second = refused(&server).await;
    let piece = vec![0; 10_000];
    let sending = async { while second.socket.write_all(&piece).await.is_ok() {} };
    tokio::time::timeout(TEST_TIMEOUT / 2, sending).await.expect("reset in time");
    first.socket.write_all(&vec![0; LARGE - 10_000]).await.expect("the body of the first client is read to its end");
}

/// A request with an endless body, which was answered 404.
async fn refused_stream(server: &Server) -> Frames {
    let mut client = Frames::connect(server.address).await;
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/nowhere")];
    let head = client.request_head(0, &fields);
    client.socket.write_all(&head).await.unwrap();
    assert_eq!(client.status().await, Some(404));
    client
}

#[tokio::test]
async fn a_refused_stream_is_read_to_its_end_and_not_reset() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = refused_stream(&server).await;
    // The server reopens its window as it reads.
    for _ in 0..10 {
        client.socket.write_all(&frame(DATA, 0, 1, &[0; 10_000])).await.unwrap();
    }
    client.socket.write_all(&frame(DATA, END_STREAM, 1, b"end")).await.unwrap();
    client.socket.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
    assert_eq!(client.read_until(&[(RST_STREAM, 0), (PING, ACK)]).await, Some(PING));
}

#[tokio::test]
async fn a_refused_endless_stream_is_reset_after_the_linger() {
    let server = Server::for_app(app(), config(|c| c.close_linger = Duration::from_millis(100))).await;
    let mut client = refused_stream(&server).await;
    assert_eq!(client.read_until(&[(RST_STREAM, 0)]).await, Some(RST_STREAM));
}
