//! The outputs of a streaming stage on a peer, at the pace of their reader.
//!
//! The peer gets credit for a number of outputs, and more when half of them are read. While the reader pauses, the
//! worker waits, without traffic. Dropping the stream before its end resets it, which cancels the call on the peer. The
//! error of a lost stream tells how many outputs had arrived.

use callboard_codec::wire::{Call, Credit, FrameHead, FrameKind, frame_head};
use callboard_codec::{Envelope, Payload};
use callboard_core::{CallError, ErrorKind};

use super::stage_stats::InFlight;
use crate::client::{CallExchange, CallFault, read_output};

/// A streaming call on a peer.
pub(super) struct RemoteOutputs {
    exchange: CallExchange,
    /// A frame that has arrived but was not read yet.
    next: Option<FrameHead>,
    credit: u32,
    /// The outputs read since credit was last granted.
    read: u32,
    total: u64,
    has_ended: bool,
    in_flight: InFlight,
}

impl RemoteOutputs {
    /// Sends the call, and waits for its first output or its end: until then the peer can refuse it.
    pub(super) async fn begin(
        mut exchange: CallExchange,
        call: &Call,
        envelope: Envelope,
        mut in_flight: InFlight,
    ) -> Result<Self, CallFault> {
        let head = match exchange.send(call, envelope, false).await? {
            Some(early) => early,
            None => exchange.next_head().await?,
        };
        match head.kind {
            FrameKind::Item | FrameKind::Done => {
                in_flight.stream_began();
                let (next, credit) = (Some(head), call.credit);
                Ok(Self { exchange, next, credit, read: 0, total: 0, has_ended: false, in_flight })
            }
            FrameKind::Fail => Err(exchange.fail(&head).await),
            kind => Err(CallFault::not_started(format_args!("the peer answered with a frame of the kind {kind}"))),
        }
    }

    /// The next output; an error is the last item.
    pub(super) async fn next(mut self: Box<Self>) -> Option<(Result<Payload, CallError>, Box<Self>)> {
        match self.advance().await {
            Ok(Some(payload)) => Some((Ok(payload), self)),
            Ok(None) => None,
            Err(fault) => {
                self.has_ended = true;
                Some((Err(self.stream_error(fault)), self))
            }
        }
    }

    async fn advance(&mut self) -> Result<Option<Payload>, CallFault> {
        if self.has_ended {
            return Ok(None);
        }
        let head = match self.next.take() {
            Some(head) => head,
            None => self.exchange.next_head().await?,
        };
        if head.kind != FrameKind::Item {
            self.exchange.response(&head).await?;
            self.exchange.outgoing.finish();
            return Ok(None);
        }
        let value = read_output(self.exchange.body(&head).await?, None, |body| body.finish_encoded()).await?;
        self.total += 1;
        self.read += 1;
        // Granted at half of the credit, so that the peer need not wait for it.
        if self.read * 2 >= self.credit {
            self.in_flight.progressed();
            let more = Credit { items: std::mem::take(&mut self.read) };
            let head = frame_head(FrameKind::Credit, 0, &more, 0);
            let head = head.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
            // Fails if the peer has sent everything and reads no more; its outputs can still be read.
            let _ = self.exchange.outgoing.write(&mut [head]).await;
        }
        Ok(Some(Payload::new(value)))
    }

    /// The error of a stream that began, which is never retried.
    fn stream_error(&self, fault: CallFault) -> CallError {
        let was_lost = fault.is_lost();
        let mut parts = fault.into_error().into_parts();
        parts.started = true;
        if was_lost {
            parts.message = format!("the stream was lost after {} outputs: {}", self.total, parts.message);
        }
        parts.into()
    }
}
