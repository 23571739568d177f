//! Both halves of a stream under guards: what is dropped is reset, so that nothing truncated looks complete.
//!
//! quinn finishes a stream that is dropped and stops one with no reason; a task that is cancelled in the middle of a message would
//! so make it look whole.

use std::error::Error;

use callboard_codec::wire::ResetCode;
use quinn::ConnectionError;

use crate::refusal::{explained, is_told};

mod incoming;
mod outgoing;

pub(crate) use incoming::{Incoming, ReadFault};
pub(crate) use outgoing::{Outgoing, WriteFault};

/// The reason of a lost connection: quinn's own words for the loss say no more than that.
fn why(lost: &(dyn Error + 'static)) -> String {
    let reason = lost.source().unwrap_or(lost);
    reason.downcast_ref().map_or_else(|| reason.to_string(), told)
}

/// Why a connection is gone, for people: a number is no reason.
pub(crate) fn told(error: &ConnectionError) -> String {
    let ConnectionError::ApplicationClosed(close) = error else { return error.to_string() };
    match ResetCode::from_number(close.error_code.into_inner()) {
        Some(ResetCode::Done) => "the node has ended".to_owned(),
        Some(ResetCode::Draining) => "the node has left".to_owned(),
        Some(code) => match std::str::from_utf8(&close.reason) {
            Ok(word) if is_told(word) => format!("the node closed it: {}", explained(word)),
            _ => format!("the node closed it ({code:?})"),
        },
        None => error.to_string(),
    }
}
