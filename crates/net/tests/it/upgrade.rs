//! A rolling upgrade: nodes of an earlier version are replaced one by one, under load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use callboard_core::remote::RemoteStages;
use callboard_core::{CallOptions, Contract};
use callboard_net::{MembershipProfile, NetConfig};

use crate::common::{LONG, patient, until};
use crate::gossip::metric;
use crate::ledger::Work;
use crate::processes::{Gateway, Shape, Worker, directory_with_identity, executions};

/// Calls that are in flight together.
const AT_ONCE: u64 = 16;

/// The calls that have to be answered between two steps.
const BETWEEN_STEPS: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_an_earlier_version_are_replaced_one_by_one_and_no_call_fails() {
    let directory = directory_with_identity("upgrade");
    // At most once: a call that was in hand of a node that ends is not repaired by a repetition.
    let shape = Shape { is_patient: true, ..Shape::new(Contract::AtMostOnce) };
    let mut workers: Vec<Worker> = Vec::new();
    for _ in 0..3 {
        // The first one names nobody that is there.
        let named =
            workers.last().map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 1)), |worker| worker.process.address);
        workers.push(Worker::start_earlier(&directory, shape, named));
    }
    let named: Vec<_> = workers.iter().map(|worker| worker.process.address).collect();
    let config = NetConfig { membership: Some(MembershipProfile::Near), ..patient() };
    let gateway = Gateway::start_naming(&directory, &named, config).await;
    until(|| gateway.cluster.offers("work")).await;

    let (answered, made, is_over) =
        (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let callers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let client = gateway.node.client();
            let (answered, made, is_over) = (Arc::clone(&answered), Arc::clone(&made), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut failed = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let id = made.fetch_add(1, Ordering::Relaxed);
                    let options = CallOptions::new().with_timeout(LONG);
                    match client.call_with::<_, Work>("/run", Work::whenever(id), options).await {
                        Ok(answer) if answer.call_id() == id => _ = answered.fetch_add(1, Ordering::Relaxed),
                        outcome => failed.push(outcome.map(|answer| answer.call_id())),
                    }
                }
                failed
            })
        })
        .collect();
    let further = || {
        let (answered, target) = (Arc::clone(&answered), answered.load(Ordering::Relaxed) + BETWEEN_STEPS);
        until(move || answered.load(Ordering::Relaxed) >= target)
    };
    further().await;
    for (step, worker) in workers.iter_mut().enumerate() {
        worker.signal("TERM");
        let (_, status) = worker.exited().await;
        assert_eq!(status, Some(0), "step {step}");
        tokio::task::block_in_place(|| worker.restart_naming(gateway.edge.address()));
        until(|| gateway.cluster.connected_peers() == 3).await;
        further().await;
    }
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        let failed = caller.await.unwrap();
        assert!(failed.is_empty(), "{failed:?}");
    }
    until(|| metric(&gateway.edge, "members_up") == 3).await;
    let executions = executions(&directory);
    println!("{} calls, none failed", executions.len());
    assert_eq!(executions.len() as u64, made.load(Ordering::Relaxed));
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
}
