//! What becomes of a call when something other than its outcome comes: whether it was started is said exactly, because that decides
//! who may make it again.

use callboard_codec::wire::{FrameHead, ResetCode};
use callboard_core::edge::ErrorParts;
use callboard_core::{CallError, ErrorKind};
use quinn::{ConnectionError, ReadError};

use super::error::{CONNECTION_LOST, NO_ROOM};
use crate::stream::ReadFault;

/// HTTP's number for a body that is too large, which every door gives.
const PAYLOAD_TOO_LARGE: u16 = 413;

/// What came before the call was sent to its end.
pub(super) fn early(head: Result<Option<FrameHead>, ReadFault>) -> Result<FrameHead, CallError> {
    match head {
        Ok(Some(head)) => Ok(head),
        Ok(None) => Err(not_started("the node ended the stream before it had the whole call".to_owned())),
        Err(ReadFault::Reset(Some(code))) => {
            Err(refused(code).unwrap_or_else(|| not_started("the stream was reset".to_owned())))
        }
        Err(fault) => Err(not_started(fault.to_string())),
    }
}

/// What a node's code says of the call, whether or not the node had all of it.
pub(super) fn refused(code: ResetCode) -> Option<CallError> {
    let error = |kind, message| Some(CallError::new(kind, message));
    match code {
        code if code.says_not_started() => Some(not_started("the node had no room".to_owned())),
        ResetCode::Protocol => error(ErrorKind::InvalidInput, "the node refused the call as malformed"),
        ResetCode::TooLarge => Some(too_large("the node refused the call as too large".to_owned())),
        ResetCode::Deadline => error(ErrorKind::DeadlineExceeded, "the node gave up waiting for its caller"),
        _ => None,
    }
}

pub(crate) fn too_large(message: String) -> CallError {
    let mut parts = ErrorParts::new(ErrorKind::InvalidInput, message);
    parts.status = Some(PAYLOAD_TOO_LARGE);
    parts.into()
}

/// What a fault says of a call that was sent to its end.
pub(super) fn read_fault(fault: &ReadFault) -> CallError {
    match fault {
        // It gives up who does not read, too.
        ReadFault::Reset(Some(ResetCode::Deadline)) => {
            let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, "the node gave up waiting for its caller");
            parts.started = true;
            parts.into()
        }
        ReadFault::Reset(Some(code)) => refused(*code).unwrap_or_else(|| unknown("the stream was reset")),
        // Said when everything that was started has been answered, and taken.
        ReadFault::Lost(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
            if ResetCode::from_number(close.error_code.into_inner()) == Some(ResetCode::Draining) =>
        {
            not_started("the node has left".to_owned())
        }
        // What came is beyond our limits, or none of ours.
        ReadFault::Wire(error) => unreadable(error),
        fault => unknown(&fault.to_string()),
    }
}

/// An output that is beyond our own limits or none at all: the call itself has succeeded.
pub(crate) fn unreadable(error: impl std::fmt::Display) -> CallError {
    let mut parts = ErrorParts::new(ErrorKind::InvalidInput, format!("the output cannot be read: {error}"));
    parts.started = true;
    parts.into()
}

pub(crate) fn not_started(reason: String) -> CallError {
    CallError::new(ErrorKind::Unavailable, format!("the call was not started: {reason}"))
}

/// There is no room for the call on this connection for the moment, which says nothing against the node.
pub(crate) fn no_room(reason: &str) -> CallError {
    let mut parts = ErrorParts::new(ErrorKind::Unavailable, format!("the call was not started: {reason}"));
    parts.error_type = Some(NO_ROOM.to_owned());
    parts.into()
}

pub(super) fn unknown(reason: &str) -> CallError {
    let message = format!("the call was sent, and may have run: {reason}");
    let mut parts = ErrorParts::new(ErrorKind::Unavailable, message);
    parts.started = true;
    parts.error_type = Some(CONNECTION_LOST.to_owned());
    parts.into()
}

/// The same error of a call that was lost and may run twice.
pub(crate) fn may_repeat(error: CallError) -> CallError {
    let mut parts = error.into_parts();
    parts.may_repeat = true;
    parts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_says_why_it_was_lost() {
        let lost = read_fault(&ReadFault::Lost(ReadError::ConnectionLost(ConnectionError::TimedOut)));
        assert_eq!(lost.message(), "the call was sent, and may have run: the connection was lost: timed out");
    }
}
