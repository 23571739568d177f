//! A checker of histories: whether the answers of a counter are those of one counter that did one thing at a time.
//!
//! A history is linearizable (Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects",
//! 1990) if each operation can be given a moment between its call and its return, so that the operations give the same
//! answers one after another at these moments. For histories in general that is NP-complete. A counter whose increments
//! add one and return the total needs no search: the totals say the order, and the earliest possible moments are the
//! best ones.

use std::collections::BTreeMap;

/// One operation on a counter, as its caller saw it.
///
/// Times are numbers of events: any clock that all callers share and that never goes back, such as one atomic counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterOperation {
    /// Whether it adds one, or reads only.
    pub is_increment: bool,
    /// When it was called.
    pub called: u64,
    /// What became of it.
    pub outcome: CounterOutcome,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOutcome {
    /// It was answered.
    Answered(CounterAnswer),
    /// It was not carried out, and never will be.
    Refused,
    /// It may have been carried out, or may be later.
    Unknown,
}

/// The answer of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterAnswer {
    /// When it returned.
    pub returned: u64,
    /// The total, with the increment.
    pub total: u64,
    /// The epoch of the instance that answered.
    pub epoch: u64,
    /// A number of that instance, which no other has.
    pub instance: u64,
}

impl CounterOperation {
    /// An increment that was called at this time.
    #[must_use]
    pub fn increment(called: u64, outcome: CounterOutcome) -> Self {
        Self { is_increment: true, called, outcome }
    }

    /// The same that reads only.
    #[must_use]
    pub fn read(called: u64, outcome: CounterOutcome) -> Self {
        Self { is_increment: false, called, outcome }
    }
}

/// Why a history is not one of a counter that begins with zero.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterViolation {
    /// An increment was lost, or two instances have counted.
    #[error("two increments were answered with the total {total}")]
    SameTotal {
        /// Their total.
        total: u64,
    },
    /// An increment was carried out twice, or one that was refused was carried out.
    #[error("no increment explains the total {total}")]
    Unasked {
        /// The total without a cause.
        total: u64,
    },
    /// An operation that was called after this answer had returned comes before it by its total: an increment was lost,
    /// or an instance that should have ended has answered.
    #[error("the answer {total} returned at {returned}, and an operation that was called later comes before it")]
    OutOfOrder {
        /// Its total.
        total: u64,
        /// When it returned.
        returned: u64,
    },
    /// An instance has saved after a later one had claimed the key.
    #[error("the total {total} is of the epoch {epoch}, and an earlier total is of a later one")]
    OldEpoch {
        /// The total.
        total: u64,
        /// Its epoch.
        epoch: u64,
    },
    /// Two instances have the same epoch.
    #[error("two instances have the epoch {epoch}")]
    TwoWriters {
        /// Their epoch.
        epoch: u64,
    },
}

/// Checks the history of one counter, which began with zero. Operations may overlap, and be in any order.
///
/// Increments whose outcome is unknown may have been carried out at any time after their call, or never; refused ones
/// must not have been. Unknown reads say nothing. With *n* operations it takes O(*n* log *n*).
///
/// ```
/// use callboard_core::testing::{CounterAnswer, CounterOperation, CounterOutcome, CounterViolation, check_counter};
///
/// let answered = |returned, total| {
///     CounterOutcome::Answered(CounterAnswer { returned, total, epoch: 1, instance: 7 })
/// };
/// let first = CounterOperation::increment(1, answered(4, 2));
/// let second = CounterOperation::increment(2, answered(3, 1));
/// assert_eq!(check_counter(&[first, second]), Ok(()));
///
/// // A later read that does not see them.
/// let read = CounterOperation::read(5, answered(6, 1));
/// assert_eq!(check_counter(&[first, second, read]), Err(CounterViolation::OutOfOrder { total: 2, returned: 4 }));
/// ```
///
/// # Errors
///
/// The first violation in the order of the totals.
pub fn check_counter(history: &[CounterOperation]) -> Result<(), CounterViolation> {
    check_epochs(history)?;
    let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
    let mut unknown = Vec::new();
    for operation in history {
        match (operation.outcome, operation.is_increment) {
            (CounterOutcome::Answered(answer), true) => {
                let increment = &mut steps.entry(answer.total).or_default().increment;
                if increment.replace((operation.called, answer)).is_some() {
                    return Err(CounterViolation::SameTotal { total: answer.total });
                }
            }
            (CounterOutcome::Answered(answer), false) => {
                steps.entry(answer.total).or_default().reads.push((operation.called, answer));
            }
            (CounterOutcome::Unknown, true) => unknown.push(operation.called),
            (CounterOutcome::Unknown, false) | (CounterOutcome::Refused, _) => {}
        }
    }
    // The earliest first: whichever increments are left are of more use later.
    unknown.sort_unstable();
    place(steps, &mut unknown.into_iter())
}

/// What has this total as its answer.
#[derive(Debug, Default)]
struct Step {
    increment: Option<(u64, CounterAnswer)>,
    reads: Vec<(u64, CounterAnswer)>,
}

/// Gives each operation its earliest moment, in the order of the totals.
fn place(steps: BTreeMap<u64, Step>, unknown: &mut impl Iterator<Item = u64>) -> Result<(), CounterViolation> {
    let (mut moment, mut reached, mut epoch) = (0, 0, 0);
    for (total, Step { increment, mut reads }) in steps {
        // The unanswered increments up to here.
        let untold_to = if increment.is_some() { total.saturating_sub(1) } else { total };
        while reached < untold_to {
            reached += 1;
            let called = unknown.next().ok_or(CounterViolation::Unasked { total: reached })?;
            moment = moment.max(called);
        }
        if increment.is_some() && total == 0 {
            return Err(CounterViolation::Unasked { total });
        }
        reached = total;
        reads.sort_unstable_by_key(|(called, _)| *called);
        for (called, answer) in increment.into_iter().chain(reads) {
            moment = moment.max(called);
            if moment > answer.returned {
                return Err(CounterViolation::OutOfOrder { total, returned: answer.returned });
            }
        }
        if let Some((_, answer)) = increment {
            if answer.epoch < epoch {
                return Err(CounterViolation::OldEpoch { total, epoch: answer.epoch });
            }
            epoch = answer.epoch;
        }
    }
    Ok(())
}

/// Each epoch has one instance.
fn check_epochs(history: &[CounterOperation]) -> Result<(), CounterViolation> {
    let mut instances = BTreeMap::new();
    for operation in history {
        let CounterOutcome::Answered(answer) = operation.outcome else { continue };
        if *instances.entry(answer.epoch).or_insert(answer.instance) != answer.instance {
            return Err(CounterViolation::TwoWriters { epoch: answer.epoch });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Chance;

    fn answered(returned: u64, total: u64) -> CounterOutcome {
        CounterOutcome::Answered(CounterAnswer { returned, total, epoch: 1, instance: 1 })
    }

    /// A right history: callers that overlap, some of which are refused, and one in `unknown_in` is never answered (0:
    /// none); the epoch rises.
    fn right_history(chance: &mut Chance, operations: u64, unknown_in: u64) -> Vec<CounterOperation> {
        let (mut now, mut total, mut epoch) = (0, 0, 1);
        let mut open: Vec<(bool, u64, Option<CounterAnswer>)> = Vec::new();
        let mut history = Vec::new();
        let mut tick = || {
            now += 1;
            now
        };
        let mut begun = 0;
        while begun < operations || !open.is_empty() {
            let at = tick();
            match chance.within(0..4) {
                0 if begun < operations => {
                    begun += 1;
                    open.push((chance.one_in(2), at, None));
                }
                1 if !open.is_empty() => {
                    // It is carried out.
                    let index = chance.within(0..open.len() as u64) as usize;
                    let (is_increment, _, done) = &mut open[index];
                    if done.is_none() {
                        total += u64::from(*is_increment);
                        *done = Some(CounterAnswer { returned: 0, total, epoch, instance: epoch });
                    }
                }
                2 if !open.is_empty() => {
                    let index = chance.within(0..open.len() as u64) as usize;
                    let (is_increment, called, done) = open.swap_remove(index);
                    let outcome = match done {
                        _ if chance.one_in(unknown_in) => CounterOutcome::Unknown,
                        Some(answer) => CounterOutcome::Answered(CounterAnswer { returned: at, ..answer }),
                        None => CounterOutcome::Refused,
                    };
                    history.push(CounterOperation { is_increment, called, outcome });
                }
                _ => epoch += u64::from(chance.one_in(5)),
            }
        }
        // A last read of the total.
        let answer = CounterAnswer { returned: tick() + 1, total, epoch, instance: epoch };
        history.push(CounterOperation::read(answer.returned - 1, CounterOutcome::Answered(answer)));
        history
    }

    /// Whether any order of the operations gives the answers: the definition, tried out.
    fn is_linearizable(history: &[CounterOperation]) -> bool {
        fn go_on(left: &[CounterOperation], total: u64) -> bool {
            let is_answered = |operation: &CounterOperation| matches!(operation.outcome, CounterOutcome::Answered(_));
            if !left.iter().any(is_answered) {
                return true;
            }
            let returns = left.iter().filter_map(|operation| match operation.outcome {
                CounterOutcome::Answered(answer) => Some(answer.returned),
                _ => None,
            });
            let first_return = returns.min().expect("one is answered");
            (0..left.len()).any(|index| {
                let next = left[index];
                let after = total + u64::from(next.is_increment);
                let fits = match next.outcome {
                    CounterOutcome::Answered(answer) => answer.total == after,
                    CounterOutcome::Unknown => next.is_increment,
                    CounterOutcome::Refused => false,
                };
                // No other operation had returned before it was called.
                let mut rest = left.to_vec();
                rest.remove(index);
                fits && next.called <= first_return && go_on(&rest, after)
            })
        }
        go_on(history, 0)
    }

    fn is_out_of_order(verdict: &Result<(), CounterViolation>) -> bool {
        matches!(verdict, Err(CounterViolation::OutOfOrder { .. }))
    }

    fn is_unasked(verdict: &Result<(), CounterViolation>) -> bool {
        matches!(verdict, Err(CounterViolation::Unasked { .. }))
    }

    /// Any operations, of which few make a history of a counter.
    fn any_history() -> impl Strategy<Value = Vec<CounterOperation>> {
        let operation = (any::<bool>(), 0..12_u64, 0..6_u64, 0..4_u64, 0..6_u8).prop_map(
            |(is_increment, called, takes, total, outcome)| {
                let outcome = match outcome {
                    0 => CounterOutcome::Unknown,
                    1 => CounterOutcome::Refused,
                    // Two events have never one time.
                    _ => answered(2 * (called + takes) + 1, total),
                };
                CounterOperation { is_increment, called: 2 * called, outcome }
            },
        );
        proptest::collection::vec(operation, 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn the_verdict_is_that_of_trying_all_orders(history in any_history()) {
            let verdict = check_counter(&history);
            prop_assert_eq!(verdict.is_ok(), is_linearizable(&history), "{:?}", verdict);
        }

        #[test]
        fn right_histories_pass_in_any_order(seed in any::<u64>(), operations in 0..60_u64) {
            let mut history = right_history(&mut Chance::new(seed), operations, 10);
            prop_assert_eq!(check_counter(&history), Ok(()));
            history.reverse();
            prop_assert_eq!(check_counter(&history), Ok(()));
        }

        #[test]
        fn a_lost_increment_is_found(seed in any::<u64>()) {
            let mut history = right_history(&mut Chance::new(seed), 40, 10);
            let answered = history.iter().filter_map(|operation| match operation.outcome {
                CounterOutcome::Answered(answer) if operation.is_increment => Some(answer.total),
                _ => None,
            });
            let lost = answered.max();
            prop_assume!(lost.is_some());
            // The last read does not see what was answered.
            if let Some(CounterOutcome::Answered(last)) = history.last_mut().map(|read| &mut read.outcome) {
                last.total = lost.unwrap_or_default() - 1;
            }
            prop_assert!(is_out_of_order(&check_counter(&history)));
        }

        #[test]
        fn an_increment_without_a_cause_is_found(seed in any::<u64>(), by in 1..5_u64) {
            let mut history = right_history(&mut Chance::new(seed), 40, 0);
            if let Some(CounterOutcome::Answered(last)) = history.last_mut().map(|read| &mut read.outcome) {
                last.total += by;
            }
            prop_assert!(is_unasked(&check_counter(&history)));
        }

        #[test]
        fn an_answered_increment_called_refused_is_found(seed in any::<u64>(), which in any::<prop::sample::Index>()) {
            let mut history = right_history(&mut Chance::new(seed), 40, 0);
            let is_counted = |operation: &&mut CounterOperation| {
                operation.is_increment && matches!(operation.outcome, CounterOutcome::Answered(_))
            };
            let mut counted: Vec<_> = history.iter_mut().filter(is_counted).collect();
            prop_assume!(!counted.is_empty());
            which.get_mut(&mut counted).outcome = CounterOutcome::Refused;
            prop_assert!(is_unasked(&check_counter(&history)));
        }

        #[test]
        fn two_writers_are_found(seed in any::<u64>(), which in any::<prop::sample::Index>()) {
            let mut history = right_history(&mut Chance::new(seed), 40, 10);
            let mut answers: Vec<_> = history.iter_mut().filter_map(|operation| match &mut operation.outcome {
                CounterOutcome::Answered(answer) => Some(answer),
                _ => None,
            }).collect();
            let (epoch, count) = (which.get(&answers).epoch, answers.len());
            prop_assume!(answers.iter().filter(|answer| answer.epoch == epoch).count() > 1 && count > 1);
            which.get_mut(&mut answers).instance = u64::MAX;
            prop_assert_eq!(check_counter(&history), Err(CounterViolation::TwoWriters { epoch }));
        }
    }

    #[test]
    fn an_instance_that_saves_under_an_old_epoch_is_found() {
        let at = |called, total, epoch| {
            let answer = CounterAnswer { returned: called + 1, total, epoch, instance: epoch };
            CounterOperation::increment(called, CounterOutcome::Answered(answer))
        };
        assert_eq!(check_counter(&[at(0, 1, 1), at(2, 2, 2), at(4, 3, 2)]), Ok(()));
        let history = [at(0, 1, 1), at(2, 2, 2), at(4, 3, 1)];
        assert_eq!(check_counter(&history), Err(CounterViolation::OldEpoch { total: 3, epoch: 1 }));
    }
}
