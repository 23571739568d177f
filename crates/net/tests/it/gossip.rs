//! Clusters by gossip: naming one node is enough, and no node is the head.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use callboard_core::remote::{MemberState, RemoteStages};
use callboard_core::{App, Contract, Pipeline, Stage};
use callboard_net::testing::issued;
use callboard_net::{Cluster, Identity, MembershipProfile, NetConfig, QuicEdge, Role, StaticView};

use crate::common::{IDENTITY, LONG, ServingNode, loopback, patient, until};
use crate::lab::Lab;
use crate::ledger::Work;
use crate::processes::{Gateway, Shape, Worker, directory_with_identity, executions};

/// A node of a cluster that gossips.
struct Node {
    served: ServingNode,
    cluster: Cluster,
}

fn gossiping() -> NetConfig {
    let mut config = NetConfig { membership: Some(MembershipProfile::Near), ..patient() };
    // A killed node must be noticed.
    config.tuning.idle_timeout = Duration::from_secs(3);
    config
}

impl Node {
    /// A node that offers a stage of its own name, and names these nodes.
    async fn start(stage: &'static str, identity: &Identity, config: NetConfig, named: &[SocketAddr]) -> Self {
        let own = Stage::each(stage, move |text: &String| Ok(format!("{stage} {text}")));
        let mut app = App::new().route(&format!("/{stage}"), own);
        for other in ["a", "b", "c", "d"].into_iter().filter(|other| *other != stage) {
            app = app.route(&format!("/to/{other}"), Pipeline::<String, String>::remote(other));
        }
        let config = NetConfig { node: identity.name(), ..config };
        let edge = QuicEdge::bind(loopback(), identity.clone(), config).unwrap();
        let node = app.start().await.unwrap();
        edge.open(node.client());
        let named = StaticView::try_new(named.iter().copied()).unwrap();
        let cluster = Cluster::start(&edge, edge.view(named));
        node.handle().join(cluster.clone()).unwrap();
        Self { served: ServingNode { node, edge }, cluster }
    }

    fn address(&self) -> SocketAddr {
        self.served.edge.address()
    }

    async fn until_peers(&self, count: usize) {
        until(|| self.cluster.connected_peers() == count).await;
    }

    /// Calls the stage of another node.
    async fn call(&self, other: &str) -> String {
        let route = format!("/to/{other}");
        let calling = self.served.node.client();
        let call = calling.call::<String, String>(&route, "hello".to_owned());
        tokio::time::timeout(LONG, call).await.unwrap().unwrap()
    }

    fn metric(&self, name: &str) -> i64 {
        metric(&self.served.edge, name)
    }

    async fn kill(self) {
        self.served.edge.shutdown(Duration::ZERO).await;
        drop((self.cluster, self.served.node));
    }
}

pub(crate) fn metric(edge: &QuicEdge, name: &str) -> i64 {
    let metrics = edge.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("callboard_net_{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_named_node_makes_a_cluster_that_goes_on_without_it() {
    let start = |stage, named: Vec<SocketAddr>| async move { Node::start(stage, &IDENTITY, gossiping(), &named).await };
    let a = start("a", vec![]).await;
    let b = start("b", vec![a.address()]).await;
    let c = start("c", vec![a.address()]).await;
    for node in [&a, &b, &c] {
        node.until_peers(2).await;
        until(|| node.metric("members_up") == 2).await;
    }
    until(|| b.cluster.connected_peers() == 2).await;
    assert_eq!(b.call("c").await, "c hello");
    assert_eq!(c.call("b").await, "b hello");
    // The node that both have named is gone.
    a.kill().await;
    for node in [&b, &c] {
        until(|| node.metric("members_up") == 1).await;
    }
    assert_eq!(b.call("c").await, "c hello");
    assert_eq!(c.call("b").await, "b hello");
    // A fourth joins through one of the rest, and both know it.
    let d = start("d", vec![c.address()]).await;
    for node in [&b, &c, &d] {
        node.until_peers(2).await;
    }
    assert_eq!(b.call("d").await, "d hello");
    assert_eq!(d.call("b").await, "b hello");
    assert_eq!((b.metric("suspected_total"), c.metric("suspected_total")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_for_a_moment_has_left_and_a_killed_one_is_down() {
    let a = Node::start("a", &IDENTITY, gossiping(), &[]).await;
    let b = Node::start("b", &IDENTITY, gossiping(), &[a.address()]).await;
    let c = Node::start("c", &IDENTITY, gossiping(), &[a.address()]).await;
    let state_of = |address: SocketAddr| {
        let known = a.cluster.members().into_iter().find(|member| member.address == address.to_string());
        known.map(|member| (member.state, member.report.is_some()))
    };
    let (left, killed) = (b.address(), c.address());
    for address in [left, killed] {
        until(|| state_of(address) == Some((MemberState::Up, true))).await;
    }
    b.served.edge.clone().shutdown(LONG).await;
    until(|| state_of(left).is_some_and(|(state, _)| state.is_gone())).await;
    assert_eq!(state_of(left), Some((MemberState::Left, true)));
    // Without a drain.
    drop(c);
    until(|| state_of(killed).is_some_and(|(state, _)| state.is_gone())).await;
    assert_eq!(state_of(killed), Some((MemberState::Down, true)));
    drop((b.cluster, b.served.node));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_known_by_the_names_in_their_certificates() {
    let lab = Lab::start("gossips").await;
    let (from, until_then) = (SystemTime::now() - LONG, SystemTime::now() + 60 * LONG);
    let identity = |name| issued(&lab.authority, Role::Node, name, from, until_then);
    let a = Node::start("a", &identity("left"), gossiping(), &[]).await;
    let b = Node::start("b", &identity("middle"), gossiping(), &[a.address()]).await;
    let c = Node::start("c", &identity("right"), gossiping(), &[a.address()]).await;
    for node in [&a, &b, &c] {
        node.until_peers(2).await;
        until(|| node.metric("members_up") == 2).await;
    }
    // A restarted node is one member, at its new address.
    c.kill().await;
    let c = Node::start("c", &identity("right"), gossiping(), &[b.address()]).await;
    for node in [&a, &b, &c] {
        node.until_peers(2).await;
        until(|| node.metric("members_up") == 2).await;
    }
    assert_eq!(a.call("c").await, "c hello");
}

/// A node of the time before gossip, or one that has it off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_gossip_is_a_peer_of_those_that_name_it() {
    let a = Node::start("a", &IDENTITY, gossiping(), &[]).await;
    let b = Node::start("b", &IDENTITY, NetConfig { membership: None, ..gossiping() }, &[a.address()]).await;
    let c = Node::start("c", &IDENTITY, gossiping(), &[a.address()]).await;
    // `b` connects to `a`, and is called back. `c` has not heard of it.
    a.until_peers(2).await;
    b.until_peers(1).await;
    assert_eq!(b.call("a").await, "a hello");
    assert_eq!(a.call("b").await, "b hello");
    until(|| a.metric("members_up") == 1).await;
    assert_eq!((b.metric("members_up"), c.cluster.connected_peers()), (0, 1));
}

/// A gateway and a worker process that both name a third node: the gateway knows the worker by gossip only.
async fn gateway_and_worker(directory: &Path) -> (Gateway, Worker, Gateway) {
    let config = || NetConfig { membership: Some(MembershipProfile::Near), ..NetConfig::default() };
    let named = Gateway::start_naming(directory, &[], config()).await;
    let worker = Worker::start_naming(directory, Shape::new(Contract::AtMostOnce), named.edge.address());
    let gateway = Gateway::start_naming(directory, &[named.edge.address()], config()).await;
    until(|| gateway.cluster.offers("work")).await;
    (gateway, worker, named)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_gossip_calls_a_death_loses_no_connection_and_no_call() {
    let directory = directory_with_identity("paused-member");
    let (gateway, worker, _named) = gateway_and_worker(&directory).await;
    let (connected, mut next_id) = (Instant::now(), 0);
    let deaths = || metric(&gateway.edge, "members_down_total");
    // The verdict comes within 2.5 s in about half of the pauses. A little less, for a busy machine: the link is lost
    // at 3 s, counted from the last datagram before the pause to the first that is read after it.
    for _ in 0..20 {
        until(|| metric(&gateway.edge, "members_up") == 2).await;
        gateway.call_during_a_pause(&worker, Duration::from_millis(2_400), &mut next_id).await;
        if deaths() > 0 {
            break;
        }
    }
    assert!(deaths() > 0, "gossip called it down");
    let worker_address = worker.process.address.to_string();
    let peer = gateway.cluster.peers().into_iter().find(|peer| peer.address == worker_address).expect("a peer");
    let connected_for = peer.connected_for.expect("it is connected");
    assert!(connected_for >= connected.elapsed().saturating_sub(Duration::from_millis(100)), "{connected_for:?}");
    let executions = executions(&directory);
    assert_eq!(executions.len() as u64, next_id);
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_whose_port_is_refused_is_known_to_all_before_a_suspicion_ends() {
    let directory = directory_with_identity("refused-member");
    let (gateway, worker, named) = gateway_and_worker(&directory).await;
    for node in [&gateway, &named] {
        until(|| metric(&node.edge, "members_up") == 2).await;
    }
    worker.signal("KILL");
    let killed = Instant::now();
    // A call in hand lets the gateway look at the port.
    let call = gateway.node.client().call::<_, Work>("/run", Work::whenever(1)).await;
    assert!(call.is_err(), "{call:?}");
    for node in [&gateway, &named] {
        until(|| metric(&node.edge, "members_up") == 1).await;
    }
    let known = killed.elapsed();
    println!("a refused port is known after {known:.1?}");
    // Users are promised half a second; a suspicion takes 1.5 s.
    assert!(known < Duration::from_millis(1_500), "{known:?}");
}
