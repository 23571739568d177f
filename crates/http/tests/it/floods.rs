//! Clients that use more than their share.

use std::time::Duration;

use callboard_codec::Value;
use callboard_core::StreamStage;
use callboard_http::HttpConfig;
use futures_util::stream;
use tokio::io::AsyncWriteExt;

use crate::support::app::app;
use crate::support::frames::{ACK, DATA, END_STREAM, Frames, GOAWAY, HEADERS, PING, PRIORITY, SETTINGS, frame};
use crate::support::{PATIENCE, Server, config};

/// After a flood, other clients are served and nothing of the flood is left.
async fn is_as_before(server: &Server) {
    assert_eq!(server.post_json("/mirror", "1").await.status, 200);
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_http_connections_open", 1.0).await;
}

#[tokio::test]
async fn a_hundred_thousand_requests_taken_back_at_once_end_their_connection() {
    let server = Server::of_app(app(), HttpConfig::default()).await;
    let mut flood = Frames::connect(server.address).await;
    let mut sent = 0;
    for _ in 0..1_000 {
        let mut burst = Vec::new();
        for _ in 0..100 {
            burst.extend(flood.taken_back(END_STREAM, "/mirror").concat());
        }
        if flood.socket.write_all(&burst).await.is_err() {
            break;
        }
        sent += 100;
    }
    assert_eq!(flood.read_until(&[(PING, ACK)]).await, None, "cut after {sent} of them");
    is_as_before(&server).await;
}

/// Each request starts before it is cancelled, so that only our own counter sees a flood.
#[tokio::test]
async fn requests_taken_back_one_by_one_end_their_connection() {
    const MOST: u32 = 50;
    let server = Server::of_app(app(), config(|c| c.max_cancelled_streams = MOST)).await;
    let mut flood = Frames::connect(server.address).await;
    let mut begun = 0;
    loop {
        let [request, taken_back] = flood.taken_back(0, "/mirror");
        let ping = frame(PING, 0, 0, &[0; 8]);
        let under_way = flood.socket.write_all(&[request, ping.clone()].concat()).await.is_ok()
            && flood.read_until(&[(PING, ACK), (GOAWAY, 0)]).await == Some(PING);
        if !under_way || flood.socket.write_all(&taken_back).await.is_err() {
            break;
        }
        begun += 1;
        assert!(begun < 10 * MOST, "still served");
    }
    assert!(begun > MOST, "{begun}");
    assert_eq!(server.metric("callboard_http_connections_flooded_total").await, Some(1.0));
    is_as_before(&server).await;
}

/// A window of zero holds an answer back forever, while an occasional `/livez` request is a sign of life. The endless
/// answers begin at once, so that each has sent its head before it is cancelled.
#[tokio::test]
async fn streams_that_are_taken_back_when_they_have_begun_end_their_connection() {
    const MOST: u32 = 50;
    let endless = StreamStage::each("endless", |_: &Value| {
        stream::unfold(0, |n| async move {
            tokio::task::yield_now().await;
            Some((Ok(n), n + 1))
        })
    });
    let app = app().route_streaming("/endless", endless);
    let server = Server::of_app(app, config(|c| c.max_cancelled_streams = MOST)).await;
    let mut flood = Frames::connect(server.address).await;
    let mut begun = 0;
    loop {
        let [request, taken_back] = flood.taken_back(0, "/endless");
        let stream = flood.next_stream - 2;
        let body = frame(DATA, END_STREAM, stream, b"1");
        let under_way = flood.socket.write_all(&[request, body].concat()).await.is_ok()
            && flood.read_until(&[(DATA, 0), (GOAWAY, 0)]).await == Some(DATA);
        if !under_way || flood.socket.write_all(&taken_back).await.is_err() {
            break;
        }
        begun += 1;
        assert!(begun < 10 * MOST, "still served");
    }
    assert!(begun > MOST, "{begun}");
    assert_eq!(server.metric("callboard_http_connections_flooded_total").await, Some(1.0));
    is_as_before(&server).await;
}

#[tokio::test]
async fn a_client_that_gives_no_window_is_cut_whatever_else_it_asks_for() {
    let limits = config(|c| {
        c.header_read_timeout = Duration::from_millis(200);
        c.min_bytes_per_second = 100_000;
    });
    let server = Server::of_app(app(), limits).await;
    const INITIAL_WINDOW_SIZE: u8 = 4;
    let mut client = Frames::with_settings(server.address, &[0, INITIAL_WINDOW_SIZE, 0, 0, 0, 0]).await;
    let [held, _] = client.looked_at("/openapi.json");
    client.socket.write_all(&held).await.unwrap();
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let cut = async {
        // Each request is answered before its stream is closed, so this is no flood either.
        let mut seen = Vec::new();
        while client.read_until(&[(HEADERS, 0)]).await.is_some() {
            looks.tick().await;
            let [look, enough] = client.looked_at("/livez");
            if client.socket.write_all(&[std::mem::replace(&mut seen, enough), look].concat()).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, cut).await.expect("cut in time");
    server.metric_becomes("callboard_http_connections_open", 1.0).await;
}

/// Frames without a request are answered one at a time or not at all and are not stored; they do not keep a connection
/// alive either.
#[tokio::test]
async fn frames_that_ask_for_nothing_hold_nothing_and_end_their_connection() {
    let limits = config(|c| c.header_read_timeout = Duration::from_millis(300));
    let server = Server::of_app(app(), limits).await;
    for (kind, stream, payload) in [(PING, 0, &[0; 8][..]), (SETTINGS, 0, &[]), (PRIORITY, 1, &[0, 0, 0, 3, 1])] {
        let flood = Frames::connect(server.address).await;
        let (mut reading, mut writing) = flood.socket.into_split();
        let answers = tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
        let burst = frame(kind, 0, stream, payload).repeat(1_000);
        let flooding = async { while writing.write_all(&burst).await.is_ok() {} };
        let honest = async { assert_eq!(server.post_json("/mirror", "1").await.status, 200) };
        let both = async { tokio::join!(flooding, honest) };
        tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("frames of type {kind} go on for ever"));
        drop(answers.await);
    }
    is_as_before(&server).await;
}

#[tokio::test]
async fn an_address_has_no_more_connections_than_it_may() {
    let server = Server::of_app(app(), config(|c| c.max_connections_per_address = 2)).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert_eq!((first.get("/livez").await.status, second.get("/livez").await.status), (200, 200));
    assert_eq!(server.connect().await.closed().await, b"");
    assert_eq!(first.get("/livez").await.status, 200, "what it has goes on");
    let metrics = first.get("/metrics").await;
    assert!(metrics.text().contains("callboard_http_connections_refused_total 1\n"), "{}", metrics.text());

    drop(second);
    let again = async {
        loop {
            let mut third = server.connect().await;
            if third.try_get("/livez").await.is_some_and(|answer| answer.status == 200) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("a place is free again");
}
