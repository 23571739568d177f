//! Version 1 of KServe's protocol, which TensorFlow Serving began: `{"instances": […]}` in, `{"predictions": […]}` out.
//!
//! An instance is the input of one call, without an axis of items: a list of numbers or a value for a model with one
//! input, an object by names for others. Each is a call with its own permit and queue entry, so that the calls of one
//! request are batched with others. A prediction is the output of its call; a model of arrays with one output gives it
//! without its name. The first failure fails the request and cancels the other calls.
//!
//! * **Full:** as in `run.rs`.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Format, Map, Payload, Value};
use callboard_core::edge::{Admission, CodecBudget, LARGE_BYTES};
use callboard_core::{CacheUse, CallOptions, Timing};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, ProtocolRequest, RequestContext, SERVER_TIMING, decode_value, from_value, insert_cache_status,
    server_timing,
};

use super::error::Refusal;
use super::infer::{AdmittedBody, JSON_PER_BYTE, ModelCall, read_body};
use super::model::Model;
use super::request::BodyLayout;
use super::run::{ITEM_BYTES, run_all};

/// Answers `POST …:predict`. A prediction that JSON has no form for, such as NaN, fails the request.
pub(crate) async fn predict(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    if call.route.streams() {
        let message = format!("model '{}' answers with a stream, which 'predict' cannot", call.model.name);
        return Err(Refusal::new(message).into());
    }
    let RequestContext { client, config, .. } = call.context;
    let AdmittedBody { bytes, admission, budget, options, .. } = read_body(call, BodyLayout::Json, request).await?;
    let (admission, value) = decode_value(&budget, admission, Format::Json, bytes, &config.decode).await?;
    let instances = instances_of(value)?;
    let count = instances.len();
    // The first call was counted with the request.
    if let Some(holder) = call.context.key_holder {
        holder.take(count.saturating_sub(1)).map_err(|over| over.error)?;
    }
    budget.charge(count.saturating_mul(ITEM_BYTES))?;
    let run = |admission, instance| run(call, &budget, admission, options.clone(), instance);
    let ran = run_all(client, call.route, admission, options.session(), instances, run).await?;
    let (mut outputs, mut timing, mut cache_use) = (Vec::with_capacity(count), Timing::default(), None);
    for (output, of_call, used) in ran {
        outputs.push(output);
        timing = std::cmp::max_by_key(timing, of_call, Timing::total);
        cache_use = cache_use.max(used);
    }
    call.model.inferred();
    let bytes = outputs.iter().map(|output| output.size_up_to(LARGE_BYTES)).sum::<usize>();
    // Numbers are longer as text, at most by this factor.
    budget.charge_outcome(bytes.saturating_mul(JSON_PER_BYTE))?;
    let model = Arc::clone(call.model);
    let is_bare = call.route.output().tensors().is_some();
    let written = budget.run_outcome(bytes, move || written(&model, is_bare, &outputs)).await??;
    budget.settle(written.len())?;
    let mut response = Response::new(Body::from(budget.charged(written)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(SERVER_TIMING, server_timing(&timing));
    insert_cache_status(headers, cache_use);
    Ok(response)
}

/// The instances of a body.
fn instances_of(value: Value) -> Result<Vec<Value>, Refusal> {
    let Value::Map(mut map) = value else { return Err(Refusal::new("the request JSON must be an object")) };
    match (map.remove("instances"), map.contains_key("inputs")) {
        (Some(Value::List(instances)), _) => Ok(instances),
        (None, true) => Err(Refusal::new("'inputs' in columns is not offered: send 'instances', one for each row")),
        _ => Err(Refusal::new("the request JSON must have a list 'instances'")),
    }
}

/// The values of the inputs in one instance.
fn named(model: &Model, instance: Value) -> Map {
    match (instance, model.inputs.fields.as_slice()) {
        (Value::Map(map), [only]) if map.get(&only.name).is_none() => {
            Map::from_iter([(only.name.clone(), Value::Map(map))])
        }
        (Value::Map(map), _) => map,
        (value, fields) => fields.first().map(|field| (field.name.clone(), value)).into_iter().collect(),
    }
}

async fn run(
    call: ModelCall<'_>,
    budget: &CodecBudget<'_>,
    admission: Admission,
    options: CallOptions,
    instance: Value,
) -> Result<(Payload, Timing, Option<CacheUse>), ApiError> {
    let value = call.model.inputs.item(named(call.model, instance))?;
    let (admission, payload) = from_value(budget, admission, call.route, value).await?;
    let (reply, ended) = call.context.client.edge().submit_unwritten(admission, payload, options).await?;
    let (timing, cache_use) = (reply.timing, ended.cache_use());
    // The outcome of a call does not depend on the response to the whole request.
    ended.end(Ok(()));
    Ok((reply.payload, timing, cache_use))
}

fn written(model: &Model, is_bare: bool, outputs: &[Payload]) -> Result<Bytes, ApiError> {
    let predictions: Vec<Value> = outputs
        .iter()
        .map(|output| {
            let value = output.to_value().map_err(ApiError::unencodable)?;
            Ok(match (value, model.outputs.fields.as_slice()) {
                (Value::Map(mut map), [only]) if is_bare => map.remove(&only.name).unwrap_or(Value::Map(map)),
                (value, _) => value,
            })
        })
        .collect::<Result<_, ApiError>>()?;
    let body = Value::Map(Map::from_iter([("predictions", Value::List(predictions))]));
    body.encode(Format::Json).map_err(ApiError::unencodable)
}
