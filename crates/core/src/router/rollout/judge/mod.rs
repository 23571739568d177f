//! The judge of a rollout: counts what both revisions did, and decides. Knows no clock.
//!
//! Proof is asked of a rollback (see `confidence.rs`): noise rolls a sound revision back twice in a thousand rollouts
//! at most, and a revision that fails every second call is proven worse than a sound one after about a dozen of its
//! calls. A promotion asks for a number of calls with observed rates within the limits. Between the two it waits, up to
//! the time limit.
//!
//! Callers are not trusted. Both revisions get a random sample of the same calls (`draw.rs`), so a caller sends the
//! same mix to both. Calls that could know their revision are not judged (`trial.rs`). A decision of the caller, such
//! as its own deadline, is no fault of a revision.

use std::time::Duration;

use super::confidence::Tally;
use super::latencies::{Latencies, is_above};
use super::policy::Rollout;
use crate::clock::Instant;
use crate::error::{ErrorKind, ErrorOrigin};
use crate::metrics::{DecisionCause, TrialRole, Verdict};

/// The quantile of the current revision's latencies that a slow call exceeds, times the factor of the policy.
const QUANTILE: f64 = 0.95;

/// The part of the calls that may be slow: twice the part beyond the quantile, because the quantile is an estimate.
const MAX_SLOW: f64 = 2.0 * (1.0 - QUANTILE);

/// A call is not slow for less than this: on a busy machine a wake-up alone may take as long.
const NOTICEABLE: Duration = Duration::from_millis(5);

/// Calls of the current revision that its quantile needs.
const MIN_QUANTILE_CALLS: u64 = 100;

/// No promotion while either revision fails more often than this: where nearly every call fails, nothing can be
/// compared. One caller with half of the calls can let half of them fail on both, and that must not decide.
const MAX_OWN_ERROR_RATE: f64 = 0.75;

/// The largest standard error of the difference between the rates of both revisions, for a promotion. If many calls
/// fail, `min_calls` are too few to find the worse revision. 200 calls are enough for a rate of 8 %.
const MAX_NOISE: f64 = 0.02;

/// The end of a rollout, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    pub(crate) cause: DecisionCause,
    pub(crate) reason: String,
}

impl Decision {
    pub(crate) fn roll_back(cause: DecisionCause, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::RollBack, cause, reason: reason.into() }
    }

    pub(crate) fn promote(cause: DecisionCause, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Promote, cause, reason: reason.into() }
    }
}

/// The evidence of one call about its revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// It succeeded, after this time.
    Succeeded(Duration),
    /// It failed by the fault of the revision.
    Failed,
    /// Its caller allowed only this time, less than the route does. The revision may be slow.
    Late(Duration),
    /// Nothing: the caller left, the input was invalid, or a queue was full because of the load.
    Nothing,
}

impl Observation {
    /// The end of a call that failed after this time, on a route that allows `timeout` to calls that set none.
    pub(crate) fn of_error(kind: ErrorKind, status: Option<u16>, after: Duration, timeout: Duration) -> Self {
        let row = kind.row();
        let is_chosen_4xx = row.has_chosen_status && status.is_some_and(|status| (400..500).contains(&status));
        match row.origin {
            ErrorOrigin::Code if is_chosen_4xx => Self::Nothing,
            ErrorOrigin::Code | ErrorOrigin::Framework | ErrorOrigin::Service => Self::Failed,
            // The time that has passed, not the deadline: callers have other ways to shorten it.
            ErrorOrigin::Time if after >= timeout => Self::Failed,
            ErrorOrigin::Time => Self::Late(after),
            ErrorOrigin::Request | ErrorOrigin::Route | ErrorOrigin::Load | ErrorOrigin::Caller => Self::Nothing,
        }
    }
}

/// Observations of one revision.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) outcomes: Tally,
    /// Latencies of successful calls, and of calls that were late because they were slow.
    pub(super) latencies: Latencies,
}

/// The slow calls of the candidate, counted as they end: a look at all buckets is a look at hundreds of numbers.
#[derive(Clone, Copy, Debug)]
struct SlowCalls {
    /// What a slow call exceeds, by what the current revision usually takes.
    limit: Duration,
    /// The number of calls that the limit was taken from.
    of: u64,
    failed: u64,
}

/// Observations of both revisions since the rollout began, and their limits.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    policy: Rollout,
    ends_at: Instant,
    current: Observed,
    candidate: Observed,
    slow: Option<SlowCalls>,
    /// A failure is an answer that differs.
    compared: Tally,
}

impl Judge {
    pub(super) fn new(policy: Rollout, now: Instant) -> Self {
        let nothing = Observed { outcomes: Tally::default(), latencies: Latencies::new() };
        let ends_at = now + policy.time_limit;
        let (current, compared) = (nothing.clone(), Tally::default());
        Self { policy, ends_at, current, candidate: nothing, slow: None, compared }
    }

    /// One call of a revision has ended.
    pub(super) fn observe(&mut self, role: TrialRole, observation: Observation) {
        let is_slow = |time: Duration| self.slow.is_some_and(|slow| is_above(time, slow.limit));
        let (is_success, time) = match observation {
            Observation::Succeeded(latency) => (Some(true), Some(latency)),
            Observation::Failed => (Some(false), None),
            // It took at least this time. As a failure it would count against a candidate that is as slow as allowed.
            Observation::Late(time) => (None, Some(time).filter(|time| is_slow(*time))),
            Observation::Nothing => (None, None),
        };
        let revision = match role {
            TrialRole::Current => &mut self.current,
            TrialRole::Candidate => &mut self.candidate,
        };
        if let Some(is_success) = is_success {
            revision.outcomes.add(!is_success);
        }
        let Some(time) = time else { return };
        revision.latencies.observe(time);
        match (role, &mut self.slow) {
            (TrialRole::Current, _) => self.settle_limit(),
            (TrialRole::Candidate, Some(slow)) if is_above(time, slow.limit) => slow.failed += 1,
            (TrialRole::Candidate, _) => {}
        }
    }

    /// Takes the limit of slow calls again when the current revision has a sixteenth more calls: until then its
    /// quantile hardly changes.
    fn settle_limit(&mut self) {
        let usual = &self.current.latencies;
        let of = usual.calls();
        if of < self.slow.map_or(MIN_QUANTILE_CALLS, |slow| slow.of + slow.of / 16) {
            return;
        }
        let Some(quantile) = usual.quantile(QUANTILE) else { return };
        let times = quantile.as_secs_f64() * self.policy.max_latency;
        let limit = Duration::try_from_secs_f64(times).unwrap_or(Duration::MAX).max(quantile + NOTICEABLE);
        self.slow = Some(SlowCalls { limit, of, failed: self.candidate.latencies.above(limit) });
    }

    /// An answer of the candidate was compared with that of the current revision.
    pub(super) fn compare(&mut self, agrees: bool) {
        self.compared.add(!agrees);
    }

    /// When the rollout ends without proof.
    pub(super) fn ends_at(&self) -> Instant {
        self.ends_at
    }

    pub(super) fn observed(&self, role: TrialRole) -> &Observed {
        match role {
            TrialRole::Current => &self.current,
            TrialRole::Candidate => &self.candidate,
        }
    }

    pub(super) fn compared(&self) -> Tally {
        self.compared
    }

    /// The decision, if there is one by now.
    pub(super) fn decide(&self, now: Instant) -> Option<Decision> {
        if let Some((cause, reason)) = self.proof() {
            return Some(Decision::roll_back(cause, reason));
        }
        match self.missing() {
            None => Some(Decision::promote(DecisionCause::Sound, self.summary())),
            Some(missing) if now >= self.ends_at => {
                let limit = self.policy.time_limit;
                let reason = format!("after the time limit of {limit:?}: {missing}");
                Some(Decision::roll_back(DecisionCause::TimeLimit, reason))
            }
            Some(_) => None,
        }
    }

    /// The reason to roll back, if the observations prove one.
    fn proof(&self) -> Option<(DecisionCause, String)> {
        let (current, candidate) = (self.current.outcomes, self.candidate.outcomes);
        let allowed = self.policy.max_error_rate;
        // The first comparison is cheap, and usually enough.
        if candidate.rate() > current.rate() + allowed && candidate.proves_above(current.highest_rate() + allowed) {
            let reason = format!("{}, {} of the current revision", failures(candidate), failures(current));
            return Some((DecisionCause::ErrorRate, reason));
        }
        if let Some((limit, slow)) = self.slow()
            && slow.proves_above(MAX_SLOW)
        {
            let reason = format!("{} of {} calls took longer than {limit:?}", slow.failed, slow.calls);
            return Some((DecisionCause::Latency, reason));
        }
        let differing = 1.0 - self.policy.min_agreement;
        self.compared.proves_above(differing).then(|| (DecisionCause::Agreement, differences(self.compared)))
    }

    /// The reason to wait with a promotion, if there is one.
    fn missing(&self) -> Option<String> {
        let (current, candidate, needed) = (self.current.outcomes, self.candidate.outcomes, self.policy.min_calls);
        if candidate.calls < needed {
            return Some(format!("{} of {needed} calls", candidate.calls));
        }
        if current.calls == 0 {
            return Some("no call of the current revision to compare with".to_owned());
        }
        if candidate.rate() > current.rate() + self.policy.max_error_rate {
            return Some(format!("{}, {} of the current revision", failures(candidate), failures(current)));
        }
        if candidate.variance() + current.variance() > MAX_NOISE.powi(2) {
            return Some(format!("too few calls for the failures: {}", self.summary()));
        }
        if candidate.rate().max(current.rate()) > MAX_OWN_ERROR_RATE {
            return Some(format!("too few calls succeed: {}", self.summary()));
        }
        if let Some((limit, slow)) = self.slow()
            && slow.rate() > MAX_SLOW
        {
            return Some(format!("{} of {} calls took longer than {limit:?}", slow.failed, slow.calls));
        }
        if self.policy.is_shadow && self.compared.calls == 0 {
            return Some("no answer was compared".to_owned());
        }
        let differing = 1.0 - self.policy.min_agreement;
        (self.compared.rate() > differing).then(|| differences(self.compared))
    }

    /// The limit above which a call is slow, and the slow calls of the candidate.
    fn slow(&self) -> Option<(Duration, Tally)> {
        let SlowCalls { limit, failed, .. } = self.slow?;
        Some((limit, Tally { calls: self.candidate.latencies.calls(), failed }))
    }

    fn summary(&self) -> String {
        let (current, candidate) = (self.current.outcomes, self.candidate.outcomes);
        let compared = if self.policy.is_shadow { format!("; {}", differences(self.compared)) } else { String::new() };
        format!("{}, {} of the current revision{compared}", failures(candidate), failures(current))
    }
}

fn failures(tally: Tally) -> String {
    format!("{} of {} calls failed", tally.failed, tally.calls)
}

fn differences(compared: Tally) -> String {
    format!("{} of {} answers differ", compared.failed, compared.calls)
}

#[cfg(test)]
mod tests;
