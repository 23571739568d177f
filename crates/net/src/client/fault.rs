//! The reason why a call has no output. It says exactly whether the call was started, which decides about retries.

use std::fmt;

use callboard_codec::DecodeError;
use callboard_codec::wire::{FrameHead, FrameKind, ResetCode, WireError};
use callboard_core::edge::ErrorParts;
use callboard_core::{CallError, ErrorKind};
use quinn::{ConnectionError, ReadError};

use super::error::REPLY_TOO_LARGE;
use crate::stream::ReadFault;
use crate::wire::too_large;

/// The reason why a call on a connection has no output.
#[derive(Clone, Debug)]
pub(crate) enum CallFault {
    /// The call was sent, and its outcome is unknown: it may have run.
    Lost(CallError),
    /// The call was not sent: the connection has no room for another stream now. The node may be well.
    NoRoom(CallError),
    /// The outcome is known: an error of the node, or the call was not started.
    Failed(CallError),
}

impl CallFault {
    pub(crate) fn lost(reason: &dyn fmt::Display) -> Self {
        Self::Lost(ErrorParts::connection_lost(format!("the call was sent, and may have run: {reason}")).into())
    }

    pub(crate) fn no_room() -> Self {
        let message = "the call was not started: the peer has no room for another stream";
        let mut parts = ErrorParts::new(ErrorKind::Unavailable, message);
        parts.error_type = Some("no_room".to_owned());
        Self::NoRoom(parts.into())
    }

    pub(crate) fn not_started(reason: impl fmt::Display) -> Self {
        Self::Failed(not_started(reason))
    }

    pub(super) fn no_stream(error: &ConnectionError) -> Self {
        Self::not_started(format_args!("no stream could be opened: {error}"))
    }

    pub(super) fn unexpected_frame(kind: FrameKind) -> Self {
        Self::lost(&format_args!("a frame of the kind {kind} came instead of an outcome"))
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    pub(crate) fn error(&self) -> &CallError {
        match self {
            Self::Lost(error) | Self::NoRoom(error) | Self::Failed(error) => error,
        }
    }

    pub(crate) fn into_error(self) -> CallError {
        match self {
            Self::Lost(error) | Self::NoRoom(error) | Self::Failed(error) => error,
        }
    }

    /// A lost call that may run again: its caller may repeat it.
    pub(crate) fn repeatable(self) -> Self {
        let repeatable = |error: CallError| {
            let mut parts = error.into_parts();
            parts.may_repeat = true;
            parts.into()
        };
        match self {
            Self::Lost(error) => Self::Lost(repeatable(error)),
            fault @ (Self::NoRoom(_) | Self::Failed(_)) => fault,
        }
    }
}

impl From<CallError> for CallFault {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

/// The first frame that arrived before the call was sent completely.
pub(super) fn early(head: Result<Option<FrameHead>, ReadFault>) -> Result<FrameHead, CallFault> {
    match head {
        Ok(Some(head)) => Ok(head),
        Ok(None) => Err(CallFault::not_started("the node ended the stream before it had the whole call")),
        Err(ReadFault::Reset(Some(code))) => {
            Err(refused(code).unwrap_or_else(|| not_started("the stream was reset")).into())
        }
        Err(fault) => Err(CallFault::not_started(fault)),
    }
}

/// The meaning of a reset code, whether or not the node had the whole call.
pub(super) fn refused(code: ResetCode) -> Option<CallError> {
    match code {
        code if code.says_not_started() => Some(not_started("the node had no room")),
        ResetCode::Protocol => Some(CallError::new(ErrorKind::InvalidInput, "the node refused the call as malformed")),
        ResetCode::TooLarge => Some(too_large("the node refused the call as too large".to_owned())),
        ResetCode::Deadline => {
            Some(CallError::new(ErrorKind::DeadlineExceeded, "the node gave up waiting for its caller"))
        }
        _ => None,
    }
}

/// The meaning of a fault for a call that was sent completely.
pub(super) fn read_fault(fault: &ReadFault) -> CallFault {
    match fault {
        // The call has started: the node also gives up on callers that do not read.
        ReadFault::Reset(Some(ResetCode::Deadline)) => {
            let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, "the node gave up waiting for its caller");
            parts.started = true;
            CallFault::Failed(parts.into())
        }
        ReadFault::Reset(Some(code)) => {
            refused(*code).map_or_else(|| CallFault::lost(&"the stream was reset"), CallFault::Failed)
        }
        // The node closes with this code when every started call is answered, and its answer received.
        ReadFault::Lost(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
            if ResetCode::from_number(close.error_code.into_inner()) == Some(ResetCode::Draining) =>
        {
            CallFault::not_started("the node has left")
        }
        ReadFault::Wire(error @ WireError::BodyTooLarge { .. }) => CallFault::Failed(reply_too_large(error)),
        // The bytes are not valid.
        ReadFault::Wire(error) => CallFault::Failed(unreadable(error)),
        fault => CallFault::lost(fault),
    }
}

/// The error of an output that exceeds this side's limit.
pub(super) fn reply_too_large(reason: impl fmt::Display) -> CallError {
    let mut parts = unreadable(reason).into_parts();
    parts.error_type = Some(REPLY_TOO_LARGE.to_owned());
    parts.into()
}

/// The error of an output that is too large or not valid. The call itself has succeeded: no other input would help.
pub(super) fn unreadable(error: impl fmt::Display) -> CallError {
    after_start(ErrorKind::Internal, format!("the output cannot be read: {error}"))
}

/// The error of a route's output that is not of the type that the caller asked for: `Internal`, as of a local client.
pub(super) fn unreadable_as<Out>(route: &str, error: &DecodeError) -> CallError {
    let asked = std::any::type_name::<Out>();
    let message = format!("route `{route}` gives a value that cannot be read as `{asked}`: {error}");
    after_start(ErrorKind::Internal, message)
}

fn after_start(kind: ErrorKind, message: String) -> CallError {
    let mut parts = ErrorParts::new(kind, message);
    parts.started = true;
    parts.into()
}

pub(crate) fn not_started(reason: impl fmt::Display) -> CallError {
    CallError::new(ErrorKind::Unavailable, format!("the call was not started: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_reports_its_cause() {
        let lost = read_fault(&ReadFault::Lost(ReadError::ConnectionLost(ConnectionError::TimedOut)));
        assert!(lost.is_lost());
        let message = "the call was sent, and may have run: the connection was lost: timed out";
        assert_eq!(lost.error().message(), message);
    }
}
