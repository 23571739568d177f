//! The segments of an envelope, as the decoder of its tree takes them.

use bytes::Bytes;

use crate::error::DecodeError;

/// Smaller leaves stay in the tree: a segment costs an entry, padding, and a piece to send.
pub(crate) const INLINE_BELOW: usize = 1024;

/// Segments that are taken in order, each with its offset.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    parts: Vec<(usize, Bytes)>,
    next: usize,
}

impl Segments {
    pub(crate) fn new(parts: Vec<(usize, Bytes)>) -> Self {
        Self { parts, next: 0 }
    }

    /// All segments that are left, each with its offset.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (usize, Bytes)> {
        self.parts.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes the segment of a number, which must be the next one.
    pub(crate) fn take(&mut self, number: usize) -> Result<(usize, Bytes), DecodeError> {
        match self.parts.get_mut(number) {
            Some((start, segment)) if number == self.next => {
                self.next += 1;
                Ok((*start, std::mem::take(segment)))
            }
            _ => Err(DecodeError::malformed(format!("segment {number} where {} comes next", self.next))),
        }
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        if self.next == self.parts.len() {
            Ok(())
        } else {
            Err(DecodeError::malformed(format!("segment {} is in no place of the tree", self.next)))
        }
    }
}
