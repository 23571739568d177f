//! One line per request, for those who want to know who asked for what and what became of it.
//!
//! A line is an event of `tracing` at level `INFO` under the target `callboard_http::access`, with everything as fields. It
//! has no header, no query and no body, so that no secret gets into it; of a key it has the name.
//!
//! The same remembers a request's record, where somebody wants one; see [`explain`](crate::explain).
//!
//! A request whose client **left** before the answer has a line with status 499. A **streamed** answer has its line when it begins.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use callboard_core::{Instant, Recorder, Route};

use crate::accept::Origin;
use crate::ascii::Ascii;
use crate::config::HttpConfig;
use crate::explain::{self, X_CALLBOARD_TIMELINE};
use crate::request_id::RequestId;
use crate::server_timing::SERVER_TIMING;
use crate::spans::{RequestSpan, Tracer};
use crate::trace::{TRACEPARENT, TraceContext};

/// What is remembered of a request until its answer, where somebody wants to know. Boxed by its owner: it is seldom, or the
/// price of a line.
#[derive(Debug)]
pub(crate) struct Observed {
    begun: Instant,
    id: RequestId,
    /// Not there where nobody asked for more than a timeline.
    trace: Option<TraceContext>,
    /// Not there where only the trace is passed on.
    line: Option<Line>,
    recorder: Option<Recorder>,
    /// Where it is sampled.
    span: Option<Arc<RequestSpan>>,
    /// The client wants to read the record.
    explains: bool,
}

#[derive(Debug)]
struct Line {
    method: Method,
    path: Box<str>,
    client: Option<IpAddr>,
    request_bytes: Option<u64>,
    route: Option<Arc<Route>>,
    key: Option<Box<str>>,
}

impl Observed {
    /// `None` where neither the client nor the configuration wants to know anything.
    pub(crate) fn new<B: HttpBody>(
        config: &HttpConfig,
        tracer: Option<&Arc<Tracer>>,
        begun: Instant,
        id: &RequestId,
        request: &Request<B>,
        origin: Option<Origin>,
    ) -> Option<Box<Self>> {
        let trace = request.headers().get(TRACEPARENT).and_then(TraceContext::from_client);
        let explains = explain::is_wanted(config, request);
        let sampled = tracer.and_then(|tracer| Some((tracer, tracer.sample(trace)?)));
        if trace.is_none() && sampled.is_none() && !config.access_log && !explains {
            return None;
        }
        let path = shortened(request.uri().path());
        let span =
            sampled.map(|(tracer, context)| RequestSpan::new(tracer, context, begun, request.method(), path, id));
        let trace = sampled.map(|(_, context)| context).or(trace);
        let trace = trace.or_else(|| config.access_log.then(TraceContext::new));
        let line = config.access_log.then(|| Line {
            method: request.method().clone(),
            path: path.into(),
            client: origin.map(|origin| origin.client),
            request_bytes: request.body().size_hint().exact(),
            route: None,
            key: None,
        });
        let recorder = span.as_ref().map(|span| span.recorder().clone());
        let recorder = recorder.or_else(|| explains.then(|| Recorder::new(begun)));
        Some(Box::new(Self { begun, id: id.clone(), trace, line, recorder, span, explains }))
    }

    /// What its call's record is written with.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        self.recorder.clone()
    }

    /// For whoever works on after the answer has begun.
    pub(crate) fn span(&self) -> Option<Arc<RequestSpan>> {
        self.span.clone()
    }

    /// The route that it goes to.
    pub(crate) fn goes_to(&mut self, route: &Arc<Route>) {
        if let Some(line) = &mut self.line {
            line.route = Some(Arc::clone(route));
        }
        if let Some(span) = &self.span {
            span.goes_to(route);
        }
    }

    /// The name of the key that it came with.
    pub(crate) fn came_with(&mut self, key: &str) {
        if let Some(line) = &mut self.line {
            line.key = Some(key.into());
        }
    }

    /// Writes the line, and what the client is told.
    pub(crate) fn answered(&mut self, response: &mut Response) {
        let bytes = response.body().size_hint().exact();
        if let Some(span) = &self.span {
            span.answered(response.status());
        }
        if let Some(line) = self.line.take() {
            self.write(&line, response.status(), bytes, response.headers());
        }
        if let Some(trace) = self.trace {
            response.headers_mut().insert(TRACEPARENT, trace.to_header());
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.explains) {
            response.headers_mut().insert(X_CALLBOARD_TIMELINE, explain::header(recorder));
        }
    }

    fn write(&self, line: &Line, status: StatusCode, bytes: Option<u64>, headers: &HeaderMap) {
        let trace_id = self.trace.map(|trace| trace.trace_id());
        tracing::info!(
            target: "callboard_http::access",
            method = line.method.as_str(),
            path = &*line.path,
            route = line.route.as_ref().map(|route| route.name()),
            status = status.as_u16(),
            milliseconds = milliseconds(self.begun),
            timing = headers.get(SERVER_TIMING).and_then(|timing| timing.to_str().ok()),
            request_bytes = line.request_bytes,
            bytes,
            client = line.client.as_ref().map(tracing::field::display),
            key = line.key.as_deref(),
            request_id = self.id.as_str(),
            trace_id = trace_id.as_ref().map(Ascii::as_str),
        );
    }
}

/// The client has left.
impl Drop for Observed {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            let left = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
            self.write(&line, left, None, &HeaderMap::new());
        }
    }
}

/// With microseconds behind the point.
fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_micros() as f64 / 1000.0
}

/// Somebody who is looking for something may ask for anything.
fn shortened(path: &str) -> &str {
    match path.char_indices().nth(MAX_PATH_CHARS) {
        Some((end, _)) => &path[..end],
        None => path,
    }
}

const MAX_PATH_CHARS: usize = 200;
