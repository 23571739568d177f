//! The context of a call: its request, and the edge that makes it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::http::request::Parts;
use axum::response::Response;
use callboard_core::edge::Route;
use callboard_core::timeline::Recorder;
use callboard_core::{CallOptions, Deadline, Instant, LocalClient};
use callboard_telemetry::{RequestSpan, TraceContext};

use super::functions::CallStyle;
use super::{RouteOutputs, call};
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::guard::{KeyHolder, check_named_origin, check_origin};
use crate::observe::metrics::EdgeMetrics;
use crate::observe::request_trace::TRACEPARENT;
use crate::request::head::RequestHead;
use crate::request::request_fields::{self, RequestParts};
use crate::request_id::{HAS_REQUEST_IDS, RequestId};
use crate::respond::ResponseCompression;
use crate::respond::stream::{StreamContext, StreamForm};
use crate::upgrade::{self, EdgeLife, Upgrade};

/// The edge and the request of a call.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The node.
    pub client: &'a LocalClient,
    /// The time at which the head was read. Timeouts count from here.
    pub start: Instant,
    /// The limits of the edge.
    pub config: &'a HttpConfig,
    /// The counters of the edge.
    pub metrics: &'a EdgeMetrics,
    /// How the edge ends.
    pub life: &'a Arc<EdgeLife>,
    /// The id of the request.
    pub id: &'a RequestId,
    /// The recorder of its calls, if it has one.
    pub recorder: Option<&'a Recorder>,
    /// Whether the client asked for the timeline.
    pub is_explained: bool,
    /// The span of a sampled request.
    pub span: Option<&'a Arc<RequestSpan>>,
    /// Whether the client may have named a trace.
    pub has_trace: bool,
    /// Whether its caller is sent the trace of an error.
    pub sends_traces: bool,
    /// Whether it makes one call alone in its task.
    pub is_alone: bool,
    /// The owner of its API key, or the caller that the app has named, if one is required.
    pub key_holder: Option<&'a KeyHolder>,
}

/// What calls say of the request that makes them.
#[derive(Clone, Copy, Debug)]
pub struct CallOrigin<'a> {
    /// The id of the request.
    pub id: &'a RequestId,
    /// The recorder of the calls, if they have one.
    pub recorder: Option<&'a Recorder>,
    /// Whether the client may have named a trace.
    pub has_trace: bool,
    /// The owner of the API key, or the caller that the app has named, if one is required.
    pub key_holder: Option<&'a KeyHolder>,
}

impl CallOrigin<'_> {
    /// The options of a call with this deadline, and the priority and session of its head.
    ///
    /// # Errors
    ///
    /// What the route reads of the request is too large, or in a query parameter twice.
    pub fn call_options(
        self,
        route: &Route,
        request: RequestParts<'_>,
        deadline: Deadline,
        head: &RequestHead<'_>,
    ) -> Result<CallOptions, ApiError> {
        let options = CallOptions::new().with_deadline(deadline);
        let options = with_head(options, head);
        self.with_request(options, route, request)
    }

    /// The same options with the parts of the request for the code of the route: its id, its caller, its trace, and the
    /// fields that the route reads.
    fn with_request(
        self,
        options: CallOptions,
        route: &Route,
        request: RequestParts<'_>,
    ) -> Result<CallOptions, ApiError> {
        let mut options = self.recorder.cloned().into_iter().fold(options, CallOptions::with_recorder);
        if HAS_REQUEST_IDS {
            options = options.with_request_id(self.id.as_str());
        }
        if let Some(holder) = self.key_holder {
            options = holder.add_to(options);
        }
        if self.has_trace
            && let Some(parent) = request.1.get(TRACEPARENT)
            && TraceContext::from_header(parent.as_bytes()).is_some()
        {
            options = options.with_traceparent(parent.to_str().unwrap_or_default());
        }
        match route.request_fields() {
            None => Ok(options),
            Some(fields) => request_fields::add(options, fields, request),
        }
    }
}

impl<'a> RequestContext<'a> {
    /// What its calls say of the request.
    #[must_use]
    pub fn origin(self) -> CallOrigin<'a> {
        let Self { id, recorder, has_trace, key_holder, .. } = self;
        CallOrigin { id, recorder, has_trace, key_holder }
    }

    /// The options of a call with this deadline, and the priority and session of its head.
    ///
    /// # Errors
    ///
    /// As [`CallOrigin::call_options`].
    pub fn call_options(
        self,
        route: &Route,
        request: RequestParts<'_>,
        deadline: Deadline,
        head: &RequestHead<'_>,
    ) -> Result<CallOptions, ApiError> {
        self.origin().call_options(route, request, deadline, head)
    }

    /// These options with the parts of the request for the code of the route.
    pub(crate) fn with_request(
        self,
        options: CallOptions,
        route: &Route,
        request: RequestParts<'_>,
    ) -> Result<CallOptions, ApiError> {
        self.origin().with_request(options, route, request)
    }

    /// Calls a route with this request, as a request to its path does. A protocol has its own way to name routes.
    ///
    /// # Errors
    ///
    /// The request is refused, or the call fails.
    pub async fn call_route(self, route: &Arc<Route>, mut request: Request<Body>) -> Result<Response, ApiError> {
        call(self, route, CallStyle::Route, &mut request).await
    }

    /// Begins a call of this route with this request, whose outputs follow.
    ///
    /// # Errors
    ///
    /// The request is refused.
    pub async fn stream_route(self, route: &Arc<Route>, request: Request<Body>) -> Result<RouteOutputs, ApiError> {
        RouteOutputs::begin(self, route, request).await
    }

    /// The upgrade that a request asks for, if it is one of `names` (in lowercase); of several the client's first
    /// choice. Without one the request is answered as any other. See [`Upgrade`].
    ///
    /// # Errors
    ///
    /// 429 if half of all connections are upgraded. 403 if a web page asks that is neither the node's own nor in
    /// [`cors`](HttpConfig::cors): browsers let any page open a WebSocket, without a preflight.
    pub fn upgrade(self, head: &Parts, names: &[&'static str]) -> Result<Option<Upgrade>, ApiError> {
        let offered = |asked: &str| names.iter().copied().find(|name| asked.eq_ignore_ascii_case(name));
        let Some(name) = upgrade::asked(&head.headers, &head.extensions).find_map(offered) else { return Ok(None) };
        check_origin(head, self.config.cors.as_ref())?;
        self.life.upgrade(name).map(Some)
    }

    /// Refuses a request that a page of another site makes: a page may call only if it is in
    /// [`cors`](HttpConfig::cors), or the node's own, at an address or at one of its [`hosts`](HttpConfig::hosts). For
    /// protocols that demand it on every listener, not on loopback alone.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn check_page(self, head: &Parts) -> Result<(), ApiError> {
        check_named_origin(head, self.config.cors.as_ref(), &self.config.hosts)
    }

    /// The part that a streamed response keeps.
    pub(crate) fn stream_context(
        self,
        form: StreamForm,
        route: &Route,
        compression: &ResponseCompression,
        deadline: Deadline,
    ) -> StreamContext {
        StreamContext {
            form,
            client: self.client.clone(),
            deadline,
            life: Arc::clone(self.life),
            id: self.id.clone(),
            span: self.span.cloned(),
            explained: self.recorder.filter(|_| self.is_explained).cloned(),
            route: route.name().to_owned(),
            abandoned: self.metrics.requests.abandoned.clone(),
            panics: self.metrics.requests.panics.clone(),
            heartbeat: self.config.stream_heartbeat,
            sends_traces: self.sends_traces,
            coding: compression.for_stream(),
        }
    }
}

/// The priority and the session that a head asks for.
pub(crate) fn with_head(options: CallOptions, head: &RequestHead<'_>) -> CallOptions {
    let options = head.priority.into_iter().fold(options, CallOptions::with_priority);
    head.session.into_iter().fold(options, CallOptions::with_session_key)
}
