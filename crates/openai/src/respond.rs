//! Writes answers as JSON, at the expense of their request.

use callboard_core::ErrorKind;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use serde::Serialize;

use crate::reply::Usage;
use crate::request::ModelRequest;

/// The whole time of a request, which clients log.
const OPENAI_PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct UsageJson {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

impl From<Usage> for UsageJson {
    fn from(usage: Usage) -> Self {
        let (prompt, completion) = (usage.prompt_tokens.unwrap_or(0), usage.completion_tokens.unwrap_or(0));
        let total_tokens = prompt.saturating_add(completion);
        Self { prompt_tokens: prompt, completion_tokens: completion, total_tokens }
    }
}

/// The JSON of an answer.
pub(crate) fn written(answer: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(answer).map_err(|error| unwritten(&error))
}

/// Writes JSON into a buffer sized for `bytes` of text, because a growing vector holds its old and new memory at once.
pub(crate) fn written_of(bytes: usize, answer: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let mut out = room_for(bytes);
    write(&mut out, answer)?;
    Ok(out)
}

/// A buffer for the JSON of `bytes` of text, with room for field names.
pub(crate) fn room_for(bytes: usize) -> Vec<u8> {
    Vec::with_capacity(bytes.saturating_add(bytes / 16).saturating_add(512))
}

/// Adds an event to `out`: its name, if it has one, and its data as JSON, which is one line.
pub(crate) fn push_event(out: &mut Vec<u8>, name: Option<&str>, data: &impl Serialize) -> Result<(), ApiError> {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"data: ");
    write(out, data)?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}

/// JSON behind what is there.
pub(crate) fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> Result<(), ApiError> {
    serde_json::to_writer(out, value).map_err(|error| unwritten(&error))
}

pub(crate) fn unwritten(error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the answer cannot be written as JSON: {error}"))
}

/// The response that `write` writes from this many bytes: off the runtime if they are many.
pub(crate) async fn json(
    request: &ModelRequest<'_>,
    bytes: usize,
    write: impl Fn() -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let budget = request.budget();
    budget.charge_outcome(bytes)?;
    let written = budget.run_outcome(bytes, write).await??;
    budget.settle(written.len())?;
    let mut response = Response::new(Body::from(budget.charged(written.into())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let elapsed = u64::try_from(request.context.start.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert(OPENAI_PROCESSING_MS, HeaderValue::from(elapsed));
    Ok(callboard_http::protocol::compressed(response, &request.compression).await)
}
