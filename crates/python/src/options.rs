//! The options of one call, as Python gives them, and times in seconds.

use std::time::Duration;

use callboard_core::{CallOptions, Priority};
use pyo3::exceptions::PyValueError;
use pyo3::{FromPyObject, PyResult};

/// The attributes of `callboard.client.transport.Options`.
#[derive(Debug, FromPyObject)]
pub(crate) struct Options {
    pub(crate) function: bool,
    timeout: Option<f64>,
    priority: Option<String>,
    session: Option<String>,
    pub(crate) request_id: Option<String>,
    traceparent: Option<String>,
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    pub(crate) idempotent: bool,
    pub(crate) is_of_stream: bool,
}

impl Options {
    pub(crate) fn call_options(&self) -> PyResult<CallOptions> {
        let mut options = CallOptions::new();
        if let Some(timeout) = self.timeout {
            options = options.with_timeout(seconds("timeout", timeout)?);
        }
        if let Some(priority) = &self.priority {
            options = options.with_priority(match priority.as_str() {
                "high" => Priority::High,
                "normal" => Priority::Normal,
                "low" => Priority::Low,
                other => {
                    let message = format!("priority={other:?}: write \"high\", \"normal\" or \"low\"");
                    return Err(PyValueError::new_err(message));
                }
            });
        }
        if let Some(session) = &self.session {
            options = options.with_session_key(session.as_str());
        }
        if let Some(request_id) = &self.request_id {
            options = options.with_request_id(request_id.as_str());
        }
        if let Some(traceparent) = &self.traceparent {
            options = options.with_traceparent(traceparent.as_str());
        }
        for (name, value) in &self.headers {
            options = options.with_header(name.as_str(), value.as_str());
        }
        for (name, value) in &self.query {
            options = options.with_query(name.as_str(), value.as_str());
        }
        Ok(options)
    }
}

/// A time that Python wrote in seconds.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name}={seconds}: write seconds, 0 or more")))
}
