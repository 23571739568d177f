//! The writing half.

use bytes::Bytes;
use callboard_codec::wire::ResetCode;
use quinn::{SendStream, WriteError};

use super::why;
use crate::endpoint::code;

/// A stream that is written. Dropped before [`finish`](Self::finish), it is reset.
#[derive(Debug)]
pub(crate) struct Outgoing {
    stream: SendStream,
    /// What the other side is told.
    on_drop: ResetCode,
    finished: bool,
}

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteFault {
    /// The other side does not read any more.
    #[error("the stream was stopped")]
    Stopped(Option<ResetCode>),
    /// The connection is gone.
    #[error("the connection was lost: {}", why(.0))]
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

impl Outgoing {
    pub(crate) fn new(stream: SendStream) -> Self {
        Self { stream, on_drop: ResetCode::Cancelled, finished: false }
    }

    /// Hands over the pieces, which are not copied.
    ///
    /// # Cancellation
    ///
    /// Dropped half-way, it leaves half a message behind: drop the stream, too.
    pub(crate) async fn write(&mut self, pieces: &mut [Bytes]) -> Result<(), WriteFault> {
        Ok(self.stream.write_all_chunks(pieces).await?)
    }

    /// Hands over what there is room for now, and says how many bytes of how many pieces that was; waits while there is none.
    ///
    /// # Cancellation
    ///
    /// Nothing was handed over.
    pub(crate) async fn write_some(&mut self, pieces: &mut [Bytes]) -> Result<(usize, usize), WriteFault> {
        let written = self.stream.write_chunks(pieces).await?;
        Ok((written.bytes, written.chunks))
    }

    /// Goes before what has not said so. Best effort.
    pub(crate) fn hurry(&self) {
        let _ = self.stream.set_priority(1);
    }

    /// Says that the message is complete.
    pub(crate) fn finish(&mut self) {
        self.finished = self.finished || self.stream.finish().is_ok();
    }

    /// Resets a message that was complete and did not arrive.
    pub(crate) fn take_back(&mut self) {
        self.finished = false;
    }

    /// Waits until the other side says that it reads no more, or has read everything.
    pub(crate) fn stopped(&self) -> impl Future<Output = Option<ResetCode>> + Send + Sync + use<> {
        let stopped = self.stream.stopped();
        async move { stopped.await.ok().flatten().and_then(|number| ResetCode::from_number(number.into_inner())) }
    }

    /// What the other side is told when this is dropped before its end.
    pub(crate) fn on_drop(&mut self, code: ResetCode) {
        self.on_drop = code;
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.stream.reset(code(self.on_drop));
        }
    }
}
