//! The arguments of a function call: `{args, kwargs}` in a body, or the fields of a form.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use callboard_codec::{DataType, DecodeLimits, Format, Map, Payload};
use callboard_core::FunctionCall;
use callboard_core::edge::Route;

use super::payload::{EXPLAINED_BYTES, payload_from, payload_of_form};
use crate::error::ApiError;

/// The type of the body of a call.
pub(crate) fn arguments() -> &'static DataType {
    static ARGUMENTS: OnceLock<DataType> = OnceLock::new();
    ARGUMENTS.get_or_init(DataType::for_type::<FunctionCall>)
}

/// Decodes the arguments of a call of `route`.
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
    // Only a body that does not fit is read a second time, to name every field.
    let rebuild = || (bytes.len() <= EXPLAINED_BYTES).then(|| read().ok()?.into_input(route).ok()).flatten();
    payload_from(route.input(), call.into_input(route)?, rebuild)
}

/// The payload of a call of `route` whose keyword arguments are the fields of a form.
pub(crate) fn from_form(route: &Arc<Route>, kwargs: Map) -> Result<Payload, ApiError> {
    let call = FunctionCall { args: Vec::new(), kwargs };
    if route.is_function() {
        return Ok(Payload::new(call));
    }
    payload_of_form(route.input(), call.into_input(route)?)
}
