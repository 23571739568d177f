//! The status of gRPC of an error, and how a response carries it.
//!
//! Clients of gRPC repeat UNAVAILABLE by themselves. So it means that nothing was started, and nothing else. A refused
//! request is answered by headers alone: HTTP 200 with `grpc-status`, `grpc-message` and, if it is known, the time
//! after which it may be sent again.

use std::time::Duration;

use callboard_core::ErrorKind;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// The media type of all answers.
pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The milliseconds after which a client may repeat a call.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The codings of messages that are read.
pub(crate) const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// All of them.
pub(crate) const CODINGS: HeaderValue = HeaderValue::from_static("identity,deflate,gzip");

/// The longest text of a status, in characters: it is a header, of which clients take 8 KiB by default.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// The status codes that have no kind of error.
pub(crate) const OK: u8 = 0;
const ABORTED: u8 = 10;
const FAILED_PRECONDITION: u8 = 9;
const OUT_OF_RANGE: u8 = 11;
const UNIMPLEMENTED: u8 = 12;

/// The status of a kind of error, by its table.
const fn of_kind(kind: ErrorKind) -> u8 {
    kind.row().grpc_status
}

/// The status of an error.
pub(crate) fn code(error: &ApiError) -> u8 {
    let (kind, status) = (error.kind(), error.status().as_u16());
    if kind == ErrorKind::Unavailable && (error.may_have_run() || !error.is_retryable()) {
        // A call that may have run is not UNAVAILABLE, even if it may run again.
        of_kind(ErrorKind::Internal)
    } else if status == kind.row().http_status {
        of_kind(kind)
    } else {
        of_http(status)
    }
}

/// The status of an error with an HTTP status that is not its kind's: of the edge, or chosen by user code that has run.
fn of_http(status: u16) -> u8 {
    use ErrorKind::{
        Cancelled, DeadlineExceeded, Failed, Internal, InvalidInput, NotFound, Overloaded, PermissionDenied,
        Unauthenticated,
    };
    match status {
        401 => of_kind(Unauthenticated),
        403 => of_kind(PermissionDenied),
        404 | 410 => of_kind(NotFound),
        405 | 415 | 501 => UNIMPLEMENTED,
        408 | 504 => of_kind(DeadlineExceeded),
        409 => ABORTED,
        412 | 428 => FAILED_PRECONDITION,
        413 | 429 | 431 | 507 => of_kind(Overloaded),
        416 => OUT_OF_RANGE,
        499 => of_kind(Cancelled),
        400..=499 => of_kind(InvalidInput),
        503 => of_kind(Internal),
        _ => of_kind(Failed),
    }
}

/// Adds the status of a call that has succeeded.
pub(crate) fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from(u16::from(OK)))])
}

/// The trailers of an error.
pub(crate) fn trailers(error: &ApiError) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let code = code(error);
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    if let Ok(message) = HeaderValue::try_from(encoded(error.message())) {
        headers.insert(GRPC_MESSAGE, message);
    }
    let may_repeat = code == of_kind(ErrorKind::Overloaded) && error.is_retryable();
    if let Some(wait) = error.wait().filter(|_| may_repeat) {
        headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(whole_millis(wait)));
    }
    if code == UNIMPLEMENTED {
        headers.insert(GRPC_ACCEPT_ENCODING, CODINGS);
    }
    headers
}

/// The answer to a request that is refused.
pub(crate) fn response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = trailers(error);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Rounded up: an early retry would be refused again.
fn whole_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// gRPC's percent-encoding: all but visible ASCII and the space, and `%` itself.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

fn encoded(message: &str) -> String {
    let short: String = match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    };
    utf8_percent_encode(&short, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use callboard_core::CallError;
    use callboard_core::edge::ErrorParts;
    use callboard_http::axum::http::StatusCode;

    use super::*;

    fn status(error: impl Into<ApiError>) -> u8 {
        code(&error.into())
    }

    #[test]
    fn every_kind_has_the_status_of_its_row() {
        for row in ErrorKind::TABLE {
            let parts = ErrorParts { retry_after: None, ..ErrorParts::new(row.kind, "no") };
            assert_eq!(status(CallError::from(parts)), row.grpc_status, "{row:?}");
        }
    }

    /// Clients repeat UNAVAILABLE.
    #[test]
    fn unavailable_means_that_nothing_was_started() {
        assert_eq!(status(ApiError::new(ErrorKind::Unavailable, "draining")), 14);
        assert_eq!(status(ApiError::new(ErrorKind::Unavailable, "lost").of_calls_that_ran()), 13);
        let lost = ErrorParts { may_repeat: true, ..ErrorParts::connection_lost("lost") };
        let lost = ApiError::from(CallError::from(lost));
        assert!(lost.is_retryable(), "its contract lets it run again");
        assert_eq!(status(lost), 13);
        for http in 400..600 {
            let chosen = ApiError::with_status(StatusCode::from_u16(http).unwrap(), "chosen", "no".to_owned());
            let code = status(chosen);
            assert!((1..=16).contains(&code) && code != 14, "{http}: {code}");
        }
    }

    #[test]
    fn statuses_of_the_edge_and_of_user_code_have_their_own() {
        for (http, grpc) in
            [(413, 8), (408, 4), (415, 12), (405, 12), (501, 12), (409, 10), (418, 3), (422, 3), (502, 2)]
        {
            let error = ApiError::with_status(StatusCode::from_u16(http).unwrap(), "x", "no".to_owned());
            assert_eq!(status(error), grpc, "{http}");
        }
    }

    #[test]
    fn a_message_is_percent_encoded_and_short() {
        assert_eq!(encoded("50% of `ü`\n"), "50%25 of `%C3%BC`%0A");
        assert_eq!(encoded(&"é".repeat(5_000)).len(), 6 * MAX_MESSAGE_CHARS + "%E2%80%A6".len());
    }

    #[test]
    fn an_overloaded_node_tells_when_to_come_back() {
        let parts = ErrorParts {
            retry_after: Some(Duration::from_micros(1_500)),
            ..ErrorParts::new(ErrorKind::Overloaded, "full")
        };
        let trailers = trailers(&CallError::from(parts).into());
        assert_eq!(
            (&trailers[GRPC_STATUS], &trailers[GRPC_RETRY_PUSHBACK_MS]),
            (&"8".parse().unwrap(), &"2".parse().unwrap())
        );
    }
}
