//! Errors of requests in the log.

use callboard_core::ErrorKind;
use callboard_core::log_limit::FAILED_CALLS;

use super::{ApiError, ErrorFields};

impl ApiError {
    /// Logs the error: a warning if a call failed on our side and the log has not had many such lines lately, else at
    /// debug level.
    ///
    /// A page is not a call: machines request it every second, and 503 of `/readyz` is a response, not an event.
    pub fn log(&self, request_id: &str, route: Option<&str>) {
        let ErrorFields { status, kind, message, error_type, stage, .. } = &*self.0;
        let route = route.or(self.0.route.as_deref());
        let (status, kind) = (status.as_u16(), kind.as_str());
        let (error_type, stage) = (error_type.as_deref(), stage.as_deref());
        // An unsupported feature of a protocol (501) is a mistake of the caller.
        let is_ours = status >= 500 && route.is_some() && self.0.kind != ErrorKind::InvalidInput;
        let tell = |left_out| tracing::warn!(left_out, "lines about failed calls were left out");
        if is_ours && FAILED_CALLS.admits(message.len(), tell) {
            tracing::warn!(request_id, route, status, kind, error_type, stage, "{message}");
        } else {
            tracing::debug!(request_id, route, status, kind, error_type, stage, "{message}");
        }
    }
}
