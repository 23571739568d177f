//! Nodes that are known by names, and nodes for which the view has no room.

use std::net::SocketAddr;
use std::sync::Arc;

use callboard_codec::wire::Hello;
use callboard_core::remote::RemoteStages;
use callboard_core::{App, Pipeline};
use callboard_net::testing::RawPeer;
use callboard_net::{Cluster, NodeAddress, StaticView};

use crate::common::{IDENTITY, ServingNode, until};
use crate::lab::{app, hello, total};

fn named(text: String) -> NodeAddress {
    text.parse().unwrap()
}

/// Unreachable addresses of a name do no harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_connected_by_its_name_and_reported_with_its_stages() {
    let worker = ServingNode::start(app()).await;
    let gateway = ServingNode::start(App::new().route("/run", Pipeline::<String, String>::remote("shout"))).await;
    let port = worker.edge.address().port();
    let view =
        StaticView::resolve([named(format!("localhost:{port}")), named("nowhere.invalid:4433".to_owned())]).unwrap();
    let cluster = Cluster::start(&gateway.edge, Arc::new(view));
    gateway.node.handle().join(cluster.clone()).unwrap();
    until(|| cluster.offers("shout")).await;
    let client = gateway.node.client();
    assert_eq!(client.call::<_, String>("/run", "a".to_owned()).await.unwrap(), "A");

    let peers = gateway.node.describe().peers;
    let described: Vec<_> = peers.iter().map(|peer| (peer.address.clone(), peer.connected_for.is_some())).collect();
    assert_eq!(described, [(worker.edge.address().to_string(), true)]);
    assert_eq!(peers[0].stages, ["shout"]);
    assert!(["actors", "orders"].iter().all(|known| peers[0].features.iter().any(|told| told == known)), "{peers:?}");
    let connected_for = peers[0].connected_for;
    until(|| gateway.node.describe().peers[0].connected_for > connected_for).await;

    drop(worker);
    until(|| gateway.node.describe().peers[0].connected_for.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_place_in_the_view_is_answered_and_counted() {
    let gateway = ServingNode::start(app()).await;
    // No packet is sent there: the development identity is for this machine only.
    let far = (1..=64).map(|host| SocketAddr::from(([192, 0, 2, host], 4433)));
    let _cluster = Cluster::start(&gateway.edge, Arc::new(StaticView::try_new(far).unwrap()));
    let peer = RawPeer::connect(gateway.edge.address(), &IDENTITY).await.unwrap();
    let hello = Hello { address: "127.0.0.1:9".to_owned(), ..hello("") };
    peer.greet(&hello).await.unwrap();
    until(|| total(&gateway.edge, "peers_refused") == 1).await;
    assert!(!gateway.client().await.is_streaming("/shout").await.unwrap());
}
