//! Both halves of a stream as guards: a dropped half is reset, so that a truncated message never looks complete.
//!
//! quinn finishes a dropped sending half, and stops a dropped receiving half without a reason. A task that is cancelled
//! in the middle of a message would so make the message look complete.

use std::error::Error;

use callboard_codec::wire::ResetCode;
use quinn::ConnectionError;

use crate::link::TIMED_OUT;
use crate::refusal::{RefusalReason, explained};

mod receiver;
mod sender;

pub(crate) use receiver::{FrameReceiver, ReadFault};
pub(crate) use sender::{FrameSender, WriteFault};

/// The cause of a lost connection: quinn's own error says only that it was lost.
fn cause(lost: &(dyn Error + 'static)) -> String {
    let cause = lost.source().unwrap_or(lost);
    cause.downcast_ref().map_or_else(|| cause.to_string(), close_reason)
}

/// The reason why a connection ended, for people: with words instead of a number.
pub(crate) fn close_reason(error: &ConnectionError) -> String {
    let ConnectionError::ApplicationClosed(close) = error else { return error.to_string() };
    match ResetCode::from_number(close.error_code.into_inner()) {
        Some(ResetCode::Done) if *close.reason == *TIMED_OUT => {
            "the node has closed it: it had no answer for too long".to_owned()
        }
        Some(ResetCode::Done) => "the node has ended".to_owned(),
        Some(ResetCode::Draining) => "the node has left".to_owned(),
        Some(code) => match std::str::from_utf8(&close.reason) {
            Ok(word) if RefusalReason::from_word(word).is_some() => format!("the node closed it: {}", explained(word)),
            _ => format!("the node closed it ({code:?})"),
        },
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quinn::ApplicationClose;

    use super::*;
    use crate::endpoint::code;

    #[test]
    fn a_node_that_has_given_a_connection_up_has_not_ended() {
        let closed = |reason| {
            let (error_code, reason) = (code(ResetCode::Done), Bytes::from_static(reason));
            close_reason(&ConnectionError::ApplicationClosed(ApplicationClose { error_code, reason }))
        };
        assert_eq!(closed(TIMED_OUT), "the node has closed it: it had no answer for too long");
        assert_eq!(closed(b""), "the node has ended");
    }
}
