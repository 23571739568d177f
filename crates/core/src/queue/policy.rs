//! When a batch leaves the queue: a pure decision.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use super::cost::Load;
use crate::clock::Instant;
use crate::deadline::Deadline;
use crate::timeline::ReleaseReason;

/// How many yields in a row wait for callers of the last batch to call again: waking them from a worker's thread takes
/// the runtime a few turns. Each costs well under a microsecond.
const MAX_EMPTY_YIELDS: u32 = 4;

/// How a stage gathers entries, and in which order.
///
/// By default no entry waits for others: no batching, no delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// The largest number of entries in one batch. Default 1: a stage has to ask for batches. Cost: the worker holds
    /// this many inputs and outputs at once. It adds no latency while workers are free, beyond a wait for returning
    /// callers where that pays.
    pub max_batch_size: NonZeroUsize,
    /// How long a batch that is not full waits for more entries while a worker is free, from the arrival of the oldest
    /// entry. Default zero. Increase it only for stages whose cost is mostly per batch, under a low but steady load: at
    /// low load every request waits that long. It never exceeds the slack of any member's deadline. Pairs with
    /// [`max_batch_size`](Self::max_batch_size), and replaces the wait for returning callers.
    pub max_delay: Duration,
    /// The largest cost of one batch, in the units of the stage's cost function, or in entries where it has none.
    /// Default `None`. [`max_batch_size`](Self::max_batch_size) applies in any case. An input that alone costs more is
    /// split if the stage can split it, else refused with `InvalidInput`. Set it if memory or time depends on rows,
    /// tokens or bytes, and inputs differ in size.
    pub max_cost: Option<NonZeroU64>,
    /// How long an entry waits before it gains a priority class, and again for the next. Default
    /// [`DEFAULT_AGEING`](Self::DEFAULT_AGEING). It bounds the delay of a lower class by a flood of a higher one: after
    /// two of these times every entry is in the first class, where only entries with an earlier deadline precede it. A
    /// shorter time weakens the classes under load; a time beyond the callers' timeouts disables ageing.
    pub ageing: Duration,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self {
            max_batch_size: NonZeroUsize::MIN,
            max_delay: Duration::ZERO,
            max_cost: None,
            ageing: Self::DEFAULT_AGEING,
        }
    }
}

/// The facts of the decision, while a worker is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueState {
    /// The load of the queue.
    pub(crate) load: Load,
    /// The arrival of the oldest entry; only with a delay.
    pub(crate) oldest_arrival: Option<Instant>,
    /// The earliest deadline; only with a delay.
    pub(crate) first_deadline: Option<Deadline>,
    /// The measured duration of a batch of this load.
    pub(crate) estimate: Duration,
    /// Until when it is worth waiting for the callers of the last batch.
    pub(crate) returns_at: Option<Instant>,
    /// Whether it has waited for them.
    pub(crate) has_waited: bool,
    /// The size of the last batch.
    pub(crate) last_batch: usize,
    /// Yields in a row without an arrival, since the last batch or arrival.
    pub(crate) empty_yields: u32,
    /// No more entries will come.
    pub(crate) is_draining: bool,
    /// An entry waits again whose worker ended; only for a batch ahead.
    pub(crate) has_returned: bool,
}

/// The decision, while a worker is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Form a batch now.
    Now(ReleaseReason),
    /// Let the tasks that are ready run once, then look again: the callers of the last batch, just woken, are about to
    /// send their next requests. Costs one turn of the runtime, no timer.
    Yield,
    /// Look again at this time.
    At(Instant),
    /// There is nothing to do.
    Nothing,
}

impl BatchPolicy {
    /// The time after which an entry gains a priority class. Two classes take 10 s, a third of the default timeout.
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(5);

    /// Decides on the queue in front of a free worker.
    pub(crate) fn decide(&self, now: Instant, waiting: &QueueState) -> Release {
        let (max, max_cost) = self.bounds();
        if waiting.load.entries == 0 {
            return Release::Nothing;
        }
        if waiting.load.entries >= max || waiting.load.cost >= max_cost {
            return Release::Now(ReleaseReason::Full);
        }
        if waiting.is_draining {
            return Release::Now(ReleaseReason::Drain);
        }
        if let Some(release) = self.delay(now, waiting) {
            return release;
        }
        if let Some(at) = waiting.returns_at.filter(|at| now < *at) {
            return Release::At(at);
        }
        // One caller alone never waits a turn: its last batch had one entry. Entries that already wait do not end the
        // yield: otherwise two halves of the callers would take turns, each in small batches. After a yield with
        // arrivals comes another, so this ends with a full batch or without arrivals.
        let patience = if waiting.load.entries < waiting.last_batch { MAX_EMPTY_YIELDS } else { 1 };
        if waiting.last_batch > 1 && waiting.empty_yields < patience {
            return Release::Yield;
        }
        Release::Now(if waiting.has_waited { ReleaseReason::Returned } else { ReleaseReason::Idle })
    }

    /// Whether one of `replicas` busy replicas gets the next batch ahead: the queue has a full batch for each replica,
    /// so that this batch cannot grow and another replica that is free first gets a full one; no deadline passes while
    /// the running batch and this one run; and no entry waits again. That entry would leave first, and the running
    /// batch may end this replica too: behind one hung batch after the other, the entry would never run.
    pub(crate) fn hands_ahead(&self, now: Instant, waiting: &QueueState, replicas: usize) -> bool {
        let ((max, max_cost), Load { entries, cost }) = (self.bounds(), waiting.load);
        let is_full =
            entries >= max.saturating_mul(replicas) || cost >= max_cost.saturating_mul(replicas.max(1) as u64);
        let needed = waiting.estimate.saturating_mul(2);
        is_full
            && !waiting.has_returned
            && waiting.first_deadline.is_none_or(|deadline| deadline.remaining(now) > needed)
    }

    /// Whether a batch may wait for the callers of the last one: a delay is the user's own answer to that, and a
    /// largest cost may keep out those who come.
    pub(crate) fn waits_for_returns(&self) -> bool {
        self.max_batch_size.get() > 1 && self.max_delay.is_zero() && self.max_cost.is_none()
    }

    /// Whether entries may share a batch.
    pub(crate) fn has_batches(&self) -> bool {
        self.max_batch_size.get() > 1
    }

    /// The most entries and the most cost of one batch.
    pub(crate) fn bounds(&self) -> (usize, u64) {
        (self.max_batch_size.get(), self.max_cost.map_or(u64::MAX, NonZeroU64::get))
    }

    /// The decision by the maximum delay, if there is one.
    fn delay(&self, now: Instant, waiting: &QueueState) -> Option<Release> {
        if self.max_delay.is_zero() {
            return None;
        }
        // No entry waits longer than a deadline can be away, so a longer delay means the same and cannot overflow.
        let by_delay = waiting.oldest_arrival? + self.max_delay.min(Deadline::MAX_TIMEOUT);
        let by_deadline = waiting.first_deadline.map(|deadline| latest_start(deadline, waiting.estimate, now));
        let (at, reason) = match by_deadline {
            Some(at) if at < by_delay => (at, ReleaseReason::Deadline),
            _ => (by_delay, ReleaseReason::Delay),
        };
        Some(if now >= at { Release::Now(reason) } else { Release::At(at) })
    }
}

/// The last moment at which a batch can start and still make this deadline.
fn latest_start(deadline: Deadline, estimate: Duration, now: Instant) -> Instant {
    deadline.instant().checked_sub(estimate).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waiting(len: usize, now: Instant) -> QueueState {
        QueueState { load: Load::new(len, len as u64), oldest_arrival: Some(now), ..QueueState::default() }
    }

    fn policy(max: usize, max_delay: Duration) -> BatchPolicy {
        BatchPolicy { max_batch_size: NonZeroUsize::new(max).unwrap(), max_delay, ..BatchPolicy::default() }
    }

    #[test]
    fn a_busy_replica_gets_a_full_batch_ahead_if_there_is_time_and_enough_for_all() {
        let (now, policy) = (Instant::now(), policy(8, Duration::ZERO));
        let deadline = |millis| Some(Deadline::after(now, Duration::from_millis(millis)));
        let full = QueueState { estimate: Duration::from_millis(50), first_deadline: deadline(101), ..waiting(8, now) };
        assert!(policy.hands_ahead(now, &full, 1));
        assert!(!policy.hands_ahead(now, &full, 2), "the other replica may be free first");
        assert!(policy.hands_ahead(now, &QueueState { load: Load::new(16, 16), ..full }, 2));
        assert!(!policy.hands_ahead(now, &QueueState { load: Load::new(7, 7), ..full }, 1), "it may grow");
        assert!(!policy.hands_ahead(now, &QueueState { first_deadline: deadline(100), ..full }, 1), "no time");
        assert!(!policy.hands_ahead(now, &QueueState { has_returned: true, ..full }, 1), "its worker may end too");
        let by_cost = BatchPolicy { max_cost: NonZeroU64::new(7), ..policy };
        assert!(by_cost.hands_ahead(now, &QueueState { load: Load::new(2, 7), ..full }, 1));
    }

    #[test]
    fn a_free_worker_gets_an_entry_at_once() {
        let now = Instant::now();
        let release = policy(32, Duration::ZERO).decide(now, &waiting(1, now));
        assert_eq!(release, Release::Now(ReleaseReason::Idle));
    }

    #[test]
    fn the_callers_of_the_last_batch_get_one_turn_to_call_again() {
        let now = Instant::now();
        let policy = policy(32, Duration::ZERO);
        let after_eight = QueueState { last_batch: 8, ..waiting(1, now) };
        assert_eq!(policy.decide(now, &after_eight), Release::Yield);
        let settled = QueueState { empty_yields: MAX_EMPTY_YIELDS, ..after_eight };
        assert_eq!(policy.decide(now, &settled), Release::Now(ReleaseReason::Idle));
        let after_one = QueueState { last_batch: 1, ..after_eight };
        assert_eq!(policy.decide(now, &after_one), Release::Now(ReleaseReason::Idle), "one caller waits no turn");
    }

    #[test]
    fn turns_end_with_a_full_batch_or_without_a_new_entry() {
        let now = Instant::now();
        let policy = policy(8, Duration::ZERO);
        let all_back = QueueState { last_batch: 4, ..waiting(5, now) };
        assert_eq!(policy.decide(now, &all_back), Release::Yield, "the turn brought an entry");
        let nobody_came = QueueState { empty_yields: 1, ..all_back };
        assert_eq!(policy.decide(now, &nobody_came), Release::Now(ReleaseReason::Idle));
        let as_many = QueueState { last_batch: 5, ..nobody_came };
        assert_eq!(policy.decide(now, &as_many), Release::Now(ReleaseReason::Idle));
        let some_missing = QueueState { last_batch: 6, ..nobody_came };
        assert_eq!(policy.decide(now, &some_missing), Release::Yield);
        let full = QueueState { load: Load::new(8, 8), ..some_missing };
        assert_eq!(policy.decide(now, &full), Release::Now(ReleaseReason::Full));
    }

    #[test]
    fn a_delay_counts_from_the_oldest_arrival_and_ends_at_the_slack() {
        let now = Instant::now();
        let policy = policy(32, Duration::from_millis(10));
        let relaxed = waiting(1, now);
        assert_eq!(policy.decide(now, &relaxed), Release::At(now + Duration::from_millis(10)));

        let pressed = QueueState {
            first_deadline: Some(Deadline::after(now, Duration::from_millis(8))),
            estimate: Duration::from_millis(3),
            ..relaxed
        };
        assert_eq!(policy.decide(now, &pressed), Release::At(now + Duration::from_millis(5)));
        let later = now + Duration::from_millis(5);
        assert_eq!(policy.decide(later, &pressed), Release::Now(ReleaseReason::Deadline));
        // At one moment, the delay is the reason.
        let both = QueueState { first_deadline: Some(Deadline::after(now, Duration::from_millis(13))), ..pressed };
        assert_eq!(policy.decide(now + Duration::from_millis(10), &both), Release::Now(ReleaseReason::Delay));
    }

    #[test]
    fn a_batch_is_full_at_its_maximum_cost() {
        let now = Instant::now();
        let policy = BatchPolicy { max_cost: NonZeroU64::new(100), ..policy(32, Duration::from_millis(10)) };
        let light = QueueState { load: Load::new(3, 99), ..waiting(3, now) };
        assert_eq!(policy.decide(now, &light), Release::At(now + Duration::from_millis(10)));
        let heavy = QueueState { load: Load::new(3, 100), ..light };
        assert_eq!(policy.decide(now, &heavy), Release::Now(ReleaseReason::Full));
    }

    proptest! {
        /// For any queue, a wait is never longer than the delay and never past a deadline's slack.
        #[test]
        fn never_waits_longer_than_the_delay_or_the_slack(
            max in 1usize..64, len in 0usize..128, delay in 0u64..50, waited in 0u64..50,
            slack in 0u64..100, estimate in 0u64..20, last in 0usize..64,
            empty_yields in 0u32..8, is_draining: bool,
        ) {
            let oldest = Instant::now();
            let now = oldest + Duration::from_millis(waited);
            let deadline = Deadline::after(now, Duration::from_millis(slack));
            let waiting = QueueState {
                load: Load::new(len, len as u64), oldest_arrival: Some(oldest), first_deadline: Some(deadline),
                estimate: Duration::from_millis(estimate), last_batch: last, empty_yields, is_draining,
                ..QueueState::default()
            };
            let policy = policy(max, Duration::from_millis(delay));
            match policy.decide(now, &waiting) {
                Release::Nothing => prop_assert_eq!(len, 0),
                Release::Now(reason) => {
                    prop_assert!(len > 0);
                    prop_assert_eq!(reason == ReleaseReason::Full, len >= max);
                }
                Release::Yield => {
                    prop_assert!(last > 1 && len < max && delay == 0);
                    prop_assert!(empty_yields < MAX_EMPTY_YIELDS, "empty turns are bounded");
                }
                Release::At(at) => {
                    prop_assert!(len < max && !is_draining && at > now);
                    prop_assert!(at <= oldest + Duration::from_millis(delay));
                    prop_assert!(at <= deadline.instant());
                }
            }
        }
    }
}
