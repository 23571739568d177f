//! The outputs of a call, read by the response to it.
//!
//! Clients of the new era cancel a call by closing its stream. Those of the handshake may lose a connection and mean
//! nothing by it: their call is kept and runs to its end, unless it may run again. Its deadline and the drain of the
//! node hold as for every call.

use std::sync::Arc;

use callboard_codec::Payload;
use callboard_core::edge::PayloadReplies;
use callboard_http::protocol::{ApiError, EdgeLife, HeldBytes, next_reply};
use tokio::runtime::Handle;

/// The outputs of one call, in their order. Dropping them before the end cancels the call, unless it is kept: then a
/// task reads the rest.
#[derive(Debug)]
pub(crate) struct Replies(Option<Running>);

#[derive(Debug)]
struct Running {
    replies: PayloadReplies,
    life: Arc<EdgeLife>,
    /// Pays for the body of the request, of which the input may be a part.
    _body: Arc<HeldBytes>,
    is_kept: bool,
}

impl Replies {
    pub(crate) fn new(replies: PayloadReplies, life: Arc<EdgeLife>, body: Arc<HeldBytes>, is_kept: bool) -> Self {
        Self(Some(Running { replies, life, _body: body, is_kept }))
    }

    /// The next output; `None` after the last. An error is the last.
    pub(crate) async fn next(&mut self) -> Option<Result<Payload, ApiError>> {
        let next = self.0.as_mut()?.next().await;
        if !matches!(next, Some(Ok(_))) {
            self.0 = None;
        }
        next
    }
}

impl Running {
    async fn next(&mut self) -> Option<Result<Payload, ApiError>> {
        next_reply(&mut self.replies, &self.life).await
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        // Without a runtime its call has ended with it.
        if let Some(mut running) = self.0.take().filter(|running| running.is_kept)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { while let Some(Ok(_)) = running.next().await {} });
        }
    }
}
