//! Joins the pieces of a body: each byte is copied once, into a buffer that is aligned for every array, from its
//! beginning or from the first array.
//!
//! Memory follows the received bytes, not the announced length: the buffer is allocated when half of the body has
//! arrived. A body of unknown length gets its buffer at its end. A body of one piece is not copied.

use bytes::Bytes;
use callboard_codec::AlignedBuffer;

use crate::runtime::coop;

/// A kept piece costs 32 bytes more. Smaller pieces are gathered first, and copied twice.
const SMALL_PIECE: usize = 1024;

/// Room for small pieces.
const SMALL_PIECES: usize = 16 * 1024;

/// A body below this gets its buffer at once.
const SMALL_BODY: usize = 64 * 1024;

/// A body whose pieces are being joined.
#[derive(Debug)]
pub struct BodyBuffer {
    announced: Option<usize>,
    received: usize,
    pieces: Vec<Bytes>,
    small: Vec<u8>,
    buffer: Option<AlignedBuffer>,
    /// The offset of the byte that is aligned.
    aligned_at: usize,
}

impl BodyBuffer {
    /// A body with this first piece.
    #[must_use]
    pub fn new(announced: Option<u64>, first: Bytes) -> Self {
        Self::aligned_at(0, announced, first)
    }

    /// A body with this first piece, whose byte at `aligned_at` is aligned.
    #[must_use]
    pub fn aligned_at(aligned_at: usize, announced: Option<u64>, first: Bytes) -> Self {
        let announced = announced.and_then(|bytes| usize::try_from(bytes).ok());
        Self { announced, received: first.len(), pieces: vec![first], small: Vec::new(), buffer: None, aligned_at }
    }

    /// Takes the next piece.
    pub async fn push(&mut self, piece: Bytes) {
        if self.buffer.is_none()
            && let Some(all) = self.announced
            && self.received < all
            && (self.received * 2 >= all || all <= SMALL_BODY)
        {
            self.buffer = Some(self.joined(all).await);
        }
        self.received += piece.len();
        match &mut self.buffer {
            Some(buffer) => buffer.push(&piece),
            None => self.keep(piece),
        }
    }

    /// The bytes received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received as u64
    }

    /// Bytes that [`finish`](Self::finish) copies while it still holds the pieces.
    #[must_use]
    pub fn copies_at_end(&self) -> u64 {
        let is_whole = self.buffer.is_some() || self.small.is_empty() && self.pieces.len() == 1;
        if is_whole { 0 } else { self.received as u64 }
    }

    /// The whole body.
    pub async fn finish(mut self) -> Bytes {
        if let Some(buffer) = self.buffer {
            return buffer.into_bytes();
        }
        if self.small.is_empty() && self.pieces.len() == 1 {
            return self.pieces.swap_remove(0);
        }
        self.joined(self.received).await.into_bytes()
    }

    fn keep(&mut self, piece: Bytes) {
        if piece.len() >= SMALL_PIECE {
            self.flush();
            return self.pieces.push(piece);
        }
        if self.small.len() + piece.len() > self.small.capacity() {
            self.flush();
            self.small.reserve_exact(SMALL_PIECES);
        }
        self.small.extend_from_slice(&piece);
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            let mut small = std::mem::take(&mut self.small);
            // A large piece may follow few bytes. Their spare capacity is freed, because only the bytes are charged.
            small.shrink_to_fit();
            self.pieces.push(small.into());
        }
    }

    /// The kept pieces in a buffer with room for `all`. Each piece is freed after its copy, and other tasks run in
    /// between.
    async fn joined(&mut self, all: usize) -> AlignedBuffer {
        self.flush();
        let mut buffer = AlignedBuffer::with_capacity_aligned_at(all, self.aligned_at);
        for piece in std::mem::take(&mut self.pieces) {
            buffer.push(&piece);
            coop::moved(piece.len()).await;
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn gather(announced: Option<u64>, pieces: impl IntoIterator<Item = Bytes>) -> Bytes {
        gather_at(0, announced, pieces).await
    }

    async fn gather_at(offset: usize, announced: Option<u64>, pieces: impl IntoIterator<Item = Bytes>) -> Bytes {
        let mut pieces = pieces.into_iter();
        let mut gathering = BodyBuffer::aligned_at(offset, announced, pieces.next().unwrap());
        for piece in pieces {
            gathering.push(piece).await;
        }
        gathering.finish().await
    }

    #[tokio::test]
    async fn pieces_of_any_size_become_one_aligned_buffer() {
        let body: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        for size in [1, 7, 1000, 1024, 65_536, 299_999] {
            for announced in [None, Some(body.len() as u64)] {
                let whole = gather(announced, body.chunks(size).map(Bytes::copy_from_slice)).await;
                assert_eq!(whole, body, "{size} {announced:?}");
                assert!(whole.as_ptr().addr().is_multiple_of(16));
            }
        }
    }

    #[tokio::test]
    async fn the_first_array_is_aligned_at_any_offset() {
        let body: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        for offset in [1, 15, 16, 135, 5000] {
            for announced in [None, Some(body.len() as u64)] {
                let whole = gather_at(offset, announced, body.chunks(1000).map(Bytes::copy_from_slice)).await;
                assert_eq!(whole, body);
                assert!((whole.as_ptr().addr() + offset).is_multiple_of(16), "{offset} {announced:?}");
            }
        }
    }

    #[tokio::test]
    async fn small_pieces_between_large_pieces_keep_no_spare_capacity() {
        let mut gathering = BodyBuffer::new(None, Bytes::from(vec![0; SMALL_PIECE]));
        for _ in 0..100 {
            gathering.push(Bytes::from_static(b"x")).await;
            gathering.push(Bytes::from(vec![0; SMALL_PIECE])).await;
        }
        let capacity_of = |piece: Bytes| piece.try_into_mut().map_or(0, |piece| piece.capacity());
        let capacity: usize = std::mem::take(&mut gathering.pieces).into_iter().map(capacity_of).sum();
        assert!(capacity <= 2 * 101 * SMALL_PIECE, "{capacity} bytes are kept");
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 100_000]);
        for announced in [None, Some(100_000)] {
            assert_eq!(gather(announced, [piece.clone()]).await.as_ptr(), piece.as_ptr());
        }
    }

    #[tokio::test]
    async fn an_announced_gigabyte_allocates_only_for_received_bytes() {
        let mut gathering = BodyBuffer::new(Some(1 << 30), Bytes::from_static(&[0; 5000]));
        gathering.push(Bytes::from_static(&[0; 5000])).await;
        assert!(gathering.buffer.is_none());
    }
}
