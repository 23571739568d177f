//! Reads an envelope from chunks as they arrive.

use bytes::Bytes;

use crate::envelope::ReceivedEnvelope;
use crate::envelope::fill::SegmentBuffer;
use crate::envelope::layout::{self, Layout};
use crate::error::DecodeError;
use crate::limits::DecodeLimits;
use crate::msgpack::Segments;
use crate::typed::Data;
use crate::value::Value;

/// Receives an envelope in chunks of any size, and decodes it when it is complete.
///
/// A chunk that holds a whole segment, aligned, is shared; else the segment's bytes are copied once. Memory is
/// allocated for received bytes, not for announced ones. Lengths are checked against the limits as soon as they arrive,
/// so that [`push`](Self::push) refuses a body before it is received.
#[derive(Debug)]
pub struct EnvelopeDecoder {
    limits: DecodeLimits,
    received: usize,
    state: DecoderState,
}

#[derive(Debug)]
enum DecoderState {
    /// Gathering everything up to the end of the tree.
    Head { head: Vec<u8>, needed: usize },
    /// Gathering segments.
    Body { head: Bytes, layout: Layout, segments: Vec<(usize, Bytes)>, filling: Option<SegmentBuffer> },
    /// Gathering chunks for another decoder.
    Unread(Vec<Bytes>),
    /// A chunk was refused. Every later chunk is refused too.
    Failed,
}

impl EnvelopeDecoder {
    /// A decoder that has received nothing.
    #[must_use]
    pub fn new(limits: &DecodeLimits) -> Self {
        Self {
            limits: limits.clone(),
            received: 0,
            state: DecoderState::Head { head: Vec::new(), needed: layout::PRELUDE_BYTES },
        }
    }

    /// A decoder that keeps its chunks unread, for [`into_chunks`](Self::into_chunks). It checks only their length.
    #[must_use]
    pub fn unread(limits: &DecodeLimits) -> Self {
        Self { limits: limits.clone(), received: 0, state: DecoderState::Unread(Vec::new()) }
    }

    /// The chunks of an [unread](Self::unread) envelope as they arrived; empty for an envelope that was read.
    #[must_use]
    pub fn into_chunks(self) -> Vec<Bytes> {
        match self.state {
            DecoderState::Unread(chunks) => chunks,
            DecoderState::Head { .. } | DecoderState::Body { .. } | DecoderState::Failed => Vec::new(),
        }
    }

    /// Takes the next chunk, empty ones included.
    ///
    /// # Errors
    ///
    /// A malformed prelude or table, a limit that the lengths in them exceed, padding that is not zero, or more bytes
    /// than the envelope has. After an error every other chunk is refused.
    pub fn push(&mut self, chunk: Bytes) -> Result<(), DecodeError> {
        let taken = self.take(chunk);
        if taken.is_err() {
            self.state = DecoderState::Failed;
        }
        taken
    }

    /// Whether the last byte was received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(&self.state, DecoderState::Body { layout, .. } if layout.total == self.received)
    }

    /// The length of the envelope, once it is known; for an unread envelope, the length that arrived so far.
    #[must_use]
    pub fn total_bytes(&self) -> Option<usize> {
        match &self.state {
            DecoderState::Body { layout, .. } => Some(layout.total),
            DecoderState::Unread(_) => Some(self.received),
            DecoderState::Head { .. } | DecoderState::Failed => None,
        }
    }

    /// Reads the value.
    ///
    /// # Errors
    ///
    /// When the envelope is incomplete, or its tree is refused.
    pub fn finish(self) -> Result<Value, DecodeError> {
        let limits = self.limits.clone();
        self.opened()?.value(&limits)
    }

    /// Reads a Rust type.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish), and a mismatch with the type.
    pub fn finish_as<T: Data>(self) -> Result<T, DecodeError> {
        let limits = self.limits.clone();
        self.opened()?.typed(&limits)
    }

    pub(crate) fn limits(&self) -> &DecodeLimits {
        &self.limits
    }

    pub(crate) fn opened(self) -> Result<ReceivedEnvelope, DecodeError> {
        match self.state {
            DecoderState::Body { head, layout, segments, .. } if layout.total == self.received => {
                Ok(ReceivedEnvelope { head, tree: layout.tree, segments: Segments::new(segments) })
            }
            _ => Err(layout::short(self.received)),
        }
    }

    fn take(&mut self, mut chunk: Bytes) -> Result<(), DecodeError> {
        if matches!(self.state, DecoderState::Failed) {
            return Err(DecodeError::malformed("more input after a refused chunk").at_offset(self.received));
        }
        if let DecoderState::Head { head, needed } = &mut self.state {
            let before = chunk.len();
            let head = gather(head, needed, &mut chunk, &self.limits)?;
            self.received += before - chunk.len();
            let Some(head) = head else { return Ok(()) };
            let layout = Layout::read(&head, &self.limits)?.expect("as many bytes as were needed");
            self.state = DecoderState::Body { head, layout, segments: Vec::new(), filling: None };
        }
        if let DecoderState::Unread(chunks) = &mut self.state {
            self.received += chunk.len();
            self.limits.check_bytes(self.received)?;
            chunks.push(chunk);
            return Ok(());
        }
        let DecoderState::Body { layout, segments, filling, .. } = &mut self.state else { return Ok(()) };
        while !chunk.is_empty() {
            let Some(segment) = layout.segments.get(segments.len()) else {
                return Err(layout::trailing(self.received));
            };
            if self.received < segment.start {
                let padding = chunk.split_to(chunk.len().min(segment.start - self.received));
                layout::check_padding(&padding, self.received)?;
                self.received += padding.len();
                continue;
            }
            let before = chunk.len();
            let whole = filling.get_or_insert_with(|| SegmentBuffer::new(segment.len())).push(&mut chunk);
            self.received += before - chunk.len();
            if let Some(whole) = whole {
                segments.push((segment.start, whole));
                *filling = None;
            }
        }
        Ok(())
    }
}

/// Takes the bytes of the head off a chunk. Returns the head when it is complete.
fn gather(
    head: &mut Vec<u8>,
    needed: &mut usize,
    chunk: &mut Bytes,
    limits: &DecodeLimits,
) -> Result<Option<Bytes>, DecodeError> {
    if head.is_empty() {
        let needed = Layout::needed(chunk, limits)?;
        if chunk.len() >= needed && chunk.len() >= layout::PRELUDE_BYTES {
            return Ok(Some(chunk.split_to(needed)));
        }
    }
    loop {
        let missing = *needed - head.len();
        let piece = chunk.split_to(chunk.len().min(missing));
        head.extend_from_slice(&piece);
        if piece.len() < missing {
            return Ok(None);
        }
        *needed = Layout::needed(head, limits)?;
        if *needed == head.len() {
            return Ok(Some(std::mem::take(head).into()));
        }
    }
}
