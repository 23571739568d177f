//! How much of a stage's traffic kills its workers: a pure decision.

/// Runs of fewer entries than this decide nothing.
const ENOUGH: f64 = 20.0;

/// When this many entries are counted, all counts are halved, so that old ones fade.
const WINDOW: f64 = 200.0;

/// The share of poison entries above which a stage is `Degraded`.
const TOLERATED: f64 = 0.2;

/// Entries that ran lately, and those among them that killed their worker whenever they ran alone.
#[derive(Debug, Default)]
pub(crate) struct PoisonShare {
    entries: f64,
    poison: f64,
}

impl PoisonShare {
    /// Entries that had their outcome.
    pub(crate) fn record_runs(&mut self, entries: usize) {
        self.entries += entries as f64;
        if self.entries > WINDOW {
            let fade = WINDOW / 2.0 / self.entries;
            self.entries *= fade;
            self.poison *= fade;
        }
    }

    /// Counts a poison entry.
    pub(crate) fn record_poison(&mut self) {
        self.poison += 1.0;
        self.record_runs(1);
    }

    /// The share, where it is more than a stage should have.
    pub(crate) fn excess(&self) -> Option<f64> {
        let share = self.poison / self.entries;
        (self.entries >= ENOUGH && share > TOLERATED).then_some(share)
    }

    /// Whether there is nothing to remember.
    pub(crate) fn is_negligible(&self) -> bool {
        self.poison < 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_poison_entries_are_tolerated_many_are_not() {
        let mut share = PoisonShare::default();
        share.record_runs(99);
        share.record_poison();
        assert_eq!(share.excess(), None);
        for _ in 0..30 {
            share.record_poison();
        }
        assert!(share.excess().is_some());
        share.record_runs(1_000);
        assert_eq!(share.excess(), None, "old records decay");
    }

    #[test]
    fn a_share_is_judged_from_enough_entries_on_and_above_what_is_tolerated() {
        let share_of = |poison: usize, others| {
            let mut share = PoisonShare::default();
            (0..poison).for_each(|_| share.record_poison());
            share.record_runs(others);
            share.excess()
        };
        assert_eq!([share_of(10, 9), share_of(4, 16)], [None; 2]);
        assert_eq!(share_of(10, 10), Some(0.5));
    }

    #[test]
    fn counts_are_halved_beyond_the_window() {
        let mut share = PoisonShare::default();
        assert!(share.is_negligible());
        share.record_runs(199);
        share.record_poison();
        assert!(!share.is_negligible());
        share.record_runs(1);
        assert!(share.is_negligible(), "faded");

        let mut share = PoisonShare::default();
        (0..2).for_each(|_| share.record_poison());
        share.record_runs(398);
        assert!(!share.is_negligible(), "half an entry is left");

        let mut share = PoisonShare::default();
        (0..201).for_each(|_| share.record_poison());
        assert!(share.excess().is_some(), "halved, not forgotten");
    }

    proptest! {
        /// The judgement of a steady share does not depend on the order.
        #[test]
        fn a_steady_share_is_judged_correctly(good in 1usize..20) {
            let mut share = PoisonShare::default();
            for _ in 0..100 {
                share.record_poison();
                share.record_runs(good);
            }
            let is = 1.0 / (good + 1) as f64;
            prop_assert_eq!(share.excess().is_some(), is > TOLERATED);
        }
    }
}
