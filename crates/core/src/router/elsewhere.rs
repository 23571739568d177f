//! The routes of a node in another process, for code that runs isolated. Only that node knows its routes, so this
//! process takes every name for one and asks the node.

use std::sync::Arc;

use callboard_codec::DataType;

use super::route::{Route, RouteParts};
use crate::actor::AskFn;
use crate::error::{CallError, ErrorKind};
use crate::id::RouteIndex;
use crate::metrics::RouteMetrics;
use crate::pipeline::Graph;

/// The index of all these routes. No table has it.
pub(super) const INDEX: RouteIndex = RouteIndex(u32::MAX);

/// A route whose calls go to the node of their outer call.
pub(super) fn route(name: &str, metrics: RouteMetrics) -> Route {
    let called: Arc<str> = name.into();
    let ask: AskFn = {
        let called = Arc::clone(&called);
        Arc::new(move |input, flight| match flight.node_elsewhere() {
            Some(node) => node.calls.call(&called, input),
            None => Box::pin(std::future::ready(Err(no_outer_call()))),
        })
    };
    let parts = RouteParts::new(DataType::value(), DataType::value());
    Route::new(INDEX, 1, name.into(), parts, Graph::Ask { name: called, ask }, metrics)
}

fn no_outer_call() -> CallError {
    let message = "a replica in a process of its own calls its node within the call of an item only";
    CallError::new(ErrorKind::Unavailable, message)
}
