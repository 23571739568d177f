//! The bytes that a call holds while its body arrives.
//!
//! The announced length is only checked, so that a body for which there is no room is refused before it arrives. A body
//! of at most [`FIRST_BYTES`] is held from its head on, in the same step as its permit.

use callboard_core::edge::BODY_STEP_BYTES;

/// The most bytes that a call holds before any of its body has arrived.
pub(super) const FIRST_BYTES: u64 = 1024;

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
        let ahead = self.announced.saturating_sub(self.held).min(BODY_STEP_BYTES);
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
                prop_assert!(held <= come + BODY_STEP_BYTES.max(FIRST_BYTES));
            }
        }
    }
}
