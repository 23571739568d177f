//! A second node that runs the stages of the first one's calls: in the same process, with its own runtime, over QUIC
//! with certificates on both sides.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::remote::RemoteStages;
use callboard_core::{App, Node};
use callboard_net::{Cluster, Identity, NetConfig, QuicEdge, StaticView};
use tokio::runtime::Runtime;

/// Keeps the connection to the other node.
pub(crate) struct Peer {
    _worker: (Node, QuicEdge),
    _edge: QuicEdge,
    _cluster: Cluster,
    /// Never dropped, because dropping a runtime in async code panics.
    _runtime: std::mem::ManuallyDrop<Runtime>,
}

/// Starts both: `worker` runs the stage of this name for `gateway`.
pub(crate) async fn start(gateway: App, worker: App, stage: &str) -> (Node, Peer) {
    let directory = std::env::temp_dir().join(format!("callboard-overhead-{}", std::process::id()));
    let identity = Identity::development_in(&directory.join("development")).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let other = identity.clone();
    let worker = runtime.spawn(async move { served(worker, &other).await }).await.unwrap();
    let (node, edge) = served(gateway, &identity).await;
    let cluster = Cluster::start(&edge, Arc::new(StaticView::try_new([worker.1.address()]).expect("few peers")));
    node.handle().join(cluster.clone()).unwrap();
    while !cluster.offers(stage) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let runtime = std::mem::ManuallyDrop::new(runtime);
    (node, Peer { _worker: worker, _edge: edge, _cluster: cluster, _runtime: runtime })
}

async fn served(app: App, identity: &Identity) -> (Node, QuicEdge) {
    let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
    let node = app.start().await.unwrap();
    edge.open(node.client());
    (node, edge)
}
