//! Clients that still send a body after a refusal: the server reads on for a limited time.

use std::time::Duration;

use callboard_core::Limits;
use callboard_http::{ApiKeys, HttpConfig};
use tokio::io::AsyncWriteExt as _;

use crate::support::app::{Hold, app};
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

const SHORT_REST: usize = 64 * 1024;

/// A way to send a body after a refused head: see [`bodies`].
type Body = (String, Vec<u8>, Vec<u8>, Option<bool>);

/// The ways to send a body after a refused head: header lines, the bytes with the head, the bytes after the answer, and
/// whether the connection has to go on. `None`: a busy server may not read chunks in time.
fn bodies() -> [Body; 9] {
    let length = |length: usize| format!("content-length: {length}\r\n");
    let chunked = || "transfer-encoding: chunked\r\n".to_owned();
    let chunks = |count: usize| [b"400\r\n".as_slice(), &[b'x'; 0x400], b"\r\n"].concat().repeat(count);
    [
        (String::new(), Vec::new(), Vec::new(), Some(true)),
        (length(1_000), Vec::new(), vec![b'x'; 1_000], Some(true)),
        (length(1_000), vec![b'x'; 600], vec![b'x'; 400], Some(true)),
        (length(SHORT_REST), Vec::new(), vec![b'x'; SHORT_REST], Some(true)),
        (length(SHORT_REST + 1), Vec::new(), Vec::new(), Some(false)),
        (chunked(), [chunks(4), b"0\r\n\r\n".to_vec()].concat(), Vec::new(), None),
        (chunked(), chunks(1), Vec::new(), Some(false)),
        (length(100) + "expect: 100-continue\r\n", Vec::new(), Vec::new(), Some(false)),
        (length(100) + "connection: close\r\n", Vec::new(), Vec::new(), Some(false)),
    ]
}

/// The next request on a connection is answered after a refusal, or the refusal says that the connection ends.
async fn goes_on_after(server: &Server, head: &str, status: u16) {
    for (lines, with_head, after, expected) in bodies() {
        let mut client = server.connect().await;
        client.send([format!("{head}host: test\r\n{lines}\r\n").as_bytes(), &with_head].concat()).await;
        let answer = client.answer().await;
        let goes_on = answer.header("connection") != Some("close");
        assert_eq!((answer.status, goes_on), (status, expected.unwrap_or(goes_on)), "{head}{lines}");
        if goes_on {
            client.send(after).await;
            assert_eq!(client.get("/livez").await.status, 200, "{head}{lines}");
        } else {
            client.socket.shutdown().await.unwrap();
            assert_eq!(client.closed().await, b"", "{head}{lines}");
        }
    }
}

#[tokio::test]
async fn a_refusal_never_costs_the_next_request_on_its_connection() {
    let json = "content-type: application/json\r\n";
    let server = Server::for_app(app(), HttpConfig::default()).await;
    goes_on_after(&server, "POST /nowhere HTTP/1.1\r\n", 404).await;
    goes_on_after(&server, "POST /livez HTTP/1.1\r\n", 405).await;
    goes_on_after(&server, "POST /mirror HTTP/1.1\r\ncontent-type: image/png\r\n", 415).await;
    goes_on_after(&server, &format!("POST /mirror HTTP/1.1\r\n{json}accept: text/html\r\n"), 406).await;

    let keys = |c: &mut HttpConfig| c.api_keys = Some(ApiKeys::parse("web a-key-that-nobody-guesses 1/h").unwrap());
    let locked = Server::for_app(app(), config(keys)).await;
    goes_on_after(&locked, "POST /mirror HTTP/1.1\r\n", 401).await;
    let key = "x-api-key: a-key-that-nobody-guesses\r\n";
    let own = [("x-api-key", "a-key-that-nobody-guesses"), ("content-type", "application/json")];
    assert_eq!(locked.connect().await.post("/mirror", &own, "1").await.status, 200);
    goes_on_after(&locked, &format!("POST /mirror HTTP/1.1\r\n{json}{key}"), 429).await;

    let (full, hold) = Hold::with_queue(8).split();
    let limits = Limits { max_in_flight: 1, ..Limits::default() };
    let full = Server::for_app(full.limits(limits), HttpConfig::default()).await;
    let mut busy = full.connect().await;
    busy.send(format!("POST /hold HTTP/1.1\r\nhost: test\r\n{json}content-length: 3\r\n\r\n\"a\"")).await;
    hold.wait_until_held().await;
    goes_on_after(&full, &format!("POST /hold HTTP/1.1\r\n{json}"), 429).await;
    hold.release();
    assert_eq!(busy.answer().await.status, 200);

    let draining = Server::for_app(app(), HttpConfig::default()).await;
    draining.drain().await;
    goes_on_after(&draining, &format!("POST /mirror HTTP/1.1\r\n{json}"), 503).await;
}

/// Several tries, because the server may be too busy to read them in time.
#[tokio::test]
async fn a_connection_goes_on_after_refused_chunks_that_are_there() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    for _ in 0..100 {
        let mut client = server.connect().await;
        client
            .send("POST /nowhere HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
            .await;
        if client.answer().await.header("connection").is_none() {
            assert_eq!(client.get("/livez").await.status, 200);
            return;
        }
    }
    panic!("the connection always ends");
}

/// Refusals by the announced length, and by the deadline of a call whose body does not come.
#[tokio::test]
async fn a_refusal_by_a_limit_never_costs_the_next_request_either() {
    let head = "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n";
    let small = Server::for_app(app(), config(|c| c.max_body_bytes = 100)).await;
    let late = Server::for_app(app(), HttpConfig::default()).await;
    for (server, line, status) in [(small, "", 413), (late, "x-request-timeout-ms: 1\r\n", 504)] {
        let mut client = server.connect().await;
        for _ in 0..3 {
            client.send(format!("{head}{line}\r\n")).await;
            let answer = client.answer().await;
            assert_eq!((answer.status, answer.header("connection")), (status, None));
            client.send([b'x'; 1_000]).await;
            assert_eq!(client.get("/livez").await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_client_that_is_too_slow_is_told_that_its_connection_ends() {
    let server = Server::for_app(app(), config(|c| c.body_progress_timeout = Duration::from_millis(100))).await;
    let mut client = server.connect().await;
    let head = "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n";
    client.send(format!("{head}\r\n")).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (408, Some("close")));
}

/// Its late bytes are a body, whatever they look like.
#[tokio::test]
async fn a_connection_that_waits_for_the_rest_of_a_body_does_not_rest() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: test\r\n\r\n";
    client.send(format!("POST /nowhere HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", smuggled.len())).await;
    assert_eq!(client.answer().await.status, 404);
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/livez").await.status, 200);
    // It became idle after the other was answered.
    server.metric_becomes("callboard_http_connections_resting", 1.0).await;
    client.send(smuggled).await;
    assert_eq!(client.get("/livez").await.status, 200);
    server.metric_becomes("callboard_http_connections_resting", 2.0).await;
}

#[tokio::test]
async fn a_body_that_never_comes_holds_up_no_shutdown() {
    let mut server = Server::for_app(app(), config(|c| c.shutdown_grace = TEST_TIMEOUT * 2)).await;
    let mut client = server.connect().await;
    client.send("POST /nowhere HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 404);
    server.begin_shutdown();
    assert_eq!(client.closed().await, b"");
    drop(client);
    server.ended().await;
}

/// More than may linger.
#[tokio::test]
async fn short_bodies_of_refused_streams_are_all_read() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = Frames::connect(server.address).await;
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/nowhere")];
    let length = [("content-length", "1000")];
    for _ in 0..20 {
        let head = client.request_head(0, &[&fields[..], &length].concat());
        client.socket.write_all(&head).await.unwrap();
    }
    for _ in 0..20 {
        assert_eq!(client.status().await, Some(404));
    }
    for stream in (1..40).step_by(2) {
        client.socket.write_all(&frame(DATA, END_STREAM, stream, &[0; 1_000])).await.unwrap();
    }
    client.socket.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
    assert_eq!(client.read_until(&[(RST_STREAM, 0), (PING, ACK)]).await, Some(PING));
}
