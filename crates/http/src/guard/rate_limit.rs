//! The rate limit of a key or caller: the generic cell rate algorithm, one time for each.

use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

use crate::error::RateLeft;

/// A number of requests per time: a burst of as many, then evenly. Written `20/s`, `600/m` or `5000/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    requests: NonZeroU32,
    period: Duration,
}

const PERIODS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_secs(60)), ("h", Duration::from_secs(3600))];

impl RateLimit {
    /// The largest count that the resolution of time allows.
    pub const MAX_REQUESTS: u32 = 1_000_000;

    /// Reads `20/s`, `600/m`, `5000/h`.
    ///
    /// # Errors
    ///
    /// Anything else, 0, and more than [`MAX_REQUESTS`](Self::MAX_REQUESTS).
    pub fn parse(text: &str) -> Result<Self, RateLimitError> {
        let parsed = text.split_once('/').and_then(|(requests, unit)| {
            let (_, period) = PERIODS.into_iter().find(|(name, _)| *name == unit)?;
            let is_plain = requests.bytes().all(|digit| digit.is_ascii_digit());
            let requests: u32 = requests.parse().ok().filter(|requests| is_plain && *requests <= Self::MAX_REQUESTS)?;
            Some(Self { requests: NonZeroU32::new(requests)?, period })
        });
        parsed.ok_or(RateLimitError)
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = PERIODS.into_iter().find(|(_, period)| *period == self.period).map_or("s", |(name, _)| name);
        write!(f, "{}/{unit}", self.requests)
    }
}

/// The text is not a limit.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "expected a number from 1 to {} and a unit of time, such as \"20/s\", \"600/m\" or \"5000/h\"",
    RateLimit::MAX_REQUESTS
)]
pub struct RateLimitError;

/// The count of one key: when all counted requests have had their share of time.
pub(super) struct Limiter {
    limit: RateLimit,
    settled: Mutex<Instant>,
}

impl Limiter {
    pub(super) fn new(limit: RateLimit) -> Self {
        Self { limit, settled: Mutex::new(Instant::now()) }
    }

    /// Counts these requests, or returns the time until they are allowed; `None` if the limit never allows this many at
    /// once.
    pub(super) fn take(&self, count: NonZeroU32) -> Option<Result<(), Duration>> {
        self.take_at(Instant::now(), count)
    }

    fn take_at(&self, now: Instant, count: NonZeroU32) -> Option<Result<(), Duration>> {
        let RateLimit { requests, period } = self.limit;
        let share = (count <= requests).then(|| period / requests.get() * count.get())?;
        let mut settled = self.settled.lock();
        let then = now.max(*settled) + share;
        let wait = then.saturating_duration_since(now + period);
        if wait.is_zero() {
            *settled = then;
        }
        Some(if wait.is_zero() { Ok(()) } else { Err(wait) })
    }

    pub(super) fn left(&self) -> RateLeft {
        self.left_at(Instant::now())
    }

    fn left_at(&self, now: Instant) -> RateLeft {
        let RateLimit { requests, period } = self.limit;
        let reset = self.settled.lock().saturating_duration_since(now);
        let share = (period / requests.get()).as_nanos().max(1);
        let remaining = u32::try_from(period.saturating_sub(reset).as_nanos() / share).unwrap_or(u32::MAX);
        RateLeft { limit: requests.get(), remaining: remaining.min(requests.get()), reset }
    }

    pub(super) fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Whether it is as a new one.
    pub(super) fn is_settled(&self) -> bool {
        *self.settled.lock() <= Instant::now()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.limit).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_displayed_as_it_is_written() {
        for text in ["1/s", "20/s", "600/m", "5000/h", "1000000/s"] {
            assert_eq!(RateLimit::parse(text).unwrap().to_string(), text);
        }
        for refused in ["", "20", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "20/d", "20/ s", "1000001/s", "99999999999/s"] {
            assert!(RateLimit::parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn requests_pass_after_their_wait_and_idle_time_gives_one_burst() {
        let limiter = Limiter::new(RateLimit::parse("3/h").unwrap());
        let one = NonZeroU32::MIN;
        let mut now = Instant::now();
        let burst = |now| (0..10).take_while(|_| limiter.take_at(now, one) == Some(Ok(()))).count();
        assert_eq!(burst(now), 3);
        let wait = limiter.take_at(now, one).unwrap().unwrap_err();
        assert_eq!(burst(now + wait - Duration::from_millis(1)), 0);
        assert_eq!(burst(now + wait), 1);
        now += Duration::from_secs(100 * 3600);
        assert_eq!(burst(now), 3);
    }

    #[test]
    fn what_is_left_is_what_may_be_taken() {
        let limiter = Limiter::new(RateLimit::parse("7/s").unwrap());
        let mut now = Instant::now();
        for millis in [0, 0, 0, 1, 140, 150, 0, 0, 0, 0, 0, 0, 900, 2000] {
            now += Duration::from_millis(millis);
            let RateLeft { limit, remaining, reset } = limiter.left_at(now);
            assert!(limit == 7 && reset <= Duration::from_secs(1));
            let fits = |count| {
                let limiter = Limiter { limit: limiter.limit, settled: Mutex::new(*limiter.settled.lock()) };
                NonZeroU32::new(count).is_none_or(|count| limiter.take_at(now, count) == Some(Ok(())))
            };
            assert!(fits(remaining) && !fits(remaining + 1), "{remaining} after {millis} ms");
            assert_eq!(limiter.left_at(now + reset).remaining, 7);
            let _ = limiter.take_at(now, NonZeroU32::MIN);
        }
    }

    #[test]
    fn a_burst_passes_and_a_later_refusal_names_the_wait() {
        let limiter = Limiter::new(RateLimit::parse("3/h").unwrap());
        let take = |count| limiter.take(NonZeroU32::new(count).unwrap());
        assert!((0..3).all(|_| take(1) == Some(Ok(()))));
        let wait = take(1).unwrap().unwrap_err();
        assert!(wait > Duration::from_secs(1100) && wait <= Duration::from_secs(1200), "{wait:?}");
        assert!(take(1).unwrap().is_err(), "a refused request does not count");
        assert!(take(3).unwrap().unwrap_err() > Duration::from_secs(3500), "three requests fit later");
        assert!(take(4).is_none(), "four requests never fit");
    }
}
