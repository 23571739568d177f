//! The receiving half of a stream: frames as they arrive.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{FrameHead, FrameLimits, FramePart, FrameReader, ResetCode, WireError};
use quinn::{ReadError, RecvStream};

use super::cause;
use crate::endpoint::{ConnectionWindow, code};
use crate::link::Link;

/// Receives frames. Dropped before its end, it stops the stream with its reset code.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    stream: RecvStream,
    reader: FrameReader,
    /// Counts the bytes that were read.
    window: Option<Arc<ConnectionWindow>>,
    /// Knows why this side has closed the connection.
    link: Option<Arc<Link>>,
    /// The code for the other side.
    on_drop: ResetCode,
    has_ended: bool,
}

/// The reason why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadFault {
    /// The stream ended within a message.
    #[error("the stream ended before its message")]
    Ended,
    /// The other side reset the stream.
    #[error("the stream was reset")]
    Reset(Option<ResetCode>),
    /// The connection was lost.
    #[error("the connection was lost: {}", cause(.0))]
    Lost(#[source] ReadError),
    /// The bytes are not a valid frame.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl FrameReceiver {
    pub(crate) fn new(stream: RecvStream, limits: FrameLimits) -> Self {
        Self {
            stream,
            reader: FrameReader::new(limits),
            window: None,
            link: None,
            on_drop: ResetCode::Cancelled,
            has_ended: false,
        }
    }

    /// Reports each byte read to the window of the connection.
    pub(crate) fn counted_by(mut self, window: Arc<ConnectionWindow>) -> Self {
        self.window = Some(window);
        self
    }

    /// Reports a link that this side has found lost as such.
    pub(crate) fn watched_by(mut self, link: Arc<Link>) -> Self {
        self.link = Some(link);
        self
    }

    /// The next part, or `None` where the stream ends between two frames.
    ///
    /// # Cancellation
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next_part(&mut self) -> Result<Option<FramePart>, ReadFault> {
        // Otherwise a burst of small frames would delay other tasks on this thread.
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
                    self.has_ended = true;
                    return self.reader.finish().map(|()| None).map_err(|_| ReadFault::Ended);
                }
                Err(ReadError::Reset(number)) => {
                    self.has_ended = true;
                    return Err(ReadFault::Reset(ResetCode::from_number(number.into_inner())));
                }
                Err(error) => return Err(ReadFault::Lost(self.cause(error))),
            }
        }
    }

    fn cause(&self, error: ReadError) -> ReadError {
        match (error, &self.link) {
            (ReadError::ConnectionLost(error), Some(link)) => ReadError::ConnectionLost(link.cause(error)),
            (error, _) => error,
        }
    }

    /// The next part that has already arrived.
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

    /// The complete body that `head` announced, which must be short.
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

    /// Sets the code for the other side when this is dropped before its end.
    pub(crate) fn on_drop(&mut self, code: ResetCode) {
        self.on_drop = code;
    }
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.stream.stop(code(self.on_drop));
        }
    }
}
