//! The comparison of two targets: the ratios of their figures, from rounds that took turns. Pure.
//!
//! The background load of a machine changes from second to second, and two rounds in a row see nearly the same load. So
//! a ratio is computed within each pair of rounds. The report shows the median, the lowest and the highest ratio.

use serde::Serialize;

use crate::stats::Stats;

/// One round of each target, one after the other.
#[derive(Clone, Debug)]
pub struct RoundPair {
    /// The first target's.
    pub ours: Stats,
    /// The second target's (`--vs`).
    pub theirs: Stats,
}

/// One figure of the first target, divided by that of the second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median of the rounds' ratios.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
}

/// The ratios that the report shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// The ratio of answers per second.
    pub requests_per_second: Option<Ratio>,
    /// The ratio of the medians of latencies.
    pub p50: Option<Ratio>,
    /// The ratio of the 99th percentiles of latencies.
    pub p99: Option<Ratio>,
}

/// Whether round `index` measures the first target first. The order alternates, because the second one finds a warmer
/// machine.
#[must_use]
pub fn starts_with_first(index: usize) -> bool {
    index.is_multiple_of(2)
}

impl Ratios {
    /// Compares these rounds. A figure that is missing on one side has no ratio.
    #[must_use]
    pub fn from_rounds(rounds: &[RoundPair]) -> Self {
        let quantile = |quantile: f64| move |stats: &Stats| stats.latency.value_at_quantile(quantile) as f64;
        Self {
            requests_per_second: ratio(rounds, Stats::requests_per_second),
            p50: ratio(rounds, quantile(0.5)),
            p99: ratio(rounds, quantile(0.99)),
        }
    }
}

fn ratio(rounds: &[RoundPair], figure: impl Fn(&Stats) -> f64) -> Option<Ratio> {
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

    use super::*;
    use crate::stats::{Outcome, Times};

    /// One second with `answers` answers of a millisecond each.
    fn stats(answers: u64) -> Stats {
        let mut stats = Stats::new(Duration::from_secs(1));
        for _ in 0..answers {
            let sent = Duration::from_millis(1);
            let times = Times { due: sent, sent, done: 2 * sent };
            stats.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
        }
        stats
    }

    #[test]
    fn a_ratio_is_the_median_of_the_ratios_within_rounds() {
        let rounds = [(10, 20), (300, 100), (80, 100)]
            .map(|(ours, theirs)| RoundPair { ours: stats(ours), theirs: stats(theirs) });
        let ratios = Ratios::from_rounds(&rounds);
        assert_eq!(ratios.requests_per_second, Some(Ratio { median: 0.8, lowest: 0.5, highest: 3.0 }));
        assert_eq!(ratios.p50, Some(Ratio { median: 1.0, lowest: 1.0, highest: 1.0 }));
        assert_eq!(ratio(&rounds[..2], Stats::requests_per_second).unwrap().median, 1.75);
    }

    #[test]
    fn a_side_without_answers_has_no_ratio() {
        let rounds = [RoundPair { ours: stats(1), theirs: stats(0) }];
        let nothing = Ratios { requests_per_second: None, p50: None, p99: None };
        assert_eq!(Ratios::from_rounds(&rounds), nothing);
    }

    #[test]
    fn the_order_alternates() {
        assert_eq!([0, 1, 2, 3].map(starts_with_first), [true, false, true, false]);
    }
}
