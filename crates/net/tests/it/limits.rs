//! Limits of connections, and of connections before their hello.

use std::time::Duration;

use callboard_codec::wire::{Hello, ResetCode, VERSION};
use callboard_core::{App, Caller, Stage};
use callboard_net::testing::{BareEndpoint, RawPeer};
use callboard_net::{BindError, ConnectError, QuicEdge};

use crate::common::{IDENTITY, LONG, ServingNode, builder, loopback, patient, until};
use crate::lab::total;

fn app() -> App {
    App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
}

fn hello() -> Hello {
    let cluster = IDENTITY.cluster().to_owned();
    Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }
}

async fn connect(served: &ServingNode) -> Result<RawPeer, String> {
    RawPeer::connect(served.edge.address(), &IDENTITY).await
}

fn refused(served: &ServingNode) -> bool {
    served.edge.metrics().contains("callboard_net_connections_refused_total{reason=\"too_many\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_connections_before_their_hello_is_bounded() {
    let mut config = patient();
    config.tuning.max_half_open = 2;
    let served = ServingNode::start_with(app(), config).await;
    let (first, second) = (connect(&served).await.unwrap(), connect(&served).await.unwrap());
    let reason = connect(&served).await.unwrap_err();
    assert!(reason.contains("refused"), "{reason}");
    assert!(refused(&served), "{}", served.edge.metrics());
    // A hello frees a slot.
    first.greet(&hello()).await.unwrap();
    until(|| served.edge.connections() == 1).await;
    let third = connect(&served).await.unwrap();
    assert!(connect(&served).await.is_err());
    for peer in [&second, &third] {
        peer.greet(&hello()).await.unwrap();
    }
    until(|| served.edge.connections() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_a_quarter_of_the_limit_callers_prove_their_address_and_are_accepted() {
    let mut config = patient();
    config.tuning.max_half_open = 8;
    let served = ServingNode::start_with(app(), config).await;
    let requires_proof = || total(&served.edge, "connections_retried") > 0;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(connect(&served).await.unwrap());
    }
    assert!(!requires_proof(), "{}", served.edge.metrics());
    assert_eq!(served.client().await.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    assert!(requires_proof(), "{}", served.edge.metrics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_connections_is_bounded_even_if_they_arrive_together() {
    let mut config = patient();
    config.max_connections = 1;
    let served = ServingNode::start_with(app(), config).await;
    // Both connect before either sends a hello.
    let (first, second) = (connect(&served).await.unwrap(), connect(&served).await.unwrap());
    first.greet(&hello()).await.unwrap();
    until(|| served.edge.connections() == 1).await;
    // The welcome may be in flight already; nothing follows it.
    let _ = second.greet(&hello()).await;
    let ended = tokio::time::timeout(LONG, second.closed()).await.expect("it is closed");
    assert_eq!(ended, (Some(ResetCode::Refused), "too_many".to_owned()));
    // A later connection gets the same refusal.
    let third = connect(&served).await.unwrap();
    let _ = third.greet(&hello()).await;
    let ended = tokio::time::timeout(LONG, third.closed()).await.expect("it is closed");
    assert_eq!(ended, (Some(ResetCode::Refused), "too_many".to_owned()));
    assert_eq!(served.edge.connections(), 1);
    drop(first);
    until(|| served.edge.connections() == 0).await;
    assert_eq!(served.client().await.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
}

/// The node has no room now, which may change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_free_connection_waits_for_one() {
    let mut config = patient();
    config.max_connections = 1;
    let served = ServingNode::start_with(app(), config).await;
    let first = served.client().await;
    assert_eq!(first.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    let error = builder().start_up_wait(Duration::ZERO).connect(&served.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("too_many: the node is at its limit of connections"), "{error}");
    let url = served.url();
    let connecting = tokio::spawn(async move { builder().connect(&url).await });
    let refusals = || total(&served.edge, r#"connections_refused_total{reason="too_many"}"#);
    let before = refusals();
    until(|| refusals() > before).await;
    first.close().await;
    let second = connecting.await.unwrap().unwrap();
    assert_eq!(second.call::<_, String>("/shout", "b".to_owned()).await.unwrap(), "B");
}

/// From another loopback address, if the system has more than one.
async fn connect_from(from: [u8; 4], served: &ServingNode) -> Option<Result<RawPeer, String>> {
    let endpoint = BareEndpoint::serving((from, 0).into(), &IDENTITY).ok()?;
    Some(RawPeer::over(&endpoint, served.edge.address()).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_sends_no_hello_does_not_block_other_addresses() {
    let mut config = patient();
    (config.tuning.max_half_open, config.tuning.max_half_open_per_address) = (16, 2);
    let served = ServingNode::start_with(app(), config).await;
    let mut silent = Vec::new();
    let reason = loop {
        match connect(&served).await {
            Ok(peer) => silent.push(peer),
            Err(reason) => break reason,
        }
    };
    assert!(reason.contains("refused"), "{reason}");
    // Some before address validation was required, and two with validated addresses.
    assert_eq!(silent.len(), 5 + 2);
    let Some(other) = connect_from([127, 0, 0, 9], &served).await else {
        println!("skipped: this system has one address on loopback only");
        return;
    };
    other.unwrap().greet(&hello()).await.unwrap();
    assert!(connect(&served).await.is_err());
}

/// Data before a hello stays unread: a small window, and then the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_may_send_little_and_on_one_stream_before_its_hello() {
    let mut config = patient();
    config.hello_timeout = Duration::from_secs(3);
    let served = ServingNode::start_with(app(), config).await;
    let client = served.client().await;
    let peer = connect(&served).await.unwrap();
    let stuffing = tokio::spawn(async move { peer.flood().await });
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    let sent = tokio::time::timeout(LONG, stuffing).await.expect("it is closed").unwrap();
    assert_eq!(sent, (1, 1), "streams and bytes");
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_with_the_address_and_the_reason() {
    let socket = std::net::UdpSocket::bind(loopback()).unwrap();
    let address = socket.local_addr().unwrap();
    let error = QuicEdge::bind(address, IDENTITY.clone(), patient()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("could not listen on {address}: ")), "{error}");
    assert!(error.contains("in use"), "{error}");
}

#[tokio::test]
async fn invalid_tuning_is_an_error_that_names_the_limit() {
    let mut config = patient();
    config.tuning.keep_alive = config.tuning.idle_timeout;
    let error = QuicEdge::bind(loopback(), IDENTITY.clone(), config.clone()).unwrap_err();
    assert!(matches!(error, BindError::Tuning(_)), "{error:?}");
    assert!(error.to_string().contains("less than idle_timeout"), "{error}");
    let error = builder().tuning(config.tuning).connect("quic://127.0.0.1:1").await.unwrap_err();
    assert!(matches!(error, ConnectError::Bind(BindError::Tuning(_))), "{error:?}");
}
