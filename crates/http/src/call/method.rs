//! The method by which a request calls its route: it decides which route that is, and the code of the route is told it.

use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request};
use callboard_codec::Format;
use callboard_core::edge::Route;
use callboard_core::{CallOptions, split_route_name};

use super::functions::{CallStyle, is_stream, name_of};
use crate::request::request_fields::ClientAddress;

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
    let options = method.into_iter().fold(options, CallOptions::with_method);
    let client = request.extensions().get::<ClientAddress>();
    client.into_iter().fold(options, |options, client| options.with_client_address(client.0.to_string()))
}
