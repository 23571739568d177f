//! The figures of one target, as the table and the JSON show them. Pure.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::stats::Stats;

/// The figures of one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Requests sent within the measured time.
    pub requests: u64,
    /// Successes.
    pub ok: u64,
    /// All other outcomes.
    pub failed: u64,
    /// Requests that were due and never sent.
    pub unsent: u64,
    /// The part that failed or was not sent, from 0 to 1.
    pub error_rate: f64,
    /// The measured time.
    pub seconds: f64,
    /// Successes within that time.
    pub requests_per_second: f64,
    /// Bytes of response bodies.
    pub received_bytes: u64,
    /// Milliseconds from the due time of a request to the end of its answer.
    pub latency_ms: Distribution,
    /// Milliseconds from the sending of a request to the end of its answer; in a closed loop the same as the latency.
    pub service_ms: Distribution,
    /// Answers by status.
    pub statuses: BTreeMap<String, u64>,
    /// Failures by kind.
    pub errors: BTreeMap<String, u64>,
}

/// A distribution in figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The number of samples; without any, all figures are 0.
    pub count: u64,
    /// The least sample.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub stdev: f64,
    /// The median.
    pub p50: f64,
    /// The 75th percentile.
    pub p75: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// The 99.99th percentile.
    #[serde(rename = "p99.99")]
    pub p9999: f64,
    /// The greatest sample.
    pub max: f64,
}

impl Summary {
    /// Computes the figures.
    #[must_use]
    pub fn from_stats(stats: &Stats) -> Self {
        Self {
            requests: stats.requests(),
            ok: stats.ok,
            failed: stats.failed,
            unsent: stats.unsent,
            error_rate: stats.error_rate(),
            seconds: stats.measured.as_secs_f64(),
            requests_per_second: stats.requests_per_second(),
            received_bytes: stats.received_bytes,
            latency_ms: Distribution::from_nanos(&stats.latency),
            service_ms: Distribution::from_nanos(&stats.service),
            statuses: stats.statuses.iter().map(|(status, count)| (status.to_string(), *count)).collect(),
            errors: stats.errors.clone(),
        }
    }
}

impl Distribution {
    fn from_nanos(nanos: &Histogram<u64>) -> Self {
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

/// A time in milliseconds, in a readable unit.
pub(crate) fn readable_time(millis: f64) -> String {
    match millis {
        0.0 => "0".to_owned(),
        millis if millis < 1.0 => format!("{:.1} µs", millis * 1e3),
        millis if millis < 10.0 => format!("{millis:.2} ms"),
        millis if millis < 1000.0 => format!("{millis:.1} ms"),
        millis => format!("{:.2} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::{Outcome, Times};
    use proptest::prelude::*;

    #[test]
    fn a_summary_without_measurements_is_all_zeros() {
        let summary = Summary::from_stats(&Stats::new(Duration::from_secs(1)));
        assert_eq!(
            (summary.requests, summary.error_rate, summary.latency_ms.max, summary.latency_ms.min),
            (0, 0.0, 0.0, 0.0)
        );
        assert!(serde_json::to_string(&summary).is_ok());
    }

    proptest! {
        // `Stats` has megabytes of histograms, and each case makes one.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn figures_are_in_order_and_within_a_thousandth_of_the_samples(mut micros in proptest::collection::vec(1_u64..60_000_000, 1..200)) {
            let mut stats = Stats::new(Duration::from_secs(1));
            for micros in &micros {
                let times = Times { due: Duration::ZERO, sent: Duration::ZERO, done: Duration::from_micros(*micros) };
                stats.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
            }
            let latency = Summary::from_stats(&stats).latency_ms;
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
