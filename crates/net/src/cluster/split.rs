//! Splits the calls of a stage between its revisions: a pure decision.
//!
//! The split is exact: of each row of calls as long as the sum of the weights, each offered revision gets as many as
//! its weight. The key of a session draws its revision, so a session stays with one revision.

use std::sync::atomic::{AtomicU64, Ordering};

use callboard_core::remote::splitmix64;

/// The weights of revisions, and the current turn.
#[derive(Debug)]
pub(super) struct RevisionSplit {
    /// Each revision appears once.
    weights: Vec<(u64, u32)>,
    turn: AtomicU64,
}

impl RevisionSplit {
    /// Begins at this turn. A weight of 0 gets no calls. The last weight of a revision counts.
    pub(super) fn new(weights: impl IntoIterator<Item = (u64, u32)>, turn: u64) -> Self {
        let mut each: Vec<(u64, u32)> = Vec::new();
        for (revision, weight) in weights {
            each.retain(|(other, _)| *other != revision);
            each.push((revision, weight));
        }
        Self { weights: each, turn: AtomicU64::new(turn) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The revision of the next call, among the offered ones. `None`: none of them has a weight.
    pub(super) fn draw(&self, session: Option<u64>, is_offered: impl Fn(u64) -> bool) -> Option<u64> {
        let offered: Vec<_> = self.weights.iter().copied().filter(|(revision, _)| is_offered(*revision)).collect();
        match session {
            Some(session) => by_key(&offered, session),
            None => in_turn(&offered, self.turn.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

fn total(weights: &[(u64, u32)]) -> u64 {
    weights.iter().map(|(_, weight)| u64::from(*weight)).sum()
}

/// Turns visit every position once, in steps that seldom visit neighbours.
fn in_turn(weights: &[(u64, u32)], turn: u64) -> Option<u64> {
    let total = total(weights);
    let place = u128::from(turn.checked_rem(total)?) * u128::from(step(total)) % u128::from(total);
    at(weights, place as u64)
}

fn by_key(weights: &[(u64, u32)], key: u64) -> Option<u64> {
    at(weights, splitmix64(key).checked_rem(total(weights))?)
}

fn at(weights: &[(u64, u32)], place: u64) -> Option<u64> {
    let mut end = 0;
    weights
        .iter()
        .find(|(_, weight)| {
            end += u64::from(*weight);
            place < end
        })
        .map(|(revision, _)| *revision)
}

/// About the golden section of `total`, without a common divisor.
fn step(total: u64) -> u64 {
    let golden = (total as f64 * 0.618) as u64;
    (1..=golden).rev().find(|step| gcd(*step, total) == 1).unwrap_or(1)
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn counts(split: &RevisionSplit, calls: u64, offered: impl Fn(u64) -> bool + Copy) -> HashMap<u64, u64> {
        let mut counts = HashMap::new();
        for revision in (0..calls).filter_map(|_| split.draw(None, offered)) {
            *counts.entry(revision).or_default() += 1;
        }
        counts
    }

    #[test]
    fn nine_of_ten_calls_are_exactly_nine_of_ten() {
        let split = RevisionSplit::new([(1, 90), (2, 10)], 17);
        assert_eq!(counts(&split, 1_000, |_| true), HashMap::from([(1, 900), (2, 100)]));
    }

    proptest! {
        /// From any turn on, a row of calls as long as the sum of the weights is split exactly, whichever revisions are
        /// offered.
        #[test]
        fn the_split_is_exact(weights in prop::collection::vec(0_u32..60, 1..6), turn: u64, away in prop::option::of(0_u64..6)) {
            let weights: Vec<_> = (0_u64..).zip(weights).collect();
            let split = RevisionSplit::new(weights.clone(), turn % (u64::MAX / 2));
            let offered = |revision| Some(revision) != away;
            let has_share = |(revision, weight): &&(u64, u32)| offered(*revision) && *weight > 0;
            let on_offer: Vec<_> = weights.iter().filter(has_share).collect();
            let sum = on_offer.iter().map(|(_, weight)| u64::from(*weight)).sum();
            let expected = on_offer.into_iter().map(|(revision, weight)| (*revision, u64::from(*weight))).collect();
            prop_assert_eq!(counts(&split, sum, offered), expected);
        }

        /// A session stays with its revision.
        #[test]
        fn a_session_has_one_revision(session: u64, turns in 1_usize..50) {
            let split = RevisionSplit::new([(1, 50), (2, 50)], 0);
            let first = split.draw(Some(session), |_| true);
            for _ in 0..turns {
                split.draw(None, |_| true);
                prop_assert_eq!(split.draw(Some(session), |_| true), first);
            }
        }
    }

    #[test]
    fn sessions_are_split_by_weight() {
        let split = RevisionSplit::new([(1, 90), (2, 10)], 0);
        let second = (0..10_000).filter(|session| split.draw(Some(*session), |_| true) == Some(2)).count();
        assert!((800..1_200).contains(&second), "{second} of 10,000");
    }

    #[test]
    fn the_revisions_alternate_within_a_few_calls() {
        let split = RevisionSplit::new([(1, 50), (2, 50)], 0);
        let drawn: Vec<_> = (0..10).map(|_| split.draw(None, |_| true)).collect();
        assert!(drawn.windows(4).all(|four| four.iter().any(|one| *one != four[0])), "{drawn:?}");
    }

    #[test]
    fn without_an_offered_weight_there_is_no_revision() {
        assert_eq!(RevisionSplit::new([(1, 0)], 0).draw(None, |_| true), None);
        assert_eq!(RevisionSplit::new([(1, 5)], 0).draw(None, |_| false), None);
        assert_eq!(RevisionSplit::new([], 0).draw(Some(3), |_| true), None);
        assert!(RevisionSplit::new([], 0).is_empty() && !RevisionSplit::new([(1, 5)], 0).is_empty());
    }

    #[test]
    fn a_step_is_about_the_golden_section() {
        assert_eq!([1, 2, 10, 100, 1_000].map(step), [1, 1, 3, 61, 617]);
    }
}
