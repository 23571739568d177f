//! `/v1/call/{name}`: function-style calls, `{args, kwargs}` in and one value out.
//!
//! Every route can be called as a function. A function gets its arguments; another route gets its input as the only
//! positional argument, or the fields of its input by name. A body of frames is an ordered [`stream`] of calls.
//! `docs/wire.md` specifies the format for clients in other languages.

mod frames;
pub(crate) mod stream;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use callboard_codec::MediaType;

pub(crate) use crate::request::arguments::name_of;
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
