//! A whole body, with its first array where an array may lie.
//!
//! The JSON in front has any length, so what is behind it lies anywhere unless the buffer begins at the right place. It does
//! here: an array of a large body is used where it was received. Behind an array of another element size one may lie askew; that
//! one is copied when it is used. What is short and came in one piece is used as it came.

use axum::body::HttpBody;
use bytes::Bytes;
use tower::BoxError;

use crate::error::ApiError;
use crate::request::body::Incoming;

/// What every element is aligned at, and a vector register too.
const ALIGNMENT: usize = 64;

/// The room that is made for an announced body before it has come that far. Twice what is usual for bodies: a tensor of a
/// mebibyte and what is in front of it are read without being moved.
const FIRST_CAPACITY: u64 = 2 * 1024 * 1024;

/// Reads to the end; the byte at `aligned_at` lies aligned.
pub(super) async fn collect<B>(
    mut body: Incoming<'_, B>,
    announced: Option<u64>,
    aligned_at: usize,
) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let Some(first) = body.chunk().await? else { return Ok(Bytes::new()) };
    if announced == Some(first.len() as u64) {
        return Ok(first);
    }
    let expected = announced.map_or(0, |bytes| bytes.min(FIRST_CAPACITY) as usize);
    let mut whole = Buffer::with_room(expected.max(first.len()), aligned_at);
    whole.push(&first);
    while let Some(chunk) = body.chunk().await? {
        whole.push(&chunk);
    }
    Ok(whole.into_bytes())
}

/// Bytes that keep their alignment while they grow.
struct Buffer {
    bytes: Vec<u8>,
    /// Bytes in front that stand for nothing.
    skip: usize,
    aligned_at: usize,
}

impl Buffer {
    fn with_room(room: usize, aligned_at: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(room.saturating_add(ALIGNMENT));
        let skip = bytes.as_ptr().addr().wrapping_add(aligned_at).wrapping_neg() % ALIGNMENT;
        bytes.resize(skip, 0);
        Self { bytes, skip, aligned_at }
    }

    fn push(&mut self, chunk: &[u8]) {
        let needed = self.bytes.len() - self.skip + chunk.len();
        if needed + ALIGNMENT > self.bytes.capacity() {
            let mut larger = Self::with_room(needed.max(self.bytes.capacity() * 2), self.aligned_at);
            larger.bytes.extend_from_slice(&self.bytes[self.skip..]);
            *self = larger;
        }
        self.bytes.extend_from_slice(chunk);
    }

    fn into_bytes(self) -> Bytes {
        Bytes::from(self.bytes).slice(self.skip..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_stays_aligned_while_the_buffer_grows() {
        for aligned_at in [0, 1, 63, 64, 135, 5000] {
            let mut buffer = Buffer::with_room(10, aligned_at);
            let whole: Vec<u8> = (0..20_000_u32).map(|number| number as u8).collect();
            whole.chunks(700).for_each(|chunk| buffer.push(chunk));
            let bytes = buffer.into_bytes();
            assert_eq!(bytes, whole);
            assert_eq!((bytes.as_ptr().addr() + aligned_at) % ALIGNMENT, 0, "{aligned_at}");
        }
    }
}
