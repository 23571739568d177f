//! A node with its QUIC edge, and what tests wait for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use callboard_core::{App, Node};
use callboard_net::{Client, ClientBuilder, Edge, Identity, NetConfig};

/// Longer than anything takes on a machine that does other things as well.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// One directory for all tests of this binary.
pub(crate) static IDENTITY: LazyLock<Identity> = LazyLock::new(|| identity("common"));

/// An identity of a directory of its own.
pub(crate) fn identity(name: &str) -> Identity {
    Identity::development_in(&directory(name)).unwrap()
}

/// A directory that is new in this run, below the one that cargo gives tests.
pub(crate) fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    directory.join("development")
}

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A quiet peer on a busy machine is no dead one.
pub(crate) fn patient() -> NetConfig {
    let mut config = NetConfig::default();
    config.tuning.idle_timeout = LONG;
    config.hello_timeout = LONG;
    config
}

/// A running node with its edge.
pub(crate) struct Served {
    pub(crate) node: Node,
    pub(crate) edge: Edge,
}

impl Served {
    pub(crate) async fn start(app: App) -> Self {
        Self::start_with(app, patient()).await
    }

    pub(crate) async fn start_with(app: App, config: NetConfig) -> Self {
        let edge = Edge::bind(loopback(), IDENTITY.clone(), config).unwrap();
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

    /// That nothing is left of what was called.
    pub(crate) async fn comes_to_rest(&self) {
        until(|| self.edge.streams() == 0 && self.node.describe().in_flight == 0).await;
    }
}

pub(crate) fn builder() -> ClientBuilder {
    let tuning = patient().tuning;
    Client::builder().identity(IDENTITY.clone()).tuning(tuning).connect_timeout(LONG).start_up_wait(LONG)
}

/// Waits for something that nobody announces.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("it came about");
}
