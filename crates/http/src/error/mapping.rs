//! The HTTP status of an error, by the table of its kind, and which headers user code may choose for it.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use callboard_core::{CallError, ErrorKind, ErrorReason};

/// The status of a failed call: by its reason, as user code chose, or by its kind.
pub(crate) fn status_of_call(error: &CallError) -> StatusCode {
    let special = error.reason().and_then(ErrorReason::http_status);
    status_of(error.kind(), special.or_else(|| error.status()))
}

/// The status of a kind. User code may choose a status (`chosen`) for errors that it reports, never for errors of the
/// framework.
pub(crate) fn status_of(kind: ErrorKind, chosen: Option<u16>) -> StatusCode {
    let row = kind.row();
    let valid = |code: u16| StatusCode::from_u16(code).ok();
    let chosen = chosen.filter(|_| row.has_chosen_status).and_then(valid);
    chosen.or_else(|| valid(row.http_status)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
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
        for row in ErrorKind::TABLE {
            assert_eq!(status_of(row.kind, None).as_u16(), row.http_status, "{row:?}");
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
