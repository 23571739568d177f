//! `/v1/call/{name}`: function-style calls, `{args, kwargs}` in and one value out.
//!
//! Every route can be called as a function. A function gets its arguments; another route gets its input as the only
//! positional argument, or the fields of its input by name. A body of frames is an ordered [`stream`] of calls.
//! `docs/wire.md` specifies the format for clients in other languages.

mod frames;
pub(crate) mod stream;

use std::borrow::Cow;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use callboard_codec::MediaType;

use crate::respond::stream::StreamForm;

/// The style of a call, which decides the content of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// By its own path: the body is the input, or each frame of a stream of calls.
    Route,
    /// As a function: the body holds arguments.
    Function,
    /// By a path or method that the route declares: without a body the input is null.
    Declared,
}

/// The route of a path below `/v1/call`: `/v1/call/a/b` is `/a/b`. So is `/v1/call/a%2Fb`, which clients generated from
/// the OpenAPI document send.
pub(crate) fn name_of(path: &str) -> Option<Cow<'_, str>> {
    let name = path.strip_prefix("/v1/call").filter(|name| name.starts_with('/') && name.len() > 1)?;
    percent_encoding::percent_decode_str(name).decode_utf8().ok()
}

/// Whether the body is a stream of calls.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    MediaType::without_parameters(content_type).eq_ignore_ascii_case(StreamForm::Envelopes.media_type())
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
        for other in ["/v1/call", "/v1/call/", "/v1/caller/a", "/digits", "/v1", "/v1/call/%ff"] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }
}
