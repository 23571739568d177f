//! Whether an entry can meet its deadline after the entries before it: a pure decision, taken before the entry queues.
//!
//! A call that cannot meet it is refused at once: its caller can still react, and no worker runs it in vain. No call is
//! refused before the cost model is warm, nor while a worker is idle and the last measurement is old. The admitted
//! entry is then the next measurement.

use std::time::Duration;

use super::cost::{CostLine, Load};
use super::policy::BatchPolicy;

/// The share of the estimate for which a call needs time even alone: the estimate is a mean, and a batch may be faster.
const BENEFIT_OF_DOUBT: f64 = 0.8;

/// A factor on the estimated wait: an admitted entry that comes late wastes a worker's time, and a refused one leaves
/// its permit to another.
const CAUTION: f64 = 1.1;

/// The longest age of a measurement that may refuse a call while a worker is free.
pub(crate) const CONFIRMED_FOR: Duration = Duration::from_secs(1);

/// The facts of the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlineCheck {
    /// The duration of batches by cost.
    pub(crate) line: CostLine,
    /// The time left.
    pub(crate) remaining: Duration,
    /// The cost of the entry.
    pub(crate) cost: u64,
    /// The load of the entries that leave the queue before it.
    pub(crate) before: Load,
    /// The cost of each running batch, with the durations of such batches, if no worker is free.
    pub(crate) running: Option<(CostLine, u64)>,
    /// The time that the entries of other stages take which leave before it, where replicas run several.
    pub(crate) others: Duration,
    /// The number of batches that run at once.
    pub(crate) slots: usize,
}

/// The decision on the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionDecision {
    /// Its deadline may be met.
    Queue,
    /// Its deadline could be met without the queue, which is too long by this time.
    QueueTooLong { behind: Duration },
    /// Its deadline cannot be met even without the queue: the entry alone takes this long.
    DeadlineTooShort { needs: Duration },
}

impl DeadlineCheck {
    #[inline]
    pub(crate) fn judge(&self, policy: &BatchPolicy) -> AdmissionDecision {
        let remaining = self.remaining.as_secs_f64() * 1e9;
        let alone = self.line.at(self.cost as f64);
        if alone * BENEFIT_OF_DOUBT > remaining {
            return AdmissionDecision::DeadlineTooShort { needs: nanos(alone) };
        }
        // Without earlier entries, the check of the entry alone was sufficient.
        if self.is_first() {
            return AdmissionDecision::Queue;
        }
        let late_by = self.finish(policy) * CAUTION - remaining;
        if late_by > 0.0 {
            AdmissionDecision::QueueTooLong { behind: nanos(late_by) }
        } else {
            AdmissionDecision::Queue
        }
    }

    /// Whether it would run at once.
    pub(crate) fn is_first(&self) -> bool {
        self.before.entries == 0 && self.running.is_none() && self.others.is_zero()
    }

    /// The end of the entry's batch, in nanoseconds from now.
    fn finish(&self, policy: &BatchPolicy) -> f64 {
        let slots = self.slots.max(1) as f64;
        // The first of n batches that began at random times is expected to end after 1/(n + 1) of its duration.
        let first_free = self.running.map_or(0.0, |(line, cost)| line.at(cost as f64) / (slots + 1.0));
        let batches = self.before.batches(policy);
        let (start, own) = if batches < 1.0 {
            (0.0, (self.before.cost + self.cost) as f64)
        } else {
            // With a full batch before it, the load is high: the entry's own batch will be full as well.
            let full = self.before.cost as f64 / batches;
            (batches.floor() * self.line.at(full) / slots, full.max(self.cost as f64))
        };
        first_free + self.others.as_secs_f64() * 1e9 + start + self.line.at(own)
    }
}

fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::call::Priority;
    use crate::clock::Instant;
    use crate::deadline::Deadline;
    use crate::queue::cost::CostModel;
    use crate::queue::waiting::{BatchQueue, EntryKey};
    use proptest::prelude::*;

    /// Every batch takes 10 ms and 1 ms per entry.
    fn line() -> CostLine {
        let mut model = CostModel::default();
        for _ in 0..200 {
            for entries in [1, 4, 8] {
                model.observe(entries, Duration::from_millis(10 + entries));
            }
        }
        model.line()
    }

    fn policy() -> BatchPolicy {
        BatchPolicy { max_batch_size: NonZeroUsize::new(8).unwrap(), ..BatchPolicy::default() }
    }

    fn check(remaining: u64, before: usize, running: Option<u64>, replicas: usize) -> DeadlineCheck {
        let remaining = Duration::from_millis(remaining);
        DeadlineCheck {
            line: line(),
            remaining,
            cost: 1,
            before: Load::new(before, before as u64),
            running: running.map(|cost| (line(), cost)),
            others: Duration::ZERO,
            slots: replicas,
        }
    }

    #[test]
    fn a_free_worker_accepts_calls_that_can_meet_their_deadline() {
        assert_eq!(check(10, 0, None, 1).judge(&policy()), AdmissionDecision::Queue);
        let hopeless = check(5, 0, None, 1).judge(&policy());
        assert!(
            matches!(hopeless, AdmissionDecision::DeadlineTooShort { needs } if needs.as_millis().abs_diff(11) <= 1),
            "{hopeless:?}"
        );
    }

    #[test]
    fn earlier_entries_count_as_full_batches_over_the_replicas() {
        // 24 earlier entries are three batches of 18 ms each, then its own, and the running one: about 81 ms, and with
        // caution 89.
        assert_eq!(check(92, 24, Some(8), 1).judge(&policy()), AdmissionDecision::Queue);
        let decision = check(60, 24, Some(8), 1).judge(&policy());
        assert!(
            matches!(decision, AdmissionDecision::QueueTooLong { behind } if behind.as_millis().abs_diff(29) <= 2),
            "{decision:?}"
        );
        assert_eq!(check(60, 24, Some(8), 3).judge(&policy()), AdmissionDecision::Queue);
    }

    #[test]
    fn a_partial_batch_before_an_entry_takes_the_entry_along() {
        let before = |entries, remaining| DeadlineCheck { cost: 4, ..check(remaining, entries, None, 1) };
        // A batch of three and the entry's four: 17 ms, and with caution 18.7.
        let decision = before(3, 17).judge(&policy());
        assert!(
            matches!(decision, AdmissionDecision::QueueTooLong { behind } if behind.as_micros().abs_diff(1_700) < 300),
            "{decision:?}"
        );
        assert_eq!(before(3, 20).judge(&policy()), AdmissionDecision::Queue);
        // A full batch leaves without the entry: 18 ms for that one, and as much for the entry's own.
        let decision = before(8, 35).judge(&policy());
        assert!(
            matches!(decision, AdmissionDecision::QueueTooLong { behind } if behind.as_micros().abs_diff(4_600) < 500),
            "{decision:?}"
        );
    }

    #[test]
    fn only_an_entry_before_a_free_worker_and_behind_nothing_is_first() {
        assert!(check(15, 0, None, 1).is_first());
        assert!(!check(15, 1, None, 1).is_first() && !check(15, 0, Some(8), 1).is_first());
        let decision = check(15, 0, Some(8), 1).judge(&policy());
        assert!(matches!(decision, AdmissionDecision::QueueTooLong { .. }), "{decision:?}");
    }

    #[test]
    fn exactly_enough_time_is_enough() {
        let mut model = CostModel::default();
        model.observe(0, Duration::from_nanos(1_000));
        let judge = |nanos, before| {
            let remaining = Duration::from_nanos(nanos);
            DeadlineCheck { line: model.line(), remaining, ..check(0, before, None, 1) }.judge(&policy())
        };
        assert_eq!([judge(800, 0), judge(1_100, 1)], [AdmissionDecision::Queue; 2]);
        assert!(matches!(judge(799, 0), AdmissionDecision::DeadlineTooShort { .. }));
        assert!(matches!(judge(1_099, 1), AdmissionDecision::QueueTooLong { .. }));
    }

    proptest! {
        /// More time, fewer earlier entries or more replicas never turn a yes into a no.
        #[test]
        fn better_conditions_never_cause_a_refusal(
            remaining in 0u64..200, before in 0usize..100, busy: bool, replicas in 1usize..5,
            more in 0u64..50, fewer in 0usize..50, others in 0usize..4,
        ) {
            let running = busy.then_some(8);
            if check(remaining, before, running, replicas).judge(&policy()) == AdmissionDecision::Queue {
                let better = check(remaining + more, before.saturating_sub(fewer), running, replicas + others);
                prop_assert_eq!(better.judge(&policy()), AdmissionDecision::Queue);
                let free = DeadlineCheck { running: None, ..better };
                prop_assert_eq!(free.judge(&policy()), AdmissionDecision::Queue);
            }
        }
    }

    /// One worker, batches of eight, arrivals at five times its capacity, a deadline of 150 ms each: the calls that are
    /// answered in time, as a part of the capacity.
    fn goodput(admits: bool) -> f64 {
        const STEP: Duration = Duration::from_micros(100);
        let (policy, line) = (policy(), line());
        let full = line.batch(8);
        let start = Instant::now();
        let end = start + Duration::from_secs(20);
        let mut queue = BatchQueue::new(policy.ageing);
        let (mut now, mut busy_until, mut sequence, mut in_time) = (start, start, 0u64, 0u32);
        while now < end {
            let arrivals = (now - start).as_secs_f64() * 5.0 * 8.0 / full.as_secs_f64();
            while (sequence as f64) < arrivals {
                let deadline = Deadline::after(now, Duration::from_millis(150));
                let key = EntryKey { priority: Priority::Normal, deadline, sequence };
                let (before, remaining) = (queue.before(key), deadline.remaining(now));
                let check = DeadlineCheck {
                    line,
                    remaining,
                    cost: 1,
                    before,
                    running: Some((line, 8)),
                    others: Duration::ZERO,
                    slots: 1,
                };
                if !admits || check.judge(&policy) == AdmissionDecision::Queue {
                    queue.push(key, now, 1, deadline);
                }
                sequence += 1;
            }
            if now >= busy_until {
                let mut batch = Vec::new();
                while batch.len() < 8 {
                    let Some(deadline) = queue.pop(now) else { break };
                    if !deadline.is_expired(now) {
                        batch.push(deadline);
                    }
                }
                busy_until = now + line.batch(batch.len() as u64);
                in_time += batch.iter().filter(|deadline| !deadline.is_expired(busy_until)).count() as u32;
            }
            now += STEP;
        }
        f64::from(in_time) / ((end - start).as_secs_f64() * 8.0 / full.as_secs_f64())
    }

    #[test]
    fn five_times_the_capacity_costs_almost_no_goodput() {
        let (with, without) = (goodput(true), goodput(false));
        assert!(with >= 0.95, "{with:.3} of the capacity");
        assert!(without < 0.5, "{without:.3} would do as well without");
    }
}
