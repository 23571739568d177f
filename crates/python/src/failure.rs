//! Errors as exceptions: `callboard.client.transport.Failure`, which the clients of the package turn into their own.

use std::sync::Arc;

use callboard_core::{CallError, ErrorKind};
use callboard_net::ConnectError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyType};

/// The reason why a call has no output.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Connect(#[from] Arc<ConnectError>),
    #[error("the client is closed")]
    Closed,
    #[error("this process was forked after the call had begun: make the call in it")]
    Forked,
}

impl Fault {
    /// The exception of this fault, for the call with this id.
    pub(crate) fn exception(&self, py: Python<'_>, request_id: Option<&str>) -> PyErr {
        self.failure(py, request_id).map_or_else(|error| error, PyErr::from_value)
    }

    fn failure<'py>(&self, py: Python<'py>, request_id: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        static FAILURE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let fields = PyDict::new(py);
        fields.set_item("request_id", request_id)?;
        let (kind, message) = match self {
            Self::Call(error) => {
                fields.set_item("details", details(py, error)?)?;
                fields.set_item("remote_traceback", error.remote_trace())?;
                fields.set_item("retry_after", error.retry_after().map(|wait| wait.as_secs_f64()))?;
                fields.set_item("status", error.status())?;
                fields.set_item("error_type", error.error_type())?;
                fields.set_item("stage", error.stage())?;
                fields.set_item("retryable", error.is_retryable())?;
                fields.set_item("was_started", error.was_started())?;
                (error.kind(), error.message().to_owned())
            }
            Self::Connect(_) | Self::Closed | Self::Forked => {
                let kind = self.kind();
                fields.set_item("retryable", kind.is_retryable())?;
                fields.set_item("was_started", false)?;
                (kind, self.to_string())
            }
        };
        FAILURE.import(py, "callboard.client.transport", "Failure")?.call((kind.as_str(), message), Some(&fields))
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Call(error) => error.kind(),
            Self::Connect(error) => match **error {
                ConnectError::Refused { .. } => ErrorKind::PermissionDenied,
                ConnectError::Identity(_) => ErrorKind::Unauthenticated,
                _ => ErrorKind::Unavailable,
            },
            Self::Closed | Self::Forked => ErrorKind::Unavailable,
        }
    }
}

/// The details that user code attached to its error, as a Python value.
fn details<'py>(py: Python<'py>, error: &CallError) -> PyResult<Option<Bound<'py, PyAny>>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // Details came over the wire, so they can be written.
    let Some(Ok(envelope)) = error.details().map(|details| details.to_envelope()) else { return Ok(None) };
    let decode = DECODE.import(py, "callboard._envelope", "decode")?;
    decode.call1((PyBytes::new(py, &envelope.into_bytes()),)).map(Some)
}
