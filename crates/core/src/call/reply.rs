//! What a call gives: one payload, or a stream of them.

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
    /// What the last stage gave.
    pub payload: Payload,
    /// Where the time went.
    pub timing: Timing,
}

impl Reply {
    pub(crate) fn into_parts(self) -> (Payload, Timing) {
        (self.payload, self.timing)
    }

    /// An outcome that another door brings.
    #[must_use]
    pub fn new(payload: Payload, timing: Timing) -> Self {
        Self { payload, timing }
    }
}

/// The outputs of one call, as they are.
#[must_use = "a call runs as its replies are read"]
pub struct PayloadReplies(Pin<Box<dyn Stream<Item = Result<Payload, CallError>> + Send>>);

impl PayloadReplies {
    /// The outputs that another door brings. After the last one and after an error nothing more is asked of them.
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
