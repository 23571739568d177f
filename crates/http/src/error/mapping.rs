//! The one table from kinds of errors to HTTP statuses, and which headers user code may choose for them.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use callboard_core::{CallError, ErrorKind, ErrorReason};

/// The status of a failed call: by its kind, by its reason, or as user code chose.
pub(crate) fn status_of_call(error: &CallError) -> StatusCode {
    let special = match error.reason() {
        Some(ErrorReason::TooLarge) => Some(StatusCode::PAYLOAD_TOO_LARGE),
        Some(ErrorReason::LoopDetected) => Some(StatusCode::LOOP_DETECTED),
        _ => None,
    };
    status_of(error.kind(), special.map(|status| status.as_u16()).or_else(|| error.status()))
}

/// The status of a kind. User code may choose a status (`chosen`) for errors that it reports
/// ([`ErrorKind::Failed`] and [`ErrorKind::InvalidInput`]), never for errors of the framework.
pub(crate) fn status_of(kind: ErrorKind, chosen: Option<u16>) -> StatusCode {
    let chosen = chosen.and_then(|code| StatusCode::from_u16(code).ok());
    match kind {
        ErrorKind::InvalidInput => chosen.unwrap_or(StatusCode::BAD_REQUEST),
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Cancelled => client_closed_request(),
        ErrorKind::Failed => chosen.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        ErrorKind::WorkerFailed => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        // A kind without a row counts as our defect, not the client's.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The headers that user code does not choose, by their beginning: of the connection and of the body, which are the
/// server's, and of the browser's trust in the whole host, which one service must not change. The Python package has
/// the same list, in `_headers.py`.
const OWN_HEADERS: [&str; 22] = [
    "access-control-",
    "alt-svc",
    "clear-site-data",
    "connection",
    "content-",
    "date",
    "keep-alive",
    "proxy-",
    "retry-after",
    "sec-",
    "server",
    "server-timing",
    "set-cookie",
    "strict-transport-security",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "x-callboard-",
    "x-request-id",
];

/// A header that user code chose for its failure; `None` if it is invalid or the edge's own.
pub(crate) fn header_of_call(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name: HeaderName = name.parse().ok()?;
    let is_own = |own: &&str| match own.strip_suffix('-') {
        Some(_) => name.as_str().starts_with(*own),
        None => name.as_str() == *own,
    };
    if OWN_HEADERS.iter().any(is_own) {
        return None;
    }
    Some((name, value.parse().ok()?))
}

/// nginx's status for a client that left before the response. The metrics count it; no client receives it.
fn client_closed_request() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;

    use super::*;

    #[test]
    fn user_code_chooses_headers_but_not_those_of_the_server() {
        for (name, value) in [("WWW-Authenticate", "Basic"), ("x-reason", "a b"), ("link", "</docs>")] {
            assert!(header_of_call(name, value).is_some(), "{name}");
        }
        let refused = ["Set-Cookie", "Content-Length", "content-security-policy", "TE", "Access-Control-Allow-Origin"];
        for name in refused.into_iter().chain(OWN_HEADERS) {
            assert!(header_of_call(name, "1").is_none(), "{name}");
        }
        for (name, value) in [("x y", "1"), ("", "1"), ("x", "a\r\nset-cookie: b"), ("x", "\0")] {
            assert!(header_of_call(name, value).is_none(), "{name}: {value}");
        }
    }

    #[test]
    fn every_kind_has_its_status() {
        let table = [
            (ErrorKind::InvalidInput, 400),
            (ErrorKind::Unauthenticated, 401),
            (ErrorKind::PermissionDenied, 403),
            (ErrorKind::NotFound, 404),
            (ErrorKind::Overloaded, 429),
            (ErrorKind::Cancelled, 499),
            (ErrorKind::Failed, 500),
            (ErrorKind::WorkerFailed, 500),
            (ErrorKind::Internal, 500),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::DeadlineExceeded, 504),
        ];
        assert_eq!(table.map(|(kind, _)| kind), ErrorKind::ALL, "a row for each kind");
        for (kind, status) in table {
            assert_eq!(status_of(kind, None).as_u16(), status, "{kind}");
        }
    }

    #[test]
    fn the_documented_table_matches_the_code() {
        let page = include_str!("../../../../docs/errors.md");
        let rows: Vec<(&str, &str)> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(kind, rest)| (kind, rest.split(" | ").next().unwrap_or_default()))
            .collect();
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), ErrorKind::ALL.map(ErrorKind::as_str));
        for (kind, (name, statuses)) in ErrorKind::ALL.into_iter().zip(rows) {
            let status = status_of(kind, None).as_u16().to_string();
            assert!(statuses.contains(&status), "`{name}` is {statuses} on the page and {status} here");
        }
    }

    #[test]
    fn a_reason_has_its_status() {
        for (kind, reason, status) in
            [(ErrorKind::InvalidInput, ErrorReason::TooLarge, 413), (ErrorKind::Failed, ErrorReason::LoopDetected, 508)]
        {
            let parts = ErrorParts { reason: Some(reason), ..ErrorParts::new(kind, "no") };
            assert_eq!(status_of_call(&parts.into()).as_u16(), status, "{reason:?}");
        }
    }

    #[test]
    fn user_code_chooses_the_status_of_its_own_errors_only() {
        for kind in ErrorKind::ALL {
            let chosen = status_of(kind, Some(418)).as_u16();
            let may_choose = matches!(kind, ErrorKind::InvalidInput | ErrorKind::Failed);
            assert_eq!(chosen == 418, may_choose, "{kind}");
        }
    }
}
