//! Decides what the end of a replica means for its stage. Pure.
//!
//! The end of a replica that began a batch is charged to the batch: an input may end or block any worker, and no caller
//! may take a stage out of service. Only replicas that began no batch can be in a loop: no input is to blame for them.

/// How one life of a replica has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// The replica had begun a batch, now or earlier.
    Worked,
    /// The replica was up, and had begun no batch.
    Unused,
    /// It could not be built or warmed up.
    NotStarted,
}

/// The next start of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextStart {
    /// The number of starts in a row after lives that began no batch; 0 starts at once.
    pub(crate) attempt: u32,
    /// Whether the end counts against the intensity of the stage.
    pub(crate) counts: bool,
}

/// The lives of one replica in a row that began no batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CrashLoop {
    unused: u32,
}

impl CrashLoop {
    /// A life has ended. One unused life may be chance: a process was killed from outside before its first batch. Two
    /// in a row are a loop, as is a start that fails.
    pub(crate) fn ended(&mut self, end: LifeEnd) -> NextStart {
        if end == LifeEnd::Worked {
            self.unused = 0;
            return NextStart { attempt: 0, counts: false };
        }
        let attempt = self.unused;
        self.unused = self.unused.saturating_add(1);
        NextStart { attempt, counts: end == LifeEnd::NotStarted || self.unused > 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end() -> impl Strategy<Value = LifeEnd> {
        prop_oneof![Just(LifeEnd::Worked), Just(LifeEnd::Unused), Just(LifeEnd::NotStarted)]
    }

    proptest! {
        /// Whatever happened before: inputs alone never count, and never delay a start.
        #[test]
        fn a_life_with_a_batch_is_never_charged_to_its_stage(ends in prop::collection::vec(end(), 0..40)) {
            let mut replica = CrashLoop::default();
            for end in ends {
                let next = replica.ended(end);
                let is_free = (next.attempt, next.counts) == (0, false);
                prop_assert!(end != LifeEnd::Worked || is_free, "{:?}", next);
            }
        }

        /// The waits grow with the lives in a row that began no batch, and only the first of them may be chance.
        #[test]
        fn lives_without_a_batch_in_a_row_are_a_loop(ends in prop::collection::vec(end(), 0..40)) {
            let mut replica = CrashLoop::default();
            for (at, end) in ends.iter().enumerate() {
                let next = replica.ended(*end);
                let before = ends[..at].iter().rev().take_while(|end| **end != LifeEnd::Worked).count();
                if *end != LifeEnd::Worked {
                    prop_assert_eq!(next.attempt as usize, before);
                    prop_assert_eq!(next.counts, before > 0 || *end == LifeEnd::NotStarted);
                }
            }
        }
    }
}
