//! The arguments of a function call: `{args, kwargs}` in a body, or the fields of a form.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use callboard_codec::{DataType, DecodeLimits, Format, Map, Payload};
use callboard_core::FunctionCall;
use callboard_core::edge::Route;

use super::payload::{EXPLAINED_BYTES, payload_from, payload_of_form};
use crate::error::ApiError;

/// What the body of a call is.
pub(crate) fn arguments() -> &'static DataType {
    static ARGUMENTS: OnceLock<DataType> = OnceLock::new();
    ARGUMENTS.get_or_init(DataType::of::<FunctionCall>)
}

/// The payload that arguments in these bytes are to `route`.
pub(crate) fn decode(
    route: &Arc<Route>,
    format: Format,
    bytes: &Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    let read = || -> Result<FunctionCall, ApiError> { Ok(arguments().decode(format, bytes, limits)?.into_inner()?) };
    let call = read()?;
    if route.is_function() {
        return Ok(Payload::new(call));
    }
    // Read a second time where the first does not fit: a price that only a mistake pays.
    let again = || (bytes.len() <= EXPLAINED_BYTES).then(|| read().ok()?.into_input(route).ok()).flatten();
    payload_from(route.input(), call.into_input(route)?, again)
}

/// The payload that the fields of a form are to `route`: arguments by name.
pub(crate) fn from_form(route: &Arc<Route>, kwargs: Map) -> Result<Payload, ApiError> {
    let call = FunctionCall { args: Vec::new(), kwargs };
    if route.is_function() {
        return Ok(Payload::new(call));
    }
    payload_of_form(route.input(), call.into_input(route)?)
}
