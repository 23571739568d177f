//! The trace, the spans and the [timeline](super::timeline_header) of one request, if its client or the configuration
//! asks for any of them.
//!
//! A request has a trace if its client names one or if it is sampled. A log line alone starts none: an unrecorded trace
//! would be useless, and the request has an id.

use std::sync::Arc;

use axum::http::Request;
use axum::http::header::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use callboard_core::Instant;
use callboard_core::edge::Route;
use callboard_core::timeline::Recorder;
use callboard_telemetry::{RequestSpan, StackText, TraceContext, Tracer, truncate_for_log};

use super::timeline_header::{self, X_CALLBOARD_EXPLAIN, X_CALLBOARD_TIMELINE};
use crate::config::HttpConfig;
use crate::mounted::original_uri;
use crate::request_id::{RequestId, header_value};

/// The trace context of the W3C, in requests and responses.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The headers that name and trace a request.
#[derive(Debug, Default)]
pub(crate) struct TraceHeaders<'a> {
    /// `x-request-id`.
    pub(crate) id: Option<&'a HeaderValue>,
    trace: Option<&'a HeaderValue>,
    has_second_trace: bool,
    explain: Option<&'a HeaderValue>,
}

impl<'a> TraceHeaders<'a> {
    /// One pass over all names: their lengths tell most of them apart, and a hash costs more than several comparisons.
    pub(crate) fn read(headers: &'a HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "x-request-id" => found.id = found.id.or(Some(value)),
                "traceparent" => found.has_second_trace = found.trace.replace(value).is_some(),
                X_CALLBOARD_EXPLAIN => found.explain = found.explain.or(Some(value)),
                _ => {}
            }
        }
        found
    }

    /// The client's trace. Two headers are ambiguous and count as none.
    fn trace(&self) -> Option<TraceContext> {
        let header = self.trace.filter(|_| !self.has_second_trace)?;
        TraceContext::from_header(header.as_bytes())
    }
}

/// The recorded data of a request until its response. Boxed by its owner, because few requests have any.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    /// `None` if only a timeline was asked for.
    context: Option<TraceContext>,
    recorder: Option<Recorder>,
    /// The span of a sampled request.
    span: Option<Arc<RequestSpan>>,
    /// Whether the client asked for the timeline.
    is_explained: bool,
}

impl RequestTrace {
    /// `None` if neither the client nor the configuration asks for anything.
    pub(crate) fn new<B>(
        config: &HttpConfig,
        tracer: Option<&Arc<Tracer>>,
        start: Instant,
        id: &RequestId,
        headers: &TraceHeaders<'_>,
        request: &Request<B>,
    ) -> Option<Box<Self>> {
        let trace = headers.trace();
        let is_explained = timeline_header::is_requested(config, headers.explain, request.uri().query());
        let sampled = tracer.and_then(|tracer| Some((tracer, tracer.sample(trace)?)));
        if trace.is_none() && sampled.is_none() && !is_explained {
            return None;
        }
        let path = truncate_for_log(original_uri(request.uri(), request.extensions()).path());
        let span = sampled.map(|(tracer, context)| {
            RequestSpan::new(tracer, context, start, request.method().as_str(), path, id.as_str())
        });
        let context = sampled.map(|(_, context)| context).or(trace);
        let recorder = span.as_ref().map(|span| span.recorder().clone());
        let recorder = recorder.or_else(|| is_explained.then(|| Recorder::new(start)));
        Some(Box::new(Self { context, recorder, span, is_explained }))
    }

    /// The recorder of its calls.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Whether the client asked for the timeline.
    pub(crate) fn is_explained(&self) -> bool {
        self.is_explained
    }

    /// Shared with the body of a streamed response, which ends later.
    pub(crate) fn span(&self) -> Option<&Arc<RequestSpan>> {
        self.span.as_ref()
    }

    pub(crate) fn set_route(&self, route: &Arc<Route>) {
        if let Some(span) = &self.span {
            span.set_route(route);
        }
    }

    /// The id of the trace, as logs write it.
    pub(crate) fn trace_id(&self) -> Option<StackText<32>> {
        self.context.map(|context| context.trace_id())
    }

    /// Adds the headers that the client asked for.
    pub(crate) fn add_headers(&self, response: &mut Response) {
        if let Some(span) = &self.span {
            span.set_status(response.status().as_u16());
        }
        if let Some(context) = self.context {
            response.headers_mut().insert(TRACEPARENT, header_value(&context.header()));
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.is_explained) {
            response.headers_mut().insert(X_CALLBOARD_TIMELINE, timeline_header::header(recorder));
        }
    }
}
