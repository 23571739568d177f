//! Since when the calls of streams have found no node: a pure decision.

use std::time::Duration;

use callboard_core::Instant;

/// The wait of the calls of all streams for a node that went away. It is one wait for all of them, so that a long
/// stream does not wait again for each of its inputs.
#[derive(Debug)]
pub(crate) struct Absence {
    wait: Duration,
    began: Option<Instant>,
    /// When a call last found no node.
    last: Option<Instant>,
}

impl Absence {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { wait, began: None, last: None }
    }

    /// A call begins. The wait of calls that are long over is not its own.
    pub(crate) fn called(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now > last + self.wait) {
            self.began = None;
        }
    }

    /// A call found no node at `now`. Whether the wait, which begins now if there was none, lasts until `then`.
    pub(crate) fn lasts(&mut self, now: Instant, then: Instant) -> bool {
        self.last = Some(now);
        then <= *self.began.get_or_insert(now) + self.wait
    }

    /// A node has answered.
    pub(crate) fn answered(&mut self) {
        self.began = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn all_calls_have_one_wait_until_a_node_answers() {
        let (mut absence, start) = (Absence::new(WAIT), Instant::now());
        absence.called(start);
        assert!(absence.lasts(start, start + seconds(9)));
        absence.called(start + seconds(8));
        assert!(absence.lasts(start + seconds(8), start + seconds(10)));
        assert!(!absence.lasts(start + seconds(8), start + seconds(11)));
        absence.answered();
        assert!(absence.lasts(start + seconds(11), start + seconds(20)));
    }

    #[test]
    fn a_later_call_does_not_have_the_wait_of_calls_that_are_long_over() {
        let (mut absence, start) = (Absence::new(WAIT), Instant::now());
        assert!(absence.lasts(start, start));
        let later = start + seconds(11);
        absence.called(later);
        assert!(absence.lasts(later, later + seconds(9)));
    }

    #[test]
    fn a_wait_ends_although_each_attempt_takes_longer_than_it() {
        let (mut absence, start) = (Absence::new(seconds(1)), Instant::now());
        absence.called(start);
        assert!(absence.lasts(start + seconds(2), start + seconds(2)));
        assert!(!absence.lasts(start + seconds(4), start + seconds(4)));
    }
}
