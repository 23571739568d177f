//! Whether this node hears anybody: a node that hears nobody accuses nobody.
//!
//! If no member is heard, this node is more likely cut off than everybody else dead. Then its suspicions wait until a
//! message arrives, and for one suspicion time more. The suspected members are told at that moment, because earlier
//! messages may be lost in the silence. After ten seconds suspicions wait no longer: the survivor of two must notice
//! that it is alone.

use std::time::Duration;

use callboard_core::Instant;

/// The longest time for which silence holds suspicions.
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// How often a held suspicion is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct Isolation {
    /// A longer time without a message is silence. With 1.0 probe periods, a cluster of three never notices a death.
    threshold: Duration,
    suspicion: Duration,
    last_heard: Instant,
    /// Suspicions do not end before this.
    trusted_from: Instant,
}

impl Isolation {
    pub(super) fn new(probe_period: Duration, suspicion: Duration, now: Instant) -> Self {
        Self { threshold: probe_period * 8 / 5, suspicion, last_heard: now, trusted_from: now }
    }

    /// A member was heard. Returns whether that ends a silence.
    pub(super) fn heard(&mut self, now: Instant) -> bool {
        let was_silent = now.saturating_duration_since(self.last_heard) > self.threshold;
        if was_silent {
            self.trusted_from = now + self.suspicion;
        }
        self.last_heard = now;
        was_silent
    }

    /// When a suspicion that is due is to be looked at again. `None`: it ends now.
    pub(super) fn held_until(&self, now: Instant) -> Option<Instant> {
        let silent = now.saturating_duration_since(self.last_heard);
        if silent > LONGEST_HOLD {
            None
        } else if silent > self.threshold {
            Some(now + LOOK_EVERY)
        } else {
            Some(self.trusted_from).filter(|from| *from > now)
        }
    }

    /// This process was stopped for this long.
    pub(super) fn give_back(&mut self, gap: Duration) {
        self.last_heard += gap;
        self.trusted_from += gap;
    }
}
