//! The generate extension: a JSON object in and out, for clients without tensors.
//!
//! Keys of the body that are inputs of the model are its inputs; `id` is returned; other keys, and the members of
//! `parameters`, are parameters. A response has the model's name and version, and each output by its name.
//!
//! `generate_stream` answers with [server-sent events](events), one for each output of the call. An error before the
//! first event has its status; a later error is the last event `{"error": …}`. A client that leaves cancels the call.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Format, Map, Payload, Value};
use callboard_core::edge::{Admission, LARGE_BYTES, PayloadReplies};
use callboard_core::{CallOptions, Deadline, LocalClient};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, EdgeLife, EventSource, ProtocolRequest, RequestContext, SERVER_TIMING, caught_within, decode_value,
    event_bytes, events, from_value, next_reply, total,
};
use futures_util::StreamExt;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use super::error::Refusal;
use super::error_response;
use super::infer::{AdmittedBody, ModelCall, read_body};
use super::model::Model;
use super::parameters::Parameters;
use super::request::BodyLayout;

/// A call that is ready to be made.
struct GenerateCall {
    writer: AnswerWriter,
    admission: Admission,
    payload: Payload,
    options: CallOptions,
}

/// Writes the answers of a model as JSON.
struct AnswerWriter {
    client: LocalClient,
    model: Arc<Model>,
    id: Option<Arc<str>>,
    deadline: Deadline,
    /// Counts panics of user code in codecs.
    panics: Counter,
}

impl AnswerWriter {
    /// One answer, at the expense of an account of its own until it is sent; a large one is written off the runtime. A
    /// panic of user code is its error.
    async fn write(&self, payload: Payload, form: fn(Vec<u8>) -> Bytes) -> Result<Bytes, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let (model, id) = (Arc::clone(&self.model), self.id.clone());
        let bytes = payload.size_up_to(LARGE_BYTES);
        let write = move || written(&model, id.as_deref(), &payload).map(form);
        let written = caught_within(&self.panics, Box::pin(budget.run_outcome(bytes, write))).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written))
    }
}

/// Answers `POST …/generate`.
pub(crate) async fn generate(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    let GenerateCall { writer, admission, payload, options } = prepare(call, request).await?;
    let admitted_at = admission.admitted_at();
    let mut replies = call.context.client.edge().submit_streaming(admission, payload, options);
    let payload = replies.next().await.ok_or_else(|| several(call.model, "none"))??;
    if replies.next().await.transpose()?.is_some() {
        return Err(several(call.model, "several").into());
    }
    call.model.inferred();
    let mut response = Response::new(Body::from(writer.write(payload, Bytes::from).await?));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(SERVER_TIMING, total(admitted_at.elapsed()));
    Ok(response)
}

fn several(model: &Model, how_many: &str) -> Refusal {
    Refusal::new(format!(
        "generate expects model '{}' to give one answer, and it gave {how_many}: use 'generate_stream'",
        model.name
    ))
}

/// Answers `POST …/generate_stream`.
pub(crate) async fn generate_stream(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    let GenerateCall { writer, admission, payload, options } = prepare(call, request).await?;
    let RequestContext { client, life, .. } = call.context;
    let admitted_at = admission.admitted_at();
    let replies = client.edge().submit_streaming(admission, payload, options);
    let source = GenerateEvents { replies, life: Arc::clone(life), writer };
    let response = events(&call.context, call.route.name(), admitted_at, source).await?;
    call.model.inferred();
    Ok(response)
}

/// Each output of a call is an event.
struct GenerateEvents {
    replies: PayloadReplies,
    life: Arc<EdgeLife>,
    writer: AnswerWriter,
}

impl EventSource for GenerateEvents {
    type Item = Payload;

    async fn next(&mut self) -> Option<Result<Payload, ApiError>> {
        next_reply(&mut self.replies, &self.life).await
    }

    fn bytes(payload: &Payload) -> usize {
        payload.size_up_to(LARGE_BYTES)
    }

    async fn event(&mut self, payload: Payload) -> Result<Bytes, ApiError> {
        self.writer.write(payload, |json| event_bytes(&json).into()).await
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&error_response::body(error)).into()
    }
}

async fn prepare(call: ModelCall<'_>, request: ProtocolRequest<'_>) -> Result<GenerateCall, ApiError> {
    let AdmittedBody { bytes, admission, budget, options, deadline, .. } =
        read_body(call, BodyLayout::Json, request).await?;
    let limits = &call.context.config.decode;
    let (admission, value) = decode_value(&budget, admission, Format::Json, bytes, limits).await?;
    let Value::Map(map) = value else {
        return Err(Refusal::new("the request JSON must be an object").into());
    };
    let (mut inputs, mut parameters, mut id) = (Map::new(), Parameters::default(), None);
    for (key, value) in map {
        match (key.as_str(), &value) {
            (name, _) if call.model.inputs.field(name).is_some() => _ = inputs.insert(key, value),
            ("id", Value::Str(text)) => id = Some(text.clone()).filter(|text| !text.is_empty()),
            ("parameters", Value::Map(more)) => more.iter().for_each(|(key, value)| parameters.take(key, value)),
            (key, value) => parameters.take(key, value),
        }
    }
    let parameters = parameters.checked()?;
    let value = call.model.inputs.item(inputs)?;
    let (admission, payload) = from_value(&budget, admission, call.route, value).await?;
    let options = parameters.apply(options, &admission);
    let RequestContext { client, metrics, .. } = call.context;
    let (client, panics) = (client.clone(), metrics.requests.panics.clone());
    let writer = AnswerWriter { client, model: Arc::clone(call.model), id: id.map(Into::into), deadline, panics };
    Ok(GenerateCall { writer, admission, payload, options })
}

#[derive(Serialize)]
struct GenerateResponse<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    outputs: Outputs<'a>,
}

/// Outputs by name; an array of one element as that element.
struct Outputs<'a>(Vec<(&'a str, Value)>);

impl Serialize for Outputs<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn written(model: &Model, id: Option<&str>, payload: &Payload) -> Result<Vec<u8>, ApiError> {
    let value = payload.to_value().map_err(ApiError::unencodable)?;
    let answer = GenerateResponse {
        model_name: &model.name,
        model_version: model.version.to_string(),
        id,
        outputs: Outputs(model.outputs.named(&value)),
    };
    serde_json::to_vec(&answer).map_err(|error| {
        let message = format!("the outputs of model '{}' cannot be written as JSON: {error}", model.name);
        Refusal::new(message).into()
    })
}
