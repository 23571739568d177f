//! The span of one request and the spans of its stages.
//!
//! The edge and the body of a streamed response share it. It is written when the last of them drops it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use callboard_core::Instant;
use callboard_core::edge::Route;
use callboard_core::timeline::{BatchObserver, Recorder, SpanId, StageRun, StageVisit, Timeline};

use super::{Attribute, Span, Tracer, WallClock, batch_attributes, error_of, stage_attributes};
use crate::TraceContext;

/// A sampled request.
#[derive(Debug)]
pub struct RequestSpan {
    tracer: Arc<Tracer>,
    context: TraceContext,
    recorder: Recorder,
    /// `None` for a method that HTTP does not define: such a name may be long.
    method: Option<&'static str>,
    path: Box<str>,
    request_id: Box<str>,
    route: OnceLock<Arc<Route>>,
    status: OnceLock<u16>,
}

impl RequestSpan {
    /// The span of a request that was sampled into `context`.
    #[must_use]
    pub fn new(
        tracer: &Arc<Tracer>,
        context: TraceContext,
        started: Instant,
        method: &str,
        path: &str,
        request_id: &str,
    ) -> Arc<Self> {
        let observer = Arc::clone(tracer) as Arc<dyn BatchObserver>;
        Arc::new(Self {
            tracer: Arc::clone(tracer),
            context,
            recorder: Recorder::for_span(started, context.id(), observer),
            method: METHODS.into_iter().find(|known| *known == method),
            path: path.into(),
            request_id: request_id.into(),
            route: OnceLock::new(),
            status: OnceLock::new(),
        })
    }

    /// The recorder of its calls.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Sets the route that it calls.
    pub fn set_route(&self, route: &Arc<Route>) {
        let _ = self.route.set(Arc::clone(route));
    }

    /// Sets the status of its response.
    pub fn set_status(&self, status: u16) {
        let _ = self.status.set(status);
    }

    /// The span of the request, then the spans of its stages. Empty for pages, which machines request every second.
    fn spans(&self) -> Vec<Span> {
        let timeline = self.recorder.timeline(Instant::now());
        if self.method != Some("POST") && self.route.get().is_none() && timeline.visits.is_empty() {
            return Vec::new();
        }
        let (id, parent) = (self.context.id(), self.context.parent());
        let mut spans = call_spans(id, parent, self.name(), self.recorder.began(), &timeline);
        self.describe(&mut spans[0]);
        spans
    }

    /// `POST /digits`; without a route the method alone, because clients choose paths; `HTTP` for an unknown method.
    fn name(&self) -> String {
        let method = self.method.unwrap_or("HTTP");
        match self.route.get() {
            Some(route) => format!("{method} {}", route.name()),
            None => method.to_owned(),
        }
    }

    /// Names are those of OpenTelemetry's conventions for HTTP servers, if they have one.
    fn describe(&self, span: &mut Span) {
        let status = self.status.get().copied().unwrap_or(CLIENT_LEFT);
        let mut attributes: Vec<(&'static str, Attribute)> = vec![
            ("http.request.method", self.method.unwrap_or("_OTHER").into()),
            ("url.path", self.path.to_string().into()),
            ("http.response.status_code", u64::from(status).into()),
            ("callboard.request_id", self.request_id.to_string().into()),
        ];
        attributes.extend(self.route.get().map(|route| ("http.route", route.name().to_owned().into())));
        span.error = (status >= 500).then(|| status.to_string().into());
        span.attributes = attributes;
    }
}

/// The span of a call, then the spans of its stages.
pub(super) fn call_spans(
    id: SpanId,
    parent: Option<u64>,
    name: String,
    began: Instant,
    timeline: &Timeline,
) -> Vec<Span> {
    let started = WallClock::now().at(began);
    let part = |name: String, from: Duration, length: Duration| Span {
        id: SpanId { trace: id.trace, span: SpanId::new_span() },
        parent: Some(id.span),
        name,
        is_server: false,
        start: started + from,
        end: started + from + length,
        attributes: Vec::new(),
        links: Vec::new(),
        omitted_links: 0,
        error: None,
    };
    let mut spans = vec![Span { id, parent, is_server: true, ..part(name, Duration::ZERO, timeline.total) }];
    for visit in &timeline.visits {
        for (number, run) in visit.runs.iter().enumerate() {
            spans.extend(run_spans(visit, number, run, &part));
        }
        if visit.is_remote {
            let left = visit.left.unwrap_or(timeline.total);
            let span = part(format!("remote {}", visit.stage), visit.arrived, left.saturating_sub(visit.arrived));
            let mut attributes = stage_attributes(visit.stage.as_str());
            attributes.extend(visit.remote.as_ref().map(|there| ("callboard.node", there.node.clone().into())));
            spans.push(Span { attributes, ..span });
        }
    }
    spans
}

/// The methods that HTTP defines.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];

/// nginx's status for a client that left before the response.
const CLIENT_LEFT: u16 = 499;

fn run_spans(
    visit: &StageVisit,
    number: usize,
    run: &StageRun,
    part: &impl Fn(String, Duration, Duration) -> Span,
) -> Vec<Span> {
    let stage = visit.stage.as_str();
    let queue = part(format!("queue {stage}"), run.queued, run.queue);
    let mut attributes = stage_attributes(stage);
    attributes.push(("callboard.run", number.into()));
    let queue_error = if run.compute.is_none() { error_of(run.end) } else { None };
    let mut spans = vec![Span { attributes: attributes.clone(), error: queue_error, ..queue }];
    if let (Some(batch_wait), Some(compute), Some(batch)) = (run.batch_wait, run.compute, run.batch) {
        attributes.extend(batch_attributes(&batch));
        attributes.extend(run.end.map(|end| ("callboard.run.end", end.as_str().into())));
        let span = part(format!("compute {stage}"), run.queued + run.queue + batch_wait, compute);
        let links = batch.span.into_iter().collect();
        spans.push(Span { attributes, links, error: error_of(run.end), ..span });
    }
    spans
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let spans = self.spans();
        if !spans.is_empty() {
            self.tracer.put(spans);
        }
    }
}
