//! The span of a call that came by another door of the same node, and those of its stages: its caller's span is the parent.
//!
//! It is written when the last of those who work on the call lets go of it. What the call's caller was told is not known here: an
//! error is that of the last run.

use std::sync::Arc;

use callboard_core::Instant;
use callboard_core::timeline::{BatchObserver, CallTracer, Recorder, SpanId};

use super::{RequestSpan, Tracer, error_of};

/// Gives other doors a part in what the edge knows of tracing.
#[derive(Debug)]
pub(crate) struct OtherDoor(pub(crate) Arc<Tracer>);

impl CallTracer for OtherDoor {
    fn trace(&self, caller: SpanId, what: &str, now: Instant) -> Recorder {
        let (tracer, name) = (Arc::clone(&self.0), format!("CALL {what}"));
        let id = SpanId { trace: caller.trace, span: SpanId::new_span() };
        let observer = Arc::clone(&self.0) as Arc<dyn BatchObserver>;
        Recorder::with_on_complete(now, id, observer, move |timeline| {
            let mut spans = RequestSpan::of_call(id, Some(caller.span), name, now, &timeline);
            let last = timeline.visits.iter().flat_map(|visit| &visit.runs).last();
            spans[0].error = error_of(last.and_then(|run| run.end));
            spans[0].attributes.push(("rpc.system", "callboard".into()));
            tracer.put(spans);
        })
    }
}
