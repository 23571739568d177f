//! Requests of many items: each is a call with its own permit and queue entry, so that it is batched with all others.
//!
//! The first failure fails the request and cancels its other calls.

use callboard_codec::{Payload, Value};
use callboard_core::Timing;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, LARGE_BYTES, SERVER_TIMING, server_timing};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::error::invalid;
use crate::request::ModelRequest;

/// The most items of one request that run at a time: several batches, and no queue that others cannot enter.
const MAX_RUNNING: usize = 256;

/// The memory of an item: its permit, its queue entry, its future.
const ITEM_BYTES: usize = 2048;

/// The outcomes of all entries, in their order, and the times of the slowest. `input_of` makes the input of an entry as
/// it begins, of which `shared_bytes` are copies of what all of them have.
pub(crate) async fn run(
    request: &ModelRequest<'_>,
    entries: Vec<Value>,
    shared_bytes: usize,
    input_of: impl Fn(Value) -> Value + Send,
) -> Result<(Vec<Value>, Timing), ApiError> {
    if request.route.streams() {
        let message = format!("model `{}` answers with a stream, and this endpoint needs one output", request.model);
        return Err(invalid(message));
    }
    request.take_calls(entries.len())?;
    let running = entries.len().min(MAX_RUNNING);
    request.budget().charge(running.saturating_mul(shared_bytes.saturating_add(ITEM_BYTES)))?;
    // Boxed, so that moving many of them moves pointers.
    let runs = entries.into_iter().map(|entry| Box::pin(run_item(request, input_of(entry))));
    let outcomes: Vec<(Value, Timing)> = stream::iter(runs).buffered(MAX_RUNNING).try_collect().await?;
    let slowest = outcomes.iter().map(|(_, timing)| *timing).max_by_key(Timing::total).unwrap_or_default();
    Ok((outcomes.into_iter().map(|(value, _)| value).collect(), slowest))
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
