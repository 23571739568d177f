//! One request from its head to its answer: first where it goes, then what is done there, then what every answer has.
//!
//! Whatever happens inside, one answer leaves: a problem document for an error, a 500 for a panic, and always the request's id. What went
//! wrong on our side is one line of the log with that id. A client that leaves first drops all of it, and is counted as such.

use std::any::Any;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header::{ACCEPT_ENCODING, CONNECTION, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{Request, Version};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::{Instant, Route};
use prometheus_client::metrics::counter::Counter;
use tower::{BoxError, Service};

use super::unread::Unread;
use super::{HttpEdge, Inner, NOSNIFF, Serving};
use crate::call::functions::{self, Way};
use crate::call::{self, Around};
use crate::describe;
use crate::error::ApiError;
use crate::error::catch_panic::catch_panic;
use crate::guard::{KeyHolder, NamedHost};
use crate::listener::{Origin, Received, Respond};
use crate::observe::log_line::Line;
use crate::observe::request_trace::{Marks, Observed};
use crate::observe::server_timing::{SERVER_TIMING, error_timing};
use crate::oip;
use crate::request::body::RequestBody;
use crate::request_id::{NAMING, RequestId, X_REQUEST_ID};
use crate::respond::Packing;
use crate::respond::packed::packed;
use crate::runtime::coop;
use crate::runtime::shutdown::Closing;

/// What became of a request inside: an answer, an error, or a panic.
type Outcome = Result<Result<Response, ApiError>, Box<dyn Any + Send>>;

/// Where a request goes that is let in.
#[derive(Clone, Copy, Debug)]
enum Goes<'a> {
    /// No further: there is no node yet.
    Starting,
    /// To a route, for one call.
    Call(&'a Serving, &'a Arc<Route>, Way),
    /// To a function, for one call after the other.
    Calls(&'a Serving, &'a Arc<Route>),
    /// To the models of the inference protocol.
    Models(&'a Serving),
    /// To a page of the edge's own.
    Page(&'a Serving),
}

impl<'a> Goes<'a> {
    fn of(
        serving: Option<&'a Serving>,
        route: Option<&'a Arc<Route>>,
        way: Way,
        is_oip: bool,
        headers: &HeaderMap,
    ) -> Self {
        match (serving, route) {
            (None, _) => Self::Starting,
            (Some(serving), Some(route)) if way == Way::Function && functions::is_stream(headers) => {
                Self::Calls(serving, route)
            }
            (Some(serving), Some(route)) => Self::Call(serving, route, way),
            (Some(serving), None) if is_oip => Self::Models(serving),
            (Some(serving), None) => Self::Page(serving),
        }
    }
}

/// What is known of a request when its answer is there.
#[derive(Debug)]
struct Answered<'a> {
    begun: Instant,
    version: Version,
    id: &'a RequestId,
    route: Option<&'a Route>,
    /// Whether its client reads the inference protocol's errors.
    is_oip: bool,
    /// The page that may read the answer.
    sharing: Option<HeaderValue>,
    unread: Unread,
    observed: Option<&'a Observed>,
}

impl HttpEdge {
    /// Answers one request, whatever it is.
    ///
    /// hyper moves this future with each request, so it is kept small: what is seldom is boxed. `is_polled` says that
    /// the connection polls it when calls in hand are [aborted](Self::abort).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call it made and counts the request as abandoned.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: the request is 264 bytes")]
    fn answer<B: RequestBody + 'static>(
        self,
        mut request: Request<B>,
        origin: Option<Origin>,
        is_polled: bool,
    ) -> impl Future<Output = Response> + Send + 'static {
        async move {
            let begun = Instant::now();
            let inner = &*self.0;
            let marks = Marks::of(request.headers());
            let id = if NAMING { marks.id.and_then(RequestId::from_client) } else { None };
            let id = id.unwrap_or_else(|| inner.ids.make());
            let observed = Observed::new(&inner.config, inner.tracer.get(), begun, &id, &marks, &request);
            let open = Open(Some(&inner.metrics.abandoned));
            let version = request.version();
            let sharing = inner.gate.as_ref().and_then(|gate| gate.sharing(&request));

            let path = request.uri().path();
            let is_oip = oip::owns(path);
            let serving = inner.serving.get();
            let (route, way) = serving.map_or((None, Way::Route), |serving| serving.find(path));
            if let (Some(observed), Some(route)) = (&observed, &route) {
                observed.goes_to(route);
            }
            let log = &inner.config.access_log;
            let mut line = Line::begin(log, begun, &id, &request, origin, route.as_deref(), observed.as_deref());
            let mut holder = None;
            // What is left of the body, said before the request is given away, or else when it has been read.
            let (outcome, unread): (Outcome, _) = if let Some(early) =
                inner.early(&request, origin, &mut holder, line.as_mut())
            {
                coop::answered_at_once().await;
                (Ok(early), Unread::of(request.body()))
            } else {
                let around = |serving| inner.around(serving, &id, observed.as_deref(), holder.as_ref());
                match Goes::of(serving, route.as_ref(), way, is_oip, request.headers()) {
                    Goes::Starting => {
                        let answer = describe::while_starting(request.uri().path(), request.headers(), &inner.metrics);
                        (Ok(answer), Unread::of(request.body()))
                    }
                    Goes::Call(serving, route, way) => {
                        let outcome = {
                            let call = pin!(call::call(around(serving), route, way, &mut request));
                            inner.unless_aborted(pin!(catch_panic(call)), is_polled).await
                        };
                        (outcome, Unread::of(request.body()))
                    }
                    Goes::Calls(serving, route) => {
                        let unread = Unread::of(request.body());
                        (Ok(functions::stream::answer(around(serving), route, request.map(Body::new))), unread)
                    }
                    Goes::Models(serving) => {
                        let repository = inner.repository.get().map(|repository| &**repository);
                        let packing = Packing::new(request.headers().get(ACCEPT_ENCODING), &inner.config);
                        let outcome = {
                            let answer = async {
                                let answer =
                                    oip::answer(around(serving), &serving.models, repository, &mut request).await?;
                                Ok(packed(answer, &packing).await)
                            };
                            // Boxed, because this future is moved with each request, whosever it is.
                            inner.unless_aborted(pin!(catch_panic(Box::pin(answer).as_mut())), is_polled).await
                        };
                        (outcome, Unread::of(request.body()))
                    }
                    Goes::Page(serving) => {
                        coop::answered_at_once().await;
                        let unread = Unread::of(request.body());
                        let packing = Packing::new(request.headers().get(ACCEPT_ENCODING), &inner.config);
                        (catch_panic(pin!(serving.page(request.map(Body::new), origin, packing))).await, unread)
                    }
                }
            };
            open.answered();
            let (id, route, observed) = (&id, route.as_deref(), observed.as_deref());
            let answered = Answered { begun, version, id, route, is_oip, sharing, unread, observed };
            inner.finish(answered, line.as_mut(), outcome)
        }
    }
}

impl Serving {
    /// The route that a path leads to: as itself, or as a function.
    fn find(&self, path: &str) -> (Option<Arc<Route>>, Way) {
        match self.route(path) {
            Some(route) => (Some(route), Way::Route),
            None => (functions::name_of(path).and_then(|name| self.route(&name)), Way::Function),
        }
    }

    /// The user's route at this path. One that was added later and takes a path of the edge's own does not hide the page.
    fn route(&self, path: &str) -> Option<Arc<Route>> {
        self.client.route(path).filter(|route| !describe::is_reserved(route.name()))
    }

    /// Boxed for [`HttpEdge::answer`]'s sake.
    fn page(
        &self,
        mut request: Request<Body>,
        origin: Option<Origin>,
        packing: Packing,
    ) -> Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>> {
        if let Some(origin) = origin {
            request.extensions_mut().insert(origin);
        }
        let page = self.pages.clone().call(request);
        Box::pin(async move {
            let Ok(mut response) = page.await;
            match response.extensions_mut().remove::<ApiError>() {
                Some(error) => Err(error),
                None => Ok(packed(response, &packing).await),
            }
        })
    }
}

impl Inner {
    /// What becomes of a call, unless its time is over first. Where its connection polls it then, it only has to ask.
    async fn unless_aborted(&self, mut call: Pin<&mut impl Future<Output = Outcome>>, is_polled: bool) -> Outcome {
        let ended = if is_polled {
            poll_fn(|cx| match call.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if self.aborting.has_begun() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            })
            .await
        } else {
            // Boxed, because the wait would make every call's future larger.
            Box::pin(self.aborting.unless_begun(call)).await
        };
        ended.unwrap_or_else(|| Ok(Err(ApiError::ending())))
    }

    /// The answer to a request that goes no further than its head.
    fn early<B>(
        &self,
        request: &Request<B>,
        origin: Option<Origin>,
        holder: &mut Option<KeyHolder>,
        line: Option<&mut Line<'_>>,
    ) -> Option<Result<Response, ApiError>> {
        if let Err(error) = self.host_is_welcome(request, origin) {
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
                *holder = found;
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// One valid host, and on loopback one of this machine. Another program in which the edge is mounted does not tell
    /// which listener a request came by, so there it counts as loopback; it may have been made in process, too, and
    /// name no host.
    fn host_is_welcome<B>(&self, request: &Request<B>, origin: Option<Origin>) -> Result<(), ApiError> {
        match origin {
            Some(origin) if !origin.is_local => NamedHost::of(request).map(drop),
            Some(_) => self.doorstep.admit(request, NamedHost::of(request)?),
            None => self.doorstep.admit(request, NamedHost::if_any(request)?),
        }
    }

    fn around<'a>(
        &'a self,
        serving: &'a Serving,
        id: &'a RequestId,
        observed: Option<&'a Observed>,
        holder: Option<&'a KeyHolder>,
    ) -> Around<'a> {
        Around {
            client: &serving.client,
            config: &self.config,
            metrics: &self.metrics,
            aborting: &self.aborting,
            id,
            recorder: observed.and_then(Observed::recorder),
            is_explained: observed.is_some_and(Observed::explains),
            span: observed.and_then(Observed::span),
            has_trace: observed.is_some(),
            holder,
        }
    }

    /// The answer with what every answer has: its place in the metrics and in the log, and the headers that say whose it is.
    fn finish(&self, answered: Answered<'_>, line: Option<&mut Line<'_>>, outcome: Outcome) -> Response {
        let Answered { begun, version, id, route, is_oip, sharing, unread, observed } = answered;
        let error = outcome.as_ref().ok().and_then(|answer| answer.as_ref().err());
        let timing = error.and_then(ApiError::timing);
        if let Some(error) = error
            && let Some(route) = error.route().or_else(|| route.map(Route::name))
        {
            self.metrics.answered_with(route, error.status());
        }
        let mut response = self.rendered(outcome, id, route.map(Route::name), is_oip);
        self.metrics.responded(response.status());
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        if let Some(gate) = &self.gate {
            gate.mark(sharing, headers);
        }
        if is_error {
            headers.insert(SERVER_TIMING, error_timing(timing.as_ref(), begun.elapsed()));
            if unread.ends_the_connection(version) {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        if let Some(line) = line {
            line.end(&response);
        }
        if let Some(observed) = observed {
            observed.answered(&mut response);
        }
        if NAMING {
            response.headers_mut().insert(X_REQUEST_ID, id.to_header());
        }
        response
    }

    /// What became of a request, in the words that its client reads; what its owner should know is told in the log.
    fn rendered(&self, outcome: Outcome, id: &RequestId, route: Option<&str>, is_oip: bool) -> Response {
        let error = match outcome {
            Ok(Ok(response)) => {
                tracing::debug!(request_id = id.as_str(), status = response.status().as_u16(), "answered");
                return response;
            }
            Ok(Err(error)) => {
                error.tell(id.as_str(), route);
                error
            }
            Err(_told_by_the_panic_hook) => {
                self.metrics.panics.inc();
                tracing::error!(request_id = id.as_str(), route, "a request panicked in the http edge");
                ApiError::panicked()
            }
        };
        if is_oip { error.into_protocol_answer() } else { error.into_answer(id.as_str()) }
    }
}

impl Respond for HttpEdge {
    fn respond(self, request: Request<Received>, origin: Origin) -> impl Future<Output = Response> + Send + 'static {
        // Those of HTTP/2 are tasks of their own.
        let is_polled = request.version() != Version::HTTP_2;
        self.answer(request, Some(origin), is_polled)
    }

    fn abort(&self) {
        Self::abort(self);
    }

    fn aborting(&self) -> Option<&Closing> {
        Some(&self.0.aborting)
    }
}

impl<B> Service<Request<B>> for HttpEdge
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
        let origin = request.extensions().get::<Origin>().copied();
        Box::pin(async move { Ok(edge.answer(request, origin, false).await) })
    }
}

/// A request without an answer yet, and where it is counted when it is dropped as such: its client has left.
struct Open<'a>(Option<&'a Counter>);

impl Open<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.0 {
            abandoned.inc();
        }
    }
}
