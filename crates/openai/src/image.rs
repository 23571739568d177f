//! Pictures: each of `n` is a call of the route, whose bytes are the picture.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use callboard_codec::Value;
use callboard_core::Task;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, file_type_of};
use serde::Serialize;

use crate::error::{bad_answer, invalid};
use crate::input::InputForm;
use crate::items;
use crate::models::now;
use crate::request::ModelRequest;
use crate::respond;

/// The most pictures of one request, as OpenAI's API has it.
const MAX_PICTURES: u64 = 10;

#[derive(Serialize)]
struct PictureList<'a> {
    created: u64,
    data: Vec<PictureJson<'a>>,
}

#[derive(Serialize)]
struct PictureJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    b64_json: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revised_prompt: Option<&'a str>,
}

/// Answers `POST /v1/images/generations`.
pub(crate) async fn draw(mut request: ModelRequest<'_>) -> Result<Response, ApiError> {
    let is_url = match request.fields.get("response_format") {
        None | Some(Value::Null) => false,
        Some(Value::Str(format)) if format == "b64_json" => false,
        Some(Value::Str(format)) if format == "url" => true,
        Some(_) => return Err(invalid("`response_format` must be \"b64_json\" or \"url\"")),
    };
    if request.is_set("stream")? {
        return Err(invalid("a stream of partial pictures is not offered: leave out `stream`"));
    }
    let count = request.count("n", 1..=MAX_PICTURES)?.unwrap_or(1);
    let prompt = match request.take("prompt")? {
        prompt @ Value::Str(_) => prompt,
        other => return Err(invalid(format!("`prompt` must be a text, not {}", other.kind()))),
    };
    let route = Arc::clone(&request.route);
    let form = InputForm::of(Task::Image, route.input().schema());
    // Each call gets its copy of the prompt as it begins, when the copies of all are charged.
    let input_of = |_| form.input(Task::Image, prompt.clone(), &request.fields);
    let shared = request.shared_bytes(&form).saturating_add(prompt.resident_bytes());
    let pictures = (0..count).map(|_| Value::Null).collect();
    let (answers, slowest) = items::run(&request, pictures, shared, input_of).await?;
    let bytes = answers.iter().map(Value::resident_bytes).fold(0, usize::saturating_add);
    let created = now();
    let write = move || {
        let data = answers.iter().map(|answer| picture(route.name(), answer, is_url)).collect::<Result<_, _>>()?;
        respond::written(&PictureList { created, data })
    };
    // Base64 is a third longer.
    let response = respond::json(&request, bytes.saturating_mul(2), write).await?;
    Ok(items::timed(response, &slowest))
}

/// Bytes, or an object with the bytes `image`.
fn picture<'a>(route: &str, answer: &'a Value, is_url: bool) -> Result<PictureJson<'a>, ApiError> {
    let (bytes, revised_prompt) = match answer {
        Value::Bytes(bytes) => (Some(bytes), None),
        Value::Map(map) => {
            let bytes = match map.get("image") {
                Some(Value::Bytes(bytes)) => Some(bytes),
                _ => None,
            };
            let revised = match map.get("revised_prompt") {
                Some(Value::Str(text)) => Some(text.as_str()),
                _ => None,
            };
            (bytes, revised)
        }
        _ => (None, None),
    };
    let bytes = bytes.ok_or_else(|| bad_answer(route, answer.kind(), "bytes, or an object with the bytes `image`"))?;
    let encoded = STANDARD.encode(bytes);
    if !is_url {
        return Ok(PictureJson { b64_json: Some(encoded), url: None, revised_prompt });
    }
    // Nothing is kept, so the address has the picture in it.
    let media_type = file_type_of(bytes).unwrap_or("application/octet-stream");
    Ok(PictureJson { b64_json: None, url: Some(format!("data:{media_type};base64,{encoded}")), revised_prompt })
}
