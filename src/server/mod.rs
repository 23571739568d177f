//! A server: an app with its edges. It starts the node, serves its routes over HTTP and QUIC, and shuts down in an
//! order that loses no call.

mod builder;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, Drained, LocalClient, Node, StartError};
use callboard_http::protocol::Protocol;
#[cfg(feature = "cli")]
use callboard_http::protocol::Protocols;
use callboard_http::{ABORT_GRACE, ApiInfo, HttpConfig, HttpEdge, ModelRepository};
use callboard_oip::InferenceProtocol;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::builder::ServerBuilder;

/// The protocols of every server, without those of a program.
#[cfg(feature = "cli")]
pub(crate) fn own_protocols() -> Protocols {
    Protocols::try_new(vec![Arc::new(InferenceProtocol::new())]).expect("it claims no page of the edge")
}

/// Starts an app and serves it over HTTP with the default limits. Port 0 takes a free one.
///
/// # Errors
///
/// An address that cannot be bound, or an app that does not start.
pub async fn serve(app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
    Server::start(app, address, HttpConfig::default()).await
}

/// A node with its edges. Dropping it ends all of it at once, with its connections; [`shutdown`](Self::shutdown) ends
/// it in order.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct Server {
    node: Node,
    address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    edge: HttpEdge,
    inference: Arc<InferenceProtocol>,
    serving: EdgeTask,
    drain_delay: Duration,
    #[cfg(feature = "net")]
    quic: Option<callboard_net::QuicEdge>,
    #[cfg(feature = "otlp")]
    spans: Option<callboard_http::SpanExporter>,
}

/// The HTTP edge on its socket. It answers that the node is starting until [`start`](Self::start) starts the node.
#[derive(Debug)]
pub(crate) struct StartingServer {
    address: SocketAddr,
    edge: HttpEdge,
    inference: Arc<InferenceProtocol>,
    stop: oneshot::Sender<Duration>,
    serving: EdgeTask,
    drain_delay: Duration,
    #[cfg(any(feature = "net", feature = "otlp"))]
    parts: ServerBuilder,
}

impl StartingServer {
    /// Starts to serve.
    fn open(listener: TcpListener, mut parts: ServerBuilder) -> Result<Self, ServeError> {
        let address = listener.local_addr().map_err(|error| ServeError::Bind { addresses: Vec::new(), error })?;
        let inference = Arc::new(InferenceProtocol::new());
        let mut protocols: Vec<Arc<dyn Protocol>> = vec![Arc::clone(&inference) as Arc<_>];
        protocols.append(&mut parts.protocols);
        let (config, info) = (std::mem::take(&mut parts.config), std::mem::take(&mut parts.info));
        let edge = HttpEdge::starting(config, info, protocols)?;
        for families in parts.metrics.drain(..) {
            edge.show_metrics_of(families);
        }
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
        Ok(Self {
            address,
            edge,
            inference,
            stop,
            serving,
            drain_delay: parts.drain_delay,
            #[cfg(any(feature = "net", feature = "otlp"))]
            parts,
        })
    }

    /// Starts the app. If it does not start, the socket closes.
    pub(crate) async fn start(self, app: App) -> Result<Server, ServeError> {
        let node = app.start().await?;
        self.open_node(node)
    }

    /// Serves a node that was started, and perhaps given routes, before callers can reach it.
    pub(crate) fn open_node(self, node: Node) -> Result<Server, ServeError> {
        // First, so that the first call has spans.
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
            inference: self.inference,
            serving: self.serving,
            drain_delay: self.drain_delay,
            #[cfg(feature = "net")]
            quic,
            #[cfg(feature = "otlp")]
            spans,
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
        self.node.client()
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
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
        self.node.withdraw();
        #[cfg(feature = "net")]
        if let Some(quic) = &self.quic {
            quic.drain();
        }
    }

    /// Shuts down in order: the node is not ready, the edges finish running requests within `grace`, HTTP closes, the
    /// node drains and its workers clean up. QUIC closes last, because requests may need the peers until then. After
    /// `grace` the remaining calls are answered with 503 and cut. The last spans are sent, which takes at most 4 s
    /// more. Then nothing is served any more.
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
            quic.shutdown(end.saturating_duration_since(Instant::now()).max(ABORT_GRACE)).await;
        }
        #[cfg(feature = "otlp")]
        if let Some(spans) = spans {
            spans.shutdown(LAST_SPANS).await;
        }
        drained
    }
}

/// The time in which workers clean up when the drain has taken all of its own.
const LEAST_STOP: Duration = Duration::from_secs(1);

/// Ends the HTTP edge and its node.
async fn end_http(
    node: Node,
    edge: &HttpEdge,
    stop: oneshot::Sender<Duration>,
    mut serving: EdgeTask,
    end: Instant,
) -> Drained {
    let remaining = || end.saturating_duration_since(Instant::now());
    // The node reports the unfinished calls first: the edge's own limit comes later.
    let _ = stop.send(remaining() + ABORT_GRACE);
    serving.ends_by(end).await;
    let drained = node.drain(remaining()).await;
    // Now, because busy workers may never end.
    edge.abort();
    node.stop(remaining().max(LEAST_STOP)).await;
    if !serving.ends_by(Instant::now() + ABORT_GRACE).await {
        serving.0.abort();
        // An aborted task ends at once, and its connections with it.
        serving.ends_by(Instant::now() + ABORT_GRACE).await;
    }
    drained
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
    Edge(#[from] callboard_http::HttpServeError),
    /// The app did not start; its error says which stage and why.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This process is a replica of an isolated stage, which its program has not come to: nothing was bound.
    #[cfg(feature = "process")]
    #[error("this process is a replica of stage `{stage}`, and its program has not come to that stage")]
    Replica {
        /// The stage.
        stage: String,
    },
}
