//! Requests of many items: each item is a call of its own, so that it is batched with those of other requests.
//!
//! The first failure fails the request and cancels its other calls.

use callboard_codec::{Payload, Value};
use callboard_core::Timing;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, LARGE_BYTES, SERVER_TIMING, server_timing};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::error::invalid;
use crate::request::ModelRequest;

/// The most items of one request: as many as OpenAI's API takes.
pub(crate) const MAX_ITEMS: usize = 2048;

/// The most items of one request that run at a time: several batches, and no queue that others cannot enter.
const MAX_RUNNING: usize = 256;

/// The memory of an item: its permit, its queue entry, its future.
const ITEM_BYTES: usize = 2048;

/// The outcomes of all items, in their order, and the times of the slowest. `input_of` makes the input of an item as its
/// call begins, of which `shared_bytes` are copies of what all of them have.
pub(crate) async fn run(
    request: &ModelRequest<'_>,
    items: Vec<Value>,
    shared_bytes: usize,
    input_of: impl Fn(Value) -> Value + Send,
) -> Result<(Vec<Value>, Timing), ApiError> {
    if request.route.streams() {
        let message = format!("model `{}` answers with a stream, and this endpoint needs one output", request.model);
        return Err(invalid(message));
    }
    request.take_calls(items.len())?;
    // The items of a request do not take each other's places.
    let most = request.route.max_in_flight().map_or(MAX_RUNNING, |most| most.get().min(MAX_RUNNING));
    let (calls, running) = (items.len(), items.len().min(most));
    request.budget().charge(running.saturating_mul(shared_bytes.saturating_add(ITEM_BYTES)))?;
    // Boxed, so that moving many of them moves pointers.
    let runs = items.into_iter().map(|item| Box::pin(run_item(request, input_of(item))));
    let outcomes = stream::iter(runs).buffered(most).try_collect().await;
    let outcomes: Vec<(Value, Timing)> = outcomes.map_err(|error| request.error_of(calls, error))?;
    let slowest = outcomes.iter().map(|(_, timing)| *timing).max_by_key(Timing::total).unwrap_or_default();
    Ok((outcomes.into_iter().map(|(value, _)| value).collect(), slowest))
}

/// Refuses a list of none or of too many.
pub(crate) fn check_count(name: &str, count: usize) -> Result<(), ApiError> {
    if (1..=MAX_ITEMS).contains(&count) {
        return Ok(());
    }
    Err(invalid(format!("`{name}` must have 1 to {MAX_ITEMS} items, not {count}")))
}

async fn run_item(request: &ModelRequest<'_>, input: Value) -> Result<(Value, Timing), ApiError> {
    let (admission, payload) = request.admit(input).await?;
    let edge = request.context.client.edge();
    let (reply, call) = edge.submit_unwritten(admission, payload, request.options.clone()).await?;
    // The outcome of an item does not depend on the response to the whole request.
    call.end(Ok(()));
    Ok((value_of(request, reply.payload).await?, reply.timing))
}

async fn value_of(request: &ModelRequest<'_>, payload: Payload) -> Result<Value, ApiError> {
    let budget = request.budget();
    let bytes = payload.size_up_to(LARGE_BYTES);
    budget.charge_outcome(bytes)?;
    budget.run_outcome(bytes, move || payload.to_value().map_err(ApiError::unencodable)).await?
}

/// The response with the times of the slowest item.
pub(crate) fn timed(mut response: Response, slowest: &Timing) -> Response {
    response.headers_mut().insert(SERVER_TIMING, server_timing(slowest));
    response
}
