//! The edge as one service: user routes first, then protocols, then the fixed pages, with the same layers around all.
//!
//! `layers.rs` outlines an answer, `exchange.rs` has the facts of a request and the headers of every response,
//! `destination.rs` finds the destination of a request, `serve.rs` serves a socket.
//!
//! An edge may answer before its node has started: then `/livez` answers 200, and everything else 503.

mod destination;
mod exchange;
mod layers;
pub(crate) mod serve;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use callboard_core::{CallError, LocalClient};
use callboard_telemetry::{CallSpans, SampleRatio, SpanSink, Tracer};

use self::serve::HttpServeError;
use crate::asgi::{asgi_path, check_apps, longest_stop_timeout};
use crate::config::HttpConfig;
use crate::describe;
use crate::describe::openapi::ApiInfo;
use crate::error::starting;
use crate::guard::{AUTH_ROUTE, AccessPolicy, LoopbackGuard};
use crate::listener::tls::Tls;
use crate::listener::{AcceptMetrics, Http2Windows};
use crate::observe::metrics::EdgeMetrics;
use crate::observe::other_doors::OtherDoors;
use crate::protocol::{Protocol, Protocols};
use crate::request_id::RequestIds;
use crate::upgrade::EdgeLife;

/// The HTTP edge of a node as a [`tower::Service`], to be served by [`serve`](crate::serve) or mounted in an axum
/// router: `Router::new().route("/mine", …).fallback_service(edge)`, or below a path with `nest_service("/api", edge)`.
///
/// Under `axum::serve` a mounted edge does not know whether other machines can reach it, and answers 403 to host names
/// that are not in [`HttpConfig::hosts`]; under [`serve_router`](crate::serve_router) it knows.
#[derive(Clone, Debug)]
pub struct HttpEdge(Arc<EdgeState>);

#[derive(Debug)]
struct EdgeState {
    config: HttpConfig,
    info: Arc<ApiInfo>,
    ids: RequestIds,
    metrics: Arc<EdgeMetrics>,
    tls: Option<Tls>,
    windows: Arc<Http2Windows>,
    /// `None` without keys and CORS.
    policy: Option<AccessPolicy>,
    /// Applies before the policy, on a listener that only this machine can reach.
    loopback_guard: LoopbackGuard,
    /// How it ends.
    life: Arc<EdgeLife>,
    /// Empty while the node is starting.
    node: OnceLock<ServedNode>,
    /// Empty if spans have no sink.
    tracer: OnceLock<Arc<Tracer>>,
    protocols: Protocols,
}

/// A node that has started.
#[derive(Debug)]
struct ServedNode {
    client: LocalClient,
    pages: Router,
}

/// On every response: browsers must not guess another type than its `content-type`.
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

impl HttpEdge {
    /// The edge of the node behind `client`, with these [protocols](crate::protocol) beside its routes.
    ///
    /// # Errors
    ///
    /// An invalid limit, an unusable certificate, protocols that claim the same, or a route at a path of the edge's own
    /// or of a protocol.
    pub fn try_new(
        client: LocalClient,
        mut config: HttpConfig,
        info: ApiInfo,
        protocols: Vec<Arc<dyn Protocol>>,
    ) -> Result<Self, HttpServeError> {
        config.auth = client.route(AUTH_ROUTE).is_some();
        let edge = Self::starting(config, info, protocols)?;
        edge.open(client)?;
        Ok(edge)
    }

    /// An edge whose node is still starting: it answers `/livez` with 200 and everything else with 503, so that
    /// orchestrators neither kill a node that loads a large model nor send it traffic, until [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// An invalid limit, or an unusable certificate.
    pub fn starting(
        mut config: HttpConfig,
        mut info: ApiInfo,
        protocols: Vec<Arc<dyn Protocol>>,
    ) -> Result<Self, HttpServeError> {
        config.validate()?;
        config.decode.max_bytes = usize::try_from(config.largest_body_bytes()).unwrap_or(usize::MAX);
        info.needs_key |= config.api_keys.is_some() || config.auth;
        let (policy, loopback_guard) = (config.access_policy(), config.loopback_guard());
        let tls = config.tls.clone().map(Tls::load).transpose()?;
        let protocols = Protocols::try_new(protocols)?.without(&config.doors_off)?;
        let protocols = protocols.with_open_page(config.open_load.then_some(describe::load::PATH));
        let (ids, metrics, info) = (RequestIds::new(), EdgeMetrics::new(&protocols.doors()), Arc::new(info));
        let (metrics, windows) = (Arc::new(metrics), Http2Windows::new(&config));
        let (node, tracer, life) = (OnceLock::new(), OnceLock::new(), Arc::new(EdgeLife::new(&config)));
        Ok(Self(Arc::new(EdgeState {
            config,
            info,
            ids,
            metrics,
            tls,
            windows,
            policy,
            loopback_guard,
            life,
            node,
            tracer,
            protocols,
        })))
    }

    /// Serves the routes of the node, which has started.
    ///
    /// # Errors
    ///
    /// A route at a path of the edge's own, an edge that serves a node already, or a wrong [`HttpConfig::auth`].
    pub fn open(&self, client: LocalClient) -> Result<(), HttpServeError> {
        let EdgeState { config, metrics, info, protocols, .. } = &*self.0;
        let has_auth = client.route(AUTH_ROUTE).is_some();
        if has_auth != config.auth {
            return Err(HttpServeError::Auth { has_auth });
        }
        for route in client.routes() {
            protocols.check_route(route.path())?;
        }
        let private = client.edge().private_routes();
        check_apps(&private, &client.routes())?;
        for path in private.iter().filter_map(|route| asgi_path(route.name())) {
            protocols.check_route(path)?;
        }
        protocols
            .check_all(&client.routes())
            .map_err(|(protocol, reason)| HttpServeError::Refused { protocol, reason })?;
        self.0.windows.limit(client.edge().limits().max_in_flight_bytes / 2);
        let pages = describe::router(client.clone(), Arc::clone(metrics), Arc::clone(info), protocols.clone());
        let doors = OtherDoors::new(Arc::clone(metrics), config.access_log.clone());
        let node = client.clone();
        self.0.node.set(ServedNode { client, pages }).map_err(|_| HttpServeError::AlreadyOpen)?;
        node.edge().observe_answers_with(Arc::new(doors));
        self.share_tracer();
        Ok(())
    }

    /// The client of the node, for handlers beside the edge in the same router. The edge can be their state, and the
    /// error is answered by a [`Problem`](crate::Problem).
    ///
    /// # Errors
    ///
    /// `Unavailable` while the node is starting, as the edge itself answers then.
    pub fn client(&self) -> Result<LocalClient, CallError> {
        self.0.node.get().map(|node| node.client.clone()).ok_or_else(starting)
    }

    /// Tells [upgraded](crate::protocol::Upgrade) connections that the node is about to end. Requests are answered as
    /// before. [`serve`](crate::serve) does so at the beginning of its shutdown.
    pub fn withdraw(&self) {
        self.0.life.withdrawn.begin();
    }

    /// Ends the requests of mounted apps early enough for their apps to stop within this time, of which at most half is
    /// for that.
    pub(crate) fn end_apps_within(&self, grace: Duration) -> impl Future<Output = ()> + Send + 'static + use<> {
        let private = self.0.node.get().map(|node| node.client.edge().private_routes()).unwrap_or_default();
        let (until, life) = (grace - longest_stop_timeout(&private).min(grace / 2), Arc::clone(&self.0.life));
        async move {
            tokio::time::sleep(until).await;
            life.ending.begin();
        }
    }

    /// Cancels every call in progress and answers it with 503, because the node ends; a streamed reply ends with this
    /// error. New calls are answered in the same way. [`serve`](crate::serve) does so at the end of its grace period.
    pub fn abort(&self) {
        self.0.life.aborting.begin();
    }

    /// Gives `sink` the spans of sampled requests: those with a sampled `traceparent`, and this share of those without
    /// one; and those of calls over the node's other edges. An edge has one sink; another one gets nothing.
    pub fn give_spans_to(&self, sink: Arc<dyn SpanSink>, ratio: SampleRatio) {
        let _ = self.0.tracer.set(Arc::new(Tracer::new(ratio, sink)));
        self.share_tracer();
    }

    /// Lets the other edges of the node record their calls with the same sink.
    fn share_tracer(&self) {
        if let (Some(node), Some(tracer)) = (self.0.node.get(), self.0.tracer.get()) {
            node.client.edge().trace_with(Arc::new(CallSpans::new(Arc::clone(tracer))));
        }
    }

    /// Sends the spans of sampled requests to an OpenTelemetry collector, from the current runtime; see
    /// [`give_spans_to`](Self::give_spans_to).
    #[cfg(feature = "otlp")]
    pub fn export_spans(&self, config: &crate::OtlpConfig) -> crate::SpanExporter {
        let (exporter, sink) = crate::SpanExporter::spawn(config, self.0.metrics.spans.clone());
        self.give_spans_to(sink, config.ratio);
        exporter
    }

    pub(crate) fn protocols(&self) -> &Protocols {
        &self.0.protocols
    }

    pub(crate) fn config(&self) -> &HttpConfig {
        &self.0.config
    }

    pub(crate) fn metrics(&self) -> Arc<EdgeMetrics> {
        Arc::clone(&self.0.metrics)
    }

    pub(crate) fn windows(&self) -> Arc<Http2Windows> {
        Arc::clone(&self.0.windows)
    }

    pub(crate) fn tls(&self) -> Option<Tls> {
        self.0.tls.clone()
    }

    /// Reloads the keys when their file changes.
    pub(crate) fn watch_keys(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.0.policy.as_ref()?.watch_keys()
    }

    pub(crate) fn accept_metrics(&self) -> AcceptMetrics {
        self.0.metrics.accept.clone()
    }
}
