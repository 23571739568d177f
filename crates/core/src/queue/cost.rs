//! How long a batch takes, learned from the batches that ran: `a·x + b`. Pure.
//!
//! The duration of a batch is the time for which it occupies its worker: hand-over, wake-up of the thread, user code.
//!
//! `x` is the cost of a batch: the sum of the costs of its entries by the stage's cost function, or their number
//! without such a function. `a` is the time of one unit of cost, `b` the constant time of every batch.
//!
//! The line is the least-squares fit over exponentially forgotten moments (mean, variance, covariance), which is
//! recursive least squares with forgetting in its centred form. It goes through the mean, so it is right for the usual
//! sizes even if other sizes are unknown. Batches of a single size do not determine `a` and `b`: the line is then
//! proportional (`b = 0`). The fit always has a slight pull towards the proportional line.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::policy::BatchPolicy;
use crate::clock::Instant;

/// The weight of the newest batch after many: the last twenty are two thirds of the estimate. Fast enough to follow a
/// replaced model, slow enough for the noise of a shared machine.
const NEWEST_WEIGHT: f64 = 0.05;

/// How strongly the fit is pulled to the proportional line, as a variance in units of the squared mean size: sizes that
/// vary by less than about three per cent are all one size.
const ONE_SIZE: f64 = 1e-3;

/// A measurement is limited to this multiple of the expected time, and to the same fraction of it: a stall of the
/// machine moves the estimate a little, a stage that became slower moves it within a few batches.
const OUTLIER: f64 = 4.0;

/// Batches before the estimate may refuse a call: the first ones run with cold caches.
const WARM: u32 = 5;

/// The count of batches after a doubt: two more batches make the estimate trusted again. They move it by two fifths,
/// without limits.
const DOUBTED: u32 = 3;

/// A number of entries and their cost in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) entries: usize,
    pub(crate) cost: u64,
}

impl Load {
    pub(crate) const NONE: Self = Self { entries: 0, cost: 0 };

    pub(crate) fn new(entries: usize, cost: u64) -> Self {
        Self { entries, cost }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { entries: self.entries + other.entries, cost: self.cost + other.cost }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { entries: self.entries - other.entries, cost: self.cost - other.cost }
    }

    /// The number of full batches, with fractions.
    pub(crate) fn batches(self, policy: &BatchPolicy) -> f64 {
        let by_entries = self.entries as f64 / policy.max_batch_size.get() as f64;
        match policy.max_cost {
            Some(max) => by_entries.max(self.cost as f64 / max.get() as f64),
            None => by_entries,
        }
    }

    /// The cost of the next batch, as far as all entries cost the same.
    pub(crate) fn of_next_batch(self, policy: &BatchPolicy) -> u64 {
        (self.cost as f64 / self.batches(policy).max(1.0)) as u64
    }
}

/// The current fit: nanoseconds per unit of cost and per batch, neither negative. The default has no measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CostLine {
    per_unit: f32,
    per_batch: f32,
}

impl CostLine {
    /// Whether anything was measured yet.
    pub(crate) fn is_known(self) -> bool {
        self.per_unit > 0.0 || self.per_batch > 0.0
    }

    /// The duration of one batch of this cost.
    pub(crate) fn batch(self, cost: u64) -> Duration {
        nanos(self.at(cost as f64))
    }

    /// The time in which `replicas` run this load in full batches.
    pub(crate) fn drain(self, load: Load, policy: &BatchPolicy, replicas: usize) -> Duration {
        let work = f64::from(self.per_unit) * load.cost as f64 + f64::from(self.per_batch) * load.batches(policy);
        nanos(work / replicas.max(1) as f64)
    }

    /// The time of one unit of cost.
    pub(crate) fn per_unit(self) -> Duration {
        nanos(f64::from(self.per_unit))
    }

    /// The constant time of every batch.
    pub(crate) fn per_batch(self) -> Duration {
        nanos(f64::from(self.per_batch))
    }

    /// The same in nanoseconds.
    pub(crate) fn at(self, cost: f64) -> f64 {
        f64::from(self.per_unit) * cost + f64::from(self.per_batch)
    }

    fn to_bits(self) -> u64 {
        u64::from(self.per_unit.to_bits()) << 32 | u64::from(self.per_batch.to_bits())
    }

    fn from_bits(bits: u64) -> Self {
        Self { per_unit: f32::from_bits((bits >> 32) as u32), per_batch: f32::from_bits(bits as u32) }
    }
}

fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

/// The moments of the batches seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CostModel {
    batches: u32,
    mean_cost: f64,
    mean_nanos: f64,
    variance: f64,
    covariance: f64,
}

impl CostModel {
    /// Learns from one batch.
    pub(crate) fn observe(&mut self, cost: u64, took: Duration) {
        let cost = cost as f64;
        let nanos = self.without_outlier(cost, took.as_secs_f64() * 1e9);
        self.batches = self.batches.saturating_add(1);
        let weight = (1.0 / f64::from(self.batches)).max(NEWEST_WEIGHT);
        let (from_cost, from_nanos) = (cost - self.mean_cost, nanos - self.mean_nanos);
        self.mean_cost += weight * from_cost;
        self.mean_nanos += weight * from_nanos;
        self.variance = (1.0 - weight) * (self.variance + weight * from_cost * from_cost);
        self.covariance = (1.0 - weight) * (self.covariance + weight * from_cost * from_nanos);
    }

    /// The fit.
    pub(crate) fn line(&self) -> CostLine {
        if self.mean_cost <= 0.0 {
            return CostLine { per_unit: 0.0, per_batch: self.mean_nanos as f32 };
        }
        let proportional = self.mean_nanos / self.mean_cost;
        let pull = ONE_SIZE * self.mean_cost * self.mean_cost;
        let slope = (self.covariance + pull * proportional) / (self.variance + pull);
        // Neither time can be negative.
        let per_unit = slope.clamp(0.0, proportional);
        let per_batch = (self.mean_nanos - per_unit * self.mean_cost).max(0.0);
        CostLine { per_unit: per_unit as f32, per_batch: per_batch as f32 }
    }

    /// Whether enough batches were seen to refuse a call.
    pub(crate) fn is_warm(&self) -> bool {
        self.batches >= WARM
    }

    /// Doubts the estimate: it has to become warm again.
    pub(crate) fn doubt(&mut self) {
        self.batches = self.batches.min(DOUBTED);
    }

    /// The recent mean duration of batches of any cost.
    pub(crate) fn mean(&self) -> Duration {
        nanos(self.mean_nanos)
    }

    fn without_outlier(&self, cost: f64, nanos: f64) -> f64 {
        if !self.is_warm() {
            return nanos;
        }
        // The mean as well, because the line is a guess for sizes that are far from the measured ones.
        let expected = self.line().at(cost);
        let (least, most) = (expected.min(self.mean_nanos) / OUTLIER, expected.max(self.mean_nanos) * OUTLIER);
        nanos.clamp(least, most)
    }
}

/// The model of one stage, written by its workers.
#[derive(Debug, Default)]
pub(crate) struct SharedCost {
    model: Mutex<Measurements>,
    /// The line in one word, so that it is read whole and without a lock.
    line: AtomicU64,
    warm: AtomicBool,
}

#[derive(Debug, Default)]
struct Measurements {
    model: CostModel,
    last: Option<Instant>,
}

impl SharedCost {
    /// Learns from a batch that ended at `now`. While another thread records its batch, this batch is left out: a lost
    /// measurement does no harm, a worker that waits does.
    pub(crate) fn observe(&self, now: Instant, cost: u64, took: Duration) {
        let Some(mut measured) = self.model.try_lock() else { return };
        measured.model.observe(cost, took);
        measured.last = Some(now);
        self.line.store(measured.model.line().to_bits(), Ordering::Relaxed);
        if measured.model.is_warm() {
            self.warm.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn line(&self) -> CostLine {
        CostLine::from_bits(self.line.load(Ordering::Relaxed))
    }

    /// The line, once it may refuse a call.
    pub(crate) fn warm_line(&self) -> Option<CostLine> {
        self.warm.load(Ordering::Relaxed).then(|| self.line())
    }

    /// The recent mean duration of a batch.
    pub(crate) fn mean(&self) -> Duration {
        self.model.lock().model.mean()
    }

    /// Whether a batch was measured since `then`. Without one, no call is refused.
    pub(crate) fn is_confirmed_since(&self, then: Instant) -> bool {
        let mut measured = self.model.lock();
        let confirmed = measured.last.is_some_and(|last| last >= then);
        if !confirmed {
            measured.model.doubt();
            self.warm.store(false, Ordering::Relaxed);
        }
        confirmed
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU64, NonZeroUsize};

    use super::*;
    use proptest::prelude::*;

    fn policy(max: usize) -> BatchPolicy {
        BatchPolicy { max_batch_size: NonZeroUsize::new(max).unwrap(), ..BatchPolicy::default() }
    }

    fn close(estimate: Duration, truth: f64, tolerance: f64) -> bool {
        (estimate.as_nanos() as f64 - truth).abs() <= tolerance * truth
    }

    fn learned(batches: impl IntoIterator<Item = (u64, f64)>) -> CostModel {
        let mut model = CostModel::default();
        for (cost, nanos) in batches {
            model.observe(cost, Duration::from_nanos(nanos as u64));
        }
        model
    }

    #[test]
    fn the_next_batch_has_its_share_of_the_cost_whatever_an_entry_costs() {
        let load = |entries, cost| Load { entries, cost };
        assert_eq!(load(8, 8_000).of_next_batch(&policy(4)), 4_000);
        assert_eq!(load(2, 2_000).of_next_batch(&policy(4)), 2_000, "not full");
        let bounded = BatchPolicy { max_cost: NonZeroU64::new(1_000), ..policy(4) };
        assert_eq!(load(8, 8_000).of_next_batch(&bounded), 1_000);
        assert_eq!(load(0, 0).of_next_batch(&policy(4)), 0);
    }

    #[test]
    fn predicts_nothing_before_the_first_batch() {
        let line = CostModel::default().line();
        assert!(!line.is_known() && !CostModel::default().is_warm());
        assert_eq!(line.batch(100), Duration::ZERO);
    }

    #[test]
    fn what_is_left_of_a_load_has_its_entries_and_its_cost() {
        assert_eq!(Load::new(7, 30).minus(Load::new(2, 12)), Load::new(5, 18));
    }

    #[test]
    fn a_line_is_known_by_either_part() {
        let (per_unit, per_batch) =
            (CostLine { per_unit: 10.0, ..CostLine::default() }, CostLine { per_batch: 100.0, ..CostLine::default() });
        assert!(per_unit.is_known() && per_batch.is_known());
        assert_eq!((per_unit.per_unit(), per_unit.per_batch()), (Duration::from_nanos(10), Duration::ZERO));
        assert_eq!((per_batch.per_unit(), per_batch.per_batch()), (Duration::ZERO, Duration::from_nanos(100)));
    }

    #[test]
    fn all_replicas_drain_a_load_in_full_batches() {
        let (line, load) = (CostLine { per_unit: 10.0, per_batch: 100.0 }, Load::new(6, 30));
        let drained = |policy: BatchPolicy, replicas| line.drain(load, &policy, replicas).as_nanos();
        // One batch and a half, by entries.
        assert_eq!([0, 1, 3].map(|replicas| drained(policy(4), replicas)), [450, 450, 150]);
        let by_cost = |max_cost| BatchPolicy { max_cost: NonZeroU64::new(max_cost), ..policy(4) };
        assert_eq!(drained(by_cost(10), 1), 300 + 300, "the cost fills more batches");
        assert_eq!(drained(by_cost(100), 1), 450, "the entries fill more batches");
    }

    #[test]
    fn the_line_is_pulled_a_little_to_the_proportional_one() {
        let model = learned([(10, 100.0), (20, 150.0)]);
        let line = model.line();
        // Mean 15 and 125, variance 25, covariance 125; the pull is a variance of 0.225.
        let slope = (125.0 + 0.225 * 125.0 / 15.0) / (25.0 + 0.225);
        assert!((f64::from(line.per_unit) - slope).abs() < 1e-4, "{line:?}");
        assert!((line.at(15.0) - 125.0).abs() < 1e-3, "it goes through the mean: {line:?}");
        assert_eq!(model.mean(), Duration::from_nanos(125));
    }

    #[test]
    fn a_batch_that_is_much_faster_or_slower_counts_in_part() {
        for (took, counted) in [(0.0, 250_000), (1e9, 4_000_000)] {
            let model = learned((0..100).map(|_| (4, 1e6)).chain([(4, took)]));
            let expected = Duration::from_nanos((1_000_000 * 19 + counted) / 20);
            assert!(model.mean().abs_diff(expected) < Duration::from_micros(1), "{:?}", model.mean());
        }
    }

    #[test]
    fn a_shared_estimate_refuses_no_call_until_it_is_warm_and_after_it_was_doubted() {
        let (shared, now) = (SharedCost::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        let observe = |ms| shared.observe(at(ms), 1, Duration::from_millis(7));
        assert!(!shared.is_confirmed_since(now));
        (1..u64::from(WARM)).for_each(observe);
        assert_eq!(shared.warm_line(), None);
        observe(u64::from(WARM));
        assert!(
            shared.warm_line().is_some_and(|line| line.batch(1).abs_diff(Duration::from_millis(7)).as_micros() < 10)
        );
        assert_eq!((shared.warm_line(), shared.mean()), (Some(shared.line()), Duration::from_millis(7)));
        assert!(shared.is_confirmed_since(at(u64::from(WARM))) && shared.warm_line().is_some());
        assert!(!shared.is_confirmed_since(at(100)) && shared.warm_line().is_none());
        observe(101);
        assert_eq!(shared.warm_line(), None, "one batch is not enough");
        observe(102);
        assert!(shared.warm_line().is_some());
    }

    #[test]
    fn a_line_round_trips_through_one_word() {
        let line = CostLine { per_unit: 12.5, per_batch: 7e9 };
        assert_eq!(CostLine::from_bits(line.to_bits()), line);
    }

    proptest! {
        /// Batch times of several sizes on a line: the line is found, to a few per cent.
        #[test]
        fn finds_the_line_of_the_batch_times(
            per_unit in 1_000.0f64..1e7, per_batch in 0.0f64..1e8,
            costs in prop::collection::vec(1u64..64, 40..100),
        ) {
            prop_assume!(costs.iter().max().unwrap() > &(2 * costs.iter().min().unwrap()));
            let truth = |cost: u64| per_unit * cost as f64 + per_batch;
            let model = learned(costs.iter().map(|cost| (*cost, truth(*cost))));
            for cost in [1, 32, 64] {
                let estimate = model.line().batch(cost);
                // The pull towards the proportional line shows most where the fixed part is nearly all.
                prop_assert!(close(estimate, truth(cost), 0.25), "{cost}: {estimate:?}, not {}", truth(cost));
            }
        }

        /// Batches of a single size: the estimate is right for that size, and never negative.
        #[test]
        fn predicts_batches_of_a_single_size(size in 1u64..1000, nanos in 1_000.0f64..1e9, other in 0u64..5000) {
            let line = learned((0..50).map(|_| (size, nanos))).line();
            prop_assert!(close(line.batch(size), nanos, 0.01));
            prop_assert!(line.per_unit >= 0.0 && line.per_batch >= 0.0);
            prop_assert!(line.batch(other) <= line.batch(other + 1));
        }

        /// One batch in twenty takes a hundred times as long: the estimate stays near the time of the others.
        #[test]
        fn occasional_stalls_change_the_estimate_little(
            stalls in prop::collection::vec(0usize..20, 20), nanos in 1e4f64..1e8,
        ) {
            let batches = stalls.iter().flat_map(|stalled| {
                (0..20).map(move |n| (8, if n == *stalled && n > 8 { 100.0 * nanos } else { nanos }))
            });
            let estimate = learned((0..10).map(|_| (8, nanos)).chain(batches)).line().batch(8);
            prop_assert!(estimate.as_nanos() as f64 <= 1.7 * nanos && estimate.as_nanos() as f64 >= 0.9 * nanos);
        }

        /// The estimate follows a stage that becomes ten times slower or faster within a hundred batches.
        #[test]
        fn follows_a_stage_whose_speed_changes(nanos in 1e5f64..1e8, slower: bool) {
            let changed = if slower { 10.0 * nanos } else { nanos / 10.0 };
            let before = (0..100).map(|_| (4, nanos));
            let model = learned(before.chain((0..100).map(|_| (4, changed))));
            prop_assert!(close(model.line().batch(4), changed, 0.1));
        }

        /// A wrong estimate that prevents new measurements is doubted, and corrected.
        #[test]
        fn a_doubted_estimate_is_soon_replaced(wrong in 1e8f64..1e10, right in 1e4f64..1e6) {
            let mut model = learned((0..100).map(|_| (1, wrong)));
            let mut doubts = 0;
            while !close(model.line().batch(1), right, 0.5) {
                prop_assert!(model.is_warm() && doubts < 40);
                doubts += 1;
                model.doubt();
                prop_assert!(!model.is_warm());
                model.observe(1, Duration::from_nanos(right as u64));
                model.observe(1, Duration::from_nanos(right as u64));
            }
        }

        /// For any measurements: nothing is negative, and neither more load nor fewer replicas drain sooner.
        #[test]
        fn draining_grows_with_load_and_shrinks_with_replicas(
            batches in prop::collection::vec((0u64..100, 0.0f64..1e9), 0..50),
            entries in 0usize..10_000, max in 1usize..64, replicas in 1usize..8,
        ) {
            let line = learned(batches).line();
            prop_assert!(line.per_unit >= 0.0 && line.per_batch >= 0.0);
            let load = |entries| Load::new(entries, entries as u64);
            let time = line.drain(load(entries), &policy(max), replicas);
            prop_assert!(time <= line.drain(load(entries + 1), &policy(max), replicas));
            prop_assert!(time >= line.drain(load(entries), &policy(max), replicas + 1));
        }
    }
}
