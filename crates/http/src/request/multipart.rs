//! `multipart/form-data` as a map: one entry per field name, in the order of the parts.
//!
//! A part is what it says it is: with the content type of a format (JSON, msgpack, npy, …) the decoded value, with a file name or
//! any other content type the bytes, else text. A name that comes more than once becomes a list. The body's limits hold for
//! all parts together.

use axum::body::HttpBody;
use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Map, Value};
use futures_util::stream;
use multer::{Field, Multipart};
use tower::BoxError;

use super::body::Incoming;
use crate::convert;
use crate::error::ApiError;

/// More parts than any form has; each costs more than its bytes.
const MAX_PARTS: usize = 1024;

/// Reads all parts.
pub(crate) async fn read<B>(body: Incoming<'_, B>, boundary: String, limits: &DecodeLimits) -> Result<Map, ApiError>
where
    B: HttpBody<Data = Bytes> + Unpin + Send,
    B::Error: Into<BoxError>,
{
    let chunks = stream::try_unfold(body, |mut body| async move {
        let chunk = body.chunk().await.map_err(Broken)?;
        Ok::<_, Broken>(chunk.map(|chunk| (chunk, body)))
    });
    let mut parts = Multipart::new(chunks, boundary);
    let mut fields: Vec<(String, Vec<Value>)> = Vec::new();
    for _ in 0..=MAX_PARTS {
        let Some(part) = parts.next_field().await.map_err(fault)? else { return Ok(into_map(fields)) };
        let name = name_of(&part)?;
        let value = value_of(part, &name, limits).await?;
        match fields.iter_mut().find(|(seen, _)| *seen == name) {
            Some((_, values)) => values.push(value),
            None => fields.push((name, vec![value])),
        }
    }
    Err(ApiError::bad_multipart(format!("the form has more than {MAX_PARTS} parts")))
}

fn name_of(part: &Field<'_>) -> Result<String, ApiError> {
    match part.name() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(ApiError::bad_multipart(format!("part {} has no name", part.index()))),
    }
}

async fn value_of(part: Field<'_>, name: &str, limits: &DecodeLimits) -> Result<Value, ApiError> {
    let content_type = part.content_type().map(|mime| mime.essence_str().to_owned());
    let is_file = part.file_name().is_some();
    let bytes = part.bytes().await.map_err(fault)?;
    let format = content_type.as_deref().and_then(Format::from_media_type);
    if let Some(format) = format {
        return convert::decode_part(format, bytes, limits).await.map_err(|error| error.in_part(name));
    }
    let is_text = !is_file && content_type.is_none_or(|essence| essence.starts_with("text/"));
    if !is_text {
        return Ok(Value::Bytes(bytes));
    }
    match String::from_utf8(bytes.into()) {
        Ok(text) => Ok(Value::Str(text)),
        Err(_) => Err(ApiError::bad_multipart(format!("part `{name}` is text but not UTF-8; send bytes as a file"))),
    }
}

fn into_map(fields: Vec<(String, Vec<Value>)>) -> Map {
    let entries = fields.into_iter().map(|(name, mut values)| match (values.pop(), values.is_empty()) {
        (Some(only), true) => (name, only),
        (last, _) => (name, Value::List(values.into_iter().chain(last).collect())),
    });
    entries.collect()
}

/// An error of ours on its way through multer.
#[derive(Debug, thiserror::Error)]
#[error("the body could not be read")]
struct Broken(ApiError);

/// Our own errors come back as they went in; multer's say what is wrong with the form.
fn fault(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast::<Broken>() {
            Ok(ours) => ours.0,
            Err(other) => ApiError::broken_body(&*other),
        },
        other => ApiError::bad_multipart(other.to_string()),
    }
}
