//! An error as the Open Inference Protocol has it: `{"error": "…"}` as `application/json`, which its clients read.

use callboard_http::axum::body::Body;
use callboard_http::axum::http::StatusCode;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use serde::Serialize;

#[derive(Serialize)]
struct ErrorJson<'a> {
    error: &'a str,
}

/// The body alone, after the status has been sent.
pub(crate) fn body(error: &ApiError) -> Vec<u8> {
    // A text can always be written.
    serde_json::to_vec(&ErrorJson { error: error.message() }).unwrap_or_default()
}

/// The response that a client of the protocol reads.
pub(crate) fn response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::from(body(error)));
    *response.status_mut() = match error.status() {
        // The protocol has one status for malformed bodies and for bodies of another type.
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    error.add_headers(headers);
    response
}
