//! The span of user code: it tells a user's own subscriber which call an event belongs to.
//!
//! A span of level info with the target [`TARGET`]. Its fields are computed only if a subscriber wants it.

use std::sync::Arc;

use tracing::{Span, info_span};

use super::erased::Item;
use crate::call::Flight;
use crate::id::{RouteName, StageName};

/// A separate target for filters such as `callboard::call=off`.
const TARGET: &str = "callboard::call";

/// The span of a run: `call` for one item, else `batch`.
pub(crate) fn for_run(stage: &StageName, replica: usize, items: &[Item]) -> Span {
    if let [item] = items {
        return info_span!(
            target: TARGET, parent: None, "call",
            route = item.flight.route().as_ref().map(RouteName::as_str),
            stage = stage.as_str(),
            replica,
            request_id = item.flight.request_id(),
        );
    }
    info_span!(target: TARGET, parent: None, "batch", stage = stage.as_str(), replica, entries = items.len())
}

/// The span of one item in a run of several, inside the span of the run.
pub(crate) fn for_member(stage: &StageName, flight: &Arc<Flight>) -> Span {
    info_span!(
        target: TARGET, "call",
        route = flight.route().as_ref().map(RouteName::as_str),
        stage = stage.as_str(),
        request_id = flight.request_id(),
    )
}
