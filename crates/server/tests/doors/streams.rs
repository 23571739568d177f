//! Streams of every door: they end before their node does, are bounded by their reader, and never end silently.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, Drained};
use callboard_http::HttpConfig;
use callboard_server::Server;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::door::{Door, Ended, streaming};
use crate::models::{self, Script};
use crate::send::{Answer, TEST_TIMEOUT};

/// Waits until this is true.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

/// A stream of each door, of which the first output has arrived.
async fn opened(address: SocketAddr) -> Vec<(Door, Response<Incoming>)> {
    let mut open = Vec::new();
    for door in streaming() {
        let mut response = door.call.open(address).await;
        assert_eq!(response.status(), 200, "{}", door.name);
        let first = tokio::time::timeout(TEST_TIMEOUT, response.body_mut().frame()).await.expect(door.name);
        assert!(first.unwrap().unwrap().is_data(), "{}", door.name);
        open.push((door, response));
    }
    open
}

async fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok()
}

#[tokio::test]
async fn a_node_that_drains_ends_the_streams_of_every_door_in_order() {
    let (release, released) = watch::channel(false);
    let server =
        Server::start(models::streaming(App::new(), &Script::Held(released)), "127.0.0.1:0", HttpConfig::default())
            .await
            .unwrap();
    let address = server.address();
    let open = opened(address).await;
    let ending = tokio::spawn(server.shutdown(TEST_TIMEOUT));
    until("the socket closes", async || !accepts(address).await).await;
    release.send(true).unwrap();
    for (door, response) in open {
        let answer = Answer::read(response).await;
        assert_eq!(door.ended(&answer), Ended::Whole, "{}: {:?} {}", door.name, answer.headers, answer.text());
    }
    assert_eq!(ending.await.unwrap(), Drained::Completely);
}

#[tokio::test]
async fn a_node_that_ends_says_so_on_the_streams_of_every_door() {
    let (_release, released) = watch::channel(false);
    let config = HttpConfig { shutdown_grace: Duration::from_secs(1), ..HttpConfig::default() };
    let server =
        Server::start(models::streaming(App::new(), &Script::Held(released)), "127.0.0.1:0", config).await.unwrap();
    let open = opened(server.address()).await;
    let ending = tokio::spawn(server.shutdown(Duration::ZERO));
    for (door, response) in open {
        let answer = Answer::read(response).await;
        assert_eq!(door.ended(&answer), Ended::Failed, "{}: {:?} {}", door.name, answer.headers, answer.text());
    }
    assert_ne!(ending.await.unwrap(), Drained::Completely);
}

#[tokio::test]
async fn a_stream_without_outputs_has_an_end_through_every_door() {
    let server = Server::start(models::streaming(App::new(), &Script::Empty), "127.0.0.1:0", HttpConfig::default())
        .await
        .unwrap();
    for door in streaming() {
        let answer = door.call.send(server.address()).await;
        let end = door.ended(&answer);
        assert_eq!((answer.status, end), (200, Ended::Whole), "{}: {}", door.name, answer.text());
    }
}

/// The bounds of its stream hold the model up, and the timeout for answers ends it.
#[tokio::test]
async fn a_client_that_reads_nothing_holds_little_and_not_for_long() {
    /// The kernel buffers some megabytes of a connection.
    const MAX_UNREAD: usize = 64 << 20;
    const MAX_CHARGED: u64 = 8 << 20;
    const OUTPUT: usize = 64 << 10;
    let config = HttpConfig { write_progress_timeout: Duration::from_secs(1), ..HttpConfig::default() };
    // All at a time: each takes one to three of these timeouts.
    let unread = streaming().into_iter().map(async |door| {
        let made = Arc::new(AtomicUsize::new(0));
        let script = Script::Endless { bytes: OUTPUT, made: Arc::clone(&made) };
        let server =
            Server::start(models::streaming(App::new(), &script), "127.0.0.1:0", config.clone()).await.unwrap();
        let _response = door.call.open(server.address()).await;
        let mut most = 0;
        until(door.name, async || {
            let counts = server.node().describe();
            most = most.max(counts.in_flight_bytes);
            (counts.in_flight, counts.in_flight_bytes) == (0, 0)
        })
        .await;
        let made = made.load(Ordering::Relaxed);
        assert!(made * OUTPUT < MAX_UNREAD && most < MAX_CHARGED, "{}: {made} outputs, {most} bytes", door.name);
    });
    join_all(unread).await;
}
