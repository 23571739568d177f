//! The result of a call: one payload, or a stream of them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use callboard_codec::Payload;
use futures_util::{Stream, StreamExt};

use super::{DeclaredResponse, Flight, ResponseFields};
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
pub struct PayloadReplies {
    outputs: Pin<Box<dyn Stream<Item = Result<Payload, CallError>> + Send>>,
    /// The call, until its first item: it must not keep its permit longer than its outputs do.
    flight: Option<Arc<Flight>>,
    declared: Option<Box<DeclaredResponse>>,
    response: Option<Box<ResponseFields>>,
}

impl PayloadReplies {
    /// The outputs from another edge or client. They are not polled after the last output or an error.
    pub fn new(outputs: impl Stream<Item = Result<Payload, CallError>> + Send + 'static) -> Self {
        Self { outputs: outputs.fuse().boxed(), flight: None, declared: None, response: None }
    }

    /// The outputs of this call, and what its route declares.
    pub(crate) fn of_call(
        flight: &Arc<Flight>,
        declared: Option<DeclaredResponse>,
        outputs: impl Stream<Item = Result<Payload, CallError>> + Send + 'static,
    ) -> Self {
        Self { flight: Some(Arc::clone(flight)), declared: declared.map(Box::new), ..Self::new(outputs) }
    }

    /// Status and headers that user code had chosen when the first item came, or that its route declares; `None` if
    /// there are none.
    #[must_use]
    pub fn response(&self) -> Option<&ResponseFields> {
        self.response.as_deref()
    }
}

impl Stream for PayloadReplies {
    type Item = Result<Payload, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(self.outputs.as_mut().poll_next(context));
        if let Some(flight) = self.flight.take() {
            self.response = DeclaredResponse::completed(self.declared.as_deref(), flight.response()).map(Box::new);
        }
        Poll::Ready(item)
    }
}

impl fmt::Debug for PayloadReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadReplies").finish_non_exhaustive()
    }
}
