//! The edge as one service: user routes first, then the fixed pages, and around both what every answer has.
//!
//! User routes are looked up in the node's own table, which may change while serving, and answered without a second router;
//! everything else is an axum router of fixed pages. `answer.rs` is the way of one request through it.
//!
//! An edge may answer before its node is there: then `/livez` says yes, `/readyz` no, and everything else 503.

mod answer;
pub(crate) mod serve;
mod unread;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::HeaderValue;
use callboard_core::{CallTracer, LocalClient};

use crate::config::HttpConfig;
use crate::describe;
use crate::describe::openapi::ApiInfo;
use crate::dispatch::serve::HttpServeError;
use crate::guard::{Doorstep, Gate};
use crate::listener::AcceptMetrics;
use crate::listener::tls::Tls;
use crate::observe::metrics::EdgeMetrics;
use crate::oip;
use crate::repository::Repository;
use crate::request_id::RequestIds;
use crate::runtime::shutdown::Closing;
use crate::spans::{OtherDoor, SampleRatio, SpanSink, Tracer};

/// The whole HTTP edge of a node as a [`tower::Service`], to be served by [`serve`](crate::serve) or mounted in an axum
/// router of one's own: `Router::new().route("/mine", …).fallback_service(edge)`, or below a path with
/// `nest_service("/api", edge)`.
///
/// Served by `axum::serve`, a mounted edge does not know whether others than this machine can reach it, and answers 403
/// to host names that are not in [`HttpConfig::hosts`]; [`serve_router`](crate::serve_router) tells it.
#[derive(Clone, Debug)]
pub struct HttpEdge(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: HttpConfig,
    info: Arc<ApiInfo>,
    ids: RequestIds,
    metrics: Arc<EdgeMetrics>,
    tls: Option<Tls>,
    /// Not there where everybody may ask.
    gate: Option<Gate>,
    /// Before it, on a listener that only this machine can reach.
    doorstep: Doorstep,
    /// Calls in hand are waited for no longer.
    aborting: Arc<Closing>,
    /// Not there while the node is starting.
    serving: OnceLock<Serving>,
    /// Not there where nobody wants spans.
    tracer: OnceLock<Arc<Tracer>>,
    /// Where routes come from that are loaded while serving, if anywhere.
    repository: OnceLock<Arc<dyn Repository>>,
}

/// A node, once it is there.
#[derive(Debug)]
struct Serving {
    client: LocalClient,
    pages: Router,
    models: oip::Models,
}

/// On every answer: a browser takes it as what its `content-type` says, and not for a page because it looks like one.
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

impl HttpEdge {
    /// The edge of the node behind `client`.
    ///
    /// # Errors
    ///
    /// A limit that cannot work, a certificate that cannot be used, or a route that takes a path of the edge's own.
    pub fn try_new(client: LocalClient, config: HttpConfig, info: ApiInfo) -> Result<Self, HttpServeError> {
        let edge = Self::starting(config, info)?;
        edge.open(client)?;
        Ok(edge)
    }

    /// An edge whose node is still starting: it answers `/livez` with 200, `/readyz` and everything else with 503, so that
    /// orchestrators neither kill a node that loads a large model nor send it traffic. [`open`](Self::open) ends that.
    ///
    /// # Errors
    ///
    /// A limit that cannot work, or a certificate that cannot be used.
    pub fn starting(mut config: HttpConfig, mut info: ApiInfo) -> Result<Self, HttpServeError> {
        config.validate()?;
        config.decode.max_bytes = usize::try_from(config.largest_body_bytes()).unwrap_or(usize::MAX);
        info.needs_key |= config.api_keys.is_some();
        let (gate, doorstep) = (Gate::new(&config), Doorstep::new(&config));
        let tls = config.tls.clone().map(Tls::load).transpose()?;
        let (ids, metrics) = (RequestIds::new(), Arc::new(EdgeMetrics::new()));
        let (info, serving) = (Arc::new(info), OnceLock::new());
        let (tracer, repository) = (OnceLock::new(), OnceLock::new());
        let inner = Inner {
            config,
            info,
            ids,
            metrics,
            tls,
            gate,
            doorstep,
            aborting: Arc::default(),
            serving,
            tracer,
            repository,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The node is there: from now on its routes are served.
    ///
    /// # Errors
    ///
    /// A route that takes a path of the edge's own, or a node that is there already.
    pub fn open(&self, client: LocalClient) -> Result<(), HttpServeError> {
        if let Some(route) = client.routes().iter().find(|route| describe::is_reserved(route.name())) {
            return Err(HttpServeError::ReservedRoute { route: route.name().to_owned() });
        }
        let pages = describe::router(client.clone(), Arc::clone(&self.0.metrics), Arc::clone(&self.0.info));
        self.0
            .serving
            .set(Serving { client, pages, models: oip::Models::default() })
            .map_err(|_| HttpServeError::AlreadyOpen)
    }

    /// Answers every call in hand with 503, as not to be finished any more because the node is ending, and cancels it;
    /// a reply that streams ends with this error. New calls are answered so, too. [`serve`](crate::serve) does it at
    /// the end of its grace.
    pub fn abort(&self) {
        self.0.aborting.begin();
    }

    /// Shows what `families` gives on `/metrics` from now on, behind the node's own: metric families in the text format
    /// of OpenMetrics, with or without its end mark, such as those of another edge of the same node or of a program.
    /// Each call adds one.
    pub fn show_metrics_of(&self, families: impl Fn() -> String + Send + Sync + 'static) {
        self.0.metrics.show_beside(families);
    }

    /// Gives `sink` the spans of the requests that are sampled: those whose callers' `traceparent` says so, and of those without one
    /// this part. Takes one sink; another one gets nothing.
    pub fn give_spans_to(&self, sink: Arc<dyn SpanSink>, ratio: SampleRatio) {
        let _ = self.0.tracer.set(Arc::new(Tracer::new(ratio, sink)));
    }

    /// Gives another door of the same node a part in it: the spans of its calls go to the same sink, where their callers' trace is
    /// recorded. `None` where there is no sink.
    #[must_use]
    pub fn call_tracer(&self) -> Option<Arc<dyn CallTracer>> {
        let tracer = self.0.tracer.get()?;
        Some(Arc::new(OtherDoor(Arc::clone(tracer))))
    }

    /// Sends the spans of sampled requests to an OpenTelemetry collector, from the current runtime; see
    /// [`give_spans_to`](Self::give_spans_to).
    #[cfg(feature = "otlp")]
    pub fn export_spans(&self, config: &crate::OtlpConfig) -> crate::SpanExporter {
        let (exporter, sink) = crate::SpanExporter::start(config, self.0.metrics.spans.clone());
        self.give_spans_to(sink, config.ratio);
        exporter
    }

    /// Loads routes from here, and lists those that could be. Takes one; another one is not looked at.
    pub fn load_from(&self, repository: Arc<dyn Repository>) {
        let _ = self.0.repository.set(repository);
    }

    pub(crate) fn repository(&self) -> Option<Arc<dyn Repository>> {
        self.0.repository.get().cloned()
    }

    pub(crate) fn config(&self) -> &HttpConfig {
        &self.0.config
    }

    pub(crate) fn metrics(&self) -> Arc<EdgeMetrics> {
        Arc::clone(&self.0.metrics)
    }

    pub(crate) fn tls(&self) -> Option<Tls> {
        self.0.tls.clone()
    }

    /// Reads again what is in files and changes while serving, beside [`tls`](Self::tls).
    pub(crate) fn keep_fresh(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.0.gate.as_ref()?.keep_fresh()
    }

    pub(crate) fn accept_metrics(&self) -> AcceptMetrics {
        self.0.metrics.accept.clone()
    }
}
