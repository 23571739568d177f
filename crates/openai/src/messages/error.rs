//! An error as Anthropic's clients read it: `{"type": "error", "error": {"type", "message"}}`, with the edge's status.

use callboard_http::protocol::ApiError;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct MessagesErrorJson<'a> {
    r#type: &'static str,
    error: MessagesErrorFields<'a>,
}

#[derive(Serialize)]
struct MessagesErrorFields<'a> {
    r#type: &'static str,
    message: &'a str,
}

pub(super) fn body(error: &ApiError) -> MessagesErrorJson<'_> {
    let r#type = match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        status if status < 500 => "invalid_request_error",
        _ => "api_error",
    };
    MessagesErrorJson { r#type: "error", error: MessagesErrorFields { r#type, message: error.message() } }
}
