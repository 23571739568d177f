//! Which actors of a group start again when one dies: pure decisions.

use std::ops::Range;

use serde::Serialize;

/// Which actors of a group start again when one dies. The order is that of their declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartStrategy {
    /// Only the dead actor. For independent actors.
    #[default]
    OneForOne,
    /// The actors declared after it depend on it: they are stopped, and all start again in order.
    RestForOne,
    /// All actors depend on each other: all are stopped, and all start again in order.
    OneForAll,
}

impl RestartStrategy {
    /// The actors that start again when `dead` of `count` died.
    pub(crate) fn affected(self, dead: usize, count: usize) -> Range<usize> {
        match self {
            Self::OneForOne => dead..dead + 1,
            Self::RestForOne => dead..count,
            Self::OneForAll => 0..count,
        }
    }
}

/// Which ends of an actor cause a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// Every end, even when the actor stopped by itself.
    Always,
    /// After an error, a panic or a kill. An actor that stops by itself has done its work.
    #[default]
    Crashed,
    /// None.
    Never,
}

impl RestartPolicy {
    pub(crate) fn after(self, crashed: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Crashed => crashed,
            Self::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RestartStrategy;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn the_dead_child_is_always_affected_and_only_the_strategy_adds_others(dead in 0usize..9, more in 1usize..9) {
            let count = dead + more;
            for strategy in [RestartStrategy::OneForOne, RestartStrategy::RestForOne, RestartStrategy::OneForAll] {
                let affected = strategy.affected(dead, count);
                prop_assert!(affected.contains(&dead) && affected.end <= count);
                let expected = match strategy {
                    RestartStrategy::OneForOne => 1,
                    RestartStrategy::RestForOne => more,
                    RestartStrategy::OneForAll => count,
                };
                prop_assert_eq!(affected.len(), expected);
            }
        }
    }
}
