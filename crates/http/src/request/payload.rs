//! From a body to the payload of a call.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DataType, DecodeErrorKind, DecodeLimits, Format, Map, Payload, Value};
use callboard_core::edge::{Admission, CodecBudget, Route};

use super::arguments;
use crate::error::ApiError;
use crate::request::form::ReceivedForm;
use crate::request::form_fields;

/// Larger values are not read again to name every mismatch; only the first is named.
pub(crate) const EXPLAINED_BYTES: usize = 1024 * 1024;

/// Decodes the payload of a call of `route`.
///
/// # Errors
///
/// The bytes do not decode to the type of the route, the deadline passed, or the node has no room.
pub fn decode(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Payload), ApiError>> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    budget.read(admission, bytes, move |bytes| payload(route.input(), format, bytes, &limits))
}

/// Decodes a body. If it does not fit, it is read again, to name every field.
pub(crate) fn payload(
    input: &DataType,
    format: Format,
    bytes: &Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    input.decode(format, bytes, limits).map_err(|error| {
        let is_worth_it = error.kind() == DecodeErrorKind::Mismatch && bytes.len() <= EXPLAINED_BYTES;
        match is_worth_it.then(|| Value::decode(format, bytes, limits)) {
            Some(Ok(value)) => ApiError::unfit(error, input, &value),
            _ => error.into(),
        }
    })
}

/// Converts a value to the payload of a call. `rebuild` makes the value once more, to name every wrong field.
pub(crate) fn payload_from(
    input: &DataType,
    value: Value,
    rebuild: impl FnOnce() -> Option<Value>,
) -> Result<Payload, ApiError> {
    input.from_value(value).map_err(|error| {
        let is_mismatch = error.kind() == DecodeErrorKind::Mismatch;
        match is_mismatch.then(rebuild).flatten().filter(|value| value.resident_bytes() <= EXPLAINED_BYTES) {
            Some(value) => ApiError::unfit(error, input, &value),
            None => error.into(),
        }
    })
}

/// The same for a value that cannot be made again. Its texts and lists are copied for that; arrays and bytes are
/// shared.
pub(crate) fn payload_of_form(input: &DataType, value: Value) -> Result<Payload, ApiError> {
    let copy = (value.resident_bytes() <= EXPLAINED_BYTES).then(|| value.clone());
    payload_from(input, value, || copy)
}

/// The payload of the fields of a form: they are the input, or the only one is its value.
pub(crate) fn of_fields(input: &DataType, mut fields: Map) -> Result<Payload, ApiError> {
    match form_fields::only_argument(&mut fields, input) {
        Some(value) => payload_of_form(input, value),
        None => payload_of_form(input, Value::Map(fields)),
    }
}

/// Decodes the arguments of a call of `route`.
pub(crate) fn decode_call(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Payload), ApiError>> {
    let (route, limits) = (Arc::clone(route), limits.clone());
    budget.read(admission, bytes, move |bytes| arguments::decode(&route, format, bytes, &limits))
}

/// The payload that `read` makes of the fields of a form, converted by the schema of `route`.
pub(crate) async fn decode_form(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    form: ReceivedForm,
    limits: &DecodeLimits,
    read: fn(&Arc<Route>, Map) -> Result<Payload, ApiError>,
) -> Result<(Admission, Payload), ApiError> {
    let (route, limits, bytes) = (Arc::clone(route), limits.clone(), form.read_bytes());
    // Texts are copied.
    budget.charge(form.value_bytes())?;
    let read = move || {
        let input = route.input();
        let fields = form.decode(&limits, |name| form_fields::type_with_decimals(input, name))?;
        read(&route, form_fields::fit(fields, input))
    };
    let (admission, payload) = budget.run(admission, bytes, read).await?;
    Ok((admission, payload?))
}

/// Decodes a value of any type.
///
/// # Errors
///
/// The body does not decode, the deadline passed, or the node has no room.
pub fn decode_value(
    budget: &CodecBudget<'_>,
    admission: Admission,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> impl Future<Output = Result<(Admission, Value), ApiError>> {
    let limits = limits.clone();
    budget.read(admission, bytes, move |bytes| Ok(Value::decode(format, bytes, &limits)?))
}

/// The payload of a body that is a text.
pub(crate) async fn from_text(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    bytes: Bytes,
) -> Result<(Admission, Payload), ApiError> {
    let (route, length) = (Arc::clone(route), bytes.len());
    let read = move || {
        let text = String::from_utf8(bytes.into());
        let text = text.map_err(|error| ApiError::bad_text(error.utf8_error().valid_up_to()))?;
        payload_of_form(route.input(), Value::Str(text))
    };
    let (admission, payload) = budget.run_once(admission, length, read).await?;
    let payload = payload?;
    // A `Value` is the body itself. A Rust type has a copy, which was charged, and the body is gone.
    if !payload.is::<Value>() {
        budget.refund(length);
    }
    Ok((admission, payload))
}

/// Converts a value to the payload of a call of `route`.
///
/// # Errors
///
/// The value does not fit, the deadline passed, or the node has no room.
pub async fn from_value(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    value: Value,
) -> Result<(Admission, Payload), ApiError> {
    let (route, bytes) = (Arc::clone(route), value.resident_bytes());
    let read = move || payload_of_form(route.input(), value);
    let (admission, payload) = budget.run_once(admission, bytes, read).await?;
    Ok((admission, payload?))
}
