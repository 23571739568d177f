//! An app on a socket: starts the node, serves its routes over HTTP, ends both in an order that loses nothing.

use std::net::SocketAddr;
use std::time::Duration;

use callboard_core::{App, Drained, LocalClient, Node, StartError};
use callboard_http::{ApiInfo, Edge, HttpConfig};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Starts an app and serves it over HTTP with the default limits. Port 0 takes a free one.
///
/// # Errors
///
/// An address that cannot be bound, or an app that does not start.
pub async fn serve(app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
    Server::start(app, address, HttpConfig::default()).await
}

/// A node with its HTTP edge. Dropping it ends both at once, connections included; [`shutdown`](Self::shutdown) ends them
/// in good order.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct Server {
    node: Node,
    address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    edge: Edge,
    serving: EdgeTask,
}

/// The edge on its socket, answering that the node is starting until [`start`](Self::start) brings the node.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    edge: Edge,
    stop: oneshot::Sender<Duration>,
    serving: EdgeTask,
}

impl Door {
    /// Serves from now on.
    pub(crate) fn open(listener: TcpListener, config: HttpConfig, info: ApiInfo) -> Result<Self, ServeError> {
        let address = listener.local_addr().map_err(ServeError::Bind)?;
        let edge = Edge::starting(config, info)?;
        let (stop, stopped) = oneshot::channel::<Duration>();
        // An error says that the server was dropped: the end, and at once.
        let shutdown = async { stopped.await.unwrap_or_default() };
        let serving = EdgeTask(tokio::spawn(callboard_http::serve_edge(listener, edge.clone(), shutdown)));
        Ok(Self { address, edge, stop, serving })
    }

    /// Starts the app behind the door. Where it does not start, the door closes.
    pub(crate) async fn start(self, app: App) -> Result<Server, ServeError> {
        let node = app.start().await?;
        self.edge.open(node.client())?;
        Ok(Server { node, address: self.address, stop: self.stop, edge: self.edge, serving: self.serving })
    }
}

/// The task that serves the edge. It does not outlive its handle: a task that is merely let go of would serve on.
#[derive(Debug)]
struct EdgeTask(JoinHandle<()>);

impl EdgeTask {
    /// Waits for the end, at most so long; tells whether it came.
    async fn ends_by(&mut self, end: Instant) -> bool {
        self.0.is_finished() || tokio::time::timeout_at(end, &mut self.0).await.is_ok()
    }
}

impl Drop for EdgeTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// After the grace: time in which those who were cut are told so.
const LAST_WORDS: Duration = Duration::from_millis(250);

impl Server {
    /// Starts an app and serves it with limits of its own.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, or an app that does not start.
    pub async fn start(app: App, address: impl ToSocketAddrs, config: HttpConfig) -> Result<Self, ServeError> {
        // The socket first: a port that is taken should not cost the loading of a model.
        let listener = TcpListener::bind(address).await.map_err(ServeError::Bind)?;
        Self::start_on(listener, app, config, ApiInfo::default()).await
    }

    /// Starts an app and serves it on a socket that is there already, under a name of its own.
    ///
    /// The socket is answered while the app starts: `/livez` says yes, `/readyz` and all calls 503.
    ///
    /// # Errors
    ///
    /// An app that does not start, or that the edge cannot serve.
    pub async fn start_on(
        listener: TcpListener,
        app: App,
        config: HttpConfig,
        info: ApiInfo,
    ) -> Result<Self, ServeError> {
        Door::open(listener, config, info)?.start(app).await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.node.client()
    }

    /// The node behind the edge.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The edge itself, for an admin listener beside it (`http::Admin`).
    #[must_use]
    pub fn edge(&self) -> &Edge {
        &self.edge
    }

    /// Ends in good order within `grace`: readiness says no, the edge finishes the requests in hand and closes, the node
    /// drains and its workers clean up. What is left after `grace` is answered with 503 and cut; when this returns, nothing
    /// is served any more.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let Self { node, address: _, stop, edge, mut serving } = self;
        let end = Instant::now() + grace;
        node.withdraw();
        // The node is asked first what was unfinished: the edge's own limit comes after that.
        let _ = stop.send(grace + LAST_WORDS);
        serving.ends_by(end).await;
        let drained = node.drain(end.saturating_duration_since(Instant::now())).await;
        // Now, and not when busy workers have ended, which may be never.
        edge.abort();
        let _counted = node.shutdown(Duration::ZERO).await;
        if !serving.ends_by(Instant::now() + LAST_WORDS).await {
            serving.0.abort();
            // The end of an aborted task comes at once, and with it that of its connections.
            serving.ends_by(Instant::now() + LAST_WORDS).await;
        }
        drained
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be bound: it is in use, or not this machine's.
    #[error("could not listen")]
    Bind(#[source] std::io::Error),
    /// The edge cannot serve these routes with these limits; its error names the one.
    #[error(transparent)]
    Edge(#[from] callboard_http::ServeError),
    /// The app did not start; its error says which stage and why.
    #[error(transparent)]
    Start(#[from] StartError),
}
