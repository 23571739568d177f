//! The edge as one service: user routes first, then the fixed pages, and around both what every answer has.
//!
//! User routes are looked up in the node's own table, which may change while serving, and answered without a second router;
//! everything else is an axum router of fixed pages. Whatever happens inside, one answer leaves: a problem document for an
//! error, a 500 for a panic, and always the request's id. What went wrong on our side is one line of the log with that id.
//!
//! An edge may answer before its node is there: then `/livez` says yes, `/readyz` no, and everything else 503.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::header::{CONNECTION, HOST, HeaderValue};
use axum::http::{Request, Version};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::{CallTracer, Instant, LocalClient, Route};
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use tower::{BoxError, Service};

use crate::accept::{AcceptMetrics, Origin, Respond};
use crate::access::{Caller, Doorstep, Gate};
use crate::access_log::Line;
use crate::catch_panic::catch_panic;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::functions::{self, Way};
use crate::infer::{self, Around};
use crate::metrics::EdgeMetrics;
use crate::observed::{Marks, Observed};
use crate::oip;
use crate::openapi::ApiInfo;
use crate::pages;
use crate::repository::Repository;
use crate::request_id::{NAMING, RequestId, RequestIds, X_REQUEST_ID};
use crate::server::ServeError;
use crate::server_timing::{SERVER_TIMING, error_timing};
use crate::spans::{OtherDoor, SampleRatio, SpanSink, Tracer};
use crate::tls::Tls;

/// The whole HTTP edge of a node as a [`tower::Service`], to be served by [`serve`](crate::serve) or mounted in an axum
/// router of one's own: `Router::new().route("/mine", …).fallback_service(edge)`.
#[derive(Clone, Debug)]
pub struct Edge(Arc<Inner>);

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

impl Edge {
    /// The edge of the node behind `client`.
    ///
    /// # Errors
    ///
    /// A limit that cannot work, a certificate that cannot be used, or a route that takes a path of the edge's own.
    pub fn try_new(client: LocalClient, config: HttpConfig, info: ApiInfo) -> Result<Self, ServeError> {
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
    pub fn starting(mut config: HttpConfig, mut info: ApiInfo) -> Result<Self, ServeError> {
        config.validate()?;
        config.decode.max_bytes = usize::try_from(config.largest_body_bytes()).unwrap_or(usize::MAX);
        info.needs_key |= config.api_keys.is_some();
        let (gate, doorstep) = (Gate::new(&config), Doorstep::new(&config));
        let tls = config.tls.clone().map(Tls::load).transpose()?;
        let (ids, metrics) = (RequestIds::new(), Arc::new(EdgeMetrics::new()));
        let (info, serving) = (Arc::new(info), OnceLock::new());
        let (tracer, repository) = (OnceLock::new(), OnceLock::new());
        let inner = Inner { config, info, ids, metrics, tls, gate, doorstep, serving, tracer, repository };
        Ok(Self(Arc::new(inner)))
    }

    /// The node is there: from now on its routes are served.
    ///
    /// # Errors
    ///
    /// A route that takes a path of the edge's own, or a node that is there already.
    pub fn open(&self, client: LocalClient) -> Result<(), ServeError> {
        if let Some(route) = client.routes().iter().find(|route| pages::is_reserved(route.name())) {
            return Err(ServeError::ReservedRoute { route: route.name().to_owned() });
        }
        let pages = pages::router(client.clone(), Arc::clone(&self.0.metrics), Arc::clone(&self.0.info));
        self.0
            .serving
            .set(Serving { client, pages, models: oip::Models::default() })
            .map_err(|_| ServeError::AlreadyOpen)
    }

    /// Shows what another door of the same node has counted on `/metrics`, in the text format of OpenMetrics without the end mark.
    /// Takes one; another one is not shown.
    pub fn show_metrics_of(&self, door: impl Fn() -> String + Send + Sync + 'static) {
        self.0.metrics.show_beside(door);
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

    /// Answers one request, whatever it is.
    ///
    /// hyper moves this future with each request, so it is kept small: what is seldom is boxed.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call it made and counts the request as abandoned.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: the request is 264 bytes")]
    fn answer<B>(
        self,
        mut request: Request<B>,
        origin: Option<Origin>,
    ) -> impl Future<Output = Response> + Send + 'static
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        async move {
            let begun = Instant::now();
            let inner = &*self.0;
            let marks = Marks::of(request.headers());
            let id = if NAMING { marks.id.and_then(RequestId::from_client) } else { None };
            let id = id.unwrap_or_else(|| inner.ids.make());
            let observed = Observed::new(&inner.config, inner.tracer.get(), begun, &id, &marks, &request);
            let open = Open { abandoned: &inner.metrics.abandoned, answered: false };
            let version = request.version();
            let unread;
            let sharing = inner.gate.as_ref().and_then(|gate| gate.sharing(&request));
            let is_oip = oip::owns(request.uri().path());

            let path = request.uri().path();
            let (route, way) = match inner.serving.get() {
                None => (None, Way::Route),
                Some(serving) => match serving.route(path) {
                    Some(route) => (Some(route), Way::Route),
                    None => (serving.function(path), Way::Function),
                },
            };
            if let (Some(observed), Some(route)) = (&observed, &route) {
                observed.goes_to(route);
            }
            let log = &inner.config.access_log;
            let mut line = Line::begin(log, begun, &id, &request, origin, route.as_deref(), observed.as_deref());
            let mut caller = None;
            let outcome = match (inner.serving.get(), &route) {
                _ if let Some(early) = inner.early(&request, origin, &mut caller, line.as_mut()) => {
                    unread = Unread::of(request.body());
                    Ok(early)
                }
                (Some(serving), Some(route)) => {
                    let around = inner.around(serving, &id, observed.as_deref(), caller.as_ref());
                    if way == Way::Function && functions::is_stream(request.headers()) {
                        unread = Unread::of(request.body());
                        Ok(functions::stream::answer(around, route, request.map(Body::new)))
                    } else {
                        let outcome = {
                            let call = pin!(infer::call(around, route, way, &mut request));
                            catch_panic(call).await
                        };
                        unread = Unread::of(request.body());
                        outcome
                    }
                }
                (Some(serving), None) if is_oip => {
                    let outcome = {
                        let around = inner.around(serving, &id, observed.as_deref(), caller.as_ref());
                        let repository = inner.repository.get().map(|repository| &**repository);
                        let answer = oip::answer(around, &serving.models, repository, &mut request);
                        // Boxed, because this future is moved with each request, whosever it is.
                        catch_panic(Box::pin(answer).as_mut()).await
                    };
                    unread = Unread::of(request.body());
                    outcome
                }
                (Some(serving), None) => {
                    unread = Unread::of(request.body());
                    catch_panic(pin!(serving.page(request.map(Body::new), origin))).await
                }
                (None, None | Some(_)) => {
                    unread = Unread::of(request.body());
                    Ok(pages::while_starting(request.uri().path(), request.headers(), &inner.metrics))
                }
            };
            let timing = outcome.as_ref().ok().and_then(|answer| answer.as_ref().err()?.timing());
            let mut response = match outcome {
                Ok(Ok(response)) => {
                    tracing::debug!(request_id = id.as_str(), status = response.status().as_u16(), "answered");
                    response
                }
                Ok(Err(error)) => {
                    error.tell(id.as_str(), route.as_ref().map(|route| route.name()));
                    rendered(error, &id, is_oip)
                }
                Err(_told_by_the_panic_hook) => {
                    rendered(inner.panicked(&id, route.as_ref().map(|route| route.name())), &id, is_oip)
                }
            };
            open.answered();
            inner.metrics.responded(response.status());
            let is_error = response.status().is_client_error() || response.status().is_server_error();
            let headers = response.headers_mut();
            if let Some(gate) = &inner.gate {
                gate.mark(sharing, headers);
            }
            if is_error {
                headers.insert(SERVER_TIMING, error_timing(timing.as_ref(), begun.elapsed()));
                if unread.ends_the_connection(version) {
                    headers.insert(CONNECTION, HeaderValue::from_static("close"));
                }
            }
            if let Some(line) = &mut line {
                line.end(&response);
            }
            if let Some(observed) = &observed {
                observed.answered(&mut response);
            }
            if NAMING {
                response.headers_mut().insert(X_REQUEST_ID, id.to_header());
            }
            response
        }
    }
}

/// What is left of a body that was refused.
#[derive(Clone, Copy, Debug)]
struct Unread {
    /// At least this many bytes, if it is not known to have ended.
    bytes: Option<u64>,
}

impl Unread {
    fn of<B: HttpBody>(body: &B) -> Self {
        let hint = body.size_hint();
        Self { bytes: (!body.is_end_stream()).then(|| hint.exact().unwrap_or(u64::MAX)) }
    }

    /// A short rest is in the buffer already and is skipped. For a long one the connection ends, which the client should be
    /// told (RFC 9112 §9.6); HTTP/2 ends the stream only.
    fn ends_the_connection(self, version: Version) -> bool {
        version <= Version::HTTP_11 && self.bytes.is_some_and(|bytes| bytes > SKIPPED_BYTES)
    }
}

/// A rest of a body that surely came with its head.
const SKIPPED_BYTES: u64 = 4 * 1024;

impl Serving {
    /// The user's route at this path. One that was added later and takes a path of the edge's own does not hide the page.
    fn route(&self, path: &str) -> Option<Arc<Route>> {
        self.client.route(path).filter(|route| !pages::is_reserved(route.name()))
    }

    /// The route that this path calls as a function.
    fn function(&self, path: &str) -> Option<Arc<Route>> {
        self.route(&functions::name_of(path)?)
    }

    /// Boxed for [`Edge::answer`]'s sake.
    fn page(
        &self,
        mut request: Request<Body>,
        origin: Option<Origin>,
    ) -> Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>> {
        if let Some(origin) = origin {
            request.extensions_mut().insert(origin);
        }
        let page = self.pages.clone().call(request);
        Box::pin(async {
            let Ok(mut response) = page.await;
            match response.extensions_mut().remove::<ApiError>() {
                Some(error) => Err(error),
                None => Ok(response),
            }
        })
    }
}

impl Inner {
    /// The answer to a request that goes no further than its head.
    fn early<B>(
        &self,
        request: &Request<B>,
        origin: Option<Origin>,
        caller: &mut Option<Caller>,
        line: Option<&mut Line<'_>>,
    ) -> Option<Result<Response, ApiError>> {
        if request.extensions().get::<NoHost>().is_some() {
            return Some(Err(ApiError::no_host()));
        }
        if origin.is_some_and(|origin| origin.is_local)
            && let Err(error) = self.doorstep.admit(request)
        {
            return Some(Err(error));
        }
        let gate = self.gate.as_ref()?;
        if let Some(permission) = gate.preflight(request) {
            return Some(Ok(permission));
        }
        match gate.admit(request) {
            Ok(found) => {
                if let (Some(line), Some(found)) = (line, &found) {
                    line.came_from(found);
                }
                *caller = found;
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn around<'a>(
        &'a self,
        serving: &'a Serving,
        id: &'a RequestId,
        observed: Option<&'a Observed>,
        caller: Option<&'a Caller>,
    ) -> Around<'a> {
        Around {
            client: &serving.client,
            config: &self.config,
            metrics: &self.metrics,
            id,
            recorder: observed.and_then(Observed::recorder),
            is_explained: observed.is_some_and(Observed::explains),
            span: observed.and_then(Observed::span),
            caller,
        }
    }

    fn panicked(&self, id: &RequestId, route: Option<&str>) -> ApiError {
        self.metrics.panics.inc();
        tracing::error!(request_id = id.as_str(), route, "a request panicked in the http edge");
        ApiError::panicked()
    }
}

/// The answer in the words that its client reads.
fn rendered(error: ApiError, id: &RequestId, is_oip: bool) -> Response {
    if is_oip { error.into_protocol_answer() } else { error.into_answer(id.as_str()) }
}

/// HTTP/1.1 without a Host, or with two, is no request (RFC 9112 §3.2).
fn has_one_host<B>(request: &Request<B>) -> bool {
    request.version() != Version::HTTP_11 || request.headers().get_all(HOST).iter().count() == 1
}

impl Respond for Edge {
    fn respond(
        self,
        mut request: Request<Incoming>,
        origin: Origin,
    ) -> impl Future<Output = Response> + Send + 'static {
        if !has_one_host(&request) {
            request.extensions_mut().insert(NoHost);
        }
        self.answer(request, Some(origin))
    }
}

/// Marks a request of a socket that should have named its host; one that was made in process need not.
#[derive(Clone, Copy, Debug)]
struct NoHost;

impl<B> Service<Request<B>> for Edge
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let edge = self.clone();
        Box::pin(async { Ok(edge.answer(request, None).await) })
    }
}

/// A request without an answer yet. Dropped as such, its client has left, and that is counted.
struct Open<'a> {
    abandoned: &'a Counter,
    answered: bool,
}

impl Open<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.abandoned.inc();
        }
    }
}
