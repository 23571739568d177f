//! `/v1/call/{name}`: function-style calls, `{args, kwargs}` in and one value out.
//!
//! Every route can be called as a function. A function gets its arguments; another route gets its input as the only
//! positional argument, or the fields of its input by name. A body of frames is an ordered [`stream`] of calls.
//! `docs/wire.md` specifies the format for clients in other languages.

mod frames;
pub(crate) mod stream;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Request};
use callboard_codec::{Format, MediaType};
use callboard_core::edge::Route;
use callboard_core::{CallOptions, split_route_name};

pub(crate) use crate::request::arguments::name_of;
use crate::request::request_fields::add_method_and_client;
use crate::respond::stream::StreamForm;

/// The style of a call, which decides the content of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// By its own path: the body is the input, or each frame of a stream of calls.
    Route,
    /// As a function: the body holds arguments.
    Function,
    /// By a path or method that the route declares: without a body the input is its default, or null.
    Declared,
    /// By a path of a mounted app: the request is given to it whole.
    Asgi,
}

/// Whether the body is a stream of calls.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    let envelopes = StreamForm::Envelopes.media_type();
    // Nearly every request: no parsing.
    content_type.len() >= envelopes.len()
        && content_type.to_str().is_ok_and(|text| MediaType::without_parameters(text).eq_ignore_ascii_case(envelopes))
}

/// Which route an envelope in a `POST` is for: only clients of Callboard send one, and they know routes by name.
pub(crate) const X_CALLBOARD_METHOD: &str = "x-callboard-method";

/// The method that decides on the route of a path. `None` for an envelope without a header that says it: such a client
/// has called the path alone.
pub(crate) fn method_of<B>(request: &Request<B>) -> Option<&str> {
    let headers = request.headers();
    let is_envelope = || headers.get(CONTENT_TYPE).is_some_and(|value| value == Format::Envelope.media_type());
    if request.method() == Method::POST && (is_envelope() || is_stream(headers)) {
        // Other bytes are the name of no method.
        return headers.get(X_CALLBOARD_METHOD).map(|method| method.to_str().unwrap_or_default());
    }
    Some(request.method().as_str())
}

/// Adds the method by which a request calls this route, and its client, where the code reads anything of the request.
/// The method of a function is in its name; a caller may say none.
pub(crate) fn with_method_and_client<B>(
    options: CallOptions,
    route: &Route,
    style: CallStyle,
    request: &Request<B>,
) -> CallOptions {
    if route.request_fields().is_none() {
        return options;
    }
    let name = if style == CallStyle::Function { name_of(request.uri().path()) } else { None };
    let method = match &name {
        Some(name) => split_route_name(name).0,
        None => method_of(request),
    };
    add_method_and_client(options, method, request.extensions())
}
