//! An error as the Open Inference Protocol has it: `{"error": "…"}`, as `application/json` and nothing else, which is what its
//! clients look at.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use serde::Serialize;

use super::ApiError;
use super::problem::insert_retry_after;

#[derive(Serialize)]
struct ProtocolError<'a> {
    error: &'a str,
}

impl ApiError {
    /// The body alone, where the status has been sent already.
    pub(crate) fn to_protocol_json(&self) -> Vec<u8> {
        // A text always can be written.
        serde_json::to_vec(&ProtocolError { error: &self.0.message }).unwrap_or_default()
    }

    /// The answer that a client of the protocol reads.
    pub(crate) fn into_protocol_answer(self) -> Response {
        let mut response = Response::new(Body::from(self.to_protocol_json()));
        *response.status_mut() = match self.0.status {
            // The protocol does not tell what is malformed from what does not fit.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.0.header);
        if let Some(pause) = self.0.retry_after {
            insert_retry_after(headers, pause);
        }
        response
    }
}
