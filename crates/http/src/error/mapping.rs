//! The one table from kinds of errors to HTTP statuses.

use axum::http::StatusCode;
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

/// nginx's status for a client that left before the response. The metrics count it; no client receives it.
fn client_closed_request() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;

    use super::*;

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
