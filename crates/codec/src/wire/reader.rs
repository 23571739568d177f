//! Reads frames from chunks as they arrive. Pure: the owner of the stream pushes the chunks.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use super::error::WireError;
use super::frame::{FrameHead, FramePrelude, MAX_HEADER_BYTES, PRELUDE_BYTES};

/// The limits of a reader of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Largest header in bytes. Threat: a header that fills the memory before anything is admitted. Default: 64 KiB,
    /// which is also the most that is ever written. Message: `header of N bytes exceeds max_header_bytes = M`.
    pub max_header_bytes: usize,
    /// Largest body in bytes. Threat: a false length. Default: 64 MiB, as at the other edges.
    /// Message: `body of N bytes exceeds max_body_bytes = M`.
    pub max_body_bytes: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self { max_header_bytes: MAX_HEADER_BYTES, max_body_bytes: 64 << 20 }
    }
}

/// The next piece of a stream.
#[derive(Clone, Debug)]
pub enum FramePart {
    /// A frame begins.
    Head(FrameHead),
    /// A piece of its body, as it was received.
    Body {
        /// The bytes, shared with the chunk that brought them.
        bytes: Bytes,
        /// Whether it ends the frame. A frame without a body has no such piece.
        last: bool,
    },
}

/// Takes a stream in chunks of any size, and returns its frames piece by piece.
///
/// Chunks are shared, not copied; only a head in several chunks is joined. The reader keeps pushed bytes until they are
/// taken, so a caller that takes before it pushes again needs no further bound.
#[derive(Debug)]
pub struct FrameReader {
    limits: FrameLimits,
    chunks: VecDeque<Bytes>,
    buffered: usize,
    /// The beginning of a head in several chunks. Copied, because a chunk of one byte may keep a whole datagram.
    gathered: Vec<u8>,
    state: ReaderState,
}

#[derive(Debug)]
enum ReaderState {
    Prelude,
    Header(PendingHeader),
    Body { left: usize },
    Failed,
}

/// A prelude that waits for its header.
struct PendingHeader(FramePrelude);

impl std::fmt::Debug for PendingHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.header_bytes)
    }
}

impl FrameReader {
    /// A reader that has received nothing.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, chunks: VecDeque::new(), buffered: 0, gathered: Vec::new(), state: ReaderState::Prelude }
    }

    /// Takes the next chunk, empty ones included.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() && !matches!(self.state, ReaderState::Failed) {
            self.buffered += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// The next piece, or `None` if more must be received first.
    ///
    /// # Errors
    ///
    /// Invalid frames, or a length beyond its limit. After an error there is no next piece.
    pub fn next_part(&mut self) -> Result<Option<FramePart>, WireError> {
        match std::mem::replace(&mut self.state, ReaderState::Failed) {
            ReaderState::Prelude => self.prelude(),
            ReaderState::Header(PendingHeader(prelude)) => Ok(self.header(prelude)),
            ReaderState::Body { left } => Ok(self.body(left)),
            ReaderState::Failed => Err(WireError::Refused),
        }
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    ///
    /// If it ends inside a frame.
    pub fn finish(&self) -> Result<(), WireError> {
        let there = self.buffered + self.gathered.len();
        let missing = match &self.state {
            ReaderState::Prelude if there == 0 => return Ok(()),
            ReaderState::Prelude => PRELUDE_BYTES.saturating_sub(there),
            ReaderState::Header(PendingHeader(prelude)) => {
                prelude.header_bytes.saturating_sub(there).saturating_add(prelude.body_bytes)
            }
            ReaderState::Body { left } => *left,
            ReaderState::Failed => return Err(WireError::Refused),
        };
        Err(WireError::Truncated { missing: missing as u64 })
    }

    fn prelude(&mut self) -> Result<Option<FramePart>, WireError> {
        let Some(mut taken) = self.gather(PRELUDE_BYTES) else {
            self.state = ReaderState::Prelude;
            return Ok(None);
        };
        let mut bytes = [0; PRELUDE_BYTES];
        taken.copy_to_slice(&mut bytes);
        let prelude = FramePrelude::read(&bytes, &self.limits).inspect_err(|_| self.chunks.clear())?;
        Ok(self.header(prelude))
    }

    fn header(&mut self, prelude: FramePrelude) -> Option<FramePart> {
        let Some(header) = self.gather(prelude.header_bytes) else {
            self.state = ReaderState::Header(PendingHeader(prelude));
            return None;
        };
        self.state =
            if prelude.body_bytes == 0 { ReaderState::Prelude } else { ReaderState::Body { left: prelude.body_bytes } };
        Some(FramePart::Head(prelude.with_header(header)))
    }

    fn body(&mut self, left: usize) -> Option<FramePart> {
        let Some(chunk) = self.chunks.front() else {
            self.state = ReaderState::Body { left };
            return None;
        };
        let bytes = self.take(chunk.len().min(left));
        let left = left - bytes.len();
        self.state = if left == 0 { ReaderState::Prelude } else { ReaderState::Body { left } };
        Some(FramePart::Body { bytes, last: left == 0 })
    }

    /// The next `count` bytes once they have arrived: shared from one chunk, or joined from several.
    fn gather(&mut self, count: usize) -> Option<Bytes> {
        if self.gathered.is_empty()
            && self.chunks.front().is_none_or(|chunk| chunk.len() >= count)
            && self.buffered >= count
        {
            return Some(self.take(count));
        }
        while self.gathered.len() < count {
            let missing = count - self.gathered.len();
            let chunk = self.chunks.front()?;
            let piece = self.take(chunk.len().min(missing));
            self.gathered.extend_from_slice(&piece);
        }
        Some(std::mem::take(&mut self.gathered).into())
    }

    /// The next `count` bytes of the first chunk, which has at least as many.
    fn take(&mut self, count: usize) -> Bytes {
        let Some(chunk) = self.chunks.front_mut().filter(|_| count > 0) else { return Bytes::new() };
        let taken = chunk.split_to(count);
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.buffered -= count;
        taken
    }
}
