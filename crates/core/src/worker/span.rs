//! The span of user code: by it a subscriber of the user's own knows which call an event belongs to.
//!
//! It is a span of level info with the target [`TARGET`]. Its fields are found only where a subscriber wants it.

use std::sync::Arc;

use tracing::{Span, info_span};

use super::erased::Item;
use crate::call::Flight;
use crate::id::{RouteName, StageName};

/// A filter with a target of its own, such as `callboard::call=off`, tells these spans from everything else.
const TARGET: &str = "callboard::call";

/// The span of a run: `call` where it has one item, else `batch`.
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

/// The span of one item in a run of several, inside that of the run.
pub(crate) fn for_member(stage: &StageName, flight: &Arc<Flight>) -> Span {
    info_span!(
        target: TARGET, "call",
        route = flight.route().as_ref().map(RouteName::as_str),
        stage = stage.as_str(),
        request_id = flight.request_id(),
    )
}
