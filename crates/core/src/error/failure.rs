//! The error of one item, as user code returns it.

use std::any::{TypeId, type_name};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use callboard_codec::{DecodeError, DecodeErrorKind, Value};

use super::{AskError, CallError, ErrorKind, ErrorParts, RETRY_AFTER, limit_headers, reason_of};
use crate::text::{MAX_ERROR_TYPE_CHARS, limit, limit_error_text};

/// The error of one item, returned by a worker.
///
/// A failure is an answer: it reaches the item's caller with its message, type, status and details. The node does not
/// retry it, and it does not affect the rest of the batch.
///
/// `?` converts every type that converts into a boxed [`Error`]: errors, which keep the name of their type, and texts.
/// For that reason `Failure` is not an `Error` itself. The error of an inner call, a [`CallError`] or an [`AskError`],
/// passes through: kind, status, details, type, time to retry and remote trace reach the outer caller, also when
/// another error has it as its [`source`](Error::source), which then adds its words to the message. In an
/// `anyhow::Error` it is found with the feature `anyhow`; without that feature such an error is its message.
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
#[derive(Clone, PartialEq)]
pub struct Failure(Box<ErrorParts>);

impl Failure {
    /// A failure of user code: kind [`Failed`](ErrorKind::Failed). A message beyond
    /// [`MAX_ERROR_CHARS`](crate::edge::MAX_ERROR_CHARS) characters is cut, and says so.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self::with_kind(ErrorKind::Failed, message)
    }

    /// The item itself is wrong: kind [`InvalidInput`](ErrorKind::InvalidInput). Name the field and what was expected.
    #[must_use]
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::with_kind(ErrorKind::InvalidInput, message)
    }

    /// The failure of an input that cannot be read as the stage's type.
    pub(crate) fn from_decode_error(error: DecodeError) -> Self {
        let kind = match error.kind() {
            DecodeErrorKind::Exhausted => ErrorKind::Overloaded,
            DecodeErrorKind::Stopped => ErrorKind::DeadlineExceeded,
            _ => ErrorKind::InvalidInput,
        };
        let reason = reason_of(&error);
        Self(Box::new(ErrorParts { reason, ..ErrorParts::new(kind, error.to_string()) }))
    }

    /// A refusal, because there is no room for the item now: kind [`Overloaded`](ErrorKind::Overloaded). The stage did
    /// nothing for the item, so the caller [may send it again](CallError::is_retryable): after one second, or after the
    /// time of [`with_retry_after`](Self::with_retry_after).
    #[must_use]
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::not_done(ErrorKind::Overloaded, message).with_retry_after(RETRY_AFTER)
    }

    /// A refusal, because a resource that the item needs is not available: kind
    /// [`Unavailable`](ErrorKind::Unavailable). The stage did nothing for the item, so the caller
    /// [may send it again](CallError::is_retryable), elsewhere or later.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::not_done(ErrorKind::Unavailable, message)
    }

    fn not_done(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut failure = Self::with_kind(kind, message);
        (failure.0.may_repeat, failure.0.did_nothing) = (true, true);
        failure
    }

    fn with_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorParts::new(kind, message)))
    }

    /// Chooses the HTTP status. A number outside 400–599 is ignored.
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

    /// Attaches the trace of the place where it failed, such as the traceback of another language: the caller's
    /// [`remote_trace`](CallError::remote_trace).
    #[must_use]
    pub fn with_trace(mut self, trace: impl Into<String>) -> Self {
        self.0.remote_trace = Some(limit_error_text(trace.into()));
        self
    }

    /// Says when the item may be sent again: over HTTP, the header `Retry-After`, in seconds, rounded up.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Adds a header to the answer of the HTTP edge, such as `www-authenticate`. The edge drops invalid ones and those
    /// that are its own (`content-length`, `set-cookie` and so on: `docs/errors.md`). A header beyond 16, or beyond
    /// 2 KiB for all of them, is ignored. `Retry-After` has a method of its own.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.headers.push((name.into(), value.into()));
        limit_headers(&mut self.0.headers);
        self
    }

    /// The class of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The time after which the item may be sent again, if known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Its parts, to send it elsewhere.
    #[must_use]
    pub fn into_parts(self) -> ErrorParts {
        *self.0
    }

    pub(super) fn from_parts(parts: ErrorParts) -> Self {
        Self(Box::new(parts))
    }

    /// An inner call's error as the outer call's own. The other effects of the outer call are unknown: the contract of
    /// its stage says whether it may be repeated.
    fn passed_on(error: &CallError) -> Self {
        let mut parts = error.clone().into_parts();
        // The outer caller is still there.
        if parts.kind == ErrorKind::Cancelled {
            parts.kind = ErrorKind::Failed;
        }
        (parts.started, parts.may_repeat, parts.did_nothing, parts.timing) = (true, false, false, None);
        Self(Box::new(parts))
    }

    /// The failure of an actor's answer as a failure of the asking stage, which had begun.
    fn handed_on(&self) -> Self {
        let mut failure = self.clone();
        (failure.0.started, failure.0.may_repeat, failure.0.did_nothing) = (true, false, false);
        failure
    }

    /// The first of an error and its sources that is a call's or an actor's, else a failure of user code, with the
    /// words of all of them: a caller on the other side of a network has no `source()` to ask.
    fn from_source(error: &(dyn Error + 'static)) -> Self {
        let (mut message, mut inner, mut next) = (String::new(), None, Some(error));
        while let Some(cause) = next {
            next = cause.source();
            if !message.is_empty() {
                message.push_str(": ");
            }
            let passed = match (cause.downcast_ref::<CallError>(), cause.downcast_ref::<AskError>()) {
                (Some(error), _) => Some(Self::passed_on(error)),
                (_, Some(AskError::Failed(failure))) => Some(failure.handed_on()),
                (_, Some(error)) => Some(Self::passed_on(&error.clone().into())),
                _ => None,
            };
            match &passed {
                Some(passed) => message.push_str(passed.message()),
                None => message.push_str(&cause.to_string()),
            }
            inner = inner.or(passed);
        }
        let mut failure = inner.unwrap_or_else(|| Self::new(""));
        failure.0.message = limit_error_text(message);
        failure
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

impl<E: Into<Box<dyn Error + Send + Sync>> + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        // A text has no type, nor has an error whose type is lost; the error of a call has that of its own cause.
        let without_type = [
            TypeId::of::<&str>(),
            TypeId::of::<String>(),
            TypeId::of::<Cow<'_, str>>(),
            TypeId::of::<Box<dyn Error + Send + Sync>>(),
            TypeId::of::<CallError>(),
        ];
        let mut failure = from_any(error);
        if failure.0.error_type.is_none() && !without_type.contains(&TypeId::of::<E>()) {
            failure.0.error_type = Some(limit(type_name::<E>().to_owned(), MAX_ERROR_TYPE_CHARS));
        }
        failure
    }
}

/// Looks for the error of an inner call. An `anyhow::Error` hides its source once it is boxed, so it is searched first.
fn from_any<E: Into<Box<dyn Error + Send + Sync>> + 'static>(error: E) -> Failure {
    #[cfg(feature = "anyhow")]
    if let Some(error) = (&error as &dyn std::any::Any).downcast_ref::<anyhow::Error>() {
        return Failure::from_source(error.as_ref());
    }
    let error: Box<dyn Error + Send + Sync> = error.into();
    Failure::from_source(&*error)
}
