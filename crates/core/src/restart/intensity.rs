//! How many crashes make a stage fail: a pure decision.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;

/// The restart intensity of a stage: the stage fails after more than `max_restarts` counted crashes `within` this time.
///
/// Only crash *loops* count: a replica that ends before it begins a batch, from the second time in a row, or in
/// construction or warm-up. An end with a batch is charged to the batch. Default 5 in 10 s, as in OTP's supervisors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartIntensity {
    /// The maximum count of restarts in the window.
    pub max_restarts: u32,
    /// The length of the sliding window.
    pub within: Duration,
}

impl Default for RestartIntensity {
    fn default() -> Self {
        Self { max_restarts: 5, within: Duration::from_secs(10) }
    }
}

/// The decision after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    Restart,
    GiveUp,
}

/// The counted crashes of the last window.
#[derive(Debug)]
pub(crate) struct RestartWindow {
    intensity: RestartIntensity,
    crashes: VecDeque<Instant>,
}

impl RestartWindow {
    pub(crate) fn new(intensity: RestartIntensity) -> Self {
        Self { intensity, crashes: VecDeque::new() }
    }

    /// Counts a crash. Holds at most one more instant than the intensity allows.
    pub(crate) fn record(&mut self, now: Instant) -> RestartDecision {
        while self.crashes.front().is_some_and(|crash| now.saturating_duration_since(*crash) >= self.intensity.within) {
            self.crashes.pop_front();
        }
        self.crashes.push_back(now);
        if self.crashes.len() > self.intensity.max_restarts as usize {
            RestartDecision::GiveUp
        } else {
            RestartDecision::Restart
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gives_up_on_the_first_crash_beyond_the_intensity() {
        let start = Instant::now();
        let mut window = RestartWindow::new(RestartIntensity::default());
        for crash in 0..5 {
            assert_eq!(window.record(start + Duration::from_secs(crash)), RestartDecision::Restart);
        }
        assert_eq!(window.record(start + Duration::from_secs(5)), RestartDecision::GiveUp);
    }

    proptest! {
        /// The decision is exactly "more than the allowed count within the window that ends now".
        #[test]
        fn counts_exactly_the_crashes_of_the_window(
            max_restarts in 0u32..6, within_ms in 1u64..500, gaps in prop::collection::vec(0u64..200, 0..60),
        ) {
            let within = Duration::from_millis(within_ms);
            let mut window = RestartWindow::new(RestartIntensity { max_restarts, within });
            let mut now = Instant::now();
            let mut crashes = Vec::new();
            for gap in gaps {
                now += Duration::from_millis(gap);
                crashes.push(now);
                let counted = crashes.iter().filter(|crash| now - **crash < within).count();
                let expected = if counted > max_restarts as usize { RestartDecision::GiveUp } else { RestartDecision::Restart };
                prop_assert_eq!(window.record(now), expected);
            }
        }
    }
}
