//! What user code says when an item did not work out.

use std::fmt;

use callboard_codec::{DecodeError, DecodeErrorKind, Value};

use crate::error::ErrorKind;
use crate::text::{MAX_ERROR_TYPE_CHARS, limit, limit_error_text};

/// The error of one item, returned by a worker.
///
/// A failure is an answer, not an accident: it reaches that item's caller with its message, type, status and details, is
/// never retried, and leaves the rest of the batch alone. Every [`std::error::Error`] converts into one with `?`, keeping
/// its type's name; for that reason `Failure` is not an `Error` itself.
///
/// ```
/// use callboard_core::Failure;
///
/// fn parse(text: &str) -> Result<i32, Failure> {
///     if text.is_empty() {
///         return Err(Failure::invalid_input("`text` must not be empty"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(parse("x").unwrap_err().message(), "invalid digit found in string");
/// ```
#[derive(Clone)]
pub struct Failure(Box<Parts>);

#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) error_type: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) details: Option<Value>,
}

impl Failure {
    /// A failure of user code: kind [`Failed`](ErrorKind::Failed). A message beyond
    /// [`MAX_ERROR_CHARS`](crate::MAX_ERROR_CHARS) characters is cut, and says so.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::Failed, message)
    }

    /// The item itself is wrong: kind [`InvalidInput`](ErrorKind::InvalidInput). Name the field and what was expected.
    #[must_use]
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::of_kind(ErrorKind::InvalidInput, message)
    }

    /// What an input is refused with that cannot be read as the stage's type.
    pub(crate) fn of_input(error: DecodeError) -> Self {
        let kind = match error.kind() {
            DecodeErrorKind::Exhausted => ErrorKind::Overloaded,
            DecodeErrorKind::Stopped => ErrorKind::DeadlineExceeded,
            _ => ErrorKind::InvalidInput,
        };
        Self::of_kind(kind, error.to_string())
    }

    fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = limit_error_text(message.into());
        Self(Box::new(Parts { kind, message, error_type: None, status: None, details: None }))
    }

    /// Chooses the HTTP status. Anything outside 400–599 is not a failure's status and is left out.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.0.status = (400..600).contains(&status).then_some(status);
        self
    }

    /// Names the type of the error, for programs that dispatch on it.
    #[must_use]
    pub fn with_type(mut self, error_type: impl Into<String>) -> Self {
        self.0.error_type = Some(limit(error_type.into(), MAX_ERROR_TYPE_CHARS));
        self
    }

    /// Attaches details for programs.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Value>) -> Self {
        self.0.details = Some(details.into());
        self
    }

    /// The class of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub(crate) fn into_parts(self) -> Parts {
        *self.0
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        // The whole chain: a caller on the other side of a network has no `source()` to ask.
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new(message).with_type(std::any::type_name::<E>())
    }
}
