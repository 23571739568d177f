//! The builder of a server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::App;
use callboard_core::edge::Edge;
#[cfg(feature = "otlp")]
use callboard_http::OtlpConfig;
use callboard_http::axum::Router;
use callboard_http::protocol::Protocol;
use callboard_http::{AUTH_ROUTE, ApiInfo, HttpConfig, HttpEdge};
use callboard_mcp::McpConfig;
use tokio::net::{TcpListener, ToSocketAddrs, lookup_host};

use crate::http::{ServeError, Server, StartingServer};

/// Builds a [`Server`] from an app and other parts. [`start`](Self::start) starts them in one order;
/// [`Server::shutdown`] says in which order they end.
///
/// 1. The HTTP socket is bound and answers: `/livez` with 200, `/readyz` and all calls with 503.
/// 2. The app starts, and spans are sent from here on.
/// 3. Calls are answered, and `/readyz` answers 200, unless stages are remote.
/// 4. QUIC is answered, and the [edges of the program](Self::edge) open.
/// 5. Peers are connected to, and stages may run on them. With remote stages, `/readyz` answers 200 while a connected
///    peer runs each of them.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use callboard_core::{App, Stage};
/// use callboard_server::Server;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let app = App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)));
/// let server = Server::builder()
///     // Routes of your own, and any tower layer around them and ours.
///     .mount(|edge| Router::new().route("/version", get(|| async { "7" })).fallback_service(edge))
///     // Shown on /metrics with ours.
///     .metrics(|| "# TYPE doubled counter\ndoubled_total 0\n".to_owned())
///     .start(app, "127.0.0.1:0")
///     .await?;
/// println!("http://{}/version", server.address());
///
/// // In a program: a signal.
/// let stop = async {};
/// server.run_until(stop, std::time::Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "nothing is served before it is started"]
pub struct ServerBuilder {
    pub(super) config: HttpConfig,
    pub(super) info: ApiInfo,
    pub(super) mcp: Option<McpConfig>,
    pub(super) mount: Option<Box<dyn FnOnce(HttpEdge) -> Router + Send>>,
    pub(super) metrics: Vec<Box<dyn Fn() -> String + Send + Sync>>,
    pub(super) protocols: Vec<Arc<dyn Protocol>>,
    pub(super) edges: Vec<Box<dyn Edge>>,
    pub(super) drain_delay: Duration,
    #[cfg(feature = "otlp")]
    pub(super) spans: Option<OtlpConfig>,
    #[cfg(feature = "net")]
    pub(super) quic: Option<(callboard_net::QuicEdge, Option<Box<StartPeers>>)>,
}

#[cfg(feature = "net")]
type StartPeers = dyn FnOnce(&callboard_net::QuicEdge) -> callboard_net::Cluster + Send;

impl ServerBuilder {
    /// Limits and settings of the HTTP edge.
    pub fn http(mut self, config: HttpConfig) -> Self {
        self.config = config;
        self
    }

    /// The title, version and description in the OpenAPI document.
    pub fn info(mut self, info: ApiInfo) -> Self {
        self.info = info;
        self
    }

    /// The settings of the Model Context Protocol, by which agents call [tools](callboard_core::RouteSpec::tool).
    /// Default: the name, version and description of [`info`](Self::info), and the routes that say so.
    pub fn mcp(mut self, config: McpConfig) -> Self {
        self.mcp = Some(config);
        self
    }

    /// Serves the router that `mount` makes of the edge, in its place: routes of your own before it, layers around it.
    /// The edge answers requests from the router as it would alone, and gives handlers of your own the
    /// [client](HttpEdge::client) of the node. Your own routes have none of its guards: no API keys, no rate limits,
    /// and no check of hosts and origins. They are served before the app has started, too.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::extract::{Path, State};
    /// use axum::routing::get;
    /// use callboard_core::{App, Stage};
    /// use callboard_http::{HttpEdge, Problem};
    /// use callboard_server::Server;
    ///
    /// async fn twice(State(edge): State<HttpEdge>, Path(number): Path<i64>) -> Result<String, Problem> {
    ///     let doubled: i64 = edge.client()?.call("/double", number).await?;
    ///     Ok(format!("twice {number} is {doubled}\n"))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let app = App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)));
    /// let server = Server::builder()
    ///     .mount(|edge| {
    ///         Router::new().route("/twice/{number}", get(twice)).with_state(edge.clone()).fallback_service(edge)
    ///     })
    ///     .start(app, "127.0.0.1:0")
    ///     .await?;
    /// println!("http://{}/twice/21", server.address());
    /// # Ok(())
    /// # }
    /// ```
    pub fn mount(mut self, mount: impl FnOnce(HttpEdge) -> Router + Send + 'static) -> Self {
        self.mount = Some(Box::new(mount));
        self
    }

    /// Shows the text of `families` on `/metrics`, after the node's own: metric families in the text format of
    /// OpenMetrics, with or without its end mark. It is called for each page, off the runtime's threads, once the app
    /// has started. Each call of this method adds one. A family whose name is in use, by the node or by another text,
    /// is left out, and the log says so once; the names of the node begin with `callboard_`.
    pub fn metrics(mut self, families: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics.push(Box::new(families));
        self
    }

    /// Answers requests of this protocol over HTTP, too, beside the Open Inference Protocol. A server that gets two
    /// which [claim](Protocol::claims) the same does not start.
    pub fn protocol(mut self, protocol: impl Protocol) -> Self {
        self.protocols.push(Arc::new(protocol));
        self
    }

    /// Opens this edge as well, after the others; see [`Edge`].
    pub fn edge(mut self, edge: impl Edge) -> Self {
        self.edges.push(Box::new(edge));
        self
    }

    /// How long [`run_until`](Server::run_until) serves on while `/readyz` says no, so that a balancer notices before
    /// the socket closes. Default zero; twice the interval of its polls loses no request.
    pub fn drain_delay(mut self, delay: Duration) -> Self {
        self.drain_delay = delay;
        self
    }

    /// Sends the spans of sampled requests to an OpenTelemetry collector.
    #[cfg(feature = "otlp")]
    pub fn spans(mut self, config: OtlpConfig) -> Self {
        self.spans = Some(config);
        self
    }

    /// Answers over QUIC, too.
    #[cfg(feature = "net")]
    pub fn quic(mut self, edge: callboard_net::QuicEdge) -> Self {
        self.quic = Some((edge, None));
        self
    }

    /// Answers over QUIC, and lets stages run on other nodes: `peers` starts the [`Cluster`](callboard_net::Cluster) on
    /// the edge.
    #[cfg(feature = "net")]
    pub fn quic_with_peers(
        mut self,
        edge: callboard_net::QuicEdge,
        peers: impl FnOnce(&callboard_net::QuicEdge) -> callboard_net::Cluster + Send + 'static,
    ) -> Self {
        self.quic = Some((edge, Some(Box::new(peers))));
        self
    }

    /// Starts the app and serves it with HTTP on `address`. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, limits or routes that cannot be served, or an app that does not start.
    pub async fn start(self, app: App, address: impl ToSocketAddrs) -> Result<Server, ServeError> {
        #[cfg(feature = "process")]
        if let Some(stage) = callboard_process::isolated_stage() {
            return Err(ServeError::Replica { stage: stage.to_owned() });
        }
        // The socket first: a port in use should not cost the loading of a model.
        let failed = |addresses: &[SocketAddr]| {
            let addresses = addresses.to_vec();
            |error| ServeError::Bind { addresses, error }
        };
        let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed(&[]))?.collect();
        let listener = TcpListener::bind(&*addresses).await.map_err(failed(&addresses))?;
        self.start_on(app, listener).await
    }

    /// The same on a bound socket.
    ///
    /// # Errors
    ///
    /// Limits or routes that cannot be served, or an app that does not start.
    pub async fn start_on(mut self, app: App, listener: TcpListener) -> Result<Server, ServeError> {
        self.config.auth = app.routes().iter().any(|route| route.name() == AUTH_ROUTE);
        self.open(listener)?.start(app).await
    }

    /// Serves on the socket before the app is built: see [`StartingServer`].
    ///
    /// # Errors
    ///
    /// Limits that cannot be served, or protocols that claim the same.
    pub fn open(self, listener: TcpListener) -> Result<StartingServer, ServeError> {
        StartingServer::open(listener, self)
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").field("config", &self.config).field("info", &self.info).finish_non_exhaustive()
    }
}
