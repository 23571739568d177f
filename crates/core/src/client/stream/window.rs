//! How far a stream may be ahead of its consumer, and the deadline of each call. Pure.

use std::time::Duration;

use crate::clock::Instant;
use crate::deadline::Deadline;

/// Counts the inputs that were pulled and the results that were yielded.
#[derive(Debug, Default)]
pub(super) struct Window {
    pulled: usize,
    yielded: usize,
    last_deadline: Option<Deadline>,
}

impl Window {
    /// The count of inputs that were pulled and not yet answered.
    pub(super) fn outstanding(&self) -> usize {
        self.pulled - self.yielded
    }

    pub(super) fn has_room(&self, look_ahead: usize) -> bool {
        self.outstanding() < look_ahead.max(1)
    }

    /// Counts an input that was pulled.
    pub(super) fn pull(&mut self) {
        self.pulled += 1;
    }

    /// Counts a result that is yielded. Returns the index of its input.
    pub(super) fn yield_next(&mut self) -> usize {
        let index = self.yielded;
        self.yielded += 1;
        index
    }

    /// The deadline of the call for the last input, if the call is sent now.
    ///
    /// A call has `timeout` for itself and the same time for each call ahead of it, so that a stream does not make its
    /// own calls late. While two calls are outstanding, the later one never has the earlier deadline: queues keep the
    /// stream's order.
    pub(super) fn deadline(&mut self, now: Instant, timeout: Duration) -> Deadline {
        let share = u32::try_from(self.outstanding().max(1)).unwrap_or(u32::MAX);
        let own = Deadline::after(now, timeout.min(Deadline::MAX_TIMEOUT).saturating_mul(share));
        let before = if self.outstanding() > 1 { self.last_deadline } else { None };
        let deadline = before.map_or(own, |before| own.max(before));
        self.last_deadline = Some(deadline);
        deadline
    }
}

/// The default look-ahead: twice what the route's workers hold, so that a full batch waits while another one runs. The
/// minimum hides the hand-over of quick stages; the maximum is the length of a default queue.
pub(super) fn default_look_ahead(workers_hold: usize) -> usize {
    workers_hold.saturating_mul(2).clamp(16, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_deadline_of_a_lone_call_does_not_depend_on_answered_ones() {
        let (mut window, now, timeout) = (Window::default(), Instant::now(), Duration::from_secs(1));
        (0..3).for_each(|_| window.pull());
        assert_eq!(window.deadline(now, timeout), Deadline::after(now, 3 * timeout));
        (0..3).for_each(|index| assert_eq!(window.yield_next(), index));
        window.pull();
        assert_eq!(window.deadline(now, timeout), Deadline::after(now, timeout));
    }

    proptest! {
        /// The window never exceeds its look-ahead. A deadline leaves time for its call and the calls ahead of it,
        /// never exceeds the cap, and is never earlier than that of an earlier outstanding call.
        #[test]
        fn bounds_outstanding_calls_and_keeps_deadlines_in_order(
            look_ahead in 0usize..10,
            timeout_ms in 1u64..5_000_000,
            steps in prop::collection::vec((any::<bool>(), 0u64..1000), 0..200),
        ) {
            let timeout = Duration::from_millis(timeout_ms);
            let mut window = Window::default();
            let mut now = Instant::now();
            let mut outstanding: std::collections::VecDeque<(usize, Deadline)> = Default::default();
            let mut pulled = 0;
            for (pull, passed_ms) in steps {
                now += Duration::from_millis(passed_ms);
                prop_assert_eq!(window.has_room(look_ahead), outstanding.len() < look_ahead.max(1));
                if pull && window.has_room(look_ahead) {
                    window.pull();
                    let deadline = window.deadline(now, timeout);
                    let share = timeout.min(Deadline::MAX_TIMEOUT) * (outstanding.len() as u32 + 1);
                    prop_assert!(deadline.remaining(now) >= share.min(Deadline::MAX_TIMEOUT));
                    prop_assert!(deadline.remaining(now) <= Deadline::MAX_TIMEOUT);
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
