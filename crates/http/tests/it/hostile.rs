//! Clients that send false data, stall or leave.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, Batch, Failure, Limits, Replica, Stage, Worker};
use callboard_http::HttpConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

use crate::support::app::{Hold, app};
use crate::support::{Server, TEST_TIMEOUT, config};

/// Short enough to wait for, and long enough for an honest request on a loaded machine.
const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn an_announced_gigabyte_is_refused_unread() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             content-length: 1073741824\r\n\r\n",
        )
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (413, Some("body_too_large")));
}

#[tokio::test]
async fn chunks_are_refused_at_the_first_one_beyond_the_limit() {
    let server = Server::for_app(app(), config(|c| c.max_body_bytes = 1000)).await;
    for content_type in ["application/json", "multipart/form-data; boundary=xyz", "image/png"] {
        let mut client = server.connect().await;
        client
            .send(format!(
                "POST /size HTTP/1.1\r\nhost: test\r\ncontent-type: {content_type}\r\n\
                 transfer-encoding: chunked\r\n\r\n"
            ))
            .await;
        client.send(format!("190\r\n{}\r\n", " ".repeat(400)).repeat(3)).await;
        let answer = client.answer().await;
        assert_eq!(
            (answer.status, answer.problem()["error_type"].as_str()),
            (413, Some("body_too_large")),
            "{content_type}"
        );
    }
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn a_body_that_stalls_is_408_and_returns_its_permits() {
    let server = Server::for_app(app(), config(|c| c.body_progress_timeout = SHORT)).await;
    for first_bytes in ["", "[1, 2"] {
        let mut client = server.connect().await;
        client
            .send(
                "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n",
            )
            .await;
        client.send(first_bytes).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (408, Some("body_stalled")));
    }
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_body_that_trickles_past_the_deadline_is_504() {
    let server = Server::for_app(app(), config(|c| c.body_progress_timeout = Duration::from_secs(60))).await;
    let mut client = server.connect().await;
    client
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             x-request-timeout-ms: 200\r\ncontent-length: 100000\r\n\r\n",
        )
        .await;
    let (mut reading, mut writing) = client.socket.into_split();
    let trickle = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        while writing.write_all(b" ").await.is_ok() {
            ticks.tick().await;
        }
    });
    let mut status_line = vec![0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut reading, &mut status_line).await.unwrap();
    assert_eq!(status_line, b"HTTP/1.1 504");
    trickle.abort();
}

#[tokio::test]
async fn announced_bytes_hold_no_permits_before_they_arrive() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let mut holders = Vec::new();
    for _ in 0..4 {
        let mut holder = server.connect().await;
        holder
            .send(
                "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                 x-request-timeout-ms: 3600000\r\ncontent-length: 900000\r\n\r\n[",
            )
            .await;
        holders.push(holder);
    }
    server.metric_becomes("callboard_in_flight", 4.0).await;
    let body = format!("[{}1]", " ".repeat(500_000));
    assert_eq!(server.post_json("/mirror", &body).await.status, 200);
}

#[tokio::test]
async fn a_trickling_body_is_408_despite_a_long_deadline() {
    let server = Server::for_app(app(), config(|c| c.body_progress_timeout = SHORT)).await;
    assert_eq!(trickled(&server, "application/json").await, "body_stalled");
    assert_eq!(trickled(&server, "multipart/form-data; boundary=xyz").await, "body_stalled");
}

#[tokio::test]
async fn a_body_over_the_total_body_timeout_is_408_despite_a_long_deadline() {
    let limits = config(|c| {
        c.body_timeout = SHORT;
        c.min_bytes_per_second = 0;
    });
    let server = Server::for_app(app(), limits).await;
    assert_eq!(trickled(&server, "application/json").await, "body_out_of_time");
}

/// Sends a body byte by byte, below the minimum rate, until the server refuses it; returns the error's type.
async fn trickled(server: &Server, content_type: &str) -> String {
    let mut client = server.connect().await;
    let head = format!(
        "POST /size HTTP/1.1\r\nhost: test\r\ncontent-type: {content_type}\r\nx-request-timeout-ms: 3600000\r\n\
         content-length: 100000\r\n\r\n"
    );
    client.send(head).await;
    let mut ticks = tokio::time::interval(SHORT / 20);
    loop {
        tokio::select! {
            biased;
            _ = client.socket.readable() => break,
            _ = ticks.tick() => {}
        }
        client.send(" ").await;
    }
    let answer = client.answer().await;
    assert_eq!(answer.status, 408, "{answer:?}");
    answer.problem()["error_type"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_slow_body_with_progress_is_accepted() {
    // The body takes more than twice this window, and each byte about a tenth of it.
    let window = 5 * SHORT;
    let limits = config(|c| {
        c.body_progress_timeout = window;
        c.min_bytes_per_second = 0;
    });
    let server = Server::for_app(app(), limits).await;
    let mut client = server.connect().await;
    let body = format!("[{}1]", " ".repeat(20));
    client
        .send(format!(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ))
        .await;
    let mut ticks = tokio::time::interval(window / 10);
    for byte in body.bytes() {
        ticks.tick().await;
        client.send([byte]).await;
    }
    assert_eq!(client.answer().await.text(), "[1]");
}

#[tokio::test]
async fn a_truncated_body_makes_no_call() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send("POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n[1,")
        .await;
    client.socket.shutdown().await.unwrap();
    let received = client.closed().await;
    assert!(!String::from_utf8_lossy(&received).contains(" 200 "));
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn garbage_chunks_are_400() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\nzz\r\n",
        )
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (400, Some("broken_body")));
}

#[tokio::test]
async fn conflicting_lengths_are_refused() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.send("POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n[1,2]").await;
    assert_eq!(client.answer().await.status, 400);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_running_call() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send("POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"a\"")
        .await;
    hold.wait_until_held().await;
    drop(client);
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_requests_total{route=\"/hold\",outcome=\"cancelled\"}", 1.0).await;
    hold.release();
}

/// Works until its call is cancelled.
struct CancelWatcher {
    started: Arc<Semaphore>,
    cancelled: Arc<Semaphore>,
}

impl Worker for CancelWatcher {
    type In = i64;
    type Out = i64;

    fn call(&mut self, batch: Batch<i64>) -> Vec<Result<i64, Failure>> {
        self.started.add_permits(1);
        while !batch.context(0).is_cancelled() {
            std::thread::yield_now();
        }
        self.cancelled.add_permits(1);
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

#[tokio::test]
async fn a_worker_sees_that_its_client_has_left() {
    let (started, cancelled) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let worker = {
        let (started, cancelled) = (Arc::clone(&started), Arc::clone(&cancelled));
        Stage::worker("patient", move |_: &Replica| {
            Ok(CancelWatcher { started: Arc::clone(&started), cancelled: Arc::clone(&cancelled) })
        })
    };
    let server = Server::for_app(App::new().route("/patient", worker.on_threads()), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send("POST /patient HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1")
        .await;
    let acquire = async |semaphore: &Semaphore| {
        tokio::time::timeout(TEST_TIMEOUT, semaphore.acquire()).await.unwrap().unwrap().forget()
    };
    acquire(&started).await;
    drop(client);
    acquire(&cancelled).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn the_queued_call_of_a_client_that_left_never_starts() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let request =
        "POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"a\"";
    let mut first = server.connect().await;
    first.send(request).await;
    hold.wait_until_held().await;
    let mut second = server.connect().await;
    second.send(request).await;
    server.metric_becomes("callboard_in_flight", 2.0).await;
    drop(second);
    server.metric_becomes("callboard_in_flight", 1.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
    server.metric_becomes("callboard_requests_total{route=\"/hold\",outcome=\"cancelled\"}", 1.0).await;

    let mut third = server.connect().await;
    third.send(request).await;
    hold.release();
    assert_eq!(first.answer().await.status, 200);
    // The third call. If the second had started, it would hold this permit and the third would never be released.
    hold.wait_until_held().await;
    hold.release();
    assert_eq!(third.answer().await.status, 200);
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_disconnected() {
    let server = Server::for_app(app(), config(|c| c.write_progress_timeout = SHORT)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    let mut client = socket.connect(server.address).await.unwrap();
    // More than the buffers of both kernels hold.
    let requests = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: test\r\n\r\n".repeat(60);
    client.write_all(requests.as_bytes()).await.unwrap();
    // The remaining connection reads the metric.
    server.metric_becomes("callboard_http_connections_open", 1.0).await;
    drop(client);
}

#[tokio::test]
async fn a_head_of_64_kib_is_431_and_a_shorter_one_is_read() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    for (bytes, expected) in [(60 * 1024, 200), (64 * 1024, 431)] {
        let value = "x".repeat(bytes);
        let mut client = server.connect().await;
        let head = "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n";
        client.send(format!("{head}x-long: {value}\r\n\r\n1")).await;
        assert_eq!(client.answer().await.status, expected, "{bytes}");
    }
}

#[tokio::test]
async fn http_1_0_is_served_and_its_connection_closed() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client.send("POST /mirror HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n[1]").await;
    assert_eq!((client.answer().await.text(), client.closed().await), ("[1]", Vec::new()));
    // An answer without a length ends with the connection: an HTTP/1.0 client knows no chunks.
    let mut client = server.connect().await;
    let form = "content-type: application/json\r\naccept: application/vnd.callboard.envelope";
    client.send(format!("POST /v1/call/mirror HTTP/1.0\r\n{form}\r\ncontent-length: 12\r\n\r\n{{\"args\":[1]}}")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_path_reaches_only_routes_and_pages() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    for path in [
        "/../../etc/passwd",
        "/docs/../../../etc/passwd",
        "/docs/..%2f..%2f..%2fetc%2fpasswd",
        "/docs/%2e%2e/%2e%2e/etc/passwd",
        "/docs//etc/passwd",
        "/v1/call/../greet",
        "/v1/call/%2e%2e/greet",
        "/greet/",
        "/greet%00",
        "//greet",
    ] {
        for method in ["GET", "POST"] {
            let mut client = server.connect().await;
            let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n");
            client.send(format!("{head}content-length: 16\r\n\r\n{{\"name\": \"Ada\"}} ")).await;
            let answer = client.answer().await;
            assert!([404, 405].contains(&answer.status), "{method} {path}: {answer:?}");
            assert_eq!(answer.problem()["request_id"], answer.header("x-request-id").unwrap());
        }
    }
}
