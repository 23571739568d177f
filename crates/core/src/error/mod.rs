//! The errors of calls: one small vocabulary for every edge.
//!
//! [`ErrorKind`] is the word that HTTP statuses, metric labels and log fields share, and its table (`kind.rs`) has all
//! that follows from a kind alone. [`CallError`] is one error: whether its call may be made again is in it, not in its
//! kind or in its words.

mod ask;
mod failure;
mod kind;

use std::fmt;
use std::time::Duration;

use callboard_codec::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind, Value};

use crate::containment::CaughtPanic;
use crate::id::StageName;
use crate::text::{MAX_ERROR_TYPE_CHARS, limit, limit_error_text};
use crate::timeline::Timing;

pub use self::ask::AskError;
pub use self::failure::Failure;
pub use self::kind::{ErrorKind, ErrorKindRow, ErrorOrigin, ErrorReason};

/// The retry time of refused callers where none can be estimated: by then a node at its bound has surely finished some
/// calls.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The setting that bounds the bytes of all calls.
pub(crate) const MAX_IN_FLIGHT_BYTES: &str = "max_in_flight_bytes";

/// The error type of a call that has run, and for whose outcome the node has no memory.
const NO_MEMORY_FOR_OUTCOME: &str = "no_memory_for_outcome";

/// The most headers of an error, and the most bytes of their names and values together: they travel in the header of
/// one frame.
const MAX_HEADERS: usize = 16;
const MAX_HEADER_BYTES: usize = 2_048;

/// Why a call did not succeed.
///
/// Boxed inside, so that a `Result` with it stays small on the path where nothing goes wrong.
#[derive(Clone)]
pub struct CallError(Box<ErrorParts>);

/// The parts of an error, for edges that send it elsewhere and rebuild it there.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorParts {
    /// See [`CallError::kind`].
    pub kind: ErrorKind,
    /// See [`CallError::message`].
    pub message: String,
    /// See [`CallError::error_type`].
    pub error_type: Option<String>,
    /// See [`CallError::reason`].
    pub reason: Option<ErrorReason>,
    /// See [`CallError::status`].
    pub status: Option<u16>,
    /// See [`CallError::details`].
    pub details: Option<Value>,
    /// See [`CallError::retry_after`].
    pub retry_after: Option<Duration>,
    /// See [`CallError::headers`].
    pub headers: Vec<(String, String)>,
    /// See [`CallError::remote_trace`].
    pub remote_trace: Option<String>,
    /// See [`CallError::stage`].
    pub stage: Option<StageName>,
    /// See [`CallError::was_started`].
    pub started: bool,
    /// Whether a started call may run once more: nothing was done for it, or its contract permits it.
    pub may_repeat: bool,
    /// Whether the code that refused the call reports that it did nothing for it. Peers do not learn of it.
    pub did_nothing: bool,
    /// See [`CallError::timing`].
    pub timing: Option<Timing>,
}

impl ErrorParts {
    /// An error of this kind, before any user code.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: limit_error_text(message.into()),
            error_type: None,
            reason: None,
            status: None,
            details: None,
            retry_after: None,
            headers: Vec::new(),
            remote_trace: None,
            stage: None,
            started: kind.comes_after_start(),
            may_repeat: false,
            did_nothing: false,
            timing: None,
        }
    }

    /// A call that was sent, and whose connection was lost: it may have run.
    #[must_use]
    pub fn connection_lost(message: impl Into<String>) -> Self {
        Self {
            error_type: Some("connection_lost".to_owned()),
            reason: Some(ErrorReason::ConnectionLost),
            started: true,
            ..Self::new(ErrorKind::Unavailable, message)
        }
    }
}

impl From<ErrorParts> for CallError {
    fn from(mut parts: ErrorParts) -> Self {
        parts.message = limit_error_text(parts.message);
        parts.error_type = parts.error_type.map(|name| limit(name, MAX_ERROR_TYPE_CHARS));
        parts.remote_trace = parts.remote_trace.map(limit_error_text);
        limit_headers(&mut parts.headers);
        Self(Box::new(parts))
    }
}

/// Keeps the first headers that are within the limits.
pub(crate) fn limit_headers(headers: &mut Vec<(String, String)>) {
    headers.truncate(MAX_HEADERS);
    let mut bytes = 0;
    headers.retain(|(name, value)| {
        bytes += name.len() + value.len();
        bytes <= MAX_HEADER_BYTES
    });
}

impl CallError {
    /// An error of this kind with a message: lowercase, without a full stop, with field and limit.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorParts::new(kind, message)))
    }

    /// Its parts.
    #[must_use]
    pub fn into_parts(self) -> ErrorParts {
        *self.0
    }

    pub(crate) fn overloaded(message: impl Into<String>, retry_after: Duration) -> Self {
        let mut error = Self::new(ErrorKind::Overloaded, message);
        error.0.retry_after = Some(retry_after);
        error
    }

    pub(crate) fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, message);
        error.0.retry_after = Some(retry_after);
        error
    }

    /// The error of a call whose value was read or written by the user's code, which panicked.
    pub(crate) fn in_conversion(panic: &CaughtPanic) -> Self {
        let message = format!("a value could not be read or written: {panic}");
        Self::new(ErrorKind::Internal, message).with_trace(panic.trace())
    }

    pub(crate) fn deadline_exceeded(place: &str) -> Self {
        Self::new(ErrorKind::DeadlineExceeded, format!("the deadline passed {place}"))
    }

    /// The error of a failure of user code, as its caller gets it. The error of an inner call names the stages that it
    /// passed.
    pub(crate) fn from_failure(failure: Failure, stage: &StageName) -> Self {
        let mut error = Self::from_failure_outside(failure);
        let path =
            error.stage().map(|inner| StageName::new(&limit(format!("{stage} > {inner}"), MAX_ERROR_TYPE_CHARS)));
        error.0.stage = Some(path.unwrap_or_else(|| stage.clone()));
        error
    }

    /// The error of a failure outside any stage: in the caller's own code.
    pub(crate) fn from_failure_outside(failure: Failure) -> Self {
        Self(Box::new(failure.into_parts()))
    }

    /// The same error with another message: a composite step adds its own context.
    #[must_use]
    pub(crate) fn with_message(mut self, message: String) -> Self {
        self.0.message = limit_error_text(message);
        self
    }

    /// The same error, from `stage`.
    #[must_use]
    pub(crate) fn at_stage(mut self, stage: &StageName) -> Self {
        self.0.stage = Some(stage.clone());
        self
    }

    /// The same error; `started` says that user code has run for the call that must not run again.
    #[must_use]
    pub(crate) fn after_start(self, started: bool) -> Self {
        self.after_runs(started, false)
    }

    /// The same error for work on an outcome. The call has run, so the error has no retry-after.
    pub(crate) fn of_outcome(mut self) -> Self {
        (self.0.started, self.0.retry_after) = (true, None);
        self
    }

    /// The same error; if `started`, user code has run for the same call, and may run `again`.
    #[must_use]
    pub(crate) fn after_runs(mut self, started: bool, again: bool) -> Self {
        if started {
            self.0.may_repeat = again && (self.0.may_repeat || !self.0.started);
            (self.0.started, self.0.did_nothing) = (true, false);
        }
        self
    }

    /// The same error, from user code that may run `again` after any error.
    #[must_use]
    pub(crate) fn in_run(mut self, again: bool) -> Self {
        self.0.started = true;
        self.0.may_repeat |= again;
        self
    }

    /// The same error, with the times of its call.
    #[must_use]
    pub(crate) fn after(mut self, timing: Timing) -> Self {
        self.0.timing = Some(timing);
        self
    }

    #[must_use]
    pub(crate) fn with_reason(mut self, reason: ErrorReason) -> Self {
        self.0.reason = Some(reason);
        self
    }

    #[must_use]
    pub(crate) fn with_trace(mut self, trace: Option<String>) -> Self {
        self.0.remote_trace = trace.map(limit_error_text);
        self
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message for people: at most [`MAX_ERROR_CHARS`](crate::edge::MAX_ERROR_CHARS) characters.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The type of the error that user code raised, such as `std::num::ParseIntError`.
    #[must_use]
    pub fn error_type(&self) -> Option<&str> {
        self.0.error_type.as_deref()
    }

    /// A more precise reason than the kind, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        self.0.reason
    }

    /// The HTTP-like status (400–599) that user code chose for its failure, or that a node sent with it. Core passes it
    /// on and does not read it.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The details for programs that user code attached.
    #[must_use]
    pub fn details(&self) -> Option<&Value> {
        self.0.details.as_ref()
    }

    /// When a retry may succeed: for a full stage from its measured drain rate, a second for a full node, for
    /// [`ErrorKind::Unavailable`] when other nodes are looked for again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The HTTP headers that user code chose for its failure, in order. Core passes them on without reading them. An
    /// edge without headers drops them, and the HTTP edge drops headers of its own.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.0.headers
    }

    /// The last message of the worker: a panic's message and place (file, line and column), or another process's
    /// traceback. At most [`MAX_ERROR_CHARS`](crate::edge::MAX_ERROR_CHARS) characters.
    #[must_use]
    pub fn remote_trace(&self) -> Option<&str> {
        self.0.remote_trace.as_deref()
    }

    /// The same error for a caller that must not read the trace.
    #[must_use]
    pub fn without_trace(mut self) -> Self {
        self.0.remote_trace = None;
        self
    }

    /// The stage of the error, if the call reached one. If a stage passed on the error of its own inner call, the path
    /// to that: `outer > inner`.
    #[must_use]
    pub fn stage(&self) -> Option<&str> {
        self.0.stage.as_ref().map(StageName::as_str)
    }

    /// Whether user code may have run for the call. If the second stage of a pipeline is full, the error is
    /// `Overloaded` as well, but the first stage has run. Always true for `Failed`, `WorkerFailed` and `Internal`,
    /// which user code or the loss of it causes. `DeadlineExceeded` is either: a call that was refused or never left a
    /// queue in time was not started.
    #[must_use]
    pub fn was_started(&self) -> bool {
        self.0.started || self.0.kind.comes_after_start()
    }

    /// Whether the call may have had an effect: it [was started](Self::was_started), and its code did not report that
    /// it did [nothing](Failure::overloaded).
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.was_started() && !self.0.did_nothing
    }

    /// The times of the call, if it was admitted: summed over its stages, including the elapsed part of the last one.
    #[must_use]
    pub fn timing(&self) -> Option<Timing> {
        self.0.timing
    }

    /// Whether the same request may be sent again unchanged, without harm, and may succeed then. True for a
    /// [refusal](Self::is_refusal). Also true for `Overloaded`, `Unavailable` and `WorkerFailed` after a start, if each
    /// stage that may have run has a [contract](crate::Contract) that lets it run again, or reports that it did
    /// [nothing](Failure::overloaded). A closure without a contract must not run again; a harmless closure needs
    /// [`pure`](crate::Stage::pure). False for an input that kills its worker each time.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let may_pass = self.0.kind.is_retryable() || self.0.kind == ErrorKind::WorkerFailed;
        self.is_refusal() || (may_pass && self.0.may_repeat)
    }

    /// Whether the call was refused before anything was done for it: the kind [is retryable](ErrorKind::is_retryable)
    /// and nothing [was started](Self::was_started). It may be made at once on another node, whatever its contract.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.0.kind.is_retryable() && !self.0.started
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        match &self.0.stage {
            Some(stage) => write!(f, " (stage `{stage}`)"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CallError {}

impl From<DecodeError> for CallError {
    fn from(error: DecodeError) -> Self {
        match error.kind() {
            DecodeErrorKind::Exhausted => Self::overloaded(error.to_string(), RETRY_AFTER),
            DecodeErrorKind::Stopped => Self::deadline_exceeded("while the payload was read"),
            _ => {
                ErrorParts { reason: reason_of(&error), ..ErrorParts::new(ErrorKind::InvalidInput, error.to_string()) }
                    .into()
            }
        }
    }
}

/// The reason of an input that alone needs more than the memory of the node.
fn reason_of(error: &DecodeError) -> Option<ErrorReason> {
    error.limit().filter(|limit| limit.name == MAX_IN_FLIGHT_BYTES).map(|_| ErrorReason::TooLarge)
}

impl From<EncodeError> for CallError {
    /// The outcome of a call could not be written. Its value and its `Serialize` are the user's, so this is an error of
    /// user code, unless there was no memory or no time.
    fn from(error: EncodeError) -> Self {
        let error = match error.kind() {
            // Without a time to retry: the call has run.
            EncodeErrorKind::Exhausted => {
                let error_type = Some(NO_MEMORY_FOR_OUTCOME.to_owned());
                ErrorParts { error_type, ..ErrorParts::new(ErrorKind::Overloaded, error.to_string()) }.into()
            }
            EncodeErrorKind::Stopped => Self::deadline_exceeded("while the outcome was written"),
            _ => Self::new(ErrorKind::Failed, format!("the outcome cannot be written: {error}")),
        };
        error.after_start(true)
    }
}
