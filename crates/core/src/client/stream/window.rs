//! How far a stream may be ahead of its consumer, and how long each of its calls may take. Pure.

use std::time::Duration;

use crate::clock::Instant;
use crate::deadline::{Deadline, MAX_TIMEOUT};

/// What was pulled from the producer and what was yielded to the consumer.
#[derive(Debug)]
pub(super) struct Window {
    look_ahead: usize,
    pulled: usize,
    yielded: usize,
    last_deadline: Option<Deadline>,
}

impl Window {
    pub(super) fn new(look_ahead: usize) -> Self {
        Self { look_ahead: look_ahead.max(1), pulled: 0, yielded: 0, last_deadline: None }
    }

    pub(super) fn set_look_ahead(&mut self, look_ahead: usize) {
        self.look_ahead = look_ahead.max(1);
    }

    /// Inputs that were pulled and whose results were not yielded.
    pub(super) fn outstanding(&self) -> usize {
        self.pulled - self.yielded
    }

    /// Whether one more input may be pulled.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding() < self.look_ahead
    }

    /// An input was pulled.
    pub(super) fn pull(&mut self) {
        debug_assert!(self.has_room());
        self.pulled += 1;
    }

    /// A result is yielded; says which.
    pub(super) fn yield_next(&mut self) -> usize {
        let index = self.yielded;
        self.yielded += 1;
        index
    }

    /// When the call for the input that was pulled last is late, if it is sent now.
    ///
    /// Each call has `timeout` for itself and as much for every call that is ahead of it: what the stream itself has put into
    /// the queues must not make its own calls late. A later call never has an earlier deadline while both are outstanding, so
    /// that queues keep the stream's order.
    pub(super) fn deadline(&mut self, now: Instant, timeout: Duration) -> Deadline {
        let share = u32::try_from(self.outstanding().max(1)).unwrap_or(u32::MAX);
        let own = Deadline::after(now, timeout.min(MAX_TIMEOUT).saturating_mul(share));
        let before = if self.outstanding() > 1 { self.last_deadline } else { None };
        let deadline = before.map_or(own, |before| own.max(before));
        self.last_deadline = Some(deadline);
        deadline
    }
}

/// How far a stream looks ahead when its caller did not say: twice what the route's workers have in hand, so that a full batch
/// waits while another runs. At least enough to hide the hand-over of quick stages; at most what a default queue takes.
pub(super) fn default_look_ahead(workers_hold: usize) -> usize {
    workers_hold.saturating_mul(2).clamp(16, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Never further ahead than allowed; every deadline leaves the call and those before it their time, none is beyond
        /// the cap, and none is before that of an earlier call that is still outstanding.
        #[test]
        fn bounds_what_is_outstanding_and_keeps_deadlines_in_order(
            look_ahead in 0usize..10, timeout_ms in 1u64..5_000_000, steps in prop::collection::vec((any::<bool>(), 0u64..1000), 0..200),
        ) {
            let timeout = Duration::from_millis(timeout_ms);
            let mut window = Window::new(look_ahead);
            let mut now = Instant::now();
            let mut outstanding: std::collections::VecDeque<(usize, Deadline)> = Default::default();
            let mut pulled = 0;
            for (pull, passed_ms) in steps {
                now += Duration::from_millis(passed_ms);
                prop_assert_eq!(window.has_room(), outstanding.len() < look_ahead.max(1));
                if pull && window.has_room() {
                    window.pull();
                    let deadline = window.deadline(now, timeout);
                    let share = timeout.min(MAX_TIMEOUT) * (outstanding.len() as u32 + 1);
                    prop_assert!(deadline.remaining(now) >= share.min(MAX_TIMEOUT));
                    prop_assert!(deadline.remaining(now) <= MAX_TIMEOUT);
                    prop_assert!(outstanding.iter().all(|(_, before)| *before <= deadline));
                    outstanding.push_back((pulled, deadline));
                    pulled += 1;
                } else if let Some((index, _)) = outstanding.pop_front() {
                    prop_assert_eq!(window.yield_next(), index);
                }
                prop_assert_eq!(window.outstanding(), outstanding.len());
                prop_assert!(outstanding.len() <= look_ahead.max(1));
            }
        }

        #[test]
        fn looks_ahead_by_two_full_rounds_of_the_workers(workers_hold in 0usize..10_000) {
            let look_ahead = default_look_ahead(workers_hold);
            prop_assert!((16..=1024).contains(&look_ahead));
            prop_assert!(look_ahead == 1024 || look_ahead >= 2 * workers_hold);
        }
    }
}
