//! `TestPeer` of core tells callers what a cluster on loopback tells them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::remote::RemoteStages;
use callboard_core::testing::{TestApp, TestPeer};
use callboard_core::{App, CallError, CallOptions, Contract, Failure, Limits, LocalClient, Pipeline, Stage};

use crate::common::{Member, ServingNode, until};

#[derive(Clone, Copy, Debug)]
enum Fault {
    Overload,
    /// The peer is lost while it runs the call.
    Loss,
    /// The peer was lost before the call.
    Absence,
}

/// A stage that never answers, and counts its calls.
fn holding(calls: &Arc<AtomicUsize>, contract: Contract) -> Stage<i64, i64> {
    let calls = Arc::clone(calls);
    let hold = Stage::each_async("hold", move |_: Arc<i64>| {
        calls.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<i64, Failure>>()
    });
    hold.contract(contract)
}

async fn until_called(calls: &AtomicUsize) {
    until(|| calls.load(Ordering::SeqCst) == 1).await;
}

fn gateway() -> App {
    App::new().route("/run", Pipeline::<i64, i64>::remote("hold"))
}

async fn call(client: LocalClient, timeout: Duration) -> CallError {
    client.call_with::<_, i64>("/run", 1_i64, CallOptions::new().with_timeout(timeout)).await.unwrap_err()
}

/// The error of a call of a node in this cluster when `make` has made the fault, as a text to compare.
async fn outcome(
    fault: Fault,
    (client, cluster): (LocalClient, impl RemoteStages),
    calls: &AtomicUsize,
    make: impl FnOnce(),
) -> String {
    // A lost call that may run again waits for its peer.
    let calling = call(client, Duration::from_secs(5));
    let error = if matches!(fault, Fault::Loss) {
        let calling = tokio::spawn(calling);
        until_called(calls).await;
        make();
        calling.await.unwrap()
    } else {
        make();
        until(|| cluster.offers("hold") == matches!(fault, Fault::Overload)).await;
        calling.await
    };
    let (kind, texts, retry_after) = (error.kind(), (error.error_type(), error.stage()), error.retry_after().is_some());
    format!("{kind:?} {texts:?} {retry_after} {} {}", error.was_started(), error.is_retryable())
}

async fn over_quic(fault: Fault, contract: Contract) -> String {
    let calls = Arc::<AtomicUsize>::default();
    let limits = Limits { max_in_flight: if matches!(fault, Fault::Overload) { 1 } else { 9 }, ..Limits::default() };
    let worker = ServingNode::start(App::new().limits(limits).route("/hold", holding(&calls, contract))).await;
    let gateway = Member::start(gateway(), &[&worker.edge]).await;
    gateway.until_offered("hold").await;
    let client = gateway.served.node.client();
    if matches!(fault, Fault::Overload) {
        tokio::spawn(call(client.clone(), Duration::from_secs(60)));
        until_called(&calls).await;
    }
    let mut worker = Some(worker);
    let make = || {
        if let Some(ServingNode { node, edge }) = worker.take_if(|_| !matches!(fault, Fault::Overload)) {
            // Its connections first: a node that ends says so as long as it can.
            drop(edge);
            drop(node);
        }
    };
    outcome(fault, (client, gateway.cluster.clone()), &calls, make).await
}

async fn in_process(fault: Fault, contract: Contract) -> String {
    let calls = Arc::<AtomicUsize>::default();
    let peer = TestPeer::start(TestApp::new(App::new().route("/hold", holding(&calls, contract)))).await.unwrap();
    let node = TestApp::new(gateway()).start().await.unwrap();
    node.handle().join(peer.clone()).unwrap();
    let make = || if matches!(fault, Fault::Overload) { peer.overload() } else { peer.disconnect() };
    outcome(fault, (node.client(), peer.clone()), &calls, make).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_peer_tells_what_a_peer_over_quic_tells() {
    for contract in [Contract::AtMostOnce, Contract::Pure] {
        for fault in [Fault::Overload, Fault::Loss, Fault::Absence] {
            let (real, fake) = tokio::join!(over_quic(fault, contract), in_process(fault, contract));
            assert_eq!(fake, real, "{fault:?} {contract:?}");
        }
    }
}
