//! The generate extension: a JSON object in and out, for clients without tensors.
//!
//! Keys of the body that are inputs of the model are its inputs; `id` is returned; other keys, and the members of
//! `parameters`, are parameters. A response has the model's name and version, and each output by its name.
//!
//! `generate_stream` answers with server-sent events, one for each output of the call. An error before the first event
//! has its status; a later error is the last event `{"error": …}`. A silence is broken by a comment, also at the
//! beginning. A client that leaves cancels the call; a slow client is waited for.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Format, Map, Payload, Value};
use callboard_core::edge::{Admission, LARGE_BYTES, PayloadReplies};
use callboard_core::{CallOptions, Deadline, LocalClient};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    AbandonGuard, ApiError, EdgeLife, HEARTBEAT, Heartbeat, ProtocolRequest, RequestContext, RequestId, SERVER_TIMING,
    StreamedItems, caught_within, decode_value, first, from_value, next_reply, one_line, total,
};
use callboard_telemetry::RequestSpan;
use futures_util::{StreamExt, stream};
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
    let RequestContext { client, config, metrics, life, id: request_id, span, .. } = call.context;
    let admitted_at = admission.admitted_at();
    let items = StreamedItems::default();
    let mut stream_state = GenerateStream {
        replies: client.edge().submit_streaming(admission, payload, options),
        life: Arc::clone(life),
        writer,
        request_id: request_id.clone(),
        route: call.route.name().to_owned(),
        heartbeat: Heartbeat::new(config.stream_heartbeat),
        abandon_guard: None,
        items: items.clone(),
        _span: span.cloned(),
    };
    // The first event decides the status.
    let first_event = stream_state.next().await.transpose()?;
    call.model.inferred();
    stream_state.abandon_guard = Some(AbandonGuard::new(metrics.requests.abandoned.clone()));
    let rest = stream::unfold(Some(stream_state), async |stream_state| {
        let mut stream_state = stream_state?;
        match stream_state.next().await {
            Some(Ok(event)) => Some((event, Some(stream_state))),
            Some(Err(error)) => Some((stream_state.failed(&error), None)),
            None => {
                stream_state.ended();
                None
            }
        }
    });
    let events = stream::iter(first_event).chain(rest).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(events));
    response.extensions_mut().insert(items);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SERVER_TIMING, first(admitted_at.elapsed()));
    // Otherwise nginx and similar proxies buffer a page of events before they send any.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// One stream of events.
struct GenerateStream {
    replies: PayloadReplies,
    life: Arc<EdgeLife>,
    writer: AnswerWriter,
    request_id: RequestId,
    route: String,
    heartbeat: Heartbeat,
    /// `None` before the stream begins: until then the edge counts a client that leaves.
    abandon_guard: Option<AbandonGuard>,
    items: StreamedItems,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl GenerateStream {
    /// The next event, or a comment after a silence.
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let payload = tokio::select! {
            biased;
            payload = next_reply(&mut self.replies, &self.life) => payload?,
            () = self.heartbeat.silence() => return Some(Ok(HEARTBEAT)),
        };
        self.heartbeat.sent();
        self.items.count();
        Some(match payload {
            Ok(payload) => self.writer.write(payload, |json| event(&json)).await,
            Err(error) => Err(error),
        })
    }

    /// The last event of a stream that failed.
    fn failed(&mut self, error: &ApiError) -> Bytes {
        error.log(self.request_id.as_str(), Some(&self.route));
        self.ended();
        event(&error_response::body(error))
    }

    fn ended(&mut self) {
        self.abandon_guard.iter_mut().for_each(AbandonGuard::ended);
    }
}

fn event(json: &[u8]) -> Bytes {
    [b"data: ", &*one_line(json), b"\n\n"].concat().into()
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
