//! How long a replica that keeps crashing waits before its next start: a pure decision.

use std::time::Duration;

/// Exponential back-off with jitter. The first restart comes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// The wait before the second restart in a row; it doubles from there. Default 50 ms.
    pub initial: Duration,
    /// The longest wait. Default 5 s: a stage recovers soon after its model file was replaced.
    pub max: Duration,
    /// The random share of a wait that is subtracted, 0 to 1, so that replicas do not start in step. Default 0.2.
    pub jitter: f64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { initial: Duration::from_millis(50), max: Duration::from_secs(5), jitter: 0.2 }
    }
}

impl BackoffPolicy {
    /// The wait before restart number `attempt` in a row (from 0); `chance` is uniform in 0..1.
    pub(crate) fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let Some(doublings) = attempt.checked_sub(1) else { return Duration::ZERO };
        let factor = 2u32.checked_pow(doublings).unwrap_or(u32::MAX);
        let full = self.initial.saturating_mul(factor).min(self.max);
        // NaN or infinity subtracts nothing.
        let jitter = if self.jitter.is_finite() { self.jitter.clamp(0.0, 1.0) } else { 0.0 };
        full.mul_f64(1.0 - jitter * chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_restart_is_immediate_and_later_waits_double() {
        let policy = BackoffPolicy::default();
        let waits: Vec<_> = (0..4).map(|attempt| policy.delay(attempt, 0.0).as_millis()).collect();
        assert_eq!(waits, [0, 50, 100, 200]);
    }

    proptest! {
        #[test]
        fn stays_between_the_jittered_and_the_full_wait(attempt: u32, chance in 0.0f64..1.0) {
            let policy = BackoffPolicy::default();
            let full = policy.delay(attempt, 0.0);
            let wait = policy.delay(attempt, chance);
            prop_assert!(full <= policy.max);
            prop_assert!(wait <= full && wait >= full.mul_f64(0.79));
        }
    }
}
