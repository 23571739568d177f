//! Errors of requests in the log.

use callboard_core::ErrorKind;
use callboard_core::edge::limit_text;
use callboard_core::log_limit::admits_failed_call;

use super::{ApiError, ErrorFields};

/// The most characters of a message in the log. What user code says of its inputs may be as long as they are.
const MAX_CHARS: usize = 1000;

impl ApiError {
    /// Logs the error: a warning if a call failed on our side and the log has not had many such lines lately, else at
    /// debug level.
    ///
    /// A page is not a call: machines request it every second, and 503 of `/readyz` is a response, not an event.
    pub fn log(&self, request_id: &str, route: Option<&str>) {
        let ErrorFields { status, kind, message, error_type, stage, .. } = &*self.0;
        let route = route.or(self.0.route.as_deref());
        let status = status.as_u16();
        let (error_type, stage) = (error_type.as_deref(), stage.as_deref());
        // An unsupported feature of a protocol (501) is a mistake of the caller.
        let of_route = route.filter(|_| status >= 500 && *kind != ErrorKind::InvalidInput);
        let is_told = of_route.is_some_and(|route| admits_failed_call(route, *kind, message.len().min(MAX_CHARS)));
        let kind = kind.as_str();
        if is_told {
            // Its client has all of it.
            let message = limit_text(message.to_string(), MAX_CHARS);
            tracing::warn!(request_id, route, status, kind, error_type, stage, "{message}");
        } else {
            tracing::debug!(request_id, route, status, kind, error_type, stage, "{message}");
        }
    }
}
