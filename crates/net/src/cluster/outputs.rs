//! The outputs of a streaming stage on a peer, read at the pace of whoever asks for them.
//!
//! The peer is told how many outputs there is room for, and more when half of them were taken: a reader that pauses lets the worker wait,
//! without a byte on the wire. Dropped before its end, the stream is reset, and with that the call on the peer. What is lost in the middle
//! is told as lost, with how much had come.

use callboard_codec::wire::{Call, Credit, FrameHead, FrameKind, frame_head};
use callboard_codec::{Envelope, Payload};
use callboard_core::{CallError, ErrorKind};

use super::peer::InHand;
use crate::client::{Talk, is_lost, not_started, read_output};

/// A call in the middle of its answer.
pub(super) struct Outputs {
    talk: Talk,
    /// The frame that has come and is not read; gone after the last.
    next: Option<FrameHead>,
    credit: u32,
    /// Taken since the peer was last told.
    taken: u32,
    total: u64,
    in_hand: InHand,
}

impl Outputs {
    /// Sends the call, and waits for its first output or its end: until then it can be refused.
    pub(super) async fn begin(
        mut talk: Talk,
        call: &Call,
        envelope: Envelope,
        mut in_hand: InHand,
    ) -> Result<Self, CallError> {
        let head = match talk.send(call, envelope, false).await? {
            Some(early) => early,
            None => talk.next_head().await?,
        };
        match head.kind {
            FrameKind::Item | FrameKind::Done => {
                in_hand.streams();
                Ok(Self { talk, next: Some(head), credit: call.credit, taken: 0, total: 0, in_hand })
            }
            FrameKind::Fail => Err(talk.fail(&head).await),
            kind => Err(not_started(format!("the peer answered with a frame of the kind {kind}"))),
        }
    }

    /// The next output; an error is the last.
    pub(super) async fn next(mut self: Box<Self>) -> Option<(Result<Payload, CallError>, Box<Self>)> {
        match self.advance().await {
            Ok(Some(payload)) => Some((Ok(payload), self)),
            Ok(None) => None,
            Err(error) => {
                let error = self.told(error);
                // Asked again, it is over.
                self.next = None;
                self.total = u64::MAX;
                Some((Err(error), self))
            }
        }
    }

    async fn advance(&mut self) -> Result<Option<Payload>, CallError> {
        if self.total == u64::MAX {
            return Ok(None);
        }
        let head = match self.next.take() {
            Some(head) => head,
            None => self.talk.next_head().await?,
        };
        if head.kind != FrameKind::Item {
            self.talk.answer(&head).await?;
            self.talk.outgoing.finish();
            return Ok(None);
        }
        let value = read_output(self.talk.body(&head).await?, None, |body| body.finish()).await?;
        self.total += 1;
        self.taken += 1;
        // Half of what there is room for, so that the peer need not wait for the word.
        if self.taken * 2 >= self.credit {
            self.in_hand.heard();
            let more = Credit { items: std::mem::take(&mut self.taken) };
            let head = frame_head(FrameKind::Credit, 0, &more, 0);
            let head = head.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
            // Who has answered to the end reads no more; what was answered is still to be read.
            let _ = self.talk.outgoing.write(&mut [head]).await;
        }
        Ok(Some(Payload::new(value)))
    }

    /// An error in the middle of a stream: nothing of it is made again, whatever it says of itself.
    fn told(&self, error: CallError) -> CallError {
        let was_lost = is_lost(&error);
        let mut parts = error.into_parts();
        parts.started = true;
        if was_lost {
            parts.message = format!("the stream was lost after {} outputs: {}", self.total, parts.message);
        }
        parts.into()
    }
}
