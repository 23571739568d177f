//! An error as OpenAI's clients read it: `{"error": {"message", "type", "param", "code"}}`.
//!
//! Their libraries repeat 408, 409, 429 and every 5xx by themselves, unless `x-should-retry` says no. A call that may
//! have run would run twice then. The edge adds the header to every such error ([`ApiError::add_headers`]).

use callboard_core::ErrorKind;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::StatusCode;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use serde::Serialize;

use crate::rate::add_rate;

/// The time to wait, which they read before `retry-after`.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

#[derive(Serialize)]
struct ErrorJson<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// 400: a field of the request that cannot be used. The message names it.
pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::with_status(StatusCode::BAD_REQUEST, "invalid_value", message.into())
}

/// 404: no model of this name has the task.
pub(crate) fn no_model(message: String) -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "model_not_found", message)
}

/// 500: the answer of a route that its task does not know.
pub(crate) fn bad_answer(route: &str, got: &str, expected: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("route `{route}` answered {got}, where its task needs {expected}"))
}

/// The body alone, as in a stream that has begun.
pub(crate) fn body(error: &ApiError) -> Vec<u8> {
    let (r#type, code) = type_and_code(error);
    // A text can always be written.
    let fields = ErrorFields { message: error.message(), r#type, param: None, code };
    serde_json::to_vec(&ErrorJson { error: fields }).unwrap_or_default()
}

fn type_and_code(error: &ApiError) -> (&'static str, Option<&str>) {
    let own = error.error_type();
    match error.status().as_u16() {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        403 => ("permission_error", own),
        404 => ("invalid_request_error", own.or(Some("not_found"))),
        429 => ("rate_limit_error", Some("rate_limit_exceeded")),
        status if status < 500 => ("invalid_request_error", own.or(Some("invalid_input"))),
        _ => ("server_error", own.or_else(|| Some(error.kind().as_str()))),
    }
}

/// The response that a client of the API reads.
pub(crate) fn response(error: &ApiError) -> Response {
    let mut response = response_with(error, body(error));
    add_rate(response.headers_mut(), error.rate_left());
    response
}

/// The same with another body: the libraries of both APIs retry by the same headers.
pub(crate) fn response_with(error: &ApiError, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    let status = match error.status() {
        // The API has one status for malformed bodies and for those that do not fit a type.
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    };
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    error.add_headers(headers);
    if let Some(wait) = error.wait() {
        let milliseconds = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(milliseconds.max(1)));
    }
    response
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;
    use callboard_http::protocol::X_SHOULD_RETRY;
    use serde_json::{Value, json};

    use super::*;

    fn answered(error: impl Into<ApiError>) -> (u16, Value, Option<String>) {
        let error = error.into();
        let response = response(&error);
        let retry = response.headers().get(X_SHOULD_RETRY).map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), serde_json::from_slice(&body(&error)).unwrap(), retry)
    }

    #[test]
    fn every_kind_has_a_type_that_clients_know() {
        for kind in ErrorKind::ALL {
            let (status, body, retry) = answered(ApiError::new(kind, "no"));
            let expected = match status {
                403 => "permission_error",
                429 => "rate_limit_error",
                400..=499 => "invalid_request_error",
                _ => "server_error",
            };
            assert_eq!(body["error"]["type"], expected, "{kind}: {status}");
            assert_eq!(body["error"]["message"], "no");
            assert_eq!(body["error"]["param"], Value::Null);
            // Clients do not repeat 499, and may repeat what has run nothing.
            let may_have_run = status >= 500 && !kind.is_retryable();
            assert_eq!(retry.as_deref(), may_have_run.then_some("false"), "{kind}: {status}");
        }
    }

    #[test]
    fn the_time_to_wait_is_in_milliseconds_too() {
        let wait = std::time::Duration::from_micros(1_500);
        let parts = ErrorParts { retry_after: Some(wait), ..ErrorParts::new(ErrorKind::Overloaded, "full") };
        let error = ApiError::from(callboard_core::CallError::from(parts));
        assert_eq!(response(&error).headers()[RETRY_AFTER_MS], "2");
        assert_eq!(answered(error).1["error"]["code"], "rate_limit_exceeded");
    }

    #[test]
    fn a_mistake_has_status_400_and_names_its_code() {
        let (status, body, retry) = answered(invalid("`n` must be from 1 to 128"));
        let message = "`n` must be from 1 to 128";
        let expected =
            json!({ "message": message, "type": "invalid_request_error", "param": null, "code": "invalid_value" });
        assert_eq!((status, &body["error"], retry), (400, &expected, None));
        assert_eq!(answered(no_model("there is no model `x`".to_owned())).0, 404);
    }
}
