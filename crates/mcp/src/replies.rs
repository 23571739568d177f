//! The outputs of a call: read by the response to it, or, where a lost connection is no cancel, by a task.
//!
//! Clients of the new era cancel a call by closing its stream. Those of the handshake may lose a connection and mean
//! nothing by it: their call runs to its end, unless it may run again. Its deadline and the drain of the node hold as
//! for every call.

use std::sync::Arc;

use callboard_codec::Payload;
use callboard_core::edge::PayloadReplies;
use callboard_http::protocol::{ApiError, EdgeLife, HeldBytes, next_reply};
use tokio::sync::mpsc;

/// The outputs of one call, in their order.
#[derive(Debug)]
pub(crate) enum Replies {
    /// Dropping them cancels the call.
    Own {
        replies: PayloadReplies,
        life: Arc<EdgeLife>,
        /// Pays for the body of the request, of which the input may be a part.
        body: Arc<HeldBytes>,
    },
    /// A task reads the call. Once these are dropped, its further outputs are too.
    Detached(mpsc::Receiver<Result<Payload, ApiError>>),
}

impl Replies {
    /// The same outputs, whose call runs to its end even if nobody reads them. At most one waits for its reader.
    pub(crate) fn detached(self) -> Self {
        let Self::Own { mut replies, life, body } = self else { return self };
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let _body = body;
            let mut sender = Some(sender);
            while let Some(reply) = next_reply(&mut replies, &life).await {
                let is_last = reply.is_err();
                if let Some(reader) = &sender
                    && reader.send(reply).await.is_err()
                {
                    sender = None;
                }
                if is_last {
                    return;
                }
            }
        });
        Self::Detached(receiver)
    }

    /// The next output; `None` after the last. An error is the last.
    pub(crate) async fn next(&mut self) -> Option<Result<Payload, ApiError>> {
        match self {
            Self::Own { replies, life, .. } => next_reply(replies, life).await,
            Self::Detached(receiver) => receiver.recv().await,
        }
    }
}
