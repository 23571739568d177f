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
const OWN_HEADERS: [&str; 25] = [
    "access-control-",
    "alt-svc",
    "cache-status",
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
    "x-accel-buffering",
    "x-callboard-",
    "x-content-type-options",
    "x-request-id",
];

/// Those of them that a successful response may have: of its body, for its caches, and cookies. The Python package has
/// the same list.
const OF_RESPONSES: [&str; 6] =
    ["content-disposition", "content-language", "content-security-policy", "content-type", "set-cookie", "vary"];

/// A header that user code chose for its failure; `None` if it is invalid or the edge's own.
pub(crate) fn header_of_call(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name: HeaderName = name.parse().ok()?;
    if is_own(&name) {
        return None;
    }
    Some((name, value.parse().ok()?))
}

/// A header that user code chose for a successful response, or what is wrong with it.
pub(crate) fn header_of_response(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let refused = || format!("the header {name:?}: {value:?} has characters that HTTP does not allow there");
    let header: HeaderName = name.parse().map_err(|_| refused())?;
    if is_own(&header) && !OF_RESPONSES.contains(&header.as_str()) {
        return Err(format!("the header `{header}` is the server's own: an answer cannot choose it"));
    }
    Ok((header, value.parse().map_err(|_| refused())?))
}

fn is_own(name: &HeaderName) -> bool {
    let is = |own: &&str| match own.strip_suffix('-') {
        Some(_) => name.as_str().starts_with(*own),
        None => name.as_str() == *own,
    };
    OWN_HEADERS.iter().any(is)
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
    fn a_response_may_also_have_cookies_and_headers_of_its_body() {
        for name in OF_RESPONSES.into_iter().chain(["Location", "X-Model", "cache-control"]) {
            assert!(header_of_response(name, "a").is_ok(), "{name}");
        }
        for name in ["Content-Length", "transfer-encoding", "Connection", "date", "content-encoding", "x-request-id"] {
            let refused = header_of_response(name, "1").unwrap_err();
            let name = name.to_ascii_lowercase();
            assert_eq!(refused, format!("the header `{name}` is the server's own: an answer cannot choose it"));
        }
        for (name, value) in [("x y", "1"), ("x", "a\r\nset-cookie: b"), ("x", "\0")] {
            let refused = header_of_response(name, value).unwrap_err();
            assert!(refused.contains(&format!("{name:?}: {value:?}")), "{refused}");
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
