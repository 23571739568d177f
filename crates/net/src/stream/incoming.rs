//! The reading half: frames out of a stream.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{FrameHead, FrameLimits, FramePart, FrameReader, ResetCode, WireError};
use quinn::{ReadError, RecvStream};

use super::why;
use crate::endpoint::{Window, code};

/// Frames as they arrive. Dropped before its end, it tells the other side that nobody reads any more.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    reader: FrameReader,
    /// What is told how much was read.
    window: Option<Arc<Window>>,
    /// What the other side is told.
    on_drop: ResetCode,
    ended: bool,
}

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadFault {
    /// It ended where it may not.
    #[error("the stream ended before its message")]
    Ended,
    /// The other side gave it up.
    #[error("the stream was reset")]
    Reset(Option<ResetCode>),
    /// The connection is gone.
    #[error("the connection was lost: {}", why(.0))]
    Lost(#[source] ReadError),
    /// What was read is none of ours.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl Incoming {
    pub(crate) fn new(stream: RecvStream, limits: FrameLimits) -> Self {
        Self { stream, reader: FrameReader::new(limits), window: None, on_drop: ResetCode::Cancelled, ended: false }
    }

    /// The same, of which each byte that is read is told to the window of its connection.
    pub(crate) fn counted_by(mut self, window: Arc<Window>) -> Self {
        self.window = Some(window);
        self
    }

    /// The next piece, or `None` at the end of the stream between two frames.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost when it is dropped.
    pub(crate) async fn next_part(&mut self) -> Result<Option<FramePart>, ReadFault> {
        // A row of small frames would keep everybody else on this thread waiting.
        tokio::task::coop::consume_budget().await;
        loop {
            match self.reader.next_part() {
                Ok(Some(part)) => return Ok(Some(part)),
                Ok(None) => {}
                Err(error) => {
                    self.on_drop = ResetCode::Protocol;
                    return Err(error.into());
                }
            }
            match self.stream.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => {
                    if let Some(window) = &self.window {
                        window.read(chunk.bytes.len());
                    }
                    self.reader.push(chunk.bytes);
                }
                Ok(None) => {
                    self.ended = true;
                    return self.reader.finish().map(|()| None).map_err(|_| ReadFault::Ended);
                }
                Err(ReadError::Reset(number)) => {
                    self.ended = true;
                    return Err(ReadFault::Reset(ResetCode::from_number(number.into_inner())));
                }
                Err(error) => return Err(ReadFault::Lost(error)),
            }
        }
    }

    /// The next piece of what has been received, if there is one.
    pub(crate) fn ready_part(&mut self) -> Option<Result<FramePart, WireError>> {
        let part = self.reader.next_part().transpose()?;
        if part.is_err() {
            self.on_drop = ResetCode::Protocol;
        }
        Some(part)
    }

    /// The next frame's head; its body follows.
    pub(crate) async fn next_head(&mut self) -> Result<Option<FrameHead>, ReadFault> {
        match self.next_part().await? {
            Some(FramePart::Head(head)) => Ok(Some(head)),
            None => Ok(None),
            Some(FramePart::Body { .. }) => Err(ReadFault::Ended),
        }
    }

    /// A short body, whole: one that `head` announced.
    pub(crate) async fn short_body(&mut self, head: &FrameHead) -> Result<Bytes, ReadFault> {
        let mut body = Vec::new();
        let mut left = head.body_bytes;
        while left > 0 {
            let Some(FramePart::Body { bytes, .. }) = self.next_part().await? else { return Err(ReadFault::Ended) };
            left -= bytes.len();
            body.extend_from_slice(&bytes);
        }
        Ok(body.into())
    }

    /// What the other side is told when this is dropped before its end.
    pub(crate) fn on_drop(&mut self, code: ResetCode) {
        self.on_drop = code;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stream.stop(code(self.on_drop));
        }
    }
}
