//! Two targets beside each other: their rounds in turns, and the ratio of their figures. Pure.
//!
//! What else a machine does changes from second to second. Rounds that follow each other see nearly the same of it, so a ratio
//! is taken within each pair of rounds, and the median of the ratios is what is told, with the lowest and highest beside it.

use serde::Serialize;

use super::tally::Tally;

/// One round of both.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// The first target's.
    pub(crate) ours: Tally,
    /// That of `--vs`.
    pub(crate) theirs: Tally,
}

/// First target over second, of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Of the rounds' ratios.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) lowest: f64,
    /// The highest.
    pub(crate) highest: f64,
}

/// The ratios that are told.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratios {
    /// Of answers per second.
    pub(crate) requests_per_second: Option<Ratio>,
    /// Of the medians of latencies.
    pub(crate) p50: Option<Ratio>,
    /// Of the 99th percentiles.
    pub(crate) p99: Option<Ratio>,
}

/// In which order round `index` takes the two: true for the first target first. They change places, because who comes second
/// finds a warmer machine.
pub(crate) fn ours_first(index: usize) -> bool {
    index.is_multiple_of(2)
}

impl Ratios {
    /// Of these rounds; a figure that one side has not at all has no ratio.
    pub(crate) fn of(rounds: &[Round]) -> Self {
        let quantile = |quantile: f64| move |tally: &Tally| tally.latency.value_at_quantile(quantile) as f64;
        Self {
            requests_per_second: ratio(rounds, Tally::requests_per_second),
            p50: ratio(rounds, quantile(0.5)),
            p99: ratio(rounds, quantile(0.99)),
        }
    }
}

fn ratio(rounds: &[Round], figure: impl Fn(&Tally) -> f64) -> Option<Ratio> {
    let ratios = rounds.iter().map(|round| figure(&round.ours) / figure(&round.theirs));
    let mut ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.len() / 2;
    let median = match ratios.len() {
        0 => return None,
        even if even.is_multiple_of(2) => f64::midpoint(ratios[middle - 1], ratios[middle]),
        _ => ratios[middle],
    };
    Some(Ratio { median, lowest: ratios[0], highest: ratios[ratios.len() - 1] })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tally::{Outcome, Times};
    use super::*;

    /// A second with so many answers of a millisecond.
    fn tally(answers: u64) -> Tally {
        let mut tally = Tally::new(Duration::from_secs(1));
        for _ in 0..answers {
            let sent = Duration::from_millis(1);
            let times = Times { due: sent, sent, done: 2 * sent };
            tally.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
        }
        tally
    }

    #[test]
    fn a_ratio_is_the_median_of_those_within_rounds() {
        let rounds =
            [(10, 20), (300, 100), (80, 100)].map(|(ours, theirs)| Round { ours: tally(ours), theirs: tally(theirs) });
        let ratios = Ratios::of(&rounds);
        assert_eq!(ratios.requests_per_second, Some(Ratio { median: 0.8, lowest: 0.5, highest: 3.0 }));
        assert_eq!(ratios.p50, Some(Ratio { median: 1.0, lowest: 1.0, highest: 1.0 }));
        assert_eq!(ratio(&rounds[..2], Tally::requests_per_second).unwrap().median, 1.75);
    }

    #[test]
    fn a_side_without_answers_has_no_ratio() {
        let rounds = [Round { ours: tally(1), theirs: tally(0) }];
        let nothing = Ratios { requests_per_second: None, p50: None, p99: None };
        assert_eq!(Ratios::of(&rounds), nothing);
    }

    #[test]
    fn the_two_change_places() {
        assert_eq!([0, 1, 2, 3].map(ours_first), [true, false, true, false]);
    }
}
