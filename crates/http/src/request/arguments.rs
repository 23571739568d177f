//! A function call: its name in the path, and its arguments, `{args, kwargs}` in a body or the fields of a form.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use callboard_codec::{DataType, DecodeLimits, Format, Map, Payload, Value};
use callboard_core::edge::Route;
use callboard_core::{FunctionCall, split_route_name};
use serde_json::json;

use super::payload::{EXPLAINED_BYTES, payload_from, payload_of_form};
use crate::error::ApiError;

/// The route of a path below `/v1/call`: `/v1/call/a/b` is `/a/b`. So is `/v1/call/a%2Fb`, which clients generated from
/// the OpenAPI document send. `/v1/call/GET%20/a` is `GET /a`.
pub(crate) fn name_of(path: &str) -> Option<Cow<'_, str>> {
    let name = path.strip_prefix("/v1/call").filter(|name| name.starts_with('/') && name.len() > 1)?;
    match percent_encoding::percent_decode_str(name).decode_utf8().ok()? {
        Cow::Owned(name) if split_route_name(&name[1..]).0.is_some() => Some(Cow::Owned(name[1..].to_owned())),
        name => Some(name),
    }
}

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
    let exact = (format == Format::Json && route.input().has_decimals()).then(|| with_decimals(route.input()));
    let read = || -> Result<FunctionCall, ApiError> {
        match &exact {
            None => Ok(arguments().decode(format, bytes, limits)?.into_inner()?),
            Some(exact) => {
                let value = exact.decode(format, bytes, limits)?.into_inner::<Value>()?;
                Ok(arguments().from_value(value)?.into_inner()?)
            }
        }
    };
    let call = read()?;
    if route.is_function() {
        return Ok(Payload::new(call));
    }
    // Only a body that does not fit is read a second time, to name every field.
    let rebuild = || (bytes.len() <= EXPLAINED_BYTES).then(|| read().ok()?.into_input(route).ok()).flatten();
    payload_from(route.input(), call.into_input(route)?, rebuild)
}

/// The body of a call of which some arguments are decimals, whose digits are kept.
fn with_decimals(input: &DataType) -> DataType {
    let (whole, names) = (input.schema(), input.parameters());
    let of_parameter = |name: &String| match names {
        Some(parameters) if !parameters.is_value => whole["properties"][name].clone(),
        _ => whole.clone(),
    };
    let names = names.map_or(&[][..], |parameters| parameters.names.as_slice());
    let mut args: Vec<_> = names.iter().map(of_parameter).collect();
    if let Some(first) = args.first_mut() {
        // The only argument may be the map of all.
        *first = json!({ "allOf": [first, whole] });
    }
    let kwargs: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), of_parameter(name))).collect();
    let properties = json!({ "args": { "prefixItems": args }, "kwargs": { "properties": kwargs } });
    DataType::value().with_schema(json!({ "properties": properties }))
}

/// The payload of a call of `route` whose keyword arguments are the fields of a form.
pub(crate) fn from_form(route: &Arc<Route>, kwargs: Map) -> Result<Payload, ApiError> {
    let call = FunctionCall { args: Vec::new(), kwargs };
    if route.is_function() {
        return Ok(Payload::new(call));
    }
    payload_of_form(route.input(), call.into_input(route)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_named_by_the_path_of_its_route() {
        assert_eq!(name_of("/v1/call/digits").as_deref(), Some("/digits"));
        for both in ["/v1/call/a/b", "/v1/call/a%2Fb", "/v1/call/a%2fb"] {
            assert_eq!(name_of(both).as_deref(), Some("/a/b"), "{both}");
        }
        assert_eq!(name_of("/v1/call/GET%20/a%2Fb").as_deref(), Some("GET /a/b"));
        assert_eq!(name_of("/v1/call/get%20/a").as_deref(), Some("/get /a"));
        for other in ["/v1/call", "/v1/call/", "/v1/caller/a", "/digits", "/v1", "/v1/call/%ff"] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }
}
