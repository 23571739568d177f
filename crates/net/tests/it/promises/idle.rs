//! The cost of an idle connection for its node.

use callboard_codec::wire::{Hello, VERSION};
use callboard_core::Contract;
use callboard_net::Identity;
use callboard_net::testing::{BareEndpoint, RawPeer};

use super::Scale;
use super::usage::Process;
use crate::processes::{Shape, Worker, directory_with_identity};

/// The node is a separate process, so that its memory is that of one end alone, including the overhead of the
/// allocator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_takes_at_most_100_kb_of_its_node() {
    let scale = Scale::new(0, 0);
    let directory = directory_with_identity("promised-idle");
    let worker = Worker::start(&directory, Shape { is_patient: true, ..Shape::new(Contract::AtMostOnce) });
    let identity = Identity::development_in(&directory.join("development")).unwrap();
    let endpoint = BareEndpoint::calling(&identity).unwrap();
    let hello =
        Hello { min_version: 1, max_version: VERSION, cluster: identity.cluster().to_owned(), ..Hello::default() };
    let connect = async |count: usize| {
        let mut peers = Vec::with_capacity(count);
        for _ in 0..count {
            let peer = RawPeer::over(&endpoint, worker.process.address).await.unwrap();
            peer.greet(&hello).await.unwrap();
            peers.push(peer);
        }
        peers
    };
    let node = Process::Child(worker.process.id());
    // The first connections grow everything that grows once.
    let (warm, count) = if scale.is_full { (64, 512) } else { (24, 96) };
    let first = connect(warm).await;
    let before = node.resident_kib();
    let peers = connect(count).await;
    let (Some(before), Some(after)) = (before, node.resident_kib()) else {
        println!("skipped: this system does not report the memory of a process");
        return;
    };
    let each = after.saturating_sub(before) as f64 * 1.024 / count as f64;
    scale.at_most("idle: resident memory of the node for each connection", each, 100.0, "kB");
    assert!(each <= 100.0, "{each} kB");
    drop((first, peers));
}
