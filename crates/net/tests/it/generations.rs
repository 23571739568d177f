//! Several processes under one name, one at several addresses, and a node that is configured with its own address.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{FrameHead, Hello, ResetCode};
use callboard_core::remote::RemoteStages;
use callboard_core::{App, CallOptions, Node, Pipeline, Stage};
use callboard_net::testing::RawPeer;
use callboard_net::{Cluster, Identity, QuicEdge, Role, StaticView};

use crate::common::{IDENTITY, LONG, loopback, patient, until};
use crate::lab::{Lab, app, counted, hello, serve_app, serve_with, total};

type GreetResult = Result<FrameHead, (Option<ResetCode>, String)>;

/// Connects to a node as another process with this generation, and stays connected.
async fn greet(edge: &QuicEdge, identity: &Identity, generation: u64) -> (RawPeer, GreetResult) {
    let peer = RawPeer::connect(edge.address(), identity).await.unwrap();
    let hello = Hello { generation, ..hello(identity.cluster()) };
    let greeted = peer.greet(&hello).await;
    (peer, greeted)
}

fn stale() -> (Option<ResetCode>, String) {
    (Some(ResetCode::StaleGeneration), "stale_generation".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_replaces_its_earlier_process() {
    let lab = Lab::start("again").await;
    let node = lab.member(Role::Node, "left").await;
    let (first, greeted) = greet(&lab.edge, &node, 5).await;
    greeted.unwrap();
    // The same process may connect twice.
    let (second, greeted) = greet(&lab.edge, &node, 5).await;
    greeted.unwrap();
    until(|| lab.edge.connections() == 2).await;
    let (younger, greeted) = greet(&lab.edge, &node, 6).await;
    greeted.unwrap();
    let closed = tokio::time::timeout(LONG, async { (first.closed().await, second.closed().await) });
    assert_eq!(closed.await.expect("the connections are closed"), (stale(), stale()));
    until(|| lab.counted("stale_generation") == 2).await;

    let (_, greeted) = greet(&lab.edge, &node, 5).await;
    assert_eq!(greeted.unwrap_err(), stale());
    until(|| lab.counted("stale_generation") == 3).await;
    // Other members have their own generations, and a client with the node's identity has none.
    let other = lab.member(Role::Node, "right").await;
    let others = [greet(&lab.edge, &other, 1).await, greet(&lab.edge, &node, 0).await];
    let _others = others.map(|(peer, greeted)| (peer, greeted.unwrap()));

    // After a clock was set back, the node is accepted once its earlier process has ended.
    drop(younger);
    until(|| lab.edge.connections() == 2).await;
    let (_again, greeted) = greet(&lab.edge, &node, 4).await;
    greeted.unwrap();
    assert_eq!(lab.counted("stale_generation"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_nodes_without_names_have_no_generations() {
    let lab = Lab::start("no-generations").await;
    let client = lab.member(Role::Client, "desk").await;
    let (plain, _node) = serve_with(IDENTITY.clone(), patient()).await;
    for (edge, identity) in [(&lab.edge, &client), (&plain, &*IDENTITY)] {
        let all = [greet(edge, identity, 6).await, greet(edge, identity, 5).await, greet(edge, identity, 7).await];
        let _peers = all.map(|(peer, greeted)| (peer, greeted.unwrap()));
        until(|| edge.connections() == 3).await;
        assert_eq!(counted(edge, "stale_generation"), 0);
    }
}

/// A node of a cluster, under the name of its certificate.
async fn start(identity: &Identity) -> (QuicEdge, Node) {
    let mut config = patient();
    config.node = identity.name();
    serve_with(identity.clone(), config).await
}

async fn gateway(identity: &Identity, peers: Vec<SocketAddr>) -> (QuicEdge, Node, Cluster) {
    let mut config = patient();
    config.node = identity.name();
    let edge = QuicEdge::bind("0.0.0.0:0".parse().unwrap(), identity.clone(), config).unwrap();
    let node = App::new().route("/run", Pipeline::<String, String>::remote("shout")).start().await.unwrap();
    edge.open(node.client());
    let own = SocketAddr::from(([127, 0, 0, 1], edge.address().port()));
    let cluster = Cluster::start(&edge, Arc::new(StaticView::try_new(peers.into_iter().chain([own])).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    (edge, node, cluster)
}

async fn shouts(node: &Node) -> String {
    node.client().call::<_, String>("/run", "a".to_owned()).await.unwrap()
}

fn streams_started(edge: &QuicEdge) -> u64 {
    total(edge, "streams")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_younger_of_two_nodes_with_one_identity_is_called_and_the_conflict_is_reported() {
    let lab = Lab::start("copied").await;
    let (copied, own) = (lab.member(Role::Node, "left").await, lab.member(Role::Node, "gate").await);
    let older = start(&copied).await;
    let younger = start(&copied).await;
    let (edge, node, cluster) = gateway(&own, vec![older.0.address(), younger.0.address()]).await;
    until(|| cluster.offers("shout") && total(&edge, "peer_name_conflicts") > 0).await;
    assert_eq!(cluster.connected_peers(), 1);
    until(|| older.0.connections() == 0).await;
    for _ in 0..8 {
        assert_eq!(shouts(&node).await, "A");
    }
    assert_eq!((streams_started(&older.0), streams_started(&younger.0)), (0, 8));
    // Alone, the older process is accepted.
    drop(younger);
    until(|| older.0.connections() == 1 && cluster.offers("shout")).await;
    assert_eq!(shouts(&node).await, "A");
    assert_eq!(streams_started(&older.0), 1);
}

/// The older process learns of it from the peers that it connects to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_copied_identity_counts_its_refusals() {
    let lab = Lab::start("namesake").await;
    let copied = lab.member(Role::Node, "left").await;
    let (older, _node) = start(&copied).await;
    let (younger, _other) = start(&copied).await;
    let _links = [(&older, &younger), (&younger, &older)]
        .map(|(edge, peer)| Cluster::start(edge, Arc::new(StaticView::try_new([peer.address()]).unwrap())));
    until(|| total(&older, "peer_name_conflicts") > 0 && total(&younger, "peer_name_conflicts") > 0).await;
    assert!(counted(&younger, "stale_generation") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_configured_with_itself_ignores_itself() {
    let lab = Lab::start("itself").await;
    let (own, other) = (lab.member(Role::Node, "gate").await, lab.member(Role::Node, "left").await);
    let worker = start(&other).await;
    // It listens on every address of the machine, and is configured with one of them.
    let (edge, node, cluster) = gateway(&own, vec![worker.0.address()]).await;
    until(|| cluster.connected_peers() == 1 && total(&edge, "connections_accepted") == 1).await;
    until(|| edge.connections() == 0).await;
    assert_eq!(shouts(&node).await, "A");
    assert_eq!((cluster.connected_peers(), total(&edge, "peer_name_conflicts")), (1, 0));
}

/// The development identity has no names: only the generation distinguishes the processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unnamed_nodes_that_start_together_are_distinguished() {
    let edges: Vec<QuicEdge> =
        (0..8).map(|_| QuicEdge::bind(loopback(), IDENTITY.clone(), patient()).unwrap()).collect();
    let node = app().start().await.unwrap();
    edges.iter().for_each(|edge| edge.open(node.client()));
    let view = Arc::new(StaticView::try_new(edges.iter().map(QuicEdge::address)).unwrap());
    let clusters: Vec<Cluster> = edges.iter().map(|edge| Cluster::start(edge, Arc::clone(&view) as _)).collect();
    until(|| clusters.iter().all(|cluster| cluster.connected_peers() == 7)).await;
}

/// A node that announces itself to the gateway, which calls it back.
async fn joined(identity: &Identity, number: i64, gateway: &QuicEdge) -> (QuicEdge, Node, Cluster) {
    let mut config = patient();
    config.node = identity.name();
    let who = Stage::each("who", move |_: &i64| Ok(number));
    let (edge, node) = serve_app(identity.clone(), config, App::new().route("/who", who)).await;
    let cluster = Cluster::start(&edge, Arc::new(StaticView::try_new([gateway.address()]).unwrap()));
    (edge, node, cluster)
}

/// Sessions, statistics and breakers belong to a member, not to its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_comes_back_at_another_address_keeps_its_sessions() {
    let lab = Lab::start("moved").await;
    let own = lab.member(Role::Node, "gate").await;
    let mut config = patient();
    config.node = own.name();
    let app = App::new().route("/run", Pipeline::<i64, i64>::remote("who"));
    let (edge, node) = serve_app(own, config, app).await;
    let cluster = Cluster::start(&edge, Arc::new(StaticView::try_new([]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    let (mut identities, mut workers) = (Vec::new(), Vec::new());
    for (number, name) in (0..).zip(["left", "middle", "right"]) {
        identities.push(lab.member(Role::Node, name).await);
        workers.push(joined(&identities[number as usize], number, &edge).await);
    }
    until(|| cluster.connected_peers() == 3 && cluster.offers("who")).await;
    let homes = async || {
        let mut homes = Vec::new();
        for session in 0..40_u64 {
            let options = CallOptions::new().with_session_key(session.to_string().as_str());
            homes.push(node.client().call_with::<i64, i64>("/run", 0, options).await.unwrap());
        }
        homes
    };
    let before = homes().await;
    assert_eq!(before.iter().collect::<HashSet<_>>().len(), 3, "all have sessions: {before:?}");
    let (old, stage, links) = workers.remove(0);
    let address = old.address();
    old.shutdown(Duration::ZERO).await;
    drop((stage, links));
    until(|| cluster.connected_peers() == 2).await;
    workers.push(joined(&identities[0], 0, &edge).await);
    assert_ne!(workers[2].0.address(), address);
    until(|| cluster.connected_peers() == 3).await;
    assert_eq!(homes().await, before);
}
