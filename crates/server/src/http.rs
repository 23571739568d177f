//! The server that speaks HTTP, and the HTTP edge as a part of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::edge::{Edge, EdgeDescription, EdgeError, EdgeFuture};
use callboard_core::{App, Drained, LocalClient, Node, NodeHandle, StartError};
use callboard_grpc::GrpcProtocol;
use callboard_http::protocol::{Protocol, Protocols};
use callboard_http::{ABORT_GRACE, ApiInfo, HttpConfig, HttpEdge, HttpServeError, ModelRepository};
use callboard_mcp::{McpConfig, McpProtocol};
use callboard_oip::InferenceProtocol;
use callboard_openai::{CohereProtocol, MessagesProtocol, OpenAiProtocol};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::mcp::mcp_config;
use crate::{EdgeServer, EdgeServerError, ServerBuilder};

/// The protocols of every server, without those of a program.
#[must_use]
pub fn own_protocols() -> Protocols {
    Protocols::try_new(protocols_of_all(&Arc::default(), McpConfig::default())).expect("they claim no page of the edge")
}

/// The list that a new protocol joins.
fn protocols_of_all(inference: &Arc<InferenceProtocol>, mcp: McpConfig) -> Vec<Arc<dyn Protocol>> {
    vec![
        Arc::clone(inference) as Arc<_>,
        Arc::new(OpenAiProtocol::new()),
        Arc::new(MessagesProtocol),
        Arc::new(CohereProtocol),
        Arc::new(GrpcProtocol::new(Arc::clone(inference))),
        Arc::new(McpProtocol::new(mcp)),
    ]
}

/// Starts an app and serves it over HTTP with the default limits. Port 0 takes a free one.
///
/// # Errors
///
/// An address that cannot be bound, or an app that does not start.
pub async fn serve(app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
    Server::start(app, address, HttpConfig::default()).await
}

/// A node with its edges, one of which is HTTP. Dropping it ends all of it at once, with its connections;
/// [`shutdown`](Self::shutdown) ends it in order.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct Server {
    served: EdgeServer,
    address: SocketAddr,
    edge: HttpEdge,
    inference: Arc<InferenceProtocol>,
    drain_delay: Duration,
    #[cfg(feature = "net")]
    quic: Option<callboard_net::QuicEdge>,
    #[cfg(feature = "otlp")]
    spans: Option<callboard_http::SpanExporter>,
}

/// The HTTP edge on its socket. It answers that the node is starting until [`start`](Self::start) starts the node.
#[derive(Debug)]
#[must_use = "the socket closes when it is dropped"]
pub struct StartingServer {
    door: HttpDoor,
    inference: Arc<InferenceProtocol>,
    parts: ServerBuilder,
}

impl StartingServer {
    /// Starts to serve.
    pub(crate) fn open(listener: TcpListener, mut parts: ServerBuilder) -> Result<Self, ServeError> {
        let address = listener.local_addr().map_err(|error| ServeError::Bind { addresses: Vec::new(), error })?;
        let inference = Arc::default();
        let mcp = parts.mcp.take().unwrap_or_else(|| mcp_config(&parts.info));
        let mut protocols = protocols_of_all(&inference, mcp);
        protocols.append(&mut parts.protocols);
        let (config, info) = (std::mem::take(&mut parts.config), std::mem::take(&mut parts.info));
        let edge = HttpEdge::starting(config, info, protocols)?;
        let (stop, stopped) = oneshot::channel::<Duration>();
        // An error means that the server was dropped: it ends at once.
        let shutdown = async { stopped.await.unwrap_or_default() };
        let serving = EdgeTask(match parts.mount.take() {
            None => tokio::spawn(callboard_http::serve_edge(listener, edge.clone(), shutdown)),
            Some(mount) => {
                let router = mount(edge.clone());
                tokio::spawn(callboard_http::serve_mounted(listener, edge.clone(), router, shutdown))
            }
        });
        Ok(Self { door: HttpDoor { address, edge, stop: Some(stop), serving }, inference, parts })
    }

    /// Starts the app. If it does not start, the socket closes.
    ///
    /// # Errors
    ///
    /// Routes that cannot be served, or an app that does not start.
    pub async fn start(self, app: App) -> Result<Server, ServeError> {
        self.start_unless(app, std::future::pending()).await
    }

    /// As [`start`](Self::start), until `cancelled` ends; see [`App::start_unless`].
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`StartError::Cancelled`](callboard_core::StartError::Cancelled).
    pub async fn start_unless(
        self,
        app: App,
        cancelled: impl Future<Output = ()> + Send,
    ) -> Result<Server, ServeError> {
        let node = app.start_unless(cancelled).await?;
        self.open_node(node)
    }

    /// Serves a node that was started, and perhaps given routes, before callers can reach it.
    ///
    /// # Errors
    ///
    /// Routes that cannot be served.
    pub fn open_node(self, node: Node) -> Result<Server, ServeError> {
        let Self { door, inference, parts } = self;
        let (address, edge) = (door.address, door.edge.clone());
        // First, so that the first call has spans.
        #[cfg(feature = "otlp")]
        let spans = parts.spans.map(|config| edge.export_spans(&config));
        let mut edges: Vec<Box<dyn Edge>> = vec![Box::new(door)];
        #[cfg(feature = "net")]
        let (quic, peers) = parts.quic.unzip();
        #[cfg(feature = "net")]
        edges.extend(quic.clone().map(|quic| Box::new(quic) as Box<dyn Edge>));
        edges.extend(parts.edges);
        for families in parts.metrics {
            node.show_metrics_of(families);
        }
        // Before the first call: a node that is alone by its own view would take keys that other nodes have.
        #[cfg(feature = "net")]
        if let (Some(quic), Some(peers)) = (&quic, peers.flatten()) {
            let joined = node.join(peers(quic));
            debug_assert!(joined.is_ok(), "a node that was just started has no peers");
        }
        let served = EdgeServer::open(node, edges)?;
        Ok(Server {
            served,
            address,
            edge,
            inference,
            drain_delay: parts.drain_delay,
            #[cfg(feature = "net")]
            quic,
            #[cfg(feature = "otlp")]
            spans,
        })
    }
}

/// The name of the server's own edge.
const HTTP: &str = "http";

/// The HTTP edge of a server, and the task that serves it.
#[derive(Debug)]
struct HttpDoor {
    address: SocketAddr,
    edge: HttpEdge,
    /// Ends the accept loop.
    stop: Option<oneshot::Sender<Duration>>,
    serving: EdgeTask,
}

impl Edge for HttpDoor {
    fn describe(&self) -> EdgeDescription {
        EdgeDescription::new(HTTP).at(self.address)
    }

    fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError> {
        Ok(self.edge.open(node.client())?)
    }

    fn withdraw(&self) {
        self.edge.withdraw();
    }

    fn finish(&mut self, deadline: Instant) -> EdgeFuture<'_> {
        if let Some(stop) = self.stop.take() {
            // The node reports the unfinished calls first: the edge's own limit comes later.
            let _ = stop.send(deadline.saturating_duration_since(Instant::now()) + ABORT_GRACE);
        }
        Box::pin(async move { _ = self.serving.ends_by(deadline).await })
    }

    fn abort(&mut self) {
        self.edge.abort();
    }

    fn close(&mut self, deadline: Instant) -> EdgeFuture<'_> {
        Box::pin(async move {
            if !self.serving.ends_by(deadline).await {
                self.serving.0.abort();
                // An aborted task ends at once, and its connections with it.
                self.serving.ends_by(Instant::now() + ABORT_GRACE).await;
            }
        })
    }
}

/// The task that serves the edge. Dropping it aborts the task; a detached task would continue.
#[derive(Debug)]
struct EdgeTask(JoinHandle<()>);

impl EdgeTask {
    /// Waits until `end` for the task; returns whether it has ended.
    async fn ends_by(&mut self, end: Instant) -> bool {
        self.0.is_finished() || tokio::time::timeout_at(end, &mut self.0).await.is_ok()
    }
}

impl Drop for EdgeTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Enough for a collector that is up; without one the end should not wait.
#[cfg(feature = "otlp")]
const LAST_SPANS: Duration = Duration::from_secs(3);

impl Server {
    /// A builder for a server with more than an app and an address.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Starts an app and serves it with this configuration.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, or an app that does not start.
    pub async fn start(app: App, address: impl ToSocketAddrs, config: HttpConfig) -> Result<Self, ServeError> {
        Self::builder().http(config).start(app, address).await
    }

    /// Starts an app and serves it on a bound socket, with its own title.
    ///
    /// While the app starts, the socket answers `/livez` with 200, and `/readyz` and all calls with 503.
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

    /// The address of HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.served.client()
    }

    /// The node.
    pub fn node(&self) -> &Node {
        self.served.node()
    }

    /// The edges, in the order in which they were opened: HTTP, QUIC, and those of the program.
    pub fn edges(&self) -> impl Iterator<Item = EdgeDescription> {
        self.served.edges()
    }

    /// Loads models of the Open Inference Protocol from this repository. A server has one; another one is ignored.
    pub fn load_models_from(&self, repository: Arc<dyn ModelRepository>) {
        self.inference.load_from(repository);
    }

    /// The HTTP edge, for an admin listener (`http::Admin`).
    #[must_use]
    pub fn edge(&self) -> &HttpEdge {
        &self.edge
    }

    /// The QUIC edge, if there is one.
    #[cfg(feature = "net")]
    #[must_use]
    pub fn quic(&self) -> Option<&callboard_net::QuicEdge> {
        self.quic.as_ref()
    }

    /// Serves until `stop` completes, [withdraws](Self::withdraw), serves on for the
    /// [drain delay](ServerBuilder::drain_delay), and then [shuts down](Self::shutdown).
    pub async fn run_until(self, stop: impl Future<Output = ()>, grace: Duration) -> Drained {
        stop.await;
        self.withdraw();
        tokio::time::sleep(self.drain_delay).await;
        self.shutdown(grace).await
    }

    /// Makes the node not ready, and tells callers over QUIC, which use other nodes at once. Calls are still answered
    /// until [`shutdown`](Self::shutdown), so that balancers that poll the readiness have time to notice.
    pub fn withdraw(&self) {
        self.served.withdraw();
    }

    /// Shuts down in order: the node is not ready, the edges finish running requests within `grace`, HTTP closes, the
    /// node drains and its workers clean up. QUIC and the edges of the program close last, because requests may need
    /// the peers until then. After `grace` the remaining calls are answered with 503 and cut. The last spans are sent,
    /// which takes at most 4 s more. Then nothing is served any more.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let drained = self.served.shutdown(grace).await;
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans {
            spans.shutdown(LAST_SPANS).await;
        }
        drained
    }
}

impl From<EdgeServerError> for ServeError {
    fn from(error: EdgeServerError) -> Self {
        match error {
            EdgeServerError::Start(error) => Self::Start(error),
            EdgeServerError::Open { edge, error } if edge == HTTP => match error.downcast::<HttpServeError>() {
                Ok(error) => Self::Edge(*error),
                Err(error) => Self::Other(EdgeServerError::Open { edge, error }),
            },
            error @ EdgeServerError::Open { .. } => Self::Other(error),
        }
    }
}

fn on(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if addresses.is_empty() { String::new() } else { format!(" on {}", addresses.join(", ")) }
}

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be bound: it is in use, or not this machine's.
    #[error("could not listen{}: {error}", on(addresses))]
    Bind {
        /// The addresses that were tried; none if its name has none.
        addresses: Vec<SocketAddr>,
        /// The error of the system for the last one.
        error: std::io::Error,
    },
    /// The edge cannot serve these routes with these limits; its error names the reason.
    #[error(transparent)]
    Edge(#[from] HttpServeError),
    /// The app did not start; its error says which stage and why.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An edge of the program cannot serve the app.
    #[error(transparent)]
    Other(EdgeServerError),
    /// This process is a replica of an isolated stage, which its program has not come to: nothing was bound.
    #[cfg(feature = "process")]
    #[error("this process is a replica of stage `{stage}`, and its program has not come to that stage")]
    Replica {
        /// The stage.
        stage: String,
    },
}
