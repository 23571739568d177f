//! When a peer is left alone for a while because its calls came to nothing: a pure decision, for each peer and stage.
//!
//! Five losses in a row open it; then nothing goes there for a second, and after that one call at a time, until one succeeds. Each
//! time that one call is lost as well, it stays open twice as long, at most ten seconds. What was begun before it opened, and what goes
//! there although it is open because nobody else is left, opens it no further: one incident is one opening.

use std::time::Duration;

use callboard_core::Instant;

/// Losses in a row that are no chance any more.
const THRESHOLD: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How one stage of one peer has done lately.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    losses: u32,
    openings: u32,
    open_until: Option<Instant>,
    /// Since when the one call is under way that tells whether it is well again.
    probing_since: Option<Instant>,
}

impl Breaker {
    /// Until when no call may go there, as far as can be told. `None` for one that is in order.
    pub(super) fn out_of_order_until(&self, now: Instant) -> Option<Instant> {
        // A probe that was cancelled says nothing: after a pause it is forgotten.
        let probed_until = self.probing_since.map(|since| since + FIRST_PAUSE);
        self.open_until.max(probed_until).filter(|until| now < *until)
    }

    /// A call goes there.
    pub(super) fn began(&mut self, now: Instant) {
        if self.open_until.is_some() && !self.is_open(now) {
            self.probing_since = Some(now);
        }
    }

    /// The peer answered, whatever it said.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// The call was lost, or could not be made.
    pub(super) fn lost(&mut self, now: Instant) {
        if self.is_open(now) {
            return;
        }
        self.losses += 1;
        let was_probe = self.probing_since.take().is_some();
        if self.losses >= THRESHOLD || was_probe {
            let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.openings.min(8));
            self.open_until = Some(now + pause.min(LONGEST_PAUSE));
            self.openings += 1;
            self.losses = 0;
        }
    }

    fn is_open(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Breaker {
        fn allows(&self, now: Instant) -> bool {
            self.out_of_order_until(now).is_none()
        }
    }

    #[test]
    fn opens_after_losses_in_a_row_and_lets_one_call_try() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..THRESHOLD - 1 {
            breaker.lost(start);
        }
        breaker.answered();
        for _ in 0..THRESHOLD - 1 {
            breaker.lost(start);
            assert!(breaker.allows(start));
        }
        breaker.lost(start);
        assert!(!breaker.allows(start));
        let later = start + FIRST_PAUSE;
        assert!(breaker.allows(later));
        breaker.began(later);
        assert!(!breaker.allows(later), "one at a time");
        breaker.answered();
        assert!(breaker.allows(later));
    }

    #[test]
    fn stays_open_longer_each_time_up_to_a_bound() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        (0..THRESHOLD).for_each(|_| breaker.lost(now));
        let mut pause = FIRST_PAUSE;
        for _ in 0..12 {
            now += pause;
            assert!(breaker.allows(now));
            breaker.began(now);
            breaker.lost(now);
            pause = (pause * 2).min(LONGEST_PAUSE);
            assert!(!breaker.allows(now + pause - Duration::from_millis(1)));
        }
    }

    /// A peer is killed with many calls in hand, and is back soon.
    #[test]
    fn calls_that_are_lost_together_open_it_once() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let soon = start + Duration::from_millis(500);
        (0..64).for_each(|_| breaker.lost(start));
        // Some are told later, and some go there all the same.
        (0..64).for_each(|_| breaker.lost(soon));
        breaker.began(soon);
        breaker.lost(soon);
        assert!(!breaker.allows(start + FIRST_PAUSE - Duration::from_millis(1)));
        assert!(breaker.allows(start + FIRST_PAUSE));
    }

    #[test]
    fn a_probe_that_was_cancelled_does_not_keep_it_closed_for_ever() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        (0..THRESHOLD).for_each(|_| breaker.lost(now));
        breaker.began(now + FIRST_PAUSE);
        assert!(breaker.allows(now + FIRST_PAUSE * 2));
    }
}
