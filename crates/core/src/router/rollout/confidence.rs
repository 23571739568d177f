//! Bounds of a failure rate from a count of failures, valid at every moment at once.
//!
//! A rollout is looked at after each call. A test that is made for one look, such as a 99.9 % Wilson interval, would
//! sooner or later find by chance a difference that does not exist. This test may be looked at after each call:
//!
//! Let a forecaster without prior knowledge predict each call by Laplace's rule, (failures + 1) / (calls + 2). To a
//! sequence of n calls with x failures it gives the probability 1 / ((n + 1) · C(n, x)); a constant rate q gives it
//! qˣ (1 − q)ⁿ⁻ˣ. If q is the true rate, the ratio of both is a martingale that begins at 1, so it *ever* reaches 1/α
//! with a probability of at most α (Ville's inequality). A ratio of 1/α therefore refutes q.
//!
//! The bound C(n, x) ≤ eⁿᴴ / √(2π n p (1 − p)), with p = x/n and the entropy H of p, gives it without factorials:
//! q is refuted when n · KL(p, q) ≥ ln(1/α) + ln(n + 1) − ½ ln(2π n p (1 − p)). The bound is on the safe side.

use std::f64::consts::PI;

/// The probability α that a true rate is ever refuted. A comparison of two rates errs with at most twice that: of a
/// thousand rollouts of sound revisions, two at most are rolled back for nothing.
pub(super) const ALPHA: f64 = 0.001;

/// Halvings of an interval of 1: the bound is found to 1e-9.
const HALVINGS: u32 = 30;

/// Calls, and how many of them failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) failed: u64,
}

impl Tally {
    pub(super) fn add(&mut self, failed: bool) {
        self.calls += 1;
        self.failed += u64::from(failed);
    }

    /// The observed rate of failures; 0 without calls.
    pub(super) fn rate(self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.failed as f64 / self.calls as f64 }
    }

    /// The variance of the observed rate; 0 without calls.
    pub(super) fn variance(self) -> f64 {
        self.rate() * (1.0 - self.rate()) / self.calls.max(1) as f64
    }

    /// Whether this is proof that the rate of failures is above `rate`.
    pub(super) fn proves_above(self, rate: f64) -> bool {
        self.rate() > rate && self.refutes(rate)
    }

    /// The highest rate of failures that this does not refute: 1 without calls.
    pub(super) fn highest_rate(self) -> f64 {
        let (mut low, mut high) = (self.rate(), 1.0);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if self.refutes(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    fn refutes(self, rate: f64) -> bool {
        let (calls, observed) = (self.calls as f64, self.rate());
        let spread = (2.0 * PI * calls * observed * (1.0 - observed)).max(1.0);
        calls * divergence(observed, rate) >= (1.0 / ALPHA).ln() + (calls + 1.0).ln() - 0.5 * spread.ln()
    }
}

/// The Kullback–Leibler divergence of a coin with probability `p` from one with probability `q`, in nats.
fn divergence(p: f64, q: f64) -> f64 {
    let part = |p: f64, q: f64| if p == 0.0 { 0.0 } else { p * (p / q).ln() };
    part(p, q) + part(1.0 - p, 1.0 - q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bounds_of_a_few_counts_are_known() {
        let tally = |calls, failed| Tally { calls, failed };
        assert!((tally(0, 0).highest_rate() - 1.0).abs() < 1e-6, "nothing is known");
        // (1 - q)^n ≤ α / (n + 1)
        let by_hand = 1.0 - (ALPHA / 201.0_f64).powf(1.0 / 200.0);
        assert!((tally(200, 0).highest_rate() - by_hand).abs() < 1e-6);
        assert!(!tally(1, 1).proves_above(0.01) && !tally(2, 2).proves_above(0.05));
        assert!(tally(10, 5).proves_above(0.05) && !tally(10, 1).proves_above(0.01));
    }

    /// The ratio of the module's page, with the factorials that its bound leaves out.
    #[test]
    fn the_bound_is_that_of_the_martingale_and_on_the_safe_side() {
        let ln_factorial = |n: u64| (1..=n).map(|factor| (factor as f64).ln()).sum::<f64>();
        for (calls, failed) in [(20, 2), (100, 10), (200, 20), (200, 100), (1_000, 5), (1_000, 900)] {
            let passed = calls - failed;
            let sequence =
                -((calls + 1) as f64).ln() - ln_factorial(calls) + ln_factorial(failed) + ln_factorial(passed);
            let refutes = |rate: f64| {
                let expected = failed as f64 * rate.ln() + passed as f64 * (1.0 - rate).ln();
                sequence - expected >= (1.0 / ALPHA).ln()
            };
            let bound = Tally { calls, failed }.highest_rate();
            assert!(refutes(bound) && !refutes(bound - 0.002), "{failed} of {calls}: {bound}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5))]

        /// For the true rate: at most α of all sequences ever refute it, whatever their length. 200 sequences of 2,000
        /// calls are refuted 0.2 times on average; 6 times with a probability below 1e-7.
        #[test]
        fn a_true_rate_is_hardly_ever_refuted(seed: u64, rate in prop::sample::select(vec![0.0, 0.001, 0.01, 0.1, 0.5])) {
            let mut random = fastrand::Rng::with_seed(seed);
            let refuted = (0..200).filter(|_| {
                let mut tally = Tally::default();
                (0..2_000).any(|_| {
                    tally.add(random.f64() < rate);
                    tally.proves_above(rate)
                })
            });
            prop_assert!(refuted.count() < 6);
        }
    }

    proptest! {
        #[test]
        fn the_bound_is_above_the_observed_rate_and_falls_with_more_calls(calls in 1_u64..100_000, part in 0.0..1.0_f64) {
            let failed = (calls as f64 * part) as u64;
            let (tally, more) = (Tally { calls, failed }, Tally { calls: calls * 2, failed: failed * 2 });
            prop_assert!(tally.highest_rate() >= tally.rate());
            prop_assert!(more.highest_rate() <= tally.highest_rate() + 1e-9);
        }
    }
}
