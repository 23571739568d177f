//! A histogram that many threads fill without a lock.
//!
//! Buckets are powers of two of a base unit, so finding one is counting zeros, and an observation is three additions.
//! The registry's own histogram takes a lock for each, which showed in the profile of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Bounds 1, 2, 4 … 2^(N-2) units, and one bucket for larger values.
#[derive(Debug)]
struct Buckets<const N: usize> {
    counts: [AtomicU64; N],
    sum: AtomicU64,
    /// The size of a unit in the exported metric: 1e-6 for microseconds that are exported in seconds.
    scale: f64,
}

/// A histogram of whole units with `N` buckets. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PowerHistogram<const N: usize>(Arc<Buckets<N>>);

impl<const N: usize> PowerHistogram<N> {
    pub(crate) fn new(scale: f64) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Self(Arc::new(Buckets { counts, sum: AtomicU64::new(0), scale }))
    }

    /// The sum of what was observed.
    pub(crate) fn sum(&self) -> u64 {
        self.0.sum.load(Ordering::Relaxed)
    }

    pub(crate) fn observe(&self, units: u64) {
        self.0.counts[bucket_of::<N>(units)].fetch_add(1, Ordering::Relaxed);
        self.0.sum.fetch_add(units, Ordering::Relaxed);
    }
}

/// The first bucket whose bound is not below `units`.
fn bucket_of<const N: usize>(units: u64) -> usize {
    let power = units.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
    power.min(N - 1)
}

impl<const N: usize> TypedMetric for PowerHistogram<N> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl<const N: usize> EncodeMetric for PowerHistogram<N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Buckets { counts, sum, scale } = &*self.0;
        let buckets: Vec<(f64, u64)> = counts
            .iter()
            .enumerate()
            .map(|(power, count)| {
                let bound = if power == N - 1 { f64::INFINITY } else { (1u64 << power) as f64 * scale };
                (bound, count.load(Ordering::Relaxed))
            })
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = sum.load(Ordering::Relaxed) as f64 * scale;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let of = |units| bucket_of::<8>(units);
        assert_eq!([0, 1, 2, 3, 4, 5, 64, 65, 1_000].map(of), [0, 0, 1, 2, 2, 3, 6, 7, 7]);
    }

    #[test]
    fn the_exported_bounds_and_sum_are_scaled() {
        let histogram = PowerHistogram::<4>::new(0.5);
        [1, 3, 100].into_iter().for_each(|units| histogram.observe(units));
        assert_eq!(histogram.sum(), 104);
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register("x", "help", histogram);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let buckets = [
            r#"x_bucket{le="0.5"} 1"#,
            r#"x_bucket{le="1.0"} 1"#,
            r#"x_bucket{le="2.0"} 2"#,
            r#"x_bucket{le="+Inf"} 3"#,
        ];
        assert_eq!(values[..2], ["x_sum 52.0", "x_count 3"]);
        assert_eq!(values[2..], buckets);
    }

    proptest! {
        #[test]
        fn every_value_is_within_the_bounds_of_its_bucket(units: u64) {
            let bucket = bucket_of::<24>(units);
            prop_assert!(bucket == 23 || units <= 1 << bucket);
            prop_assert!(bucket == 0 || units > 1 << (bucket - 1));
        }
    }
}
