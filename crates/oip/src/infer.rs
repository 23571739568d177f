//! One inference request, as an outline: checks come before the body is read.
//!
//! A request to a model of samples may have many items, along a first axis of every array. Each item is a call with its
//! own permit and queue entry, so that it is batched with other calls; the response joins their outcomes. The first
//! failure fails the request and cancels the other calls.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Payload, Value};
use callboard_core::edge::{Admission, Route};
use callboard_core::{CacheUse, CallOptions, Deadline, ErrorKind, Timing};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, BodyLimits, CodecBudget, IncomingBody, LARGE_BYTES, PendingAdmission, ProtocolRequest, RequestContext,
    RequestHead, ResponseCompression, SERVER_TIMING, announced_length, insert_cache_status, server_timing,
};
use futures_util::future::try_join_all;

use super::array::Array;
use super::error::Refusal;
use super::model::Model;
use super::request::{BodyLayout, InferRequest};
use super::response::InferResponse;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelCall<'a> {
    pub(crate) context: RequestContext<'a>,
    pub(crate) route: &'a Arc<Route>,
    pub(crate) model: &'a Arc<Model>,
}

/// Answers `POST …/infer`.
pub(crate) async fn infer(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    if call.route.streams() {
        return Err(
            Refusal::new(format!("model '{}' answers with a stream: use 'generate_stream'", call.model.name)).into()
        );
    }
    let layout = BodyLayout::from_headers(&request.head.headers)?;
    let AdmittedBody { bytes, admission, budget, options, compression, .. } = read_body(call, layout, request).await?;
    let (admission, request) = parse(call, &budget, admission, layout, bytes).await?;
    let InferRequest { id, parameters, inputs, outputs: requested, rows } = request;
    // The first call was counted with the request.
    if let Some(holder) = call.context.key_holder {
        holder.take(rows.saturating_sub(1)).map_err(|over| over.error)?;
    }
    let options = parameters.apply(options, &admission);

    let (outputs, timing, cache_use) = run(call, &budget, admission, &options, inputs, rows).await?;
    call.model.inferred();

    let is_binary = requested.iter().any(|requested| requested.is_binary);
    let model = Arc::clone(call.model);
    // Shared bytes cost nothing; text and ranking do.
    let worked_on = requested.iter().filter(|requested| !requested.is_binary || requested.classes.is_some());
    let worked_on: usize = worked_on.map(|requested| outputs[requested.index].data.len()).sum();
    // Numbers are longer as text, at most by this factor.
    budget.charge_outcome(worked_on.saturating_mul(JSON_PER_BYTE))?;
    let write = move || InferResponse::try_new(&model, id.as_deref(), &outputs, &requested);
    let written = budget.run_outcome(worked_on, write).await?;
    let mut response = written?.into_response(is_binary, &compression, &budget).await?;
    response.headers_mut().insert(SERVER_TIMING, server_timing(&timing));
    insert_cache_status(response.headers_mut(), cache_use);
    Ok(response)
}

/// A body that was admitted and read.
pub(crate) struct AdmittedBody<'a> {
    pub(crate) bytes: Bytes,
    pub(crate) admission: Admission,
    /// Pays for decoding and encoding.
    pub(crate) budget: CodecBudget<'a>,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Deadline,
    /// How the response may be compressed.
    pub(crate) compression: ResponseCompression,
}

/// Admits a request and reads its body.
pub(crate) async fn read_body<'a>(
    call: ModelCall<'a>,
    layout: BodyLayout,
    request: ProtocolRequest<'_>,
) -> Result<AdmittedBody<'a>, ApiError> {
    let RequestContext { client, config, start, .. } = call.context;
    let ProtocolRequest { head: parts, body } = request;
    let head = RequestHead::read(&parts.headers)?;
    let compression = ResponseCompression::new(head.accept_encoding.as_deref(), config);
    let max_bytes = config.max_body_bytes_of(call.route.name());
    let announced = announced_length(&*body, max_bytes)?;
    // The length of a decompressed body is not announced.
    if let Some(bytes) = announced.filter(|_| head.coding.is_none()) {
        layout.check(bytes)?;
    }
    let (coding, priority) = (head.coding, head.priority);
    let mut pending = PendingAdmission::new(client, call.route, start);
    let deadline = pending.deadline(head.timeout);
    let read = (&parts.uri, &parts.headers, &parts.extensions);
    let options = call.context.call_options(call.route, read, deadline, priority)?;
    let limits = BodyLimits { max_bytes, pace: config.body_pace(deadline) };
    let bytes = {
        let mut body = IncomingBody::new(body, announced, &mut pending, limits)?.decoded(coding);
        body.collect_aligned_at(layout.arrays_at()).await?
    };
    let admission = pending.into_admission()?;
    let budget = client.edge().codec_budget(admission.account(), deadline);
    budget.charge(options.attribute_bytes())?;
    Ok(AdmittedBody { bytes, admission, budget, options, deadline, compression })
}

/// Parses JSON and single elements, on another thread if they are large. Numbers are shared.
async fn parse(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    layout: BodyLayout,
    bytes: Bytes,
) -> Result<(Admission, InferRequest), ApiError> {
    let looked_at = match layout {
        _ if call.model.takes_elements() => bytes.len(),
        BodyLayout::Json => bytes.len(),
        BodyLayout::Binary(length) => length,
        BodyLayout::Raw => 0,
    };
    let model = Arc::clone(call.model);
    let limits = call.context.config.decode.clone();
    // Each byte of JSON may be an input with a name, a shape and parameters; each element has at most sixteen bytes.
    budget.charge(looked_at.saturating_mul(HEAD_PER_BYTE))?;
    let read = move || InferRequest::read(&model, layout, &bytes, &limits);
    let (admission, request) = budget.run(admission, looked_at, read).await?;
    Ok((admission, request?))
}

/// The most memory per byte of JSON: `{},` is an input of some 200 bytes, `0,` an element of eight.
const HEAD_PER_BYTE: usize = 8;

/// The most text per byte of a tensor: `-128,`.
const JSON_PER_BYTE: usize = 5;

/// Runs all items of a request. Returns the outputs of the model, the times of the slowest item, and what the response
/// caches did: a hit if they had the answer of every item.
async fn run(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    options: &CallOptions,
    inputs: Vec<Option<Array>>,
    rows: usize,
) -> Result<(Vec<Array>, Timing, Option<CacheUse>), ApiError> {
    if !call.model.is_batched() {
        return run_item(call, budget, admission, options.clone(), inputs).await;
    }
    // Besides the elements, which the items share.
    budget.charge(rows.saturating_mul(inputs.len().saturating_mul(ARRAY_BYTES).saturating_add(ITEM_BYTES)))?;
    let items = items_of(inputs, rows);
    // Each item shares the one body, so its permit is held until all items end.
    let (whole, mut admissions) = match rows {
        1 => (None, vec![admission]),
        _ => (Some(admission), Vec::with_capacity(rows)),
    };
    while admissions.len() < rows {
        admissions.push(call.context.client.edge().admit(call.route, 0)?);
    }
    let runs = items.into_iter().zip(admissions).map(|(item, admission)| {
        // Boxed, so that moving many of them moves pointers.
        Box::pin(run_item(call, budget, admission, options.clone(), item))
    });
    let (mut outcomes, mut slowest, mut cache_use) = (Vec::with_capacity(rows), Timing::default(), None);
    for (outputs, timing, of_item) in try_join_all(runs).await? {
        outcomes.push(outputs);
        slowest = std::cmp::max_by_key(slowest, timing, Timing::total);
        cache_use = cache_use.max(of_item);
    }
    drop(whole);
    Ok((stacked(call.model, outcomes)?, slowest, cache_use))
}

/// The memory of an item: its permit, its queue entry, its future.
const ITEM_BYTES: usize = 2048;

/// The memory of an item's array besides its elements.
const ARRAY_BYTES: usize = 256;

/// The arrays of each item, without the first axis.
fn items_of(inputs: Vec<Option<Array>>, rows: usize) -> Vec<Vec<Option<Array>>> {
    let mut items: Vec<Vec<Option<Array>>> = vec![Vec::with_capacity(inputs.len()); rows];
    for array in inputs {
        match array {
            Some(array) => items.iter_mut().zip(array.rows()).for_each(|(item, row)| item.push(Some(row))),
            None => items.iter_mut().for_each(|item| item.push(None)),
        }
    }
    items
}

fn stacked(model: &Model, outcomes: Vec<Vec<Array>>) -> Result<Vec<Array>, ApiError> {
    let stack = |index: usize| {
        let rows: Vec<Array> = outcomes.iter().map(|outcome| outcome[index].clone()).collect();
        Array::stack(&rows).ok_or_else(|| {
            let name = &model.outputs.fields[index].name;
            let message = format!("the items' outputs `{name}` differ in shape: send one item at a time");
            ApiError::new(ErrorKind::Internal, message)
        })
    };
    (0..model.outputs.fields.len()).map(stack).collect()
}

async fn run_item(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    options: CallOptions,
    arrays: Vec<Option<Array>>,
) -> Result<(Vec<Array>, Timing, Option<CacheUse>), ApiError> {
    let (admission, payload) = payload_of(call, budget, admission, arrays).await?;
    let (reply, call_of_item) = call.context.client.edge().submit_unwritten(admission, payload, options).await?;
    let (timing, cache_use) = (reply.timing, call_of_item.cache_use());
    // The outcome of an item does not depend on the response to the whole request.
    call_of_item.end(Ok(()));
    let (model, payload) = (Arc::clone(call.model), reply.payload);
    // Arrays of numbers in a value are shared; other data is converted, on another thread if it is large.
    let is_taken_as_it_is = payload.is::<Value>() && !model.outputs.has_elements();
    let outputs = if is_taken_as_it_is {
        arrays_of(&model, &payload)?
    } else {
        let bytes = payload.size_up_to(LARGE_BYTES);
        budget.run_outcome(bytes, move || arrays_of(&model, &payload)).await??
    };
    Ok((outputs, timing, cache_use))
}

/// The payload of one item.
async fn payload_of(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    arrays: Vec<Option<Array>>,
) -> Result<(Admission, Payload), ApiError> {
    let input = call.route.input();
    let bytes: usize = arrays.iter().flatten().map(|array| array.data.len()).sum();
    // Numbers by name are a value already: nothing is converted, whatever their size.
    let is_value_already = input.tensors().is_some() && !call.model.takes_elements();
    if is_value_already || bytes < LARGE_BYTES {
        let value = call.model.inputs.value(arrays, &call.context.config.decode)?;
        return Ok((admission, input.from_value(value)?));
    }
    let (model, route) = (Arc::clone(call.model), Arc::clone(call.route));
    let limits = call.context.config.decode.clone();
    let convert = move || -> Result<Payload, ApiError> {
        let value = model.inputs.value(arrays, &limits)?;
        Ok(route.input().from_value(value)?)
    };
    let (admission, payload) = budget.off_thread(admission, convert).await?;
    Ok((admission, payload?))
}

/// The outputs in the outcome of a call.
fn arrays_of(model: &Model, payload: &Payload) -> Result<Vec<Array>, ApiError> {
    let value = payload.to_value().map_err(ApiError::unencodable)?;
    model.outputs.arrays(&value).map_err(|error| {
        ApiError::new(
            ErrorKind::Internal,
            format!("the outputs of model '{}' do not fit its type: {error}", model.name),
        )
    })
}
