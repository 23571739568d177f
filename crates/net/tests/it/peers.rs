//! The rules for peers of a node: offers, addresses, replies; and removed members.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{Hello, VERSION};
use callboard_core::remote::RemoteStages;
use callboard_core::{App, CallOptions, Caller, Deadline, ErrorKind, Instant, Pipeline, Stage};
use callboard_net::testing::{BareEndpoint, RawPeer};
use callboard_net::{
    Cluster, ClusterView, ConnectError, Identity, MembershipProfile, NetConfig, QuicEdge, Role, StaticView, View,
};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::watch;

use crate::common::{IDENTITY, LONG, Member, ServingNode, loopback, patient, until};
use crate::lab::{Lab, builder, counted, serve, serve_with, shout, total, url};

fn hello(node: &str, address: String) -> Hello {
    let (cluster, node) = (IDENTITY.cluster().to_owned(), node.to_owned());
    Hello { min_version: 1, max_version: VERSION, cluster, node, address, ..Hello::default() }
}

/// A node that calls peers, under these rules.
async fn gateway(identity: &Identity, offers: &str, peers: &[&QuicEdge]) -> (QuicEdge, Cluster) {
    let mut config = patient();
    config.offers = offers.parse().unwrap();
    let edge = QuicEdge::bind(loopback(), identity.clone(), config).unwrap();
    let view = StaticView::try_new(peers.iter().map(|edge| edge.address())).unwrap();
    let cluster = Cluster::start(&edge, Arc::new(view));
    until(|| cluster.connected_peers() == peers.len()).await;
    (edge, cluster)
}

/// Both run the same stage, and one of them may offer it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_runs_only_the_stages_that_its_member_may_offer() {
    let lab = Lab::start("offers").await;
    let (left, right) = (lab.member(Role::Node, "left").await, lab.member(Role::Node, "right").await);
    let (left, _of_left) = serve(left).await;
    let own = lab.member(Role::Node, "gateway").await;
    for (rules, is_offered) in
        [("any", true), ("left=shout", true), ("*=shout", true), ("left=other,right=shout", false), ("right=*", false)]
    {
        let (edge, cluster) = gateway(&own, rules, &[&left]).await;
        assert_eq!(cluster.offers("shout"), is_offered, "{rules}");
        assert_eq!(cluster.peers()[0].stages.contains(&"shout".to_owned()), is_offered, "{rules}");
        assert_eq!(total(&edge, "offers_refused") > 0, !is_offered, "{rules}");
        drop((edge, cluster));
    }
    let (right, _of_right) = serve(right).await;
    let (_edge, cluster) = gateway(&own, "right=shout", &[&left, &right]).await;
    let offering = cluster.peers().into_iter().filter(|peer| !peer.stages.is_empty());
    assert_eq!(offering.map(|peer| peer.address).collect::<Vec<_>>(), [right.address().to_string()]);
}

/// A view without nodes that records introductions.
#[derive(Debug, Default)]
struct Introductions(Mutex<Vec<SocketAddr>>);

impl ClusterView for Introductions {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        watch::channel(Arc::default()).1
    }

    fn introduce(&self, _member: &str, peer: SocketAddr) -> bool {
        self.0.lock().push(peer);
        true
    }
}

/// A view without room.
#[derive(Debug, Default)]
struct FullView(Introductions);

impl ClusterView for FullView {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.0.watch()
    }

    fn introduce(&self, member: &str, peer: SocketAddr) -> bool {
        self.0.introduce(member, peer);
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_place_in_the_view_is_counted_unless_gossip_knows_it() {
    let config = NetConfig { membership: Some(MembershipProfile::Near), ..patient() };
    let served = ServingNode::start_with(App::new(), config).await;
    let view = Arc::new(FullView::default());
    let _cluster = Cluster::start(&served.edge, Arc::clone(&view) as _);
    let endpoint = BareEndpoint::serving(loopback(), &IDENTITY).unwrap();
    let own_address = endpoint.endpoint().local_addr().unwrap().to_string();
    for (count, features) in [vec![], vec!["gossip".to_owned()], vec![]].into_iter().enumerate() {
        let peer = RawPeer::over(&endpoint, served.edge.address()).await.unwrap();
        peer.greet(&Hello { features, ..hello("", own_address.clone()) }).await.unwrap();
        until(|| view.0.0.lock().len() == count + 1).await;
    }
    until(|| total(&served.edge, "peers_refused") >= 2).await;
    assert_eq!(total(&served.edge, "peers_refused"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_called_back_at_its_own_address_not_at_a_claimed_one() {
    for calls_back in [true, false] {
        let mut config = patient();
        config.calls_back = calls_back;
        let app = App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())));
        let served = ServingNode::start_with(app, config).await;
        let introductions = Arc::new(Introductions::default());
        let _cluster = Cluster::start(&served.edge, Arc::clone(&introductions) as _);
        let endpoint = BareEndpoint::serving(loopback(), &IDENTITY).unwrap();
        let own_address = endpoint.endpoint().local_addr().unwrap();
        let other_address = SocketAddr::new(own_address.ip(), if own_address.port() == 9 { 10 } else { 9 });
        let named = [other_address.to_string(), format!("0.0.0.0:{}", other_address.port()), "192.0.2.1:9".to_owned()];
        for address in named {
            let peer = RawPeer::over(&endpoint, served.edge.address()).await.unwrap();
            peer.greet(&hello("", address)).await.unwrap();
        }
        let refused = if calls_back { 2 } else { 0 };
        until(|| total(&served.edge, "peers_refused") == refused).await;
        let mut expected = Vec::new();
        for address in [own_address.to_string(), format!("0.0.0.0:{}", own_address.port())] {
            let peer = RawPeer::over(&endpoint, served.edge.address()).await.unwrap();
            peer.greet(&hello("", address)).await.unwrap();
            expected.extend(calls_back.then_some(own_address));
            until(|| *introductions.0.lock() == expected).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_connected_while_this_one_started_is_called_back() {
    let gate_edge = QuicEdge::bind(loopback(), IDENTITY.clone(), patient()).unwrap();
    let shout = Stage::each("shout", |text: &String| Ok(text.len() as i64));
    let _worker = Member::start(App::new().route("/shout", shout), &[&gate_edge]).await;
    until(|| gate_edge.connections() == 1).await;
    // Now its own stages have started.
    let app = App::new().route("/run", Pipeline::<String, i64>::remote("shout"));
    let node = app.start().await.unwrap();
    gate_edge.open(node.client());
    let cluster = Cluster::start(&gate_edge, Arc::new(StaticView::try_new([]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    until(|| cluster.offers("shout")).await;
    assert_eq!(node.client().call::<_, i64>("/run", "four".to_owned()).await.unwrap(), 4);
}

/// An output whose decoding records its thread, or panics.
#[derive(Clone, Debug, Serialize)]
struct DecodedReply {
    thread: String,
}

impl<'de> Deserialize<'de> for DecodedReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        assert!(!text.starts_with('!'), "a defect");
        Ok(Self { thread: format!("{:?}", std::thread::current().id()) })
    }
}

/// On one thread, so that the thread is known.
#[tokio::test]
async fn a_large_reply_is_decoded_on_another_thread_and_a_panic_there_ends_its_call() {
    let served =
        ServingNode::start(App::new().route("/echo", Stage::each("echo", |text: &String| Ok(text.clone())))).await;
    let client = served.client().await;
    let own_thread = format!("{:?}", std::thread::current().id());
    let small: DecodedReply = client.call("/echo", "a".to_owned()).await.unwrap();
    assert_eq!(small.thread, own_thread);
    let large: DecodedReply = client.call("/echo", "a".repeat(1 << 20)).await.unwrap();
    assert_ne!(large.thread, own_thread);
    for length in [1, 1 << 20] {
        let error = client.call::<_, DecodedReply>("/echo", "!".repeat(length)).await.unwrap_err();
        assert_eq!((error.kind(), error.was_started()), (ErrorKind::Internal, true), "{error}");
        assert!(error.message().ends_with("a defect"), "{error}");
        assert_eq!(client.call::<_, String>("/echo", "a".to_owned()).await.unwrap(), "a");
    }
}

fn frequent_removal_checks() -> NetConfig {
    let mut config = patient();
    config.removals_every = Duration::from_millis(200);
    config
}

/// At the node with the authority, at other nodes, and on connections to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_is_disconnected_and_refused_by_every_node_that_learns_of_it() {
    let lab = Lab::start_with("removed", frequent_removal_checks()).await;
    let [left, right] = [lab.member(Role::Node, "left").await, lab.member(Role::Node, "right").await];
    let (desk, other) = (lab.member(Role::Client, "desk").await, lab.member(Role::Client, "other").await);
    let (left, _of_left) = serve_with(left, frequent_removal_checks()).await;
    let (right, _of_right) = serve_with(right, frequent_removal_checks()).await;
    let cluster = Cluster::start(&left, Arc::new(StaticView::try_new([right.address()]).unwrap()));
    until(|| cluster.offers("shout")).await;
    let mut clients = Vec::new();
    for edge in [&lab.edge, &left] {
        let client = builder(&desk).connect(&url(edge)).await.unwrap();
        let honest = builder(&other).connect(&url(edge)).await.unwrap();
        assert_eq!((shout(&client).await, shout(&honest).await), ("A".to_owned(), "A".to_owned()));
        clients.push((edge, client, honest));
    }
    assert!(lab.authority.remove("desk").unwrap());
    for (edge, client, honest) in clients {
        until(|| counted(edge, "removed_member") > 0).await;
        // A call in flight is lost with the connection; no other is.
        let mut denied = false;
        for _ in 0..2 {
            let options = CallOptions::new().with_deadline(Deadline::after(Instant::now(), LONG));
            let error = client.call_with::<_, String>("/shout", "a".to_owned(), options).await.unwrap_err();
            assert!(error.message().contains("removed_member"), "{error}");
            denied = error.kind() == ErrorKind::PermissionDenied;
        }
        assert!(denied);
        assert_eq!(shout(&honest).await, "A");
        let error = builder(&desk).connect(&url(edge)).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("join again with a new token"), "{error}");
    }
    // A connection of the node itself.
    assert!(cluster.offers("shout"));
    assert!(lab.authority.remove("right").unwrap());
    until(|| cluster.connected_peers() == 0 && !cluster.offers("shout")).await;
}

/// A name is free again, and its new member is not mistaken for the removed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_may_have_the_name_of_a_removed_one() {
    let lab = Lab::start_with("rejoined", frequent_removal_checks()).await;
    let first = lab.member(Role::Client, "desk").await;
    assert!(lab.authority.remove("desk").unwrap());
    let second = lab.directory.join("second");
    let token = lab.token(|spec| spec.role = Role::Client);
    let second = callboard_net::join(&token, &lab.url(), &second, Some("desk")).await.unwrap();
    let client = builder(&second).connect(&url(&lab.edge)).await.unwrap();
    let mut watching = tokio::time::interval(Duration::from_millis(50));
    let refused = tokio::time::timeout(LONG, async {
        while builder(&first).connect(&url(&lab.edge)).await.is_ok() {
            watching.tick().await;
        }
    });
    refused.await.expect("the first is refused");
    assert_eq!(shout(&client).await, "A");
    client.close().await;
    assert_eq!(shout(&builder(&second).connect(&url(&lab.edge)).await.unwrap()).await, "A");
}
