//! How many calls may be made a second time: a pure decision, over all peers together.
//!
//! A fifth of the calls of the last ten seconds, and ten a second beside that, so that few calls are not without. When peers are well,
//! there is always enough; when most of them are not, retries end before they become the load that keeps them down.

use std::time::Duration;

use callboard_core::Instant;

/// One retry for so many calls.
const CALLS_FOR_ONE: usize = 5;

/// How far back calls count, in seconds, one field each.
const SECONDS: usize = 10;

/// Retries in each second whatever happens.
const BESIDE: usize = 10;

/// The retries that may still be made.
#[derive(Debug)]
pub(crate) struct Retries {
    /// What each of the last seconds has put in, less what was taken out, in fifths.
    balance: [i64; SECONDS],
    /// The newest field, and when its second began.
    newest: usize,
    since: Option<Instant>,
}

impl Default for Retries {
    fn default() -> Self {
        Self { balance: [0; SECONDS], newest: 0, since: None }
    }
}

impl Retries {
    /// A call begins.
    pub(crate) fn called(&mut self, now: Instant) {
        self.pass(now);
        self.balance[self.newest] += 1;
    }

    /// Takes one retry, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.pass(now);
        let price = CALLS_FOR_ONE as i64;
        let reserve = (BESIDE * SECONDS) as i64 * price;
        let is_there = self.balance.iter().sum::<i64>() + reserve >= price;
        if is_there {
            self.balance[self.newest] -= price;
        }
        is_there
    }

    /// Forgets what is older than all fields.
    fn pass(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs();
        for _ in 0..seconds.min(SECONDS as u64) {
            self.newest = (self.newest + 1) % SECONDS;
            self.balance[self.newest] = 0;
        }
        self.since = Some(since + Duration::from_secs(seconds));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However calls and losses come, in any ten seconds there are at most a fifth as many retries as calls, and ten a second, over the
        /// ten seconds and the ten before them, from which some may be left.
        #[test]
        fn retries_are_bounded_by_calls(steps in prop::collection::vec((0_u64..700, 0_usize..60, 0_usize..60), 1..200)) {
            let (mut retries, mut now) = (Retries::default(), Instant::now());
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
                prop_assert!(taken <= calls / CALLS_FOR_ONE + 2 * BESIDE * SECONDS, "{taken} retries for {calls} calls");
            }
        }
    }

    #[test]
    fn few_calls_are_not_without() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        assert_eq!((0..1_000).filter(|_| retries.take(now)).count(), BESIDE * SECONDS);
        (0..50).for_each(|_| retries.called(now));
        assert_eq!((0..1_000).filter(|_| retries.take(now)).count(), 10);
        let later = now + Duration::from_secs(SECONDS as u64);
        assert_eq!((0..1_000).filter(|_| retries.take(later)).count(), BESIDE * SECONDS);
    }

    /// The row of the table: everything is lost, and tried again as long as that is allowed.
    #[test]
    fn a_peer_that_loses_everything_is_called_a_fifth_more_and_ten_a_second() {
        let (mut retries, start) = (Retries::default(), Instant::now());
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
