//! A tally in figures: what the table shows and the JSON has. Pure.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::tally::Tally;

/// The figures of one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Requests sent within the measured time.
    pub(crate) requests: u64,
    /// Successes.
    pub(crate) ok: u64,
    /// All other ends.
    pub(crate) failed: u64,
    /// Due, and never sent.
    pub(crate) unsent: u64,
    /// The part that failed or was not sent, from 0 to 1.
    pub(crate) error_rate: f64,
    /// How long was measured.
    pub(crate) seconds: f64,
    /// Successes within that time.
    pub(crate) requests_per_second: f64,
    /// Of bodies of answers.
    pub(crate) received_bytes: u64,
    /// Milliseconds from when a request was due to the end of its answer.
    pub(crate) latency_ms: Distribution,
    /// Milliseconds from when it was sent: what the target took. The same as the latency in a closed loop.
    pub(crate) service_ms: Distribution,
    /// Answers by status.
    pub(crate) statuses: BTreeMap<String, u64>,
    /// Failures by kind.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// A distribution in figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    /// How many there are; without any, all figures are 0.
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) stdev: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
    #[serde(rename = "p99.99")]
    pub(crate) p9999: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Of what was counted.
    pub(crate) fn of(tally: &Tally) -> Self {
        Self {
            requests: tally.requests(),
            ok: tally.ok,
            failed: tally.failed,
            unsent: tally.unsent,
            error_rate: tally.error_rate(),
            seconds: tally.measured.as_secs_f64(),
            requests_per_second: tally.requests_per_second(),
            received_bytes: tally.received_bytes,
            latency_ms: Distribution::of(&tally.latency),
            service_ms: Distribution::of(&tally.service),
            statuses: tally.statuses.iter().map(|(status, count)| (status.to_string(), *count)).collect(),
            errors: tally.errors.clone(),
        }
    }
}

impl Distribution {
    fn of(nanos: &Histogram<u64>) -> Self {
        let millis = |nanos: f64| nanos / 1e6;
        let quantile = |quantile: f64| millis(nanos.value_at_quantile(quantile) as f64);
        Self {
            count: nanos.len(),
            min: millis(if nanos.is_empty() { 0.0 } else { nanos.min() as f64 }),
            mean: millis(nanos.mean()),
            stdev: millis(nanos.stdev()),
            p50: quantile(0.5),
            p75: quantile(0.75),
            p90: quantile(0.9),
            p95: quantile(0.95),
            p99: quantile(0.99),
            p999: quantile(0.999),
            p9999: quantile(0.9999),
            max: millis(nanos.max() as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tally::{Outcome, Times};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_measured_is_all_zeros() {
        let summary = Summary::of(&Tally::new(Duration::from_secs(1)));
        assert_eq!(
            (summary.requests, summary.error_rate, summary.latency_ms.max, summary.latency_ms.min),
            (0, 0.0, 0.0, 0.0)
        );
        assert!(serde_json::to_string(&summary).is_ok());
    }

    proptest! {
        // A tally has megabytes of histograms, and each case makes one.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn figures_are_in_order_and_within_a_thousandth_of_the_samples(mut micros in proptest::collection::vec(1_u64..60_000_000, 1..200)) {
            let mut tally = Tally::new(Duration::from_secs(1));
            for micros in &micros {
                let times = Times { due: Duration::ZERO, sent: Duration::ZERO, done: Duration::from_micros(*micros) };
                tally.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
            }
            let latency = Summary::of(&tally).latency_ms;
            let figures = [
                latency.min, latency.p50, latency.p75, latency.p90, latency.p95, latency.p99, latency.p999, latency.p9999, latency.max,
            ];
            prop_assert!(figures.is_sorted(), "{figures:?}");
            micros.sort_unstable();
            let exact = micros[(micros.len() as f64 * 0.9).ceil() as usize - 1] as f64 / 1000.0;
            prop_assert!((latency.p90 - exact).abs() <= exact * 0.001 + 0.0002, "{} for {exact}", latency.p90);
        }
    }
}
