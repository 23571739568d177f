//! How many calls may be made again, over all nodes together.
//!
//! The budget returns with time: a call was refused or a connection was lost, which costs the node little, and a client
//! that was idle since the last failures must be able to retry again.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::{CallError, ErrorKind};

/// The budget of retries of a client, or of a node as the client of its peers: a fifth of the calls of the last ten
/// seconds, and ten a second in addition, so that a few calls can be retried too. When nodes are healthy, there is
/// always enough; when most are not, retries end before they overload the nodes.
#[derive(Debug)]
pub struct RetryBudget {
    /// The calls of each second, minus the price of its retries.
    balance: [i64; Self::SECONDS],
    /// The slot of the current second, and the start of that second.
    newest: usize,
    since: Option<Instant>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { balance: [0; Self::SECONDS], newest: 0, since: None }
    }
}

impl RetryBudget {
    /// The calls that pay for one retry.
    pub const CALLS_FOR_ONE: usize = 5;
    /// The seconds for which calls count, one slot each.
    pub const SECONDS: usize = 10;
    /// Additional retries per second.
    pub const RESERVE_PER_SECOND: usize = 10;

    /// Counts a call. Its retries do not count.
    pub fn called(&mut self, now: Instant) {
        self.advance(now);
        self.balance[self.newest] += 1;
    }

    /// Takes one retry of a call with this error, unless it [is free](Self::is_free). `false`: the budget is used up.
    #[must_use]
    pub fn allows(&mut self, error: &CallError, now: Instant) -> bool {
        Self::is_free(error) || self.take(now)
    }

    /// Whether a retry after this error costs nothing: for want of a node, no node had any part of the call.
    #[must_use]
    pub fn is_free(error: &CallError) -> bool {
        error.kind() == ErrorKind::Unavailable && error.is_refusal()
    }

    fn take(&mut self, now: Instant) -> bool {
        self.advance(now);
        let price = Self::CALLS_FOR_ONE as i64;
        let reserve = (Self::RESERVE_PER_SECOND * Self::SECONDS) as i64 * price;
        let is_available = self.balance.iter().sum::<i64>() + reserve >= price;
        if is_available {
            self.balance[self.newest] -= price;
        }
        is_available
    }

    /// Clears the slots of seconds that are too old.
    fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs();
        for _ in 0..seconds.min(Self::SECONDS as u64) {
            self.newest = (self.newest + 1) % Self::SECONDS;
            self.balance[self.newest] = 0;
        }
        self.since = Some(since + Duration::from_secs(seconds));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorParts;

    const CALLS_FOR_ONE: usize = RetryBudget::CALLS_FOR_ONE;
    const SECONDS: usize = RetryBudget::SECONDS;
    const RESERVE_PER_SECOND: usize = RetryBudget::RESERVE_PER_SECOND;

    proptest! {
        /// For any order of calls and losses: in any ten seconds the retries are at most a fifth of the calls, plus ten
        /// a second, over these and the ten seconds before.
        #[test]
        fn retries_are_bounded_by_calls(steps in prop::collection::vec((0_u64..700, 0_usize..60, 0_usize..60), 1..200)) {
            let (mut retries, mut now) = (RetryBudget::default(), Instant::now());
            let mut history: Vec<(Instant, usize, usize)> = Vec::new();
            for (pause, calls, losses) in steps {
                now += Duration::from_millis(pause);
                (0..calls).for_each(|_| retries.called(now));
                let taken = (0..losses).filter(|_| retries.take(now)).count();
                history.push((now, calls, taken));
                let within = |seconds: u64| {
                    let recent = history.iter().filter(move |(at, ..)| now - *at < Duration::from_secs(seconds));
                    recent.fold((0, 0), |sum, (_, calls, taken)| (sum.0 + calls, sum.1 + taken))
                };
                let (calls, _) = within(20);
                let (_, taken) = within(9);
                let most = calls / CALLS_FOR_ONE + 2 * RESERVE_PER_SECOND * SECONDS;
                prop_assert!(taken <= most, "{taken} retries for {calls} calls");
            }
        }
    }

    #[test]
    fn a_few_calls_can_be_retried() {
        let (mut retries, now) = (RetryBudget::default(), Instant::now());
        assert_eq!((0..1_000).filter(|_| retries.take(now)).count(), RESERVE_PER_SECOND * SECONDS);
        (0..50).for_each(|_| retries.called(now));
        assert_eq!((0..1_000).filter(|_| retries.take(now)).count(), 10);
        let later = now + Duration::from_secs(SECONDS as u64);
        assert_eq!((0..1_000).filter(|_| retries.take(later)).count(), RESERVE_PER_SECOND * SECONDS);
    }

    #[test]
    fn only_a_refusal_for_want_of_a_node_is_free() {
        let (mut retries, now) = (RetryBudget::default(), Instant::now());
        while retries.take(now) {}
        let [full, away] = [ErrorKind::Overloaded, ErrorKind::Unavailable].map(|kind| CallError::new(kind, "no"));
        let lost: CallError = ErrorParts::connection_lost("lost").into();
        assert_eq!([&full, &away, &lost].map(|error| retries.allows(error, now)), [false, true, false]);
    }

    /// Every call is lost, and retried while that is allowed.
    #[test]
    fn a_node_that_loses_everything_gets_a_fifth_more_calls_and_ten_a_second() {
        let (mut retries, start) = (RetryBudget::default(), Instant::now());
        let (mut calls, mut upstream) = (0_u32, 0_u32);
        for millis in 0..30_000_u64 {
            let now = start + Duration::from_millis(millis);
            retries.called(now);
            calls += 1;
            upstream += 1 + u32::from(retries.take(now));
        }
        let most = f64::from(calls) * 1.2 + 30.0 * 10.0;
        assert!(f64::from(upstream) <= most, "{upstream} upstream calls for {calls}");
    }
}
