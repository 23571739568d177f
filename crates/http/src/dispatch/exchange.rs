//! One request and its response: the facts that are known before any check, and the parts that every response has.

use std::future::ready;
use std::pin::Pin;

use axum::body::HttpBody;
use axum::http::header::{CONNECTION, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Request, StatusCode, Version};
use axum::response::Response;
use callboard_core::edge::{CaughtPanic, Route};
use callboard_core::{CallOptions, Deadline, Instant};

use super::destination::Target;
use super::{EdgeState, NOSNIFF, ServedNode};
use crate::call::RequestContext;
use crate::call::functions::CallStyle;
use crate::error::{ApiError, starting};
use crate::guard::KeyHolder;
use crate::listener::{CLOSE, PeerInfo, UnreadBody};
use crate::observe::log_line::PendingLogLine;
use crate::observe::metrics::ROUTES;
use crate::observe::request_trace::{RequestTrace, TraceHeaders};
use crate::observe::server_timing::{SERVER_TIMING, error_timing};
use crate::protocol::Protocol;
use crate::request::head::RequestHead;
use crate::request::request_fields::auth_request;
use crate::request_id::{HAS_REQUEST_IDS, RequestId, X_REQUEST_ID};

/// The result of a destination: a response, an error, or a panic.
pub(super) type Outcome = Result<Result<Response, ApiError>, CaughtPanic>;

/// A request whose head was read.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    edge: &'a EdgeState,
    start: Instant,
    version: Version,
    /// The client's, or a new one. Every layer names the request by it.
    id: RequestId,
    trace: Option<Box<RequestTrace>>,
    pub(super) target: Target<'a>,
    /// Whether the caller is sent the trace of an error.
    sends_traces: bool,
    /// The web page that may read the response (CORS).
    allowed_origin: Option<HeaderValue>,
}

impl<'a> Exchange<'a> {
    pub(super) fn begin<B>(edge: &'a EdgeState, request: &Request<B>, peer: Option<PeerInfo>) -> Self {
        let start = Instant::now();
        let headers = TraceHeaders::read(request.headers());
        let id = if HAS_REQUEST_IDS { headers.id.and_then(RequestId::from_client) } else { None };
        let id = id.unwrap_or_else(|| edge.ids.generate());
        let trace = RequestTrace::new(&edge.config, edge.tracer.get(), start, &id, &headers, request);
        let target = Target::find(edge, request);
        if let (Some(trace), Some(route)) = (&trace, &target.route) {
            trace.set_route(route);
        }
        let allowed_origin = edge.policy.as_ref().and_then(|policy| policy.allowed_origin(request));
        // The listener of a mounted edge is not known, and counts as open to others.
        let sends_traces = edge.config.error_traces.are_sent(peer.is_some_and(|peer| peer.is_local));
        Self { edge, start, version: request.version(), id, trace, target, sends_traces, allowed_origin }
    }

    /// The door that the request came by.
    fn door(&self) -> &'static str {
        self.target.protocol.map_or(ROUTES, Protocol::door)
    }

    fn route(&self) -> Option<&Route> {
        self.target.route.as_deref()
    }

    /// The record for the access log, if there is a log. Dropped before it is written, it has status 499.
    pub(super) fn log_line<B: HttpBody>(
        &self,
        request: &Request<B>,
        peer: Option<PeerInfo>,
    ) -> Option<PendingLogLine<'_>> {
        let config = &self.edge.config;
        let client = || peer.map(|peer| config.trusted_proxies.client(peer.address, request.headers()));
        PendingLogLine::begin(
            &config.access_log,
            self.start,
            &self.id,
            request,
            client,
            self.route(),
            self.trace.as_deref(),
        )
        .map(|line| line.by_door(self.target.protocol.map(Protocol::door)))
    }

    /// Asks the app who sends the request, within the time that its client waits.
    pub(super) fn ask_app<B>(
        &self,
        request: &Request<B>,
        peer: Option<PeerInfo>,
    ) -> Pin<Box<dyn Future<Output = Result<KeyHolder, ApiError>> + Send + '_>> {
        let callers = self.edge.policy.as_ref().and_then(|policy| policy.callers.as_ref());
        let Some((node, callers)) = self.target.node.zip(callers) else {
            return Box::pin(ready(Err(starting().into())));
        };
        let proxies = &self.edge.config.trusted_proxies;
        let client = peer.map(|peer| proxies.client(peer.address, request.headers()));
        let parts = (request.uri(), request.headers(), request.extensions());
        let mut asked = auth_request(request.method(), parts, client);
        if self.target.style == CallStyle::Asgi {
            // Else `%61dmin` would pass a rule for `admin`.
            asked.path = percent_encoding::percent_decode_str(&asked.path).decode_utf8_lossy().into_owned();
        }
        // The call itself refuses a head that cannot be read.
        let timeout = RequestHead::read(request.headers()).ok().and_then(|head| head.timeout);
        let deadline = timeout.map(|timeout| Deadline::after(self.start, timeout));
        let options = CallOptions::new().with_request_id(self.id.as_str());
        let options = deadline.into_iter().fold(options, CallOptions::with_deadline);
        Box::pin(callers.ask(node.client.clone(), asked, &self.id, options))
    }

    /// The context of its call.
    pub(super) fn context<'b>(&'b self, node: &'b ServedNode, key_holder: Option<&'b KeyHolder>) -> RequestContext<'b> {
        let (edge, trace) = (self.edge, self.trace.as_deref());
        RequestContext {
            client: &node.client,
            start: self.start,
            config: &edge.config,
            metrics: &edge.metrics,
            life: &edge.life,
            id: &self.id,
            recorder: trace.and_then(RequestTrace::recorder),
            is_explained: trace.is_some_and(RequestTrace::is_explained),
            span: trace.and_then(RequestTrace::span),
            has_trace: trace.is_some(),
            sends_traces: self.sends_traces,
            is_alone: false,
            key_holder,
        }
    }

    /// The response: rendered, counted and logged, with the headers that every response has.
    pub(super) fn respond(
        &self,
        outcome: Outcome,
        unread: UnreadBody,
        log_line: Option<PendingLogLine<'_>>,
    ) -> Response {
        let edge = self.edge;
        let error = outcome.as_ref().ok().and_then(|answer| answer.as_ref().err());
        let call_timing = error.and_then(ApiError::timing);
        self.count_error(error);
        let failed = error.and_then(ApiError::route).map(str::to_owned);
        let mut response = self.render(outcome);
        edge.metrics.responded(self.door(), response.status());
        let status = response.status();
        let is_error = status.is_client_error() || status.is_server_error();
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        if let Some(policy) = &edge.policy {
            policy.add_headers(self.allowed_origin.clone(), headers);
        }
        if is_error {
            headers.insert(SERVER_TIMING, error_timing(call_timing.as_ref(), self.start.elapsed()));
            // A client that is too slow for its own body stays so.
            let is_too_slow = status == StatusCode::REQUEST_TIMEOUT && self.version <= Version::HTTP_11;
            if is_too_slow || unread.ends_connection(self.version) {
                headers.insert(CONNECTION, CLOSE);
            }
        }
        if let Some(mut line) = log_line {
            line.end(&mut response, failed);
        }
        if let Some(trace) = &self.trace {
            trace.add_headers(&mut response);
        }
        if HAS_REQUEST_IDS {
            response.headers_mut().insert(X_REQUEST_ID, self.id.to_header());
            if let Some(header) = self.target.protocol.and_then(|protocol| protocol.request_id_header()) {
                response.headers_mut().insert(header, self.id.to_header());
            }
        }
        if self.version == Version::HTTP_2 {
            keep_out_of_the_table(response.headers_mut());
        }
        response
    }

    fn count_error(&self, error: Option<&ApiError>) {
        if let Some(error) = error
            && let Some(route) = error.route().or_else(|| self.route().map(Route::name))
        {
            self.edge.metrics.answered_with(self.door(), route, error.status());
        }
    }

    /// The outcome as a response in the form that its client reads. Errors on our side are logged.
    fn render(&self, outcome: Outcome) -> Response {
        let (id, route) = (self.id.as_str(), self.route().map(Route::name));
        let error = match outcome {
            Ok(Ok(response)) => {
                tracing::debug!(request_id = id, status = response.status().as_u16(), "answered");
                return response;
            }
            Ok(Err(error)) => {
                error.log(id, route);
                error
            }
            Err(_printed_by_the_panic_hook) => {
                self.edge.metrics.requests.panics.inc();
                tracing::error!(request_id = id, route, "a request panicked in the http edge");
                ApiError::panicked()
            }
        };
        match self.target.protocol {
            Some(protocol) => protocol.error_response(error),
            None => error.into_answer(id, self.sends_traces),
        }
    }
}

/// Values that no other response has are of no use in the table of headers of a connection: each one would push out
/// another, and h2 compares each new one with all of its name that are left.
fn keep_out_of_the_table(headers: &mut HeaderMap) {
    for name in [&X_REQUEST_ID, &SERVER_TIMING] {
        headers.get_mut(name).into_iter().for_each(|value| value.set_sensitive(true));
    }
}
