//! The span of one request and those of its stages, from its head until nobody works on its answer any more.
//!
//! It is held by whoever works on the request: the edge, and the body of a streamed answer. Whoever lets go of it last has it
//! written.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use callboard_core::Instant;
use callboard_core::edge::Route;
use callboard_core::timeline::{BatchObserver, Recorder, SpanId, StageRun, StageVisit, Timeline};

use super::{Anchor, Attribute, Span, Tracer, error_of, of_batch, of_stage};
use crate::request_id::RequestId;
use crate::trace::TraceContext;

/// A sampled request.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: Arc<Tracer>,
    context: TraceContext,
    recorder: Recorder,
    /// `None` for one that HTTP does not know: it may be as long as a head.
    method: Option<Method>,
    path: Box<str>,
    id: RequestId,
    route: OnceLock<Arc<Route>>,
    status: OnceLock<StatusCode>,
}

impl RequestSpan {
    pub(crate) fn new(
        tracer: &Arc<Tracer>,
        context: TraceContext,
        begun: Instant,
        method: &Method,
        path: &str,
        id: &RequestId,
    ) -> Arc<Self> {
        let observer = Arc::clone(tracer) as Arc<dyn BatchObserver>;
        Arc::new(Self {
            tracer: Arc::clone(tracer),
            context,
            recorder: Recorder::for_span(begun, context.id(), observer),
            method: known(method),
            path: path.into(),
            id: id.clone(),
            route: OnceLock::new(),
            status: OnceLock::new(),
        })
    }

    /// What its calls' record is written with.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn goes_to(&self, route: &Arc<Route>) {
        let _ = self.route.set(Arc::clone(route));
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        let _ = self.status.set(status);
    }

    /// The request's span first, then those of its stages. None for the pages that machines ask for every second.
    fn spans(&self) -> Vec<Span> {
        let timeline = self.recorder.timeline(Instant::now());
        if self.method != Some(Method::POST) && self.route.get().is_none() && timeline.visits.is_empty() {
            return Vec::new();
        }
        let (id, parent) = (self.context.id(), self.context.parent());
        let mut spans = Self::of_call(id, parent, self.name(), self.recorder.began(), &timeline);
        self.describe(&mut spans[0]);
        spans
    }

    /// The span of a call, and behind it those of its stages.
    pub(super) fn of_call(
        id: SpanId,
        parent: Option<u64>,
        name: String,
        began: Instant,
        timeline: &Timeline,
    ) -> Vec<Span> {
        let begun = Anchor::now().of(began);
        let part = |name: String, from: Duration, length: Duration| Span {
            id: SpanId { trace: id.trace, span: SpanId::new_span() },
            parent: Some(id.span),
            name,
            is_server: false,
            start: begun + from,
            end: begun + from + length,
            attributes: Vec::new(),
            links: Vec::new(),
            omitted_links: 0,
            error: None,
        };
        let mut spans = vec![Span { id, parent, is_server: true, ..part(name, Duration::ZERO, timeline.total) }];
        for visit in &timeline.visits {
            for (number, run) in visit.runs.iter().enumerate() {
                spans.extend(of_run(visit, number, run, &part));
            }
            if visit.is_remote {
                let left = visit.left.unwrap_or(timeline.total);
                let span = part(format!("remote {}", visit.stage), visit.arrived, left.saturating_sub(visit.arrived));
                let mut attributes = of_stage(visit.stage.as_str());
                attributes.extend(visit.remote.as_ref().map(|there| ("callboard.node", there.node.clone().into())));
                spans.push(Span { attributes, ..span });
            }
        }
        spans
    }

    /// `POST /digits`; without a route only the method, because paths are anybody's, and `HTTP` for methods that are.
    fn name(&self) -> String {
        let method = self.method.as_ref().map_or("HTTP", Method::as_str);
        match self.route.get() {
            Some(route) => format!("{method} {}", route.name()),
            None => method.to_owned(),
        }
    }

    /// The names are those of OpenTelemetry's conventions for HTTP servers, where they have one.
    fn describe(&self, span: &mut Span) {
        let status = self.status.get().map_or(CLIENT_LEFT, |status| status.as_u16());
        let mut attributes: Vec<(&'static str, Attribute)> = vec![
            ("http.request.method", self.method.as_ref().map_or("_OTHER", Method::as_str).to_owned().into()),
            ("url.path", self.path.to_string().into()),
            ("http.response.status_code", u64::from(status).into()),
            ("callboard.request_id", self.id.as_str().to_owned().into()),
        ];
        attributes.extend(self.route.get().map(|route| ("http.route", route.name().to_owned().into())));
        span.error = (status >= 500).then(|| status.to_string().into());
        span.attributes = attributes;
    }
}

fn known(method: &Method) -> Option<Method> {
    use Method as M;
    [M::GET, M::POST, M::PUT, M::DELETE, M::HEAD, M::OPTIONS, M::PATCH, M::TRACE, M::CONNECT]
        .into_iter()
        .find(|known| known == method)
}

/// nginx's word for "the client left before the answer".
const CLIENT_LEFT: u16 = 499;

fn of_run(
    visit: &StageVisit,
    number: usize,
    run: &StageRun,
    part: &impl Fn(String, Duration, Duration) -> Span,
) -> Vec<Span> {
    let stage = visit.stage.as_str();
    let queue = part(format!("queue {stage}"), run.queued, run.queue);
    let mut attributes = of_stage(stage);
    attributes.push(("callboard.run", number.into()));
    let ended_there = if run.compute.is_none() { error_of(run.end) } else { None };
    let mut spans = vec![Span { attributes: attributes.clone(), error: ended_there, ..queue }];
    if let (Some(batch_wait), Some(compute), Some(batch)) = (run.batch_wait, run.compute, run.batch) {
        attributes.extend(of_batch(&batch));
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
