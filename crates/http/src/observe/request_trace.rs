//! What is remembered of a request beside its line, where somebody asks: its place in a trace, its spans, its
//! [timeline](crate::observe::timeline_header).
//!
//! A request has a trace where its client names one, or where it is sampled. Nothing begins one for a line of the log alone: a trace
//! that nobody records leads nowhere, and the request has an id.

use std::sync::Arc;

use axum::http::Request;
use axum::http::header::{HeaderMap, HeaderValue};
use axum::response::Response;
use callboard_core::{Instant, Recorder, Route};

use crate::ascii::Ascii;
use crate::config::HttpConfig;
use crate::observe::timeline_header::{self, X_CALLBOARD_EXPLAIN, X_CALLBOARD_TIMELINE};
use crate::request_id::RequestId;
use crate::spans::{RequestSpan, Tracer};
use crate::trace::{TRACEPARENT, TraceContext};

/// What a head says of how its request is to be known and observed.
#[derive(Debug, Default)]
pub(crate) struct Marks<'a> {
    /// `x-request-id`.
    pub(crate) id: Option<&'a HeaderValue>,
    trace: Option<&'a HeaderValue>,
    /// There is a second one.
    has_other_trace: bool,
    explain: Option<&'a HeaderValue>,
}

impl<'a> Marks<'a> {
    /// By one look at all names: most of them are told apart by their length, and the hash of a name costs more than several of those.
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut marks = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "x-request-id" => marks.id = marks.id.or(Some(value)),
                "traceparent" => marks.has_other_trace = marks.trace.replace(value).is_some(),
                X_CALLBOARD_EXPLAIN => marks.explain = marks.explain.or(Some(value)),
                _ => {}
            }
        }
        marks
    }

    /// The client's trace. Of two nobody knows which is meant.
    fn trace(&self) -> Option<TraceContext> {
        self.trace.filter(|_| !self.has_other_trace).and_then(TraceContext::from_client)
    }
}

/// What is remembered of a request until its answer, where somebody wants to know. Boxed by its owner: it is seldom.
#[derive(Debug)]
pub(crate) struct Observed {
    /// Not there where nobody asked for more than a timeline.
    trace: Option<TraceContext>,
    recorder: Option<Recorder>,
    /// Where it is sampled.
    span: Option<Arc<RequestSpan>>,
    /// The client wants to read the record.
    explains: bool,
}

impl Observed {
    /// `None` where neither the client nor the configuration wants to know anything.
    pub(crate) fn new<B>(
        config: &HttpConfig,
        tracer: Option<&Arc<Tracer>>,
        begun: Instant,
        id: &RequestId,
        marks: &Marks<'_>,
        request: &Request<B>,
    ) -> Option<Box<Self>> {
        let trace = marks.trace();
        let explains = timeline_header::is_wanted(config, marks.explain, request.uri().query());
        let sampled = tracer.and_then(|tracer| Some((tracer, tracer.sample(trace)?)));
        if trace.is_none() && sampled.is_none() && !explains {
            return None;
        }
        let path = shortened(request.uri().path());
        let span =
            sampled.map(|(tracer, context)| RequestSpan::new(tracer, context, begun, request.method(), path, id));
        let trace = sampled.map(|(_, context)| context).or(trace);
        let recorder = span.as_ref().map(|span| span.recorder().clone());
        let recorder = recorder.or_else(|| explains.then(|| Recorder::new(begun)));
        Some(Box::new(Self { trace, recorder, span, explains }))
    }

    /// What its call's record is written with.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// The client wants to read it.
    pub(crate) fn explains(&self) -> bool {
        self.explains
    }

    /// For whoever works on after the answer has begun.
    pub(crate) fn span(&self) -> Option<&Arc<RequestSpan>> {
        self.span.as_ref()
    }

    /// The route that it goes to.
    pub(crate) fn goes_to(&self, route: &Arc<Route>) {
        if let Some(span) = &self.span {
            span.goes_to(route);
        }
    }

    /// Which trace it has, as logs write it.
    pub(crate) fn trace_id(&self) -> Option<Ascii<32>> {
        self.trace.map(|trace| trace.trace_id())
    }

    /// Writes what the client is told.
    pub(crate) fn answered(&self, response: &mut Response) {
        if let Some(span) = &self.span {
            span.answered(response.status());
        }
        if let Some(trace) = self.trace {
            response.headers_mut().insert(TRACEPARENT, trace.to_header());
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| self.explains) {
            response.headers_mut().insert(X_CALLBOARD_TIMELINE, timeline_header::header(recorder));
        }
    }
}

/// Somebody who is looking for something may ask for anything.
const MAX_CHARS: usize = 200;

/// As much of what clients write as logs and spans have.
pub(crate) fn shortened(text: &str) -> &str {
    // As many bytes are at most as many characters.
    if text.len() <= MAX_CHARS {
        return text;
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
