//! Several nodes in one process, whose actors find each other without a network: they can be parted, killed and started
//! again, on virtual time. `simulation.rs` lets a seed do so.

mod network;
mod simulation;

use std::fmt;

use self::network::{Network, Seat};
pub use self::simulation::{ClusterSimulation, TestNodes};
use super::TestApp;
use super::without_stages::WithoutStages;
use crate::node::{Node, NodeHandle, StartError};

type AppFn = dyn Fn(&str) -> TestApp + Send + Sync;

/// Nodes of a test. References of each node find the actors and keyed actors of the others, as over a network: values
/// are converted, a question whose line is lost is [`Lost`](crate::actor::AskError::Lost), and each node has its own
/// view of who has a key.
///
/// All nodes are members from their start, and each learns at once of a line that is lost. Not simulated: stages that
/// other nodes run (see [`TestPeer`](super::TestPeer)), nodes that drain, and the time in which a view changes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use callboard_core::actor::Question;
/// use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
/// use callboard_core::testing::{MemoryStore, TestApp, TestCluster};
/// use callboard_core::{App, Failure};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Add(u64);
///
/// impl Question for Add {
///     const NAME: &str = "add";
///     type Answer = u64;
/// }
///
/// impl Answers<Add> for Stored<u64> {
///     async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
///         **self += by;
///         Ok(**self)
///     }
/// }
///
/// let store = Arc::new(MemoryStore::new());
/// let app = move |_: &str| {
///     let kind = KeyedSpec::new("counter", store.clone(), |_, count: Stored<u64>| async { Ok(count) });
///     TestApp::new(App::new().keyed(kind.accepts::<Add>()))
/// };
/// let mut cluster = TestCluster::start(3, app).await?;
/// let within = Duration::from_secs(1);
/// for number in 0..3 {
///     let node = cluster.node(number).ok_or("it runs")?;
///     assert_eq!(node.keyed("counter").ask("ann", within, Add(1)).await?, number as u64 + 1);
/// }
/// // The key comes up on another node, with what was saved.
/// let has_ann = |node: &callboard_core::NodeHandle| node.keyed("counter").active() > 0;
/// let owner = (0..3).find(|number| cluster.node(*number).as_ref().is_some_and(has_ann)).ok_or("a node has the key")?;
/// cluster.kill(owner);
/// let other = cluster.node((owner + 1) % 3).ok_or("it runs")?;
/// assert_eq!(other.keyed("counter").ask("ann", within, Add(1)).await?, 4);
/// # Ok(())
/// # }
/// ```
pub struct TestCluster {
    app: Box<AppFn>,
    nodes: Vec<Option<Node>>,
    network: Network,
}

impl TestCluster {
    /// Starts this number of nodes, `node-0` and so on: `app` makes the app of each name, also when it starts again.
    ///
    /// # Errors
    ///
    /// As [`TestApp::start`].
    pub async fn start(
        nodes: usize,
        app: impl Fn(&str) -> TestApp + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let mut cluster = Self { app: Box::new(app), nodes: Vec::new(), network: Network::new(nodes) };
        for number in 0..nodes {
            cluster.nodes.push(None);
            cluster.restart(number).await?;
        }
        Ok(cluster)
    }

    /// The node of this number, if it runs.
    #[must_use]
    pub fn node(&self, number: usize) -> Option<NodeHandle> {
        self.nodes.get(number)?.as_ref().map(Node::handle)
    }

    /// Ends a node as a process that is killed: nothing is saved, and what was asked of it is lost.
    pub fn kill(&mut self, number: usize) {
        if let Some(node) = self.nodes.get_mut(number).and_then(Option::take) {
            self.network.ended(number);
            node.abort();
        }
    }

    /// Starts a node that was killed. A node that runs is killed first.
    ///
    /// # Errors
    ///
    /// As [`TestApp::start`].
    ///
    /// # Panics
    ///
    /// Without a node of this number.
    pub async fn restart(&mut self, number: usize) -> Result<(), StartError> {
        self.kill(number);
        let node = (self.app)(&network::name(number)).start().await?;
        let joined = node.join(WithoutStages(Seat { network: self.network.clone(), number }));
        debug_assert!(joined.is_ok(), "it has joined nothing else");
        self.network.started(number, node.handle());
        self.nodes[number] = Some(node);
        Ok(())
    }

    /// From now on these nodes reach each other, and the others reach each other. All reach a store of the test.
    pub fn part(&self, apart: &[usize]) {
        self.network.part(apart);
    }

    /// All nodes reach each other again.
    pub fn heal(&self) {
        self.network.part(&[]);
    }

    /// The nodes that run, for code that outlives some of them.
    #[must_use]
    pub fn nodes(&self) -> TestNodes {
        TestNodes::of(self.network.clone())
    }
}

impl fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestCluster").field("network", &self.network).finish_non_exhaustive()
    }
}
