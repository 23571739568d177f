//! A server on a free port, and a client that sends exact bytes.

pub(crate) mod app;
pub(crate) mod frames;
pub(crate) mod raw;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use callboard_core::{App, Drained, Node};
use callboard_http::protocol::Protocol;
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, HttpServeError, serve_edge, serve_router};
use callboard_oip::InferenceProtocol;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::raw::{Answer, Raw};

/// The timeout of each wait. Only a failing test reaches it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A server that stops on request.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    node: Option<Node>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<(), HttpServeError>>,
}

impl Server {
    /// A bare axum router behind the accept loop.
    pub(crate) async fn for_router(router: Router, config: HttpConfig) -> Self {
        Self::spawn(None, bind().await, |listener, stopped| serve_router(listener, router, config, stopped))
    }

    /// The edge of a node that runs `app`.
    pub(crate) async fn for_app(app: App, config: HttpConfig) -> Self {
        let grace = config.shutdown_grace;
        Self::for_app_within(app, config, vec![Arc::new(InferenceProtocol::new())], |_| (), grace).await
    }

    /// The same; `prepare` changes the edge before its first request.
    pub(crate) async fn for_app_with(app: App, config: HttpConfig, prepare: impl FnOnce(&HttpEdge)) -> Self {
        Self::for_app_within(app, config, vec![Arc::new(InferenceProtocol::new())], prepare, TEST_TIMEOUT).await
    }

    /// The same with these protocols.
    pub(crate) async fn for_app_beside(
        app: App,
        config: HttpConfig,
        protocols: Vec<Arc<dyn Protocol>>,
        prepare: impl FnOnce(&HttpEdge),
    ) -> Self {
        let grace = config.shutdown_grace;
        Self::for_app_within(app, config, protocols, prepare, grace).await
    }

    async fn for_app_within(
        app: App,
        config: HttpConfig,
        protocols: Vec<Arc<dyn Protocol>>,
        prepare: impl FnOnce(&HttpEdge),
        grace: Duration,
    ) -> Self {
        let node = app.start().await.unwrap();
        let edge = HttpEdge::try_new(node.client(), config, ApiInfo::default(), protocols).unwrap();
        prepare(&edge);
        let serve = |listener, stopped: Stopped| async move {
            serve_edge(listener, edge, async {
                stopped.await;
                grace
            })
            .await;
            Ok(())
        };
        Self::spawn(Some(node), bind().await, serve)
    }

    fn spawn<F>(node: Option<Node>, listener: TcpListener, serve: impl FnOnce(TcpListener, Stopped) -> F) -> Self
    where
        F: Future<Output = Result<(), HttpServeError>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped: Stopped = Box::pin(async { _ = stopped.await });
        Self { address, node, stop: Some(stop), serving: tokio::spawn(serve(listener, stopped)) }
    }

    pub(crate) async fn connect(&self) -> Raw {
        Raw::connect(self.address).await
    }

    /// The node of [`for_app`](Self::for_app).
    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().expect("the server has a node")
    }

    /// Drains the node, which must have nothing in flight.
    pub(crate) async fn drain(&self) {
        let drained = self.node().drain(TEST_TIMEOUT).await;
        assert_eq!(drained, Drained::Completely);
    }

    /// `GET path` on a new connection.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.connect().await.get(path).await
    }

    /// `POST path` with JSON on a new connection.
    pub(crate) async fn post_json(&self, path: &str, json: &str) -> Answer {
        self.connect().await.post(path, &[("content-type", "application/json")], json).await
    }

    /// The value of a sample on `/metrics`, by its full name and labels.
    pub(crate) async fn metric(&self, sample: &str) -> Option<f64> {
        let page = self.get("/metrics").await;
        let line = page.text().lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.map(|number| number.parse().unwrap())
    }

    /// Waits until a sample has this value.
    pub(crate) async fn metric_becomes(&self, sample: &str, value: f64) {
        let becoming = async { while self.metric(sample).await != Some(value) {} };
        if tokio::time::timeout(TEST_TIMEOUT, becoming).await.is_err() {
            panic!("{sample} does not become {value}:\n{}", self.get("/metrics").await.text());
        }
    }

    /// Asks the server to stop, without waiting for it.
    pub(crate) fn begin_shutdown(&mut self) {
        drop(self.stop.take());
    }

    /// Whether it has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.serving.is_finished()
    }

    /// Waits for the end of a server that was asked to stop.
    pub(crate) async fn ended(self) {
        tokio::time::timeout(TEST_TIMEOUT, self.serving)
            .await
            .expect("the server ends")
            .expect("the server does not panic")
            .expect("the server ends well");
    }
}

pub(crate) type Stopped = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// The default limits with a change.
pub(crate) fn config(change: impl FnOnce(&mut HttpConfig)) -> HttpConfig {
    let mut config = HttpConfig::default();
    change(&mut config);
    config
}
