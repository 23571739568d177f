//! Decoding and encoding, off the runtime's threads when there is much of it.
//!
//! A body of megabytes takes milliseconds to parse, in which its thread would answer nobody else. Below
//! [`LARGE_BYTES`] handing the work over would take longer than doing it.

use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DataType, DecodeErrorKind, DecodeLimits, EncodeError, Format, Payload, Value};
use callboard_core::{ErrorKind, Route};
use tokio::task::spawn_blocking;

use crate::coding::{self, Coding};
use crate::error::ApiError;
use crate::functions;

/// What does not fit its type is told field by field up to this size; beyond it the first has to do.
const EXPLAINED_BYTES: usize = 1024 * 1024;

/// About a millisecond of JSON.
pub(crate) const LARGE_BYTES: usize = 256 * 1024;

/// The payload that these bytes mean to `route`.
pub(crate) async fn decode(
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    if bytes.len() < LARGE_BYTES {
        return payload(route.input(), format, &bytes, limits);
    }
    let (route, limits) = (Arc::clone(route), limits.clone());
    off_thread(move || payload(route.input(), format, &bytes, &limits)).await?
}

/// Reads a second time what does not fit, to tell of all of it: a price that only a mistake pays.
fn payload(input: &DataType, format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Payload, ApiError> {
    input.decode(format, bytes, limits).map_err(|error| {
        let is_worth_it = error.kind() == DecodeErrorKind::Mismatch && bytes.len() <= EXPLAINED_BYTES;
        match is_worth_it.then(|| Value::decode(format, bytes, limits)) {
            Some(Ok(value)) => ApiError::unfit(error, input, &value),
            _ => error.into(),
        }
    })
}

/// The payload that this value means to a route with this input.
pub(crate) fn payload_from(input: &DataType, value: Value) -> Result<Payload, ApiError> {
    // Texts and lists are copied; arrays and bytes, which are most of a form, are shared.
    let kept = (value.resident_bytes() <= EXPLAINED_BYTES).then(|| value.clone());
    input.from_value(value).map_err(|error| match kept {
        Some(value) if error.kind() == DecodeErrorKind::Mismatch => ApiError::unfit(error, input, &value),
        _ => error.into(),
    })
}

/// The payload that arguments in these bytes are to `route`.
pub(crate) async fn decode_call(
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    if bytes.len() < LARGE_BYTES {
        return functions::decode(route, format, &bytes, limits);
    }
    let (route, limits) = (Arc::clone(route), limits.clone());
    off_thread(move || functions::decode(&route, format, &bytes, &limits)).await?
}

/// The value that these bytes mean, whatever it is for: one part of a form.
pub(crate) async fn decode_part(format: Format, bytes: Bytes, limits: &DecodeLimits) -> Result<Value, ApiError> {
    if bytes.len() < LARGE_BYTES {
        return Ok(Value::decode(format, &bytes, limits)?);
    }
    let limits = limits.clone();
    Ok(off_thread(move || Value::decode(format, &bytes, &limits)).await??)
}

/// The text that a body is.
pub(crate) fn text(bytes: Bytes) -> Result<String, ApiError> {
    String::from_utf8(bytes.into()).map_err(|error| ApiError::bad_text(error.utf8_error().valid_up_to()))
}

/// The payload that this value means to `route`.
pub(crate) async fn from_value(route: &Arc<Route>, value: Value) -> Result<Payload, ApiError> {
    if value.resident_bytes() < LARGE_BYTES {
        return payload_from(route.input(), value);
    }
    let route = Arc::clone(route);
    off_thread(move || payload_from(route.input(), value)).await?
}

/// The bytes of an answer. The outer error is the server's, the inner one says why this format does not hold the outcome.
pub(crate) async fn encode(payload: Payload, format: Format) -> Result<Result<Bytes, EncodeError>, ApiError> {
    if payload.size_hint() < LARGE_BYTES {
        return Ok(payload.encode(format));
    }
    off_thread(move || payload.encode(format)).await
}

/// The same bytes, packed.
pub(crate) async fn pack(bytes: Bytes, coding: Coding) -> Result<Bytes, ApiError> {
    let packed = match bytes.len() < LARGE_BYTES {
        true => coding::pack(coding, &bytes),
        false => off_thread(move || coding::pack(coding, &bytes)).await?,
    };
    packed.map_err(|error| ApiError::of_kind(ErrorKind::Internal, format!("the answer cannot be packed: {error}")))
}

/// Runs `work` on a thread that serves nobody else. Its panic goes on here, where all panics are counted.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    match spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_stopped) => Err(ApiError::of_kind(ErrorKind::Unavailable, "the server is stopping")),
        },
    }
}
