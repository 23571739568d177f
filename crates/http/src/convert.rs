//! Decoding and encoding, off the runtime's threads when there is much of it.
//!
//! A body of megabytes takes milliseconds to parse, in which its thread would answer nobody else. Below
//! [`LARGE_BYTES`] handing the work over would take longer than doing it.

use std::future::ready;
use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DataType, DecodeErrorKind, DecodeLimits, EncodeError, Format, Map, Payload, Value};
use callboard_core::{ErrorKind, Route};
use futures_util::future::Either;
use tokio::task::spawn_blocking;

use crate::coding::{self, Coding};
use crate::error::ApiError;
use crate::functions;
use crate::request::form_fields;
use crate::request::multipart::Form;

/// What does not fit its type is told field by field up to this size; beyond it the first has to do.
pub(crate) const EXPLAINED_BYTES: usize = 1024 * 1024;

/// About a millisecond of JSON.
pub(crate) const LARGE_BYTES: usize = 256 * 1024;

/// The payload that these bytes mean to `route`.
pub(crate) async fn decode(
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    sized(bytes.len(), move || payload(route.input(), format, &bytes, &limits)).await?
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

/// The payload that this value means to a route with this input. `again` makes the value once more, to tell of all in it that
/// does not fit.
pub(crate) fn payload_from(
    input: &DataType,
    value: Value,
    again: impl FnOnce() -> Option<Value>,
) -> Result<Payload, ApiError> {
    input.from_value(value).map_err(|error| {
        let is_misfit = error.kind() == DecodeErrorKind::Mismatch;
        match is_misfit.then(again).flatten().filter(|value| value.resident_bytes() <= EXPLAINED_BYTES) {
            Some(value) => ApiError::unfit(error, input, &value),
            None => error.into(),
        }
    })
}

/// The same for the fields of a form, which cannot be made once more. Its texts and lists are copied for that; arrays and bytes,
/// which are most of a form, are shared.
pub(crate) fn payload_of_form(input: &DataType, value: Value) -> Result<Payload, ApiError> {
    let kept = (value.resident_bytes() <= EXPLAINED_BYTES).then(|| value.clone());
    payload_from(input, value, || kept)
}

/// The payload that arguments in these bytes are to `route`.
pub(crate) async fn decode_call(
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    sized(bytes.len(), move || functions::decode(&route, format, &bytes, &limits)).await?
}

/// The value that these bytes mean, whatever it is for: one part of a form.
pub(crate) async fn decode_part(format: Format, bytes: Bytes, limits: &DecodeLimits) -> Result<Value, ApiError> {
    let limits = limits.clone();
    Ok(sized(bytes.len(), move || Value::decode(format, &bytes, &limits)).await??)
}

/// The fields of a form as what the schema of `route` says they are.
pub(crate) async fn fit(route: &Arc<Route>, form: Form) -> Result<Map, ApiError> {
    let (route, bytes) = (Arc::clone(route), form.text_bytes());
    sized(bytes, move || form_fields::fit(form, route.input().schema())).await
}

/// The text that a body is.
pub(crate) fn text(bytes: Bytes) -> Result<String, ApiError> {
    String::from_utf8(bytes.into()).map_err(|error| ApiError::bad_text(error.utf8_error().valid_up_to()))
}

/// The payload that this value means to `route`.
pub(crate) async fn from_value(route: &Arc<Route>, value: Value) -> Result<Payload, ApiError> {
    let route = Arc::clone(route);
    sized(value.resident_bytes(), move || payload_of_form(route.input(), value)).await?
}

/// The bytes of an answer. The outer error is the server's, the inner one says why this format does not hold the outcome.
pub(crate) async fn encode(payload: Payload, format: Format) -> Result<Result<Bytes, EncodeError>, ApiError> {
    sized(payload.size_hint(), move || payload.encode(format)).await
}

/// The same bytes, packed.
pub(crate) async fn pack(bytes: Bytes, coding: Coding) -> Result<Bytes, ApiError> {
    let packed = sized(bytes.len(), move || coding::pack(coding, &bytes)).await?;
    packed.map_err(|error| ApiError::of_kind(ErrorKind::Internal, format!("the answer cannot be packed: {error}")))
}

/// Runs `work` on so many bytes: here where they are few, else [off the thread](off_thread).
pub(crate) fn sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, ApiError>> + Send {
    // Decided before there is a future, so that what most bodies wait for is the result and not the work.
    match bytes < LARGE_BYTES {
        true => Either::Left(ready(Ok(work()))),
        false => Either::Right(Box::pin(off_thread(work))),
    }
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
