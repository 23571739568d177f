//! Counts the guards that are alive, at the cost of a reference count.

use std::sync::Arc;

/// A counter of its guards.
#[derive(Debug, Default)]
pub(crate) struct GuardCounter(Arc<()>);

/// Counts as one until it is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard(Arc<()>);

impl GuardCounter {
    pub(crate) fn guard(&self) -> CountGuard {
        CountGuard(Arc::clone(&self.0))
    }

    /// The number of guards. The counter itself holds one reference.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl CountGuard {
    /// Whether the counter has no other guard.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) <= 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_count_until_they_are_dropped() {
        let counter = GuardCounter::default();
        let first = counter.guard();
        assert!(counter.count() == 1 && first.is_alone());
        let second = counter.guard();
        assert!(counter.count() == 2 && !first.is_alone());
        drop(first);
        assert!(second.is_alone());
        drop(second);
        assert_eq!(counter.count(), 0);
    }
}
