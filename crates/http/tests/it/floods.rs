//! Clients that use more than their share of the server.

use std::time::Duration;

use callboard_codec::Value;
use callboard_core::StreamStage;
use callboard_http::HttpConfig;
use futures_util::stream;
use tokio::io::AsyncWriteExt;

use crate::support::app::app;
use crate::support::frames::{ACK, DATA, END_STREAM, Frames, GOAWAY, HEADERS, PING, PRIORITY, SETTINGS, frame};
use crate::support::{Server, TEST_TIMEOUT, config};

/// After a flood, other clients are served and the flood holds nothing.
async fn assert_recovered(server: &Server) {
    assert_eq!(server.post_json("/mirror", "1").await.status, 200);
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_http_connections_open", 1.0).await;
}

#[tokio::test]
async fn a_hundred_thousand_requests_cancelled_at_once_end_their_connection() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut flood = Frames::connect(server.address).await;
    let mut sent = 0;
    for _ in 0..1_000 {
        let mut burst = Vec::new();
        for _ in 0..100 {
            burst.extend(flood.cancelled_post(END_STREAM, "/mirror").concat());
        }
        if flood.socket.write_all(&burst).await.is_err() {
            break;
        }
        sent += 100;
    }
    assert_eq!(flood.read_until(&[(PING, ACK)]).await, None, "disconnected after {sent} requests");
    assert_recovered(&server).await;
}

/// Each request starts before it is cancelled, so hyper does not count a flood, only the edge.
#[tokio::test]
async fn requests_cancelled_one_by_one_end_their_connection() {
    const LIMIT: u32 = 50;
    let server = Server::for_app(app(), config(|c| c.max_cancelled_streams = LIMIT)).await;
    let mut flood = Frames::connect(server.address).await;
    let mut started = 0;
    loop {
        let [request, cancel] = flood.cancelled_post(0, "/mirror");
        let ping = frame(PING, 0, 0, &[0; 8]);
        let is_running = flood.socket.write_all(&[request, ping.clone()].concat()).await.is_ok()
            && flood.read_until(&[(PING, ACK), (GOAWAY, 0)]).await == Some(PING);
        if !is_running || flood.socket.write_all(&cancel).await.is_err() {
            break;
        }
        started += 1;
        assert!(started < 10 * LIMIT, "still served");
    }
    assert!(started > LIMIT, "{started}");
    assert_eq!(server.metric("callboard_http_connections_flooded_total").await, Some(1.0));
    assert_recovered(&server).await;
}

/// The endless answers start at once, so each has sent its head before it is cancelled.
#[tokio::test]
async fn streams_cancelled_after_their_start_end_their_connection() {
    const LIMIT: u32 = 50;
    let endless = StreamStage::each("endless", |_: &Value| {
        stream::unfold(0, |n| async move {
            tokio::task::yield_now().await;
            Some((Ok(n), n + 1))
        })
    });
    let app = app().route_streaming("/endless", endless);
    let server = Server::for_app(app, config(|c| c.max_cancelled_streams = LIMIT)).await;
    let mut flood = Frames::connect(server.address).await;
    let mut started = 0;
    loop {
        let [request, cancel] = flood.cancelled_post(0, "/endless");
        let stream = flood.next_stream - 2;
        let body = frame(DATA, END_STREAM, stream, b"1");
        let is_running = flood.socket.write_all(&[request, body].concat()).await.is_ok()
            && flood.read_until(&[(DATA, 0), (GOAWAY, 0)]).await == Some(DATA);
        if !is_running || flood.socket.write_all(&cancel).await.is_err() {
            break;
        }
        started += 1;
        assert!(started < 10 * LIMIT, "still served");
    }
    assert!(started > LIMIT, "{started}");
    assert_eq!(server.metric("callboard_http_connections_flooded_total").await, Some(1.0));
    assert_recovered(&server).await;
}

/// A window of zero blocks an answer forever, while `/livez` requests keep the connection active.
#[tokio::test]
async fn a_client_without_a_window_is_disconnected_despite_other_requests() {
    let limits = config(|c| {
        c.write_progress_timeout = Duration::from_millis(200);
        c.min_bytes_per_second = 100_000;
    });
    let server = Server::for_app(app(), limits).await;
    const INITIAL_WINDOW_SIZE: u8 = 4;
    let mut client = Frames::with_settings(server.address, &[0, INITIAL_WINDOW_SIZE, 0, 0, 0, 0]).await;
    let [blocked, _] = client.cancelled_get("/openapi.json");
    client.socket.write_all(&blocked).await.unwrap();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let until_disconnected = async {
        // Each request is answered before its cancellation, so this is not a flood.
        let mut cancel_previous = Vec::new();
        while client.read_until(&[(HEADERS, 0)]).await.is_some() {
            ticks.tick().await;
            let [request, cancel] = client.cancelled_get("/livez");
            if client
                .socket
                .write_all(&[std::mem::replace(&mut cancel_previous, cancel), request].concat())
                .await
                .is_err()
            {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_disconnected).await.expect("cut in time");
    server.metric_becomes("callboard_http_connections_open", 1.0).await;
}

/// Frames without a request are answered one at a time or not at all and are not stored; they do not keep a connection
/// alive either.
#[tokio::test]
async fn frames_without_requests_are_not_stored_and_end_their_connection() {
    let limits =
        config(|c| (c.idle_timeout, c.header_read_timeout) = (Duration::from_millis(300), Duration::from_millis(300)));
    let server = Server::for_app(app(), limits).await;
    for (kind, stream, payload) in [(PING, 0, &[0; 8][..]), (SETTINGS, 0, &[]), (PRIORITY, 1, &[0, 0, 0, 3, 1])] {
        let flood = Frames::connect(server.address).await;
        let (mut reading, mut writing) = flood.socket.into_split();
        let answers = tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
        let burst = frame(kind, 0, stream, payload).repeat(1_000);
        let flooding = async { while writing.write_all(&burst).await.is_ok() {} };
        let other_call = async { assert_eq!(server.post_json("/mirror", "1").await.status, 200) };
        let all = async { tokio::join!(flooding, other_call) };
        tokio::time::timeout(TEST_TIMEOUT, all)
            .await
            .unwrap_or_else(|_| panic!("frames of type {kind} are accepted without end"));
        drop(answers.await);
    }
    assert_recovered(&server).await;
}

#[tokio::test]
async fn an_address_has_a_maximum_of_connections() {
    let server = Server::for_app(app(), config(|c| c.max_connections_per_address = 2)).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert_eq!((first.get("/livez").await.status, second.get("/livez").await.status), (200, 200));
    assert_eq!(server.connect().await.closed().await, b"");
    assert_eq!(first.get("/livez").await.status, 200, "open connections stay open");
    let metrics = first.get("/metrics").await;
    assert!(metrics.text().contains("callboard_http_connections_refused_total 1\n"), "{}", metrics.text());

    drop(second);
    let until_admitted = async {
        loop {
            let mut third = server.connect().await;
            if third.try_get("/livez").await.is_some_and(|answer| answer.status == 200) {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, until_admitted).await.expect("a connection is admitted again");
}
