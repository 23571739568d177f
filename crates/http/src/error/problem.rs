//! The problem document of an error (RFC 9457), with additional members.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::response::Response;
use callboard_codec::Value;
use serde::Serialize;

use super::ApiError;

/// The media type of errors.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Tells the libraries of OpenAI, of Anthropic, and others that are made as theirs, whether to repeat a request.
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The document. Its members are in reading order.
#[derive(Serialize)]
struct ProblemDocument<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_trace: Option<&'a str>,
    retryable: bool,
    request_id: &'a str,
}

impl ApiError {
    /// The document alone, for a response that began. `sends_trace`: its caller may read the trace.
    pub(crate) fn to_problem(&self, request_id: &str, sends_trace: bool) -> Vec<u8> {
        let error = &*self.0;
        let kind = error.kind.as_str();
        let problem = ProblemDocument {
            r#type: format!("urn:callboard:error:{kind}"),
            title: error.kind.row().title,
            status: error.status.as_u16(),
            detail: &error.message,
            kind,
            error_type: error.error_type.as_deref(),
            message: &error.message,
            stage: error.stage.as_deref(),
            details: error.details.as_ref(),
            remote_trace: error.remote_trace.as_deref().filter(|_| sends_trace),
            retryable: error.is_retryable,
            request_id,
        };
        // Details are a value of user code and may not fit JSON; the other members always do.
        serde_json::to_vec(&problem)
            .or_else(|_| serde_json::to_vec(&ProblemDocument { details: None, ..problem }))
            .unwrap_or_default()
    }

    pub(crate) fn into_answer(self, request_id: &str, sends_trace: bool) -> Response {
        let body = self.to_problem(request_id, sends_trace);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        self.add_headers(headers);
        response
    }

    /// Adds the headers of the error: `retry-after`, the header that its status requires, those of user code, and
    /// `x-should-retry: false` if clients [must not repeat](Self::must_not_be_repeated) it.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        headers.extend(self.0.headers.clone());
        if self.must_not_be_repeated() {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if let Some(pause) = self.0.retry_after {
            insert_retry_after(headers, pause);
        }
    }
}

/// Whole seconds, rounded up: an early retry would be refused again.
fn insert_retry_after(headers: &mut HeaderMap, pause: Duration) {
    let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One kind may have several statuses, but has one title.
    #[test]
    fn a_type_has_one_title() {
        let method = ApiError::method_not_allowed(&axum::http::Method::PUT, "POST").to_problem("x", true);
        let large = ApiError::body_too_large(1).to_problem("x", true);
        for problem in [method, large] {
            let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
            assert_eq!(problem["title"], "Invalid input", "{problem}");
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        for (pause, header) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2"), (2500, "3")] {
            let mut headers = HeaderMap::new();
            insert_retry_after(&mut headers, Duration::from_millis(pause));
            assert_eq!(headers[RETRY_AFTER], header, "{pause} ms");
        }
    }
}
