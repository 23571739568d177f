//! The generate extension: an object of JSON in, an object of JSON out, for those who have no tensors at hand.
//!
//! Keys of the body that are inputs of the model are its inputs, as JSON has them; `id` comes back; the others, and what is
//! under `parameters`, are parameters. An answer has the model's name and version and each output under its name.
//!
//! `generate_stream` answers with server-sent events, one for each output of the call, and one for a model that gives one. What
//! fails before the first event has its status; after it, the last event is `{"error": …}`. A reader that leaves cancels the
//! call; one that is slow is waited for.

use axum::body::{Body, HttpBody};
use axum::http::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{Format, Map, Payload, Value};
use callboard_core::{Admission, CallOptions, Deadline};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tower::BoxError;

use super::error::Refusal;
use super::infer::{Asked, read_body};
use super::model::Model;
use super::parameters::Parameters;
use super::request::Form;
use crate::convert::{self, decode_part};
use crate::error::ApiError;

/// A call that is ready to be made.
struct Prepared {
    id: Option<String>,
    admission: Admission,
    payload: Payload,
    options: CallOptions,
}

/// Answers `POST …/generate`.
pub(super) async fn generate<B>(asked: Asked<'_>, request: &mut Request<B>) -> Result<Response, ApiError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<BoxError>,
{
    let Prepared { id, admission, payload, options } = prepare(asked, request).await?;
    let mut replies = asked.client.submit_streaming(admission, payload, options);
    let payload = replies.next().await.ok_or_else(|| several(asked.model, "none"))??;
    if replies.next().await.transpose()?.is_some() {
        return Err(several(asked.model, "several").into());
    }
    asked.model.inferred();
    let mut response = Response::new(Body::from(written(asked.model, id.as_deref(), &payload)?));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn several(model: &Model, how_many: &str) -> Refusal {
    Refusal::new(format!(
        "generate expects model '{}' to give one answer, and it gave {how_many}: ask by 'generate_stream'",
        model.name
    ))
}

/// Answers `POST …/generate_stream`.
pub(super) async fn generate_stream<B>(asked: Asked<'_>, request: &mut Request<B>) -> Result<Response, ApiError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<BoxError>,
{
    let Prepared { id, admission, payload, options } = prepare(asked, request).await?;
    let mut replies = asked.client.submit_streaming(admission, payload, options);
    let model = std::sync::Arc::clone(asked.model);
    let first = match replies.next().await {
        Some(first) => Some(written(&model, id.as_deref(), &first?)?),
        None => None,
    };
    asked.model.inferred();
    // Ends with the first error, whoever makes it.
    let rest = stream::unfold(Some(replies), move |replies| {
        let (id, model) = (id.clone(), std::sync::Arc::clone(&model));
        async move {
            let mut replies = replies?;
            let outcome = replies.next().await?.map_err(ApiError::from);
            Some(match outcome.and_then(|payload| written(&model, id.as_deref(), &payload)) {
                Ok(json) => (json, Some(replies)),
                Err(error) => (error.to_protocol_json(), None),
            })
        }
    });
    let events = stream::iter(first).chain(rest).map(|json| Ok::<_, std::convert::Infallible>(event(&json)));
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// JSON has no line ends that are not escaped, so it is one line of the event.
fn event(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}

async fn prepare<B>(asked: Asked<'_>, request: &mut Request<B>) -> Result<Prepared, ApiError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<BoxError>,
{
    let body = read_body(asked, Form::Json, request).await?;
    let value = decode_part(Format::Json, body.bytes, &asked.config.decode).await?;
    let Value::Map(map) = value else {
        return Err(Refusal::new("the request JSON must be an object").into());
    };
    let (mut inputs, mut parameters, mut id) = (Map::new(), Parameters::default(), None);
    for (key, value) in map {
        match (key.as_str(), &value) {
            (name, _) if asked.model.inputs.field(name).is_some() => _ = inputs.insert(key, value),
            ("id", Value::Str(text)) => id = Some(text.clone()).filter(|text| !text.is_empty()),
            ("parameters", Value::Map(more)) => more.iter().for_each(|(key, value)| parameters.take(key, value)),
            (key, value) => parameters.take(key, value),
        }
    }
    let parameters = parameters.checked()?;
    let value = asked.model.inputs.item(inputs)?;
    let payload = convert::from_value(asked.route, value).await?;
    let options = parameters.apply(body.options);
    let options = match parameters.timeout() {
        Some(timeout) => options.with_deadline(Deadline::after(body.admission.admitted_at(), timeout)),
        None => options,
    };
    Ok(Prepared { id, admission: body.admission, payload, options })
}

#[derive(Serialize)]
struct Answer<'a> {
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
    let answer = Answer {
        model_name: &model.name,
        model_version: model.version.to_string(),
        id,
        outputs: Outputs(model.outputs.named(&value)),
    };
    serde_json::to_vec(&answer).map_err(|error| {
        let message = format!("the outputs of model '{}' have no form in JSON: {error}", model.name);
        Refusal::new(message).into()
    })
}
