//! What operators ask of a node: who may, and that a full node answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Value;
use callboard_codec::wire::{Fail, FrameKind, frame_head};
use callboard_core::remote::NodePhase;
use callboard_core::{App, Caller, ErrorKind, Limits, Pipeline, RetryPolicy, Stage};
use callboard_net::testing::RawPeer;
use callboard_net::{Cluster, MembershipProfile, NetConfig, QuicEdge, Role, StaticView};
use futures_util::FutureExt;

use crate::common::{self, Member, ServingNode, until};
use crate::lab::{Lab, builder, hello, url};

#[derive(serde::Serialize)]
struct NoHeader {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_needs_its_role() {
    let lab = Lab::start("orders").await;
    let mut clients = Vec::new();
    for (role, name) in [(Role::Client, "desk"), (Role::Node, "left"), (Role::Operator, "ops")] {
        clients.push(builder(&lab.member(role, name).await).connect(&url(&lab.edge)).await.unwrap());
    }
    let [client, node, operator] = &clients[..] else { unreachable!() };
    for refused in [client.cluster_state().await.map(drop), client.drain_node().await, node.drain_node().await] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.message().contains("join with a token of role operator"), "{error}");
    }
    assert!(lab.edge.metrics().contains("callboard_net_calls_refused_total{kind=\"permission_denied\"} 3\n"));
    // This node is in no cluster, and tells of itself.
    for caller in [node, operator] {
        let state = caller.cluster_state().await.unwrap();
        let [alone] = &state.members[..] else { panic!("one member") };
        let (own, report) = (lab.edge.address().to_string(), alone.report.as_ref().unwrap());
        assert_eq!((alone.address.as_str(), alone.is_this_node), (&*own, true));
        assert_eq!((report.phase, report.stages.len()), (NodePhase::Ready, 1));
        assert!(alone.since > 0 && report.since >= alone.since, "{alone:?}");
    }
    let error = operator.drain_node().await.unwrap_err();
    assert!(error.message().contains("takes no orders to drain"), "{error}");
    let asked = lab.edge.drain_asked();
    tokio::pin!(asked);
    assert!(asked.as_mut().now_or_never().is_none(), "nobody may, or nobody has waited for it");
    operator.drain_node().await.unwrap();
    tokio::time::timeout(common::LONG, asked).await.expect("the program is asked");
}

#[tokio::test]
async fn a_full_node_answers_orders() {
    let stuck = Stage::each_async("stuck", |_: Arc<i64>| std::future::pending::<Result<i64, _>>());
    let app = App::new().route("/stuck", stuck).limits(Limits { max_in_flight: 1, ..Limits::default() });
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, i64>("/stuck", 1_i64).await }
    });
    until(|| served.node.describe().in_flight == 1).await;
    let impatient = common::builder().retry(RetryPolicy::never()).connect(&served.url()).await.unwrap();
    let error = impatient.call::<_, i64>("/stuck", 1_i64).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert_eq!(impatient.cluster_state().await.unwrap().members.len(), 1);
    calling.abort();
}

/// A worker whose stage runs one call and has others waiting, asked for by its gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_the_load_of_the_others_and_leaves_out_what_it_cannot_know() {
    let stuck = Stage::each_async("stuck", |_: Arc<i64>| std::future::pending::<Result<i64, _>>());
    let stuck = stuck.concurrency(1).queue(9);
    let start = async |app: App, named: &[SocketAddr]| {
        let config = NetConfig { membership: Some(MembershipProfile::Near), ..common::patient() };
        let edge = QuicEdge::bind(common::loopback(), common::IDENTITY.clone(), config).unwrap();
        let node = app.start().await.unwrap();
        edge.open(node.client());
        let cluster = Cluster::start(&edge, edge.view(StaticView::try_new(named.iter().copied()).unwrap()));
        node.handle().join(cluster.clone()).unwrap();
        Member { served: ServingNode { node, edge }, cluster }
    };
    let worker = start(App::new().route("/stuck", stuck), &[]).await;
    let gateway = App::new().route("/run", Pipeline::<i64, i64>::remote("stuck"));
    let gateway = start(gateway, &[worker.served.edge.address()]).await;
    gateway.until_offered("stuck").await;
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let client = gateway.served.node.client();
            tokio::spawn(async move { client.call::<_, i64>("/run", 1_i64).await })
        })
        .collect();
    until(|| worker.served.node.describe().in_flight == 4).await;
    let queued = || worker.served.node.describe().stages[0].queued as u64;
    until(|| queued() > 1).await;

    let operator = gateway.served.client().await;
    let address = worker.served.edge.address().to_string();
    let told = async || {
        let state = operator.cluster_state().await.unwrap();
        assert_eq!(state.members[0].load.as_deref(), Some(&[][..]), "the gateway runs no stage");
        state.members.into_iter().find(|member| member.address == address).expect("a member").load
    };
    let load = told().await.expect("it has told its load");
    let [stuck] = &load[..] else { panic!("one stage: {load:?}") };
    let figures = (stuck.queued, stuck.queue_limit, stuck.busy, stuck.capacity);
    assert_eq!((stuck.name.as_str(), figures), ("stuck", (queued(), 9, 1, 1)));
    // Without an answer nothing is known of it, and the others are told all the same.
    worker.served.edge.clone().shutdown(Duration::ZERO).await;
    until(|| gateway.cluster.connected_peers() == 0).await;
    assert_eq!(told().await, None);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn an_order_with_a_body_is_reset_and_the_connection_goes_on() {
    let served = ServingNode::start(crate::lab::app()).await;
    let peer = common::peer(&served).await;
    let body = Value::from("a").to_envelope().unwrap().into_bytes();
    let order = vec![frame_head(FrameKind::Drain, 0, &NoHeader {}, body.len()).unwrap(), body];
    assert!(peer.exchange(order).await.is_err());
    let order = vec![frame_head(FrameKind::Drain, 0, &NoHeader {}, 0).unwrap()];
    let answers = peer.exchange(order).await.unwrap();
    let fail: Fail = answers[0].0.header().unwrap();
    assert_eq!((fail.kind.as_str(), fail.started), (ErrorKind::Unavailable.as_str(), false), "{}", fail.message);
}

/// A node of an earlier version has no such feature, and is not asked.
#[tokio::test]
async fn a_welcome_says_that_a_node_takes_orders() {
    let served = ServingNode::start(crate::lab::app()).await;
    let peer = RawPeer::connect(served.edge.address(), &common::IDENTITY).await.unwrap();
    let head = peer.greet(&hello(common::IDENTITY.cluster())).await.unwrap();
    let welcome: callboard_codec::wire::Welcome = head.header().unwrap();
    assert!(welcome.features.contains(&"orders".to_owned()), "{welcome:?}");
}
