//! When a part that has failed tries again: a pure decision.
//!
//! The part is half-open then: one replica is started, and if it comes up, the part serves again. After a failure
//! soon after that, the waits go on from there, so a part that always fails is tried once a minute.

use std::time::Duration;

use super::BackoffPolicy;
use crate::clock::Instant;

/// The first wait, long against the back-off of single replicas, and the longest.
const WAITS: BackoffPolicy =
    BackoffPolicy { initial: Duration::from_secs(1), max: Duration::from_secs(60), jitter: 0.2 };

/// The failures of one part, and the waits after them.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Failures without a steady time between them.
    failures: u32,
    /// Since when it has served after the last failure.
    since: Option<Instant>,
}

impl Recovery {
    /// The part has failed. Returns the wait before the next try; `chance` is uniform in 0..1.
    pub(crate) fn failed(&mut self, now: Instant, chance: f64) -> Duration {
        // As long as the longest wait, so that a part that keeps failing is down most of the time, not its callers.
        if self.since.take().is_some_and(|since| now.saturating_duration_since(since) >= WAITS.max) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        WAITS.delay(self.failures, chance)
    }

    /// The part serves, now or still.
    pub(crate) fn recovered(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_from_a_second_to_a_minute_and_begin_anew_after_a_steady_minute() {
        let (mut recovery, mut now) = (Recovery::default(), Instant::now());
        let mut wait = |now| recovery.failed(now, 0.0).as_secs();
        assert_eq!([(); 8].map(|()| wait(now)), [1, 2, 4, 8, 16, 32, 60, 60]);

        recovery.recovered(now);
        now += Duration::from_secs(59);
        assert_eq!(recovery.failed(now, 0.0).as_secs(), 60, "it has not been steady");
        recovery.recovered(now);
        now += Duration::from_secs(60);
        assert_eq!(recovery.failed(now, 0.0).as_secs(), 1);
    }

    proptest! {
        #[test]
        fn a_failed_part_is_tried_within_a_minute(
            steps in prop::collection::vec((0u64..200, any::<bool>(), 0.0f64..1.0), 0..60),
        ) {
            let (mut recovery, mut now) = (Recovery::default(), Instant::now());
            for (seconds, recovers, chance) in steps {
                now += Duration::from_secs(seconds);
                let wait = recovery.failed(now, chance);
                prop_assert!(wait >= Duration::from_millis(800) && wait <= WAITS.max, "{wait:?}");
                if recovers {
                    recovery.recovered(now);
                }
            }
        }
    }
}
