//! A histogram of latencies with eight buckets for each power of two: a quantile is at most an eighth too high.

use std::time::Duration;

/// Buckets per power of two, as a power of two.
const FINE: u32 = 3;

/// Up to 2³⁶ µs, 19 hours: longer than any deadline.
const BUCKETS: usize = ((36 - FINE + 1) << FINE) as usize;

#[derive(Clone, Debug)]
pub(super) struct Latencies {
    buckets: Box<[u64; BUCKETS]>,
    calls: u64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), calls: 0 }
    }

    pub(super) fn observe(&mut self, latency: Duration) {
        self.buckets[bucket_of(latency)] += 1;
        self.calls += 1;
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// A latency that this part of the calls does not exceed; `None` without calls.
    pub(super) fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.calls as f64 * part).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(end_of(bucket))
    }

    /// The calls that took surely longer than this.
    pub(super) fn above(&self, limit: Duration) -> u64 {
        self.buckets[(bucket_of(limit) + 1).min(BUCKETS)..].iter().sum()
    }
}

/// Whether [`above`](Latencies::above) counts this latency.
pub(super) fn is_above(latency: Duration, limit: Duration) -> bool {
    bucket_of(latency) > bucket_of(limit)
}

fn bucket_of(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let power = micros.checked_ilog2().unwrap_or(0).saturating_sub(FINE);
    let bucket = ((u64::from(power)) << FINE) + (micros >> power);
    usize::try_from(bucket).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The first latency above a bucket.
fn end_of(bucket: usize) -> Duration {
    let next = bucket as u64 + 1;
    let power = (next >> FINE).saturating_sub(1);
    Duration::from_micros((next - (power << FINE)) << power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_is_below_the_end_of_its_bucket_and_at_most_an_eighth(micros in 0_u64..1 << 36) {
            let latency = Duration::from_micros(micros);
            let end = end_of(bucket_of(latency));
            prop_assert!(latency < end);
            prop_assert!(end.as_micros() as f64 <= micros as f64 * 1.125 + 1.0);
            prop_assert!(bucket_of(end) == bucket_of(latency) + 1 || bucket_of(latency) == BUCKETS - 1);
        }
    }

    #[test]
    fn quantiles_and_tails_are_counted() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.quantile(0.5), None);
        (1..=100).for_each(|ms| latencies.observe(Duration::from_millis(ms)));
        let median = latencies.quantile(0.5).unwrap().as_millis();
        assert!((50..57).contains(&median), "{median}");
        assert_eq!(latencies.above(Duration::from_secs(1)), 0);
        assert!((40..=50).contains(&latencies.above(Duration::from_millis(50))));
        latencies.observe(Duration::MAX);
        assert_eq!(latencies.above(Duration::from_secs(1)), 1);
    }
}
