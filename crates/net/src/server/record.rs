//! What the metrics and the access log of the node are told of each call.

use std::sync::Arc;

use callboard_codec::wire::{Call, FrameHead};
use callboard_core::edge::{AnswerObserver, AnsweredCall, CallEnd, Route};
use callboard_core::timeline::SpanId;
use callboard_core::{Instant, LocalClient};

use super::orders::ConnectedCaller;

/// The label `door` of this edge.
const DOOR: &str = "quic";

/// The digits of a trace's id in a `traceparent`, after its version.
const TRACE_ID: std::ops::Range<usize> = 3..35;

/// A call whose end is told. Dropped before it has ended, its caller has left.
pub(super) struct CallRecord {
    observer: Arc<dyn AnswerObserver>,
    caller: Arc<ConnectedCaller>,
    start: Instant,
    target: String,
    /// Whether the target is a route, and no stages or actor; and whether it is called as a function.
    is_route: bool,
    is_function: bool,
    route: Option<Arc<Route>>,
    request_id: String,
    trace_id: Option<String>,
    request_bytes: u64,
    bytes: u64,
    items: Option<u64>,
    has_ended: bool,
}

impl CallRecord {
    /// `None` if nothing of the node counts or logs its calls.
    pub(super) fn begin(
        node: &LocalClient,
        caller: &Arc<ConnectedCaller>,
        start: Instant,
        head: &FrameHead,
        call: &Call,
    ) -> Option<Self> {
        let observer = node.edge().answer_observer()?;
        let trace_id = SpanId::parse_traceparent(call.traceparent.as_bytes()).and_then(|_| {
            let id = call.traceparent.get(TRACE_ID)?;
            Some(id.to_owned())
        });
        Some(Self {
            observer,
            caller: Arc::clone(caller),
            start,
            target: if call.stages.len() > 1 { call.stages.join(" → ") } else { call.target().to_owned() },
            is_route: call.ask.is_none() && call.stages.is_empty(),
            is_function: call.function,
            route: None,
            request_id: call.request_id.clone(),
            trace_id,
            request_bytes: head.body_bytes as u64,
            bytes: 0,
            items: None,
            has_ended: false,
        })
    }

    /// Names the route that is called.
    pub(super) fn set_route(&mut self, route: Option<Arc<Route>>) {
        self.route = route;
    }

    /// Names the route of a call that was refused before its route was known.
    pub(super) fn find_route(&mut self, node: &LocalClient) {
        let found = if self.is_function { node.find_function(&self.target).ok() } else { node.route(&self.target) };
        self.route = found.filter(|route| self.is_route && !route.is_private());
    }

    /// The call answers with a stream.
    pub(super) fn streams(&mut self) {
        self.items = Some(0);
    }

    /// Counts an encoded output.
    pub(super) fn add_output(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.items = self.items.map(|items| items + 1);
    }

    /// The call has ended so.
    pub(super) fn end(mut self, end: CallEnd<'_>) {
        self.tell(end);
    }

    fn tell(&mut self, end: CallEnd<'_>) {
        self.has_ended = true;
        let has_answer = self.items.is_some() || matches!(end, CallEnd::Answered);
        self.observer.answered(&AnsweredCall {
            door: DOOR,
            target: &self.target,
            route: self.route.as_deref().map(Route::name),
            end,
            elapsed: self.start.elapsed(),
            request_bytes: self.request_bytes,
            bytes: has_answer.then_some(self.bytes),
            items: self.items,
            client: Some(self.caller.address_octets()),
            caller: Some(self.caller.name()).filter(|name| !name.is_empty()),
            request_id: Some(self.request_id.as_str()).filter(|id| !id.is_empty()),
            trace_id: self.trace_id.as_deref(),
        });
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tell(CallEnd::CallerLeft);
        }
    }
}
