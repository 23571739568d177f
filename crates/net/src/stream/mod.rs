//! Both halves of a stream under guards: what is dropped is reset, so that nothing truncated looks complete.
//!
//! quinn finishes a stream that is dropped and stops one with no reason; a task that is cancelled in the middle of a message would
//! so make it look whole.

mod incoming;
mod outgoing;

pub(crate) use incoming::{Incoming, ReadFault};
pub(crate) use outgoing::{Outgoing, WriteFault};

/// The reason of a lost connection: quinn's own words for the loss say no more than that.
fn why(lost: &dyn std::error::Error) -> &dyn std::error::Error {
    lost.source().unwrap_or(lost)
}
