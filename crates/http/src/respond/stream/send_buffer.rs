//! Encoded and unsent pieces of a stream: small pieces are joined, large ones are kept.
//!
//! hyper frames and lists each piece, which costs more than a short event. So all ready outcomes leave as one piece;
//! nothing waits for the others.

use std::collections::VecDeque;

use bytes::Bytes;

/// The limit of joined bytes. Further outcomes stay with their call until the connection took this piece.
pub(super) const MOST_JOINED_BYTES: usize = 16 * 1024;

/// Pieces to be sent.
#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    /// The pieces before `last`.
    pieces: VecDeque<Bytes>,
    /// The piece that is being joined.
    last: Vec<u8>,
    /// The length of the joined piece before it: the next one is about as long.
    usual: usize,
}

impl SendBuffer {
    /// The buffer for small pieces.
    pub(crate) fn last(&mut self) -> &mut Vec<u8> {
        if self.last.len() >= MOST_JOINED_BYTES {
            self.end_last();
        }
        if self.last.capacity() == 0 {
            self.last.reserve(self.usual);
        }
        &mut self.last
    }

    /// Appends a piece; a large one is shared.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if piece.len() < MOST_JOINED_BYTES {
            return self.last().extend_from_slice(&piece);
        }
        self.end_last();
        self.pieces.push_back(piece);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.last.is_empty()
    }

    /// Whether further outcomes may be joined.
    pub(crate) fn has_room(&self) -> bool {
        self.pieces.is_empty() && self.last.len() < MOST_JOINED_BYTES
    }

    /// The next piece, if there is one.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.end_last();
        }
        self.pieces.pop_front()
    }

    fn end_last(&mut self) {
        if !self.last.is_empty() {
            self.usual = self.last.len();
            self.pieces.push_back(std::mem::take(&mut self.last).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_joined_and_large_pieces_are_not_copied() {
        let mut unsent = SendBuffer::default();
        assert_eq!(unsent.pop(), None);
        unsent.push(Bytes::from_static(b"one, "));
        unsent.last().extend_from_slice(b"two");
        assert!(unsent.has_room());
        let large = Bytes::from(vec![7; MOST_JOINED_BYTES]);
        unsent.push(large.clone());
        assert!(!unsent.has_room());
        unsent.push(Bytes::from_static(b"three"));
        assert_eq!(unsent.pop().unwrap(), "one, two");
        assert_eq!(unsent.pop().unwrap().as_ptr(), large.as_ptr());
        assert_eq!((unsent.pop().unwrap(), unsent.pop()), (Bytes::from_static(b"three"), None));
    }

    #[test]
    fn joined_pieces_have_a_maximum_size() {
        let mut unsent = SendBuffer::default();
        let mut written = 0;
        while unsent.has_room() {
            unsent.last().extend_from_slice(&[7; 1000]);
            written += 1000;
        }
        assert!(written < MOST_JOINED_BYTES + 1000);
        unsent.last().extend_from_slice(&[8]);
        assert_eq!(unsent.pop().unwrap().len(), written);
        assert_eq!(unsent.pop().unwrap(), [8][..]);
    }
}
