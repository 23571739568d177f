//! An app on a socket: starts the node, serves its routes over HTTP, ends both in an order that loses nothing.

use std::net::SocketAddr;
use std::time::Duration;

use callboard_core::{App, Client, Drained, Node, StartError};
use callboard_http::{ApiInfo, Edge, HttpConfig};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Starts an app and serves it over HTTP with the default limits. Port 0 takes a free one.
///
/// # Errors
///
/// An address that cannot be bound, or an app that does not start.
pub async fn serve(app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
    Server::start(app, address, HttpConfig::default()).await
}

/// A node with its HTTP edge. Dropping it ends both at once; [`shutdown`](Self::shutdown) ends them in good order.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct Server {
    node: Node,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    edge: JoinHandle<()>,
}

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
    /// # Errors
    ///
    /// An app that does not start, or that the edge cannot serve.
    pub async fn start_on(
        listener: TcpListener,
        app: App,
        config: HttpConfig,
        info: ApiInfo,
    ) -> Result<Self, ServeError> {
        let address = listener.local_addr().map_err(ServeError::Bind)?;
        let node = app.start().await?;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            // An error says that the server was dropped: the end, too.
            let _ = stopped.await;
        };
        let edge = Edge::try_new(node.client(), config, info)?;
        let edge = tokio::spawn(callboard_http::serve_edge(listener, edge, shutdown));
        Ok(Self { node, address, stop, edge })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> Client {
        self.node.client()
    }

    /// The node behind the edge.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Ends in good order within `grace`: readiness says no, the edge finishes the requests in hand and closes, the node
    /// drains and its workers clean up.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let Self { node, address: _, stop, edge } = self;
        let end = tokio::time::Instant::now() + grace;
        node.withdraw();
        drop(stop);
        // The edge has its own limit for connections that do not end; ours is the caller's.
        let _ = tokio::time::timeout_at(end, edge).await;
        node.shutdown(end.saturating_duration_since(tokio::time::Instant::now())).await
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
