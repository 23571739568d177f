//! The buffer that encoders write into. Its growth is charged to the scope's account before it is allocated.
//!
//! * **Full:** the buffer keeps the first refused charge and drops bytes that have no room. [`into_bytes`] reports the
//!   refusal; an encoder calls [`check`] for each list, so that it stops soon. As [`io::Write`] the buffer reports the
//!   refusal at once.
//! * **Dropped:** an unfinished buffer gives its charge back. A finished one stays charged with the memory that it
//!   keeps.
//!
//! [`into_bytes`]: ChargedBuffer::into_bytes
//! [`check`]: ChargedBuffer::check

use std::io;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::account::{ChargeError, TemporaryCharge, charge, release, take_fault};

/// A growing list of bytes.
#[derive(Debug, Default)]
pub(crate) struct ChargedBuffer {
    bytes: Vec<u8>,
    refused: Option<ChargeError>,
}

impl ChargedBuffer {
    /// An empty buffer with room for `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        let mut buffer = Self::default();
        buffer.reserve(capacity);
        buffer
    }

    /// Makes room for `additional` bytes. An empty buffer gets exactly that.
    pub(crate) fn reserve(&mut self, additional: usize) {
        if self.bytes.capacity() == 0 && additional > 0 {
            self.grow(additional);
        } else {
            self.has_room(additional);
        }
    }

    /// Makes room for exactly `additional` bytes, if there is less.
    pub(crate) fn reserve_exact(&mut self, additional: usize) {
        if self.room() < additional {
            self.grow(self.bytes.len().saturating_add(additional));
        }
    }

    /// Bytes that can be written without growing.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        if self.has_room(1) {
            self.bytes.push(byte);
        }
    }

    #[inline]
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        if self.has_room(bytes.len()) {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Appends `count` bytes of one value.
    pub(crate) fn extend_with(&mut self, byte: u8, count: usize) {
        if self.has_room(count) {
            self.bytes.resize(self.bytes.len() + count, byte);
        }
    }

    /// Reports a refused charge. Called in loops, so that work on a refused buffer ends.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), ChargeError> {
        self.refused.map_or(Ok(()), Err)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The written bytes, to be filled in afterwards. A refused buffer may have fewer.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes. Unused room is given back if it is worth a reallocation.
    ///
    /// # Errors
    ///
    /// The first refused charge.
    pub(crate) fn into_bytes(mut self) -> Result<Bytes, ChargeError> {
        self.check()?;
        let unused = self.bytes.capacity() - self.bytes.len();
        if unused >= LEAST_TRIMMED && unused > self.bytes.len() / 8 {
            self.shrink();
        }
        Ok(std::mem::take(&mut self.bytes).into())
    }

    /// Drops the bytes, and releases their room.
    pub(crate) fn discard(self) {
        let room = self.bytes.capacity();
        drop(self);
        release(room);
    }

    /// The allocator may move the bytes, so old and new room are charged as for growing. If that is refused, the buffer
    /// stays as it is.
    fn shrink(&mut self) {
        let before = self.bytes.capacity();
        if charge(self.bytes.len()).is_err() {
            take_fault();
            return;
        }
        self.bytes.shrink_to_fit();
        release(before);
    }

    #[inline]
    fn has_room(&mut self, additional: usize) -> bool {
        self.room() >= additional || self.grow_for(additional)
    }

    /// Doubles the room, so that writing n bytes copies at most n.
    #[cold]
    #[inline(never)]
    fn grow_for(&mut self, additional: usize) -> bool {
        let needed = self.bytes.len().saturating_add(additional);
        self.grow(needed.max(self.bytes.capacity().saturating_mul(2)).max(LEAST_ROOM))
    }

    /// Old and new room are charged while both are there.
    fn grow(&mut self, capacity: usize) -> bool {
        if self.refused.is_some() {
            return false;
        }
        if let Err(error) = charge(capacity) {
            self.refused = Some(error);
            return false;
        }
        let before = self.bytes.capacity();
        self.bytes.reserve_exact(capacity - self.bytes.len());
        release(before);
        true
    }
}

/// Joins pieces into one buffer.
pub(crate) fn concat<T: AsRef<[u8]>>(pieces: &[T]) -> Result<ChargedBuffer, ChargeError> {
    let mut buffer = ChargedBuffer::new(pieces.iter().map(|piece| piece.as_ref().len()).sum());
    pieces.iter().for_each(|piece| buffer.extend_from_slice(piece.as_ref()));
    buffer.check().map(|()| buffer)
}

/// Makes room for one more item of a list that may grow to `at_most` items. Old and new room are charged while both are
/// there.
pub(crate) fn make_room<T>(items: &mut Vec<T>, at_most: usize) -> Result<(), ChargeError> {
    let (len, before) = (items.len(), items.capacity());
    if len < before {
        return Ok(());
    }
    let room = before.saturating_mul(2).max(LEAST_ITEMS).min(at_most).max(len + 1);
    charge(room.saturating_mul(size_of::<T>()))?;
    items.reserve_exact(room - len);
    release(before * size_of::<T>());
    Ok(())
}

/// A list that is charged while it lives.
#[derive(Debug)]
pub(crate) struct TemporaryList<T> {
    items: Vec<T>,
    charge: TemporaryCharge,
}

impl<T> Default for TemporaryList<T> {
    fn default() -> Self {
        Self { items: Vec::new(), charge: TemporaryCharge::new() }
    }
}

impl<T> TemporaryList<T> {
    #[inline]
    pub(crate) fn push(&mut self, item: T) -> Result<(), ChargeError> {
        if self.items.len() == self.items.capacity() {
            self.grow()?;
        }
        self.items.push(item);
        Ok(())
    }

    #[cold]
    fn grow(&mut self) -> Result<(), ChargeError> {
        let len = self.items.len();
        let room = (len * 2).max(LEAST_TEMPORARY_ITEMS);
        self.charge.grow((room - len) * size_of::<T>())?;
        self.items.reserve_exact(room - len);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }
}

impl<T> Deref for TemporaryList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for TemporaryList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

/// The first room of a list.
const LEAST_ITEMS: usize = 4;
/// The first room of a temporary list.
const LEAST_TEMPORARY_ITEMS: usize = 16;
/// The first room of a buffer of unknown length.
const LEAST_ROOM: usize = 128;
/// Less room than this is not given back.
const LEAST_TRIMMED: usize = 4096;

impl Drop for ChargedBuffer {
    fn drop(&mut self) {
        release(self.bytes.capacity());
    }
}

impl io::Write for ChargedBuffer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.has_room(bytes.len()) {
            self.bytes.extend_from_slice(bytes);
            Ok(())
        } else {
            Err(io::ErrorKind::OutOfMemory.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::account::{Account, STEP_BYTES, charged_to};

    /// A budget of a number of bytes.
    struct Fixed(AtomicUsize);

    impl Account for Fixed {
        fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
            let left = self.0.load(Ordering::Relaxed).checked_sub(bytes).ok_or(ChargeError::exhausted("bytes", 0))?;
            self.0.store(left, Ordering::Relaxed);
            Ok(())
        }

        fn refund(&self, bytes: usize) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The bytes that `work` leaves charged, in an account of `left` bytes.
    fn charged<T>(left: usize, work: impl FnOnce() -> T) -> (T, usize) {
        let account = Arc::new(Fixed(AtomicUsize::new(left)));
        let shared: Arc<dyn Account> = account.clone();
        let made = charged_to(&shared, work);
        (made, left - account.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_finished_buffer_stays_charged_for_its_capacity() {
        let (bytes, charged) = charged(64 << 20, || {
            let mut buffer = ChargedBuffer::new(0);
            (0..1_000_000).for_each(|_| buffer.push(7));
            buffer.into_bytes().unwrap()
        });
        assert_eq!(bytes.len(), 1_000_000);
        assert!((990_000..1_130_000).contains(&charged), "{charged}");
    }

    #[test]
    fn an_unfinished_buffer_returns_its_charge() {
        let ((), charged) = charged(64 << 20, || drop(ChargedBuffer::new(10 << 20)));
        assert_eq!(charged, 0);
    }

    #[test]
    fn a_refused_buffer_reports_it_and_allocates_no_more() {
        let (refused, charged) = charged(2 * STEP_BYTES, || {
            let mut buffer = ChargedBuffer::new(0);
            (0..1000).for_each(|_| buffer.extend_from_slice(&[0; 1024]));
            assert!(buffer.bytes.capacity() <= 2 * STEP_BYTES);
            assert_eq!(buffer.write_all(&[0; 1 << 20]).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
            assert!(buffer.check().is_err());
            buffer.into_bytes().unwrap_err()
        });
        assert_eq!((refused, charged), (ChargeError::exhausted("bytes", 0), 0));
    }

    #[test]
    fn a_known_length_allocates_exactly_that_length() {
        let (bytes, charged) = charged(1 << 20, || {
            let mut buffer = ChargedBuffer::new(100_000);
            buffer.extend_with(1, 100_000);
            buffer.into_bytes().unwrap()
        });
        assert_eq!(bytes.len(), 100_000);
        assert!(charged <= 100_000, "{charged}");
    }
}
