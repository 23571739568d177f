//! Admitted calls whose bodies are still arriving: how many there may be, and how many bytes each holds.
//!
//! Together they have at most half of the node's calls in flight, so that complete calls, and calls of other edges,
//! always find a permit; further ones are refused with `overloaded`. The bytes of a body are held as they arrive. The
//! announced length is only checked, so that a body for which there is no room is refused before it arrives. A body of
//! at most [`FIRST_BYTES`] is held from its head on, in the same step as its permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::edge::ErrorParts;
use callboard_core::{CallError, ErrorKind, Limits};

/// The most bytes that a call holds before any of its body has arrived.
pub(super) const FIRST_BYTES: u64 = 1024;

/// Further bytes are held in steps of this, up to the announced length: fewer locks than packets.
const STEP_BYTES: u64 = 256 * 1024;

/// When a refused caller may try again: the same as when the node has no permit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The calls whose bodies are arriving.
#[derive(Debug, Default)]
pub(super) struct PendingBodies {
    count: Arc<AtomicUsize>,
    limit: AtomicUsize,
}

/// Counts one such call until it is dropped.
#[derive(Debug)]
pub(super) struct PendingBody(Arc<AtomicUsize>);

impl PendingBodies {
    /// Sets the limit to half of the node's calls in flight.
    pub(super) fn set_limit(&self, limits: &Limits) {
        self.limit.store((limits.max_in_flight / 2).max(1), Ordering::Relaxed);
    }

    /// Counts a call whose body follows.
    ///
    /// # Errors
    ///
    /// `Overloaded` at the limit.
    pub(super) fn begin(&self) -> Result<PendingBody, CallError> {
        // Made before the count grows: on a refusal, its drop takes the count back.
        let body = PendingBody(Arc::clone(&self.count));
        let limit = self.limit.load(Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Relaxed) >= limit {
            let message = format!("{limit} calls in flight are still waiting for their bodies");
            let mut parts = ErrorParts::new(ErrorKind::Overloaded, message);
            parts.retry_after = Some(RETRY_AFTER);
            return Err(parts.into());
        }
        Ok(body)
    }
}

impl Drop for PendingBody {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of a body that were announced, have arrived, and are held.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyReservation {
    announced: u64,
    received: u64,
    held: u64,
}

impl BodyReservation {
    /// For a body of this length.
    pub(super) fn new(announced: u64) -> Self {
        let held = if announced <= FIRST_BYTES { announced } else { 0 };
        Self { announced, received: 0, held }
    }

    /// The bytes that are held.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Counts bytes that arrived. Returns how many more bytes have to be held.
    pub(super) fn received(&mut self, bytes: u64) -> u64 {
        self.received += bytes;
        let missing = self.received.saturating_sub(self.held);
        if missing == 0 {
            return 0;
        }
        let ahead = self.announced.saturating_sub(self.held).min(STEP_BYTES);
        let more = missing.max(ahead);
        self.held += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However a body arrives: its bytes are held, at most one step more, and never more than announced.
        #[test]
        fn arrived_bytes_are_held_and_little_more(
            announced in 0_u64..4_000_000, pieces in prop::collection::vec(1_u64..100_000, 0..60),
        ) {
            let mut reservation = BodyReservation::new(announced);
            let (mut held, mut come) = (reservation.held(), 0);
            prop_assert!(held <= FIRST_BYTES);
            for piece in pieces {
                let piece = piece.min(announced - come);
                come += piece;
                held += reservation.received(piece);
                prop_assert_eq!(held, reservation.held());
                prop_assert!(held >= come && held <= announced);
                prop_assert!(held <= come + STEP_BYTES.max(FIRST_BYTES));
            }
        }
    }

    #[test]
    fn the_number_of_pending_bodies_is_limited() {
        let pending = PendingBodies::default();
        pending.limit.store(2, Ordering::Relaxed);
        let (first, second) = (pending.begin().unwrap(), pending.begin().unwrap());
        for _ in 0..3 {
            assert!(pending.begin().unwrap_err().is_retryable(), "a refusal does not count");
        }
        drop(first);
        let third = pending.begin().unwrap();
        assert!(pending.begin().is_err());
        drop((second, third));
        assert_eq!(pending.count.load(Ordering::Relaxed), 0);
    }
}
