//! The sending half of a stream.

use bytes::Bytes;
use callboard_codec::wire::ResetCode;
use quinn::{SendStream, WriteError};

use super::cause;
use crate::endpoint::code;

/// Sends frames. Dropped before [`finish`](Self::finish), it resets the stream.
#[derive(Debug)]
pub(crate) struct FrameSender {
    stream: SendStream,
    /// The code for the other side.
    on_drop: ResetCode,
    is_finished: bool,
}

/// The reason why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteFault {
    /// The other side stopped reading.
    #[error("the stream was stopped")]
    Stopped(Option<ResetCode>),
    /// The connection was lost.
    #[error("the connection was lost: {}", cause(.0))]
    Lost(#[source] WriteError),
}

impl From<WriteError> for WriteFault {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(number) => Self::Stopped(ResetCode::from_number(number.into_inner())),
            error => Self::Lost(error),
        }
    }
}

impl FrameSender {
    pub(crate) fn new(stream: SendStream) -> Self {
        Self { stream, on_drop: ResetCode::Cancelled, is_finished: false }
    }

    /// Writes all pieces, without copying them.
    ///
    /// # Cancellation
    ///
    /// Dropping the future may leave half a message on the stream: drop the stream, too.
    pub(crate) async fn write(&mut self, pieces: &mut [Bytes]) -> Result<(), WriteFault> {
        Ok(self.stream.write_all_chunks(pieces).await?)
    }

    /// Writes as much as fits, and returns the count of bytes and of complete pieces; waits while there is no room.
    ///
    /// # Cancellation
    ///
    /// A dropped future has written nothing.
    pub(crate) async fn write_some(&mut self, pieces: &mut [Bytes]) -> Result<(usize, usize), WriteFault> {
        let written = self.stream.write_chunks(pieces).await?;
        Ok((written.bytes, written.chunks))
    }

    /// Sends this stream before streams of normal priority. Best effort.
    pub(crate) fn raise_priority(&self) {
        let _ = self.stream.set_priority(1);
    }

    /// Marks the message as complete.
    pub(crate) fn finish(&mut self) {
        self.is_finished = self.is_finished || self.stream.finish().is_ok();
    }

    /// Makes the drop reset the stream again, for a complete message that did not arrive.
    pub(crate) fn unfinish(&mut self) {
        self.is_finished = false;
    }

    /// Waits until the other side has stopped reading, or has acknowledged everything.
    pub(crate) fn stopped(&self) -> impl Future<Output = Option<ResetCode>> + Send + Sync + use<> {
        let stopped = self.stream.stopped();
        async move { stopped.await.ok().flatten().and_then(|number| ResetCode::from_number(number.into_inner())) }
    }

    /// Sets the code for the other side when this is dropped before its end.
    pub(crate) fn on_drop(&mut self, code: ResetCode) {
        self.on_drop = code;
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.stream.reset(code(self.on_drop));
        }
    }
}
