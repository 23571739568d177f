//! The spans of a call that came through another edge of the same node, below the caller's span.
//!
//! They are written when the last task that works on the call has finished. The outcome that the caller received is not
//! known here: the error is the one of the last run.

use std::sync::Arc;

use callboard_core::Instant;
use callboard_core::timeline::{BatchObserver, CallTracer, Recorder, SpanId};

use super::request::call_spans;
use super::{Tracer, error_of};

/// Records the calls of other edges of a node with the same tracer.
#[derive(Debug)]
pub struct CallSpans(Arc<Tracer>);

impl CallSpans {
    /// Hands the spans of calls to this tracer.
    #[must_use]
    pub fn new(tracer: Arc<Tracer>) -> Self {
        Self(tracer)
    }
}

impl CallTracer for CallSpans {
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder {
        let (tracer, name) = (Arc::clone(&self.0), format!("CALL {what}"));
        let id = SpanId { trace: caller.trace, span: SpanId::new_span() };
        let observer = Arc::clone(&self.0) as Arc<dyn BatchObserver>;
        Recorder::with_on_complete(now, id, observer, move |timeline| {
            let mut spans = call_spans(id, Some(caller.span), name, now, &timeline);
            let last = timeline.visits.iter().flat_map(|visit| &visit.runs).last();
            spans[0].error = error_of(last.and_then(|run| run.end));
            spans[0].attributes.push(("rpc.system", "callboard".into()));
            tracer.put(spans);
        })
    }
}
