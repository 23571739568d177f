//! Reads frames out of chunks as they arrive. Pure: whoever owns the stream pushes what it received.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use super::error::WireError;
use super::frame::{FrameHead, MAX_HEADER_BYTES, PRELUDE_BYTES, Prelude};

/// What a reader of frames refuses to exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Largest header in bytes. Threat: a header that fills the memory before anything is admitted. Default: 64 KiB,
    /// which is also the most that is ever written. Message: `header of N bytes exceeds max_header_bytes = M`.
    pub max_header_bytes: usize,
    /// Largest body in bytes. Threat: a length that lies. Default: 64 MiB, as at the other edges.
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

/// Takes a stream in chunks of any size, and gives its frames piece by piece.
///
/// Chunks are shared, not copied; only a head that came in several of them is put together. What is kept is what was
/// pushed and not yet taken, so whoever pushes no more than it takes needs no further bound.
#[derive(Debug)]
pub struct FrameReader {
    limits: FrameLimits,
    chunks: VecDeque<Bytes>,
    buffered: usize,
    /// The beginning of a head that came in several chunks. Copied, because a chunk of one byte may keep a whole
    /// datagram.
    gathered: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Prelude,
    Header(HeaderOf),
    Body { left: usize },
    Failed,
}

/// A prelude that waits for its header.
struct HeaderOf(Prelude);

impl std::fmt::Debug for HeaderOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.header_bytes)
    }
}

impl FrameReader {
    /// A reader that has received nothing.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, chunks: VecDeque::new(), buffered: 0, gathered: Vec::new(), state: State::Prelude }
    }

    /// Takes the next chunk, empty ones included.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() && !matches!(self.state, State::Failed) {
            self.buffered += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// The next piece, or `None` while more must be received first.
    ///
    /// # Errors
    ///
    /// Whatever makes the stream none of frames, or a length beyond its limit. After an error there is no next piece.
    pub fn next_part(&mut self) -> Result<Option<FramePart>, WireError> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Prelude => self.prelude(),
            State::Header(HeaderOf(prelude)) => Ok(self.header(prelude)),
            State::Body { left } => Ok(self.body(left)),
            State::Failed => Err(WireError::Refused),
        }
    }

    /// What the end of the stream means here.
    ///
    /// # Errors
    ///
    /// When it is inside a frame.
    pub fn finish(&self) -> Result<(), WireError> {
        let there = self.buffered + self.gathered.len();
        let missing = match &self.state {
            State::Prelude if there == 0 => return Ok(()),
            State::Prelude => PRELUDE_BYTES.saturating_sub(there),
            State::Header(HeaderOf(prelude)) => {
                prelude.header_bytes.saturating_sub(there).saturating_add(prelude.body_bytes)
            }
            State::Body { left } => *left,
            State::Failed => return Err(WireError::Refused),
        };
        Err(WireError::Truncated { missing: missing as u64 })
    }

    fn prelude(&mut self) -> Result<Option<FramePart>, WireError> {
        let Some(mut taken) = self.gather(PRELUDE_BYTES) else {
            self.state = State::Prelude;
            return Ok(None);
        };
        let mut bytes = [0; PRELUDE_BYTES];
        taken.copy_to_slice(&mut bytes);
        let prelude = Prelude::read(&bytes, &self.limits).inspect_err(|_| self.chunks.clear())?;
        Ok(self.header(prelude))
    }

    fn header(&mut self, prelude: Prelude) -> Option<FramePart> {
        let Some(header) = self.gather(prelude.header_bytes) else {
            self.state = State::Header(HeaderOf(prelude));
            return None;
        };
        self.state = if prelude.body_bytes == 0 { State::Prelude } else { State::Body { left: prelude.body_bytes } };
        Some(FramePart::Head(prelude.with_header(header)))
    }

    fn body(&mut self, left: usize) -> Option<FramePart> {
        let Some(chunk) = self.chunks.front() else {
            self.state = State::Body { left };
            return None;
        };
        let bytes = self.take(chunk.len().min(left));
        let left = left - bytes.len();
        self.state = if left == 0 { State::Prelude } else { State::Body { left } };
        Some(FramePart::Body { bytes, last: left == 0 })
    }

    /// The next `count` bytes once they are there: shared where they came in one chunk, else put together.
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

    /// The next `count` bytes of the first chunk, which has them.
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
