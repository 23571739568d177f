//! One segment that is being received, in chunks of any size.
//!
//! Memory is allocated when half of the segment has arrived, and not when the table announces it. Until then the chunks
//! are kept, so that an announced gigabyte costs only what was received. Each byte is copied once, into an aligned
//! buffer; pieces below [`SMALL_CHUNK`] that come before that are gathered first and copied twice.

use bytes::Bytes;

use crate::value::tensor::AlignedBuffer;
use crate::value::tensor::view::ALIGNMENT;

/// Keeping a chunk costs 32 bytes. Smaller chunks are gathered first.
const SMALL_CHUNK: usize = 512;
const GATHERED: usize = 4096;
/// A segment below this is allocated at once: the bound on memory has room for it.
const SMALL_SEGMENT: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct SegmentBuffer {
    len: usize,
    received: usize,
    chunks: Vec<Bytes>,
    small: Vec<u8>,
    buffer: Option<AlignedBuffer>,
}

impl SegmentBuffer {
    pub(super) fn new(len: usize) -> Self {
        Self { len, received: 0, chunks: Vec::new(), small: Vec::new(), buffer: None }
    }

    /// Takes the segment's bytes off the front of a chunk. Returns the segment when it is complete.
    pub(super) fn push(&mut self, chunk: &mut Bytes) -> Option<Bytes> {
        let piece = chunk.split_to(chunk.len().min(self.len - self.received));
        if self.received == 0 && piece.len() == self.len && piece.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return Some(piece); // All of it at once: shared, not copied.
        }
        self.received += piece.len();
        if self.buffer.is_none() && (self.received * 2 >= self.len || self.len <= SMALL_SEGMENT) {
            self.allocate();
        }
        match &mut self.buffer {
            Some(buffer) => buffer.push(&piece),
            None => self.keep(piece),
        }
        if self.received == self.len { self.buffer.take().map(AlignedBuffer::into_bytes) } else { None }
    }

    fn keep(&mut self, piece: Bytes) {
        if piece.len() >= SMALL_CHUNK {
            self.flush();
            return self.chunks.push(piece);
        }
        if self.small.len() + piece.len() > self.small.capacity() {
            self.flush();
            self.small.reserve_exact(GATHERED);
        }
        self.small.extend_from_slice(&piece);
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push(std::mem::take(&mut self.small).into());
        }
    }

    /// Allocates the buffer and moves the kept chunks into it, releasing each.
    fn allocate(&mut self) {
        self.flush();
        let mut buffer = AlignedBuffer::with_capacity(self.len);
        for chunk in std::mem::take(&mut self.chunks) {
            buffer.push(&chunk);
        }
        self.buffer = Some(buffer);
    }
}
