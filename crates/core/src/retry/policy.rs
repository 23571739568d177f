//! Whether and when one call is made again: the same in process and over a network, but for the wait for a node.

use std::time::Duration;

use crate::clock;
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};

/// How a call is made again that was refused, or that did nothing which must not happen twice. Errors of kind
/// [`Overloaded`](ErrorKind::Overloaded) and [`Unavailable`](ErrorKind::Unavailable) that are
/// [retryable](CallError::is_retryable) are; others are final. Nothing is made again that would begin after the call's
/// deadline.
///
/// The wait before the next attempt is the error's [`retry_after`](CallError::retry_after) and a pause, which doubles
/// from attempt to attempt and is drawn from half of it to one and a half, so that calls that were refused together do
/// not return together.
///
/// Used by [`CallOptions::with_retry`](crate::CallOptions::with_retry), and by the clients over a network. One rule is
/// that of a network alone: an `Unavailable` refusal that asks for more than 250 ms is the error of a single call,
/// because the caller may have another node.
///
/// ```
/// use std::time::Duration;
///
/// use callboard_core::RetryPolicy;
///
/// let patient = RetryPolicy::default().attempts(10).pauses(Duration::from_millis(50), Duration::from_secs(2));
/// assert_ne!(patient, RetryPolicy::never());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a policy does nothing until a client is given it"]
pub struct RetryPolicy {
    attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    longest_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            // Survives one lost connection and one draining node.
            attempts: 3,
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(1),
            longest_retry_after: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// Every error is final.
    pub fn never() -> Self {
        Self::default().attempts(1)
    }

    /// The most attempts of a call, the first included. Default 3; 0 counts as 1. A call of a stream that is
    /// `Overloaded` has as many as its deadline allows, unless this is 1: the stream bounds the number of its calls.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The pause before the second attempt, and the longest one. Default 20 ms and 1 s.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_pause, self.longest_pause) = (first, longest);
        self
    }

    /// The longest wait that a refusal may ask for. If it asks for a longer one, it is the error of the call, and the
    /// caller decides. Default 10 s. Does not count for calls of a stream that are `Overloaded`.
    pub fn longest_retry_after(mut self, wait: Duration) -> Self {
        self.longest_retry_after = wait;
        self
    }

    /// Whether a call with this error may be made again at all.
    #[must_use]
    pub fn applies_to(error: &CallError) -> bool {
        error.kind().is_retryable() && error.is_retryable()
    }

    /// The wait after attempt number `attempt`, from 1, which ended with this error; `chance` is uniform in 0..1.
    #[must_use]
    pub fn wait(&self, error: &CallError, attempt: u32, chance: f64) -> Duration {
        error.retry_after().unwrap_or_default().saturating_add(self.pause(attempt, chance))
    }

    /// The part of [`wait`](Self::wait) that is this policy's.
    #[must_use]
    pub fn pause(&self, attempt: u32, chance: f64) -> Duration {
        let factor = 2_u32.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = self.first_pause.saturating_mul(factor).min(self.longest_pause);
        let drawn = pause.as_secs_f64() * (0.5 + chance.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(drawn).unwrap_or(Duration::MAX)
    }

    /// The wait after attempt number `attempt`; `None` if the next one would begin after the deadline.
    pub(crate) fn wait_within(&self, deadline: Deadline, error: &CallError, attempt: u32) -> Option<Duration> {
        let wait = self.wait(error, attempt, fastrand::f64());
        clock::now().checked_add(wait).filter(|then| !deadline.is_expired(*then)).map(|_| wait)
    }

    /// Whether every error is final.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.attempts == 1
    }

    /// Whether there may be another attempt after attempt number `attempt`.
    #[must_use]
    pub fn allows(&self, error: &CallError, attempt: u32) -> bool {
        attempt < self.attempts && error.retry_after().unwrap_or_default() <= self.longest_retry_after
    }

    /// The same for a call of a stream on this node. What gives no time to retry after may last.
    pub(crate) fn allows_in_stream(&self, error: &CallError, attempt: u32) -> bool {
        let waits_for_room = !self.is_never() && error.kind() == ErrorKind::Overloaded;
        waits_for_room || error.retry_after().is_some() && self.allows(error, attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_pause_doubles_up_to_its_limit_and_the_time_of_the_error_is_added() {
        let (policy, error) = (RetryPolicy::default(), CallError::overloaded("full", SECOND));
        let waits = [1, 2, 3, 7, 40].map(|attempt| policy.wait(&error, attempt, 0.5).as_millis());
        assert_eq!(waits, [1_020, 1_040, 1_080, 2_000, 2_000]);
        assert_eq!([0.0, 1.0].map(|chance| policy.wait(&error, 1, chance).as_millis()), [1_010, 1_030]);
    }

    #[test]
    fn the_longest_waits_do_not_overflow() {
        let never = RetryPolicy::never().pauses(Duration::MAX, Duration::MAX);
        assert_eq!(never.wait(&CallError::overloaded("full", Duration::MAX), u32::MAX, 1.0), Duration::MAX);
        assert_eq!(never.wait(&CallError::overloaded("full", SECOND), 1, 1.0), Duration::MAX);
        assert!(never.is_never() && !RetryPolicy::default().is_never());
    }

    #[test]
    fn attempts_and_long_waits_are_limited_but_for_calls_of_a_stream_that_wait_for_room() {
        let policy = RetryPolicy::default();
        let (full, away) = (CallError::overloaded("full", SECOND), CallError::unavailable("away", SECOND));
        assert_eq!([1, 2, 3].map(|attempt| policy.allows(&full, attempt)), [true, true, false]);
        assert!(policy.allows_in_stream(&full, 1_000));
        assert_eq!([1, 2, 3].map(|attempt| policy.allows_in_stream(&away, attempt)), [true, true, false]);
        assert!(!policy.allows_in_stream(&CallError::new(ErrorKind::Unavailable, "gone"), 1));
        let long = CallError::unavailable("away", 11 * SECOND);
        assert!(!policy.allows(&long, 1) && policy.longest_retry_after(12 * SECOND).allows(&long, 1));
        assert!(!RetryPolicy::never().allows(&full, 1) && !RetryPolicy::never().allows_in_stream(&full, 1));
    }

    #[test]
    fn only_refusals_and_errors_that_did_nothing_are_made_again() {
        let error = |kind| CallError::new(kind, "an error");
        assert!(RetryPolicy::applies_to(&error(ErrorKind::Overloaded)));
        assert!(!RetryPolicy::applies_to(&error(ErrorKind::Unavailable).after_start(true)));
        assert!(RetryPolicy::applies_to(&error(ErrorKind::Unavailable).in_run(true)));
        // It may kill its worker each time.
        assert!(!RetryPolicy::applies_to(&error(ErrorKind::WorkerFailed).in_run(true)));
        assert!(!RetryPolicy::applies_to(&error(ErrorKind::Failed)));
    }
}
