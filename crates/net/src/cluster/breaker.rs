//! A circuit breaker for each peer and stage: a pure decision.
//!
//! Five losses in a row open it. While it is open, the peer gets no calls; after a second it gets one call at a time, a
//! probe, until one succeeds. Each lost probe doubles the time, up to ten seconds. Calls that began before it opened,
//! and calls that go to an open peer for lack of another, do not extend it: one incident opens it once.

use std::time::Duration;

use callboard_core::Instant;

/// The losses in a row that open it.
const THRESHOLD: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The breaker of one stage of one peer.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    losses: u32,
    openings: u32,
    opened_until: Option<Instant>,
    /// The start of the current probe.
    probing_since: Option<Instant>,
}

impl Breaker {
    /// The end of the last open state, or of the wait for a probe: before it, the peer gets no call.
    pub(super) fn until(&self) -> Option<Instant> {
        // A cancelled probe has no outcome: after a pause it no longer counts.
        let probed_until = self.probing_since.map(|since| since + FIRST_PAUSE);
        self.opened_until.max(probed_until)
    }

    /// Whether the breaker has not opened since the last answered call.
    pub(super) fn is_closed(&self) -> bool {
        self.opened_until.is_none()
    }

    /// Records the start of a call.
    pub(super) fn began(&mut self, now: Instant) {
        if self.opened_until.is_some() && !self.is_open(now) {
            self.probing_since = Some(now);
        }
    }

    /// Records an answer of any kind.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Records a call that was lost or could not be made.
    pub(super) fn lost(&mut self, now: Instant) {
        if self.is_open(now) {
            return;
        }
        self.losses += 1;
        let was_probe = self.probing_since.take().is_some();
        if self.losses >= THRESHOLD || was_probe {
            let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.openings.min(8));
            self.opened_until = Some(now + pause.min(LONGEST_PAUSE));
            self.openings += 1;
            self.losses = 0;
        }
    }

    fn is_open(&self, now: Instant) -> bool {
        self.opened_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Breaker {
        fn allows(&self, now: Instant) -> bool {
            self.until().is_none_or(|until| until <= now)
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

    /// A peer is killed with many calls in flight, and restarts soon.
    #[test]
    fn simultaneous_losses_open_it_once() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let soon = start + Duration::from_millis(500);
        (0..64).for_each(|_| breaker.lost(start));
        // Some losses are reported later, and some calls still go there.
        (0..64).for_each(|_| breaker.lost(soon));
        breaker.began(soon);
        breaker.lost(soon);
        assert!(!breaker.allows(start + FIRST_PAUSE - Duration::from_millis(1)));
        assert!(breaker.allows(start + FIRST_PAUSE));
    }

    #[test]
    fn a_cancelled_probe_does_not_block_the_peer_for_ever() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        (0..THRESHOLD).for_each(|_| breaker.lost(now));
        breaker.began(now + FIRST_PAUSE);
        assert!(breaker.allows(now + FIRST_PAUSE * 2));
    }
}
