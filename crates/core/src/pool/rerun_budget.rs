//! The number of entries that may run again after the loss of their worker: a pure decision.
//!
//! Completed entries pay for retries. A healthy stage always has retries for single losses; on a failing stage retries
//! end before they become the load that keeps it down.
//!
//! Clients have another budget (`retry/budget.rs`), by time, and every call pays into it, also a lost one. Here each
//! lost entry has cost a worker: a reserve that returns with time would let a broken stage kill one worker after the
//! other.

/// The deposit of each completed entry: ten pay for one retry.
const DEPOSIT: f64 = 0.1;

/// The budget at the start, and its maximum: a stage without traffic may lose entries as well.
const RESERVE: f64 = 10.0;

/// The retries that a stage may still make.
#[derive(Debug)]
pub(crate) struct RerunBudget(f64);

impl Default for RerunBudget {
    fn default() -> Self {
        Self(RESERVE)
    }
}

impl RerunBudget {
    /// Entries had their outcome.
    pub(crate) fn completed(&mut self, entries: usize) {
        self.0 = (self.0 + DEPOSIT * entries as f64).min(RESERVE);
    }

    /// Takes at most this many retries, and returns the number.
    #[must_use]
    pub(crate) fn take(&mut self, retries: usize) -> usize {
        let taken = retries.min(self.0 as usize);
        self.0 -= taken as f64;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any order of work and losses, retries are at most a tenth of the completed calls, plus the reserve.
        #[test]
        fn retries_are_bounded_by_completed_calls(steps in prop::collection::vec((0usize..50, 0usize..20), 0..100)) {
            let mut budget = RerunBudget::default();
            let (mut completed, mut retried) = (0, 0);
            for (done, lost) in steps {
                budget.completed(done);
                completed += done;
                let taken = budget.take(lost);
                prop_assert!(taken <= lost);
                retried += taken;
                prop_assert!(retried as f64 <= RESERVE + DEPOSIT * completed as f64 + 1e-6);
            }
        }
    }

    #[test]
    fn a_healthy_stage_always_has_retries() {
        let mut budget = RerunBudget::default();
        assert_eq!(budget.take(25), 10);
        assert_eq!(budget.take(1), 0);
        budget.completed(20);
        assert_eq!(budget.take(5), 2);
    }
}
