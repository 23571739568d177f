//! What operators ask of a node: who may, and that a full node answers.

use std::sync::Arc;

use callboard_codec::Value;
use callboard_codec::wire::{Fail, FrameKind, frame_head};
use callboard_core::remote::NodePhase;
use callboard_core::{App, Caller, ErrorKind, Limits, RetryPolicy, Stage};
use callboard_net::Role;
use callboard_net::testing::RawPeer;
use futures_util::FutureExt;

use crate::common::{self, ServingNode, until};
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
