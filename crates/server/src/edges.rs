//! A node with its edges, of any kind: one order of start and of end.

use std::time::Duration;

use callboard_core::edge::{Edge, EdgeDescription, EdgeError};
use callboard_core::{App, Drained, Instant, LocalClient, Node, StartError};
use futures_util::future::join_all;
use tokio::time::timeout_at;

/// A node with its edges. Dropping it ends all of it at once; [`shutdown`](Self::shutdown) ends it in order.
///
/// It has only the edges that it is given; see [`Edge`]. [`Server`](crate::Server) adds HTTP to it.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct EdgeServer {
    // Dropped in this order: calls in progress get an error while an edge can still write it.
    node: Node,
    edges: Vec<Box<dyn Edge>>,
}

impl EdgeServer {
    /// Starts the app, and then opens the edges in this order.
    ///
    /// # Errors
    ///
    /// An app that does not start, or an edge that cannot serve it.
    pub async fn start(app: App, edges: Vec<Box<dyn Edge>>) -> Result<Self, EdgeServerError> {
        let node = app.start().await?;
        Self::open(node, edges)
    }

    /// Serves a node that was started, and perhaps given routes, before callers can reach it.
    pub(crate) fn open(node: Node, mut edges: Vec<Box<dyn Edge>>) -> Result<Self, EdgeServerError> {
        for edge in &mut edges {
            let opened = edge.open(&node.handle());
            opened.map_err(|error| EdgeServerError::Open { edge: edge.describe().name, error })?;
        }
        Ok(Self { edges, node })
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.node.client()
    }

    /// The edges, in the order in which they were opened.
    pub fn edges(&self) -> impl Iterator<Item = EdgeDescription> {
        self.edges.iter().map(|edge| edge.describe())
    }

    /// Makes the node not ready, and lets each edge tell its callers. Calls are still answered until
    /// [`shutdown`](Self::shutdown), so that balancers that poll the readiness have time to notice.
    pub fn withdraw(&self) {
        self.node.withdraw();
        self.edges.iter().for_each(|edge| edge.withdraw());
    }

    /// Shuts down in the order that [`Edge`] has: calls in progress are finished within `grace`, after it the remaining
    /// ones are answered with an error and cut.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let end = Instant::now() + grace;
        let remaining = || end.saturating_duration_since(Instant::now());
        self.withdraw();
        let Self { mut edges, node } = self;
        // At the same time: a call of one edge must not wait for the end of another.
        join_all(edges.iter_mut().map(|edge| timeout_at(end, edge.finish(end)))).await;
        let drained = node.drain(remaining()).await;
        // Before the node stops, because busy workers may never end.
        edges.iter_mut().for_each(|edge| edge.abort());
        node.stop(remaining().max(LEAST_STOP)).await;
        for edge in &mut edges {
            let last = end.max(Instant::now() + LAST_ANSWERS);
            let _ = timeout_at(last + CLOSE_WITHIN, edge.close(last)).await;
        }
        drained
    }

    /// Serves until `stop` completes, and then [shuts down](Self::shutdown).
    pub async fn run_until(self, stop: impl Future<Output = ()>, grace: Duration) -> Drained {
        stop.await;
        self.shutdown(grace).await
    }
}

/// The time in which workers clean up when the drain has taken all of its own.
const LEAST_STOP: Duration = Duration::from_secs(1);

/// The time for the errors of aborted calls to leave, when the drain has taken all of its own.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// An edge that takes longer for its last packets is dropped.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// The reason why a node is not served by its edges.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeServerError {
    /// The app did not start; its error says which stage and why.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An edge does not serve the node.
    #[error("the edge `{edge}` does not open: {error}")]
    Open {
        /// Its [name](EdgeDescription::name).
        edge: String,
        /// Its reason.
        error: EdgeError,
    },
}
