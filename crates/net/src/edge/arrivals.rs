//! Calls that were admitted and whose bodies are still on their way: how many there may be, and what one of them holds.
//!
//! Such a call has done nothing yet to deserve its permit. All of them together take at most half of the node's calls in flight, so that
//! calls that are there, and the callers at other doors, always find a place; one more is refused with `overloaded`. The bytes of a body
//! are taken as they arrive: what is announced is only asked for, so that a body for which there is no room is refused before it comes.
//! A body of at most [`FIRST_BYTES`] takes them with its head, in the same step as its permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::edge::ErrorParts;
use callboard_core::{CallError, ErrorKind, Limits};

/// What a call holds at most before any of its body has come.
pub(super) const FIRST_BYTES: u64 = 1024;

/// The rest is taken in steps of this, never beyond the announced end: fewer locks than packets.
const STEP_BYTES: u64 = 256 * 1024;

/// When a refused caller may come again: as long as the node says that its permits are out.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// All that are on their way.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    now: Arc<AtomicUsize>,
    most: AtomicUsize,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Arrival(Arc<AtomicUsize>);

impl Arrivals {
    /// Leaves half of what the node has room for to calls that are there.
    pub(super) fn of_node(&self, limits: &Limits) {
        self.most.store((limits.max_in_flight / 2).max(1), Ordering::Relaxed);
    }

    /// A call whose body follows.
    ///
    /// # Errors
    ///
    /// `Overloaded` when there are as many as there may be.
    pub(super) fn begin(&self) -> Result<Arrival, CallError> {
        // Counted from here on, and no more when it is dropped.
        let arrival = Arrival(Arc::clone(&self.now));
        let most = self.most.load(Ordering::Relaxed);
        if self.now.fetch_add(1, Ordering::Relaxed) >= most {
            let message = format!("{most} calls are in flight already whose bodies have not come");
            let mut parts = ErrorParts::new(ErrorKind::Overloaded, message);
            parts.retry_after = Some(RETRY_AFTER);
            return Err(parts.into());
        }
        Ok(arrival)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much of a body was announced, has come, and is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earning {
    announced: u64,
    received: u64,
    held: u64,
}

impl Earning {
    /// A body of this length, and what is held for it from the start.
    pub(super) fn new(announced: u64) -> Self {
        let held = if announced <= FIRST_BYTES { announced } else { 0 };
        Self { announced, received: 0, held }
    }

    /// What is held.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// So many bytes have come; says how many more are to be held from now on.
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
        /// However a body comes: what has come of it is held, at most a step more, and never more than was announced.
        #[test]
        fn what_has_come_is_held_and_little_more(announced in 0_u64..4_000_000, pieces in prop::collection::vec(1_u64..100_000, 0..60)) {
            let mut earning = Earning::new(announced);
            let (mut held, mut come) = (earning.held(), 0);
            prop_assert!(held <= FIRST_BYTES);
            for piece in pieces {
                let piece = piece.min(announced - come);
                come += piece;
                held += earning.received(piece);
                prop_assert_eq!(held, earning.held());
                prop_assert!(held >= come && held <= announced);
                prop_assert!(held <= come + STEP_BYTES.max(FIRST_BYTES));
            }
        }
    }

    #[test]
    fn there_are_no_more_on_their_way_than_there_may_be() {
        let arrivals = Arrivals::default();
        arrivals.most.store(2, Ordering::Relaxed);
        let (first, second) = (arrivals.begin().unwrap(), arrivals.begin().unwrap());
        for _ in 0..3 {
            assert!(arrivals.begin().unwrap_err().is_retryable(), "a refusal takes no place");
        }
        drop(first);
        let third = arrivals.begin().unwrap();
        assert!(arrivals.begin().is_err());
        drop((second, third));
        assert_eq!(arrivals.now.load(Ordering::Relaxed), 0);
    }
}
