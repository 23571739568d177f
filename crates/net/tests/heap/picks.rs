//! The cost of choosing a peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use callboard_core::remote::RemoteStages;
use callboard_core::{App, Node, Stage};
use callboard_net::{Cluster, ClusterView, QuicEdge, View, testing};
use tokio::sync::watch;

use crate::common::{IDENTITY, loopback, patient, until};
use crate::counting::{alone, taken_here};

const PICKS: usize = 100_000;

/// Any number of peers.
#[derive(Debug)]
struct AllPeers(watch::Sender<Arc<View>>);

impl ClusterView for AllPeers {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.0.subscribe()
    }
}

/// A node of these peers, all of which are in this process.
async fn cluster_of(count: usize) -> (Cluster, Vec<QuicEdge>, Node) {
    let node = App::new().route("/add", Stage::each("add", |n: &i64| Ok(n + 1))).start().await.unwrap();
    let edge = || QuicEdge::bind(loopback(), IDENTITY.clone(), patient()).unwrap();
    let mut edges: Vec<QuicEdge> = (0..count).map(|_| edge()).collect();
    edges.iter().for_each(|edge| edge.open(node.client()));
    let peers: Vec<SocketAddr> = edges.iter().map(QuicEdge::address).collect();
    let gateway = edge();
    let view = Arc::new(AllPeers(watch::Sender::default()));
    let cluster = Cluster::start(&gateway, Arc::clone(&view) as _);
    edges.push(gateway);
    // A few handshakes at once: more of them would take longer than one may.
    for known in (1..=count).filter(|known| known % 16 == 0 || *known == count) {
        view.0.send_replace(Arc::new(View { peers: peers[..known].to_vec() }));
        until(|| cluster.connected_peers() == known).await;
    }
    until(|| cluster.offers("add")).await;
    (cluster, edges, node)
}

#[expect(clippy::print_stdout, reason = "a figure is part of the output")]
async fn picks_of(count: usize) {
    let _alone = alone().await;
    let (cluster, _edges, _node) = cluster_of(count).await;
    assert!(testing::pick(&cluster, "add"));
    let (before, began) = (taken_here(), Instant::now());
    for _ in 0..PICKS {
        assert!(testing::pick(&cluster, "add"));
    }
    let (nanos, bytes) = (began.elapsed().as_nanos() as usize / PICKS, taken_here() - before);
    println!("a pick of {count} peers takes {nanos} ns");
    assert_eq!(bytes, 0, "for {PICKS} picks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pick_of_a_peer_allocates_nothing() {
    picks_of(16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "300 endpoints; prints a time"]
async fn a_pick_of_300_peers_allocates_nothing() {
    picks_of(300).await;
}
