//! The bytes that a call holds while its body arrives: a pure value, fed with sizes.
//!
//! An announced length holds nothing: a client that announces much and sends little must not take the node's memory.
//! Received bytes are held, and some of the announced ones ahead of them, because a lock for each packet would cost
//! more: at most twice the received bytes, at most one step, and never beyond the announced end.

/// The most bytes that are held ahead of their arrival.
const STEP_BYTES: u64 = 256 * 1024;

/// The bytes of a body that were announced, have arrived, and are held.
#[derive(Clone, Copy, Debug)]
pub struct BodyReservation {
    announced: u64,
    received: u64,
    held: u64,
}

impl BodyReservation {
    /// For a body of this length, if it is known.
    #[must_use]
    pub fn new(announced: Option<u64>) -> Self {
        Self { announced: announced.unwrap_or(0), received: 0, held: 0 }
    }

    /// The bytes that have arrived.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The bytes that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Holds a body of at most this length from its head on: in the same step as its permit.
    #[must_use]
    pub fn holding_up_to(self, most: u64) -> Self {
        Self { held: if self.announced <= most { self.announced } else { self.held }, ..self }
    }

    /// Counts bytes that arrived. Returns how many more bytes have to be held.
    #[must_use = "the bytes are held by the caller"]
    pub fn receive(&mut self, bytes: u64) -> u64 {
        self.received += bytes;
        let missing = self.received.saturating_sub(self.held);
        if missing == 0 {
            return 0;
        }
        let ahead = self.announced.saturating_sub(self.held).min(STEP_BYTES).min(2 * self.received);
        let more = missing.max(ahead);
        self.held += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHORT: u64 = 1024;

    proptest! {
        /// However a body arrives: its bytes are held, at most one step more, and never more than announced.
        #[test]
        fn arrived_bytes_are_held_and_little_more(
            announced in 0_u64..4_000_000,
            pieces in prop::collection::vec(1_u64..100_000, 0..60),
            is_short in any::<bool>(),
        ) {
            let reservation = BodyReservation::new(Some(announced));
            let mut reservation = if is_short { reservation.holding_up_to(SHORT) } else { reservation };
            let mut held = reservation.held();
            prop_assert!(held <= SHORT);
            for piece in pieces {
                held += reservation.receive(piece.min(announced - reservation.received()));
                let received = reservation.received();
                prop_assert_eq!(held, reservation.held());
                prop_assert!(held >= received && held <= announced);
                prop_assert!(held <= received + STEP_BYTES.min(2 * received).max(SHORT));
            }
        }

        /// A body of unknown length holds what has arrived.
        #[test]
        fn without_an_announced_length_nothing_is_held_ahead(pieces in prop::collection::vec(0_u64..100_000, 0..60)) {
            let mut reservation = BodyReservation::new(None);
            for piece in pieces {
                prop_assert_eq!(reservation.receive(piece), piece);
            }
        }
    }
}
