//! The result of a call: one payload, or a stream of them.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use callboard_codec::Payload;
use futures_util::{Stream, StreamExt};

use crate::error::CallError;
use crate::timeline::Timing;

/// A successful outcome.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply {
    /// The output of the last stage.
    pub payload: Payload,
    /// The times of the call.
    pub timing: Timing,
}

impl Reply {
    pub(crate) fn into_parts(self) -> (Payload, Timing) {
        (self.payload, self.timing)
    }

    /// An outcome from another edge or client.
    #[must_use]
    pub fn new(payload: Payload, timing: Timing) -> Self {
        Self { payload, timing }
    }
}

/// The outputs of one call, not decoded.
#[must_use = "a call runs as its replies are read"]
pub struct PayloadReplies(Pin<Box<dyn Stream<Item = Result<Payload, CallError>> + Send>>);

impl PayloadReplies {
    /// The outputs from another edge or client. They are not polled after the last output or an error.
    pub fn new(outputs: impl Stream<Item = Result<Payload, CallError>> + Send + 'static) -> Self {
        Self(outputs.fuse().boxed())
    }
}

impl Stream for PayloadReplies {
    type Item = Result<Payload, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl fmt::Debug for PayloadReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadReplies").finish_non_exhaustive()
    }
}
