//! An app with its edges: starts the node, serves its routes over HTTP and QUIC, ends all of it in an order that loses
//! nothing.

mod builder;

use std::net::SocketAddr;
use std::time::Duration;

use callboard_core::{App, Drained, LocalClient, Node, StartError};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, LAST_WORDS};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::builder::ServerBuilder;

/// Starts an app and serves it over HTTP with the default limits. Port 0 takes a free one.
///
/// # Errors
///
/// An address that cannot be bound, or an app that does not start.
pub async fn serve(app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
    Server::start(app, address, HttpConfig::default()).await
}

/// A node with its edges. Dropping it ends all of it at once, connections included; [`shutdown`](Self::shutdown) ends
/// it in good order.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct Server {
    node: Node,
    address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    edge: HttpEdge,
    serving: EdgeTask,
    #[cfg(feature = "net")]
    quic: Option<callboard_net::QuicEdge>,
    #[cfg(feature = "otlp")]
    spans: Option<callboard_http::SpanExporter>,
}

/// The edge on its socket, answering that the node is starting until [`start`](Self::start) brings the node.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    edge: HttpEdge,
    stop: oneshot::Sender<Duration>,
    serving: EdgeTask,
    #[cfg(any(feature = "net", feature = "otlp"))]
    parts: ServerBuilder,
}

impl Door {
    /// Serves from now on.
    fn open(listener: TcpListener, mut parts: ServerBuilder) -> Result<Self, ServeError> {
        let address = listener.local_addr().map_err(ServeError::Bind)?;
        let edge = HttpEdge::starting(std::mem::take(&mut parts.config), std::mem::take(&mut parts.info))?;
        for families in parts.metrics.drain(..) {
            edge.show_metrics_of(families);
        }
        let (stop, stopped) = oneshot::channel::<Duration>();
        // An error says that the server was dropped: the end, and at once.
        let shutdown = async { stopped.await.unwrap_or_default() };
        let serving = EdgeTask(match parts.mount.take() {
            None => tokio::spawn(callboard_http::serve_edge(listener, edge.clone(), shutdown)),
            Some(mount) => {
                let router = mount(edge.clone());
                tokio::spawn(callboard_http::serve_mounted(listener, edge.clone(), router, shutdown))
            }
        });
        Ok(Self {
            address,
            edge,
            stop,
            serving,
            #[cfg(any(feature = "net", feature = "otlp"))]
            parts,
        })
    }

    /// Starts the app behind the door. Where it does not start, the door closes.
    pub(crate) async fn start(self, app: App) -> Result<Server, ServeError> {
        let node = app.start().await?;
        // First, so that the first call has its spans, too.
        #[cfg(feature = "otlp")]
        let spans = self.parts.spans.map(|config| self.edge.export_spans(&config));
        self.edge.open(node.client())?;
        #[cfg(feature = "net")]
        let quic = self.parts.quic.map(|quic| quic.open(&node, &self.edge));
        Ok(Server {
            node,
            address: self.address,
            stop: self.stop,
            edge: self.edge,
            serving: self.serving,
            #[cfg(feature = "net")]
            quic,
            #[cfg(feature = "otlp")]
            spans,
        })
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

/// A collector that is there takes them at once; one that is not should not hold up the end.
#[cfg(feature = "otlp")]
const LAST_SPANS: Duration = Duration::from_secs(3);

impl Server {
    /// A server of more than an app and an address.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Starts an app and serves it with limits of its own.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, or an app that does not start.
    pub async fn start(app: App, address: impl ToSocketAddrs, config: HttpConfig) -> Result<Self, ServeError> {
        Self::builder().http(config).start(app, address).await
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
        Self::builder().http(config).info(info).start_on(app, listener).await
    }

    /// Where it listens for HTTP.
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
    pub fn edge(&self) -> &HttpEdge {
        &self.edge
    }

    /// The QUIC edge, where there is one.
    #[cfg(feature = "net")]
    #[must_use]
    pub fn quic(&self) -> Option<&callboard_net::QuicEdge> {
        self.quic.as_ref()
    }

    /// Serves until `stop` completes, and then [ends in good order](Self::shutdown).
    pub async fn run_until(self, stop: impl Future<Output = ()>, grace: Duration) -> Drained {
        stop.await;
        self.shutdown(grace).await
    }

    /// Makes readiness say no, and tells callers over QUIC, who go elsewhere at once. All that comes is still answered
    /// until [`shutdown`](Self::shutdown), so that balancers which ask for readiness have time to find out.
    pub fn withdraw(&self) {
        self.node.withdraw();
        #[cfg(feature = "net")]
        if let Some(quic) = &self.quic {
            quic.drain();
        }
    }

    /// Ends in good order: readiness says no, the edges finish the requests in hand within `grace`, HTTP closes, the
    /// node drains and its workers clean up. QUIC closes last: it is the way to the peers, which requests may have to
    /// go until the node has none left. What is left after `grace` is answered with 503 and cut, and the last spans are
    /// sent, which takes at most 4 s more. When this returns, nothing is served any more.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        self.withdraw();
        let end = Instant::now() + grace;
        #[cfg(feature = "net")]
        let quic = self.quic;
        #[cfg(feature = "otlp")]
        let spans = self.spans;
        let drained = end_http(self.node, &self.edge, self.stop, self.serving, end).await;
        #[cfg(feature = "net")]
        if let Some(quic) = quic {
            quic.shutdown(end.saturating_duration_since(Instant::now()).max(LAST_WORDS)).await;
        }
        #[cfg(feature = "otlp")]
        if let Some(spans) = spans {
            spans.shutdown(LAST_SPANS).await;
        }
        drained
    }
}

/// Ends the HTTP edge and the node behind it.
async fn end_http(
    node: Node,
    edge: &HttpEdge,
    stop: oneshot::Sender<Duration>,
    mut serving: EdgeTask,
    end: Instant,
) -> Drained {
    let left = || end.saturating_duration_since(Instant::now());
    // The node is asked first what was unfinished: the edge's own limit comes after that.
    let _ = stop.send(left() + LAST_WORDS);
    serving.ends_by(end).await;
    let drained = node.drain(left()).await;
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

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be bound: it is in use, or not this machine's.
    #[error("could not listen")]
    Bind(#[source] std::io::Error),
    /// The edge cannot serve these routes with these limits; its error names the one.
    #[error(transparent)]
    Edge(#[from] callboard_http::HttpServeError),
    /// The app did not start; its error says which stage and why.
    #[error(transparent)]
    Start(#[from] StartError),
}
