//! A node with its QUIC edge, and waits of tests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use callboard_codec::Data;
use callboard_codec::wire::{Hello, VERSION};
use callboard_core::remote::RemoteStages;
use callboard_core::{App, CallError, Node};
use callboard_net::testing::RawPeer;
use callboard_net::{Client, ClientBuilder, Cluster, Identity, NetConfig, QuicEdge, StaticView};

/// Longer than any step takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// One directory for all tests of this binary.
pub(crate) static IDENTITY: LazyLock<Identity> = LazyLock::new(|| identity("common"));

/// An identity in its own directory.
pub(crate) fn identity(name: &str) -> Identity {
    Identity::development_in(&directory(name)).unwrap()
}

/// A new directory of this run, in the directory that cargo gives to tests.
pub(crate) fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    directory.join("development")
}

/// A member that sends frames by hand.
pub(crate) async fn peer(served: &ServingNode) -> RawPeer {
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let cluster = IDENTITY.cluster().to_owned();
    peer.greet(&Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }).await.unwrap();
    peer
}

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Long timeouts, because a peer on a busy machine may be quiet.
pub(crate) fn patient() -> NetConfig {
    let mut config = NetConfig::default();
    (config.tuning.idle_timeout, config.tuning.silent_after) = (LONG, LONG);
    config.hello_timeout = LONG;
    config
}

/// A running node with its edge.
pub(crate) struct ServingNode {
    pub(crate) node: Node,
    pub(crate) edge: QuicEdge,
}

impl ServingNode {
    pub(crate) async fn start(app: App) -> Self {
        Self::start_with(app, patient()).await
    }

    pub(crate) async fn start_with(app: App, config: NetConfig) -> Self {
        let edge = QuicEdge::bind(loopback(), IDENTITY.clone(), config).unwrap();
        let node = app.start().await.unwrap();
        edge.open(node.client());
        Self { node, edge }
    }

    pub(crate) fn url(&self) -> String {
        format!("quic://{}", self.edge.address())
    }

    pub(crate) async fn client(&self) -> Client {
        builder().connect(&self.url()).await.unwrap()
    }

    /// The number of streams with calls so far.
    pub(crate) fn streams_started(&self) -> u64 {
        let metrics = self.edge.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix("callboard_net_streams_total "));
        line.unwrap().parse().unwrap()
    }

    /// Waits until all calls have ended.
    pub(crate) async fn until_idle(&self) {
        until(|| self.edge.streams() == 0 && self.node.describe().in_flight == 0).await;
    }
}

/// A node with remote stages.
pub(crate) struct Member {
    pub(crate) served: ServingNode,
    pub(crate) cluster: Cluster,
}

impl Member {
    pub(crate) async fn start(app: App, peers: &[&QuicEdge]) -> Self {
        let served = ServingNode::start(app).await;
        let view = StaticView::try_new(peers.iter().map(|edge| edge.address())).unwrap();
        let cluster = Cluster::start(&served.edge, Arc::new(view));
        served.node.handle().join(cluster.clone()).unwrap();
        Self { served, cluster }
    }

    /// Waits until another node offers this stage.
    pub(crate) async fn until_offered(&self, stage: &str) {
        until(|| self.cluster.offers(stage)).await;
    }

    /// Waits until this number of peers is connected.
    pub(crate) async fn until_connected(&self, peers: usize) {
        until(|| self.cluster.connected_peers() == peers).await;
    }

    pub(crate) async fn call<In: Data>(&self, input: In) -> Result<i64, CallError> {
        self.served.node.client().call::<In, i64>("/run", input).await
    }
}

pub(crate) fn builder() -> ClientBuilder {
    let tuning = patient().tuning;
    Client::builder().identity(IDENTITY.clone()).tuning(tuning).connect_timeout(LONG).start_up_wait(LONG)
}

/// Polls a condition that has no notification.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("the condition became true");
}
