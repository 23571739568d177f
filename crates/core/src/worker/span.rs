//! The spans of user code: they tell a user's own subscriber which call an event belongs to.
//!
//! Spans of level info with the target [`TARGET`]. Their fields are computed only if a subscriber wants them. The span
//! of a call is below the span in which its caller made the call. A run for several calls has no caller's span above
//! it, but follows from those in its own subscriber: the id of a span means nothing to another one.

use std::sync::Arc;

use tracing::dispatcher::with_default;
use tracing::span::Id;
use tracing::{Level, Span, info_span, level_enabled};

use super::erased::Item;
use crate::call::Flight;
use crate::id::{RouteName, StageName};

/// A separate target for filters such as `callboard::call=off`.
const TARGET: &str = "callboard::call";

/// The span of a run: `call` for one item, else `batch`.
pub(crate) fn for_run(stage: &StageName, replica: usize, items: &[Item]) -> Span {
    if !level_enabled!(Level::INFO) {
        return Span::none();
    }
    let [item] = items else {
        let batch =
            info_span!(target: TARGET, parent: None, "batch", stage = stage.as_str(), replica, entries = items.len());
        follow(&batch, items.iter().filter_map(|item| item.flight.caller_span()));
        return batch;
    };
    below_caller(&item.flight, None, |parent| {
        info_span!(
            target: TARGET, parent: parent, "call",
            route = item.flight.route().as_ref().map(RouteName::as_str),
            stage = stage.as_str(),
            replica,
            request_id = item.flight.request_id(),
        )
    })
}

/// The span in which the worker of a replica is built and cleans up.
pub(crate) fn for_replica(stage: &StageName, replica: usize) -> Span {
    info_span!(target: TARGET, parent: None, "replica", stage = stage.as_str(), replica)
}

/// The span of one item in a run of several. Without a caller's span it is inside the span of the run.
pub(crate) fn for_member(stage: &StageName, flight: &Arc<Flight>) -> Span {
    if !level_enabled!(Level::INFO) {
        return Span::none();
    }
    below_caller(flight, Span::current().id(), |parent| {
        info_span!(
            target: TARGET, parent: parent, "call",
            route = flight.route().as_ref().map(RouteName::as_str),
            stage = stage.as_str(),
            request_id = flight.request_id(),
        )
    })
}

/// Links a new batch to the spans of its callers, where they have its subscriber. A `Dispatch` cannot be compared, but
/// only the batch's own subscriber notices that the batch is entered.
fn follow<'a>(batch: &Span, callers: impl Iterator<Item = &'a Span>) {
    let Some(id) = batch.id() else { return };
    let notices = |caller: &&Span| {
        caller.with_subscriber(|(_, subscriber)| subscriber.current_span().id() == Some(&id)) == Some(true)
    };
    // The spans of another subscriber may have the same id, and one of them may be current.
    let callers: Vec<_> = callers.filter(|caller| !notices(caller)).collect();
    batch.in_scope(|| callers.into_iter().filter(notices).for_each(|caller| _ = batch.follows_from(caller)));
}

/// Makes a span below that of the call's caller, or below `other`. It is made in the caller's subscriber.
fn below_caller(flight: &Flight, other: Option<Id>, make: impl FnOnce(Option<Id>) -> Span) -> Span {
    match flight.caller_span() {
        None => make(other),
        Some(caller) => caller
            .with_subscriber(|(parent, subscriber)| with_default(subscriber, || make(Some(parent.clone()))))
            .unwrap_or_else(Span::none),
    }
}
