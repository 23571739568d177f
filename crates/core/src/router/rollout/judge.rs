//! The judge of a rollout: counts what both revisions did, and decides. Knows no clock.
//!
//! Proof is asked of a rollback (see `confidence.rs`): noise rolls a sound revision back twice in a thousand rollouts
//! at most, and a revision that fails every second call is proven worse than a sound one after about a dozen of its
//! calls. A promotion asks for a number of calls with observed rates within the limits. Between the two it waits, up to
//! the time limit.

use std::time::Duration;

use super::confidence::Tally;
use super::latencies::Latencies;
use super::policy::Rollout;
use crate::clock::Instant;
use crate::error::ErrorKind;
use crate::metrics::{DecisionCause, TrialRole, Verdict};

/// The quantile of the current revision's latencies that a slow call exceeds, times the factor of the policy.
const QUANTILE: f64 = 0.95;

/// The part of the calls that may be slow: twice the part beyond the quantile, because the quantile is an estimate.
const MAX_SLOW: f64 = 2.0 * (1.0 - QUANTILE);

/// A call is not slow for less than this: on a busy machine a wake-up alone may take as long.
const NOTICEABLE: Duration = Duration::from_millis(5);

/// Calls of the current revision that its quantile needs.
const MIN_QUANTILE_CALLS: u64 = 100;

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

/// Whether a revision is responsible for an error. Invalid inputs, cancelled calls, and queues that are full because
/// of the load say nothing about a revision.
pub(crate) fn is_own_fault(kind: ErrorKind, status: Option<u16>) -> bool {
    match kind {
        ErrorKind::Failed => !status.is_some_and(|status| (400..500).contains(&status)),
        ErrorKind::WorkerFailed | ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded => true,
        ErrorKind::InvalidInput
        | ErrorKind::Unauthenticated
        | ErrorKind::PermissionDenied
        | ErrorKind::NotFound
        | ErrorKind::Overloaded
        | ErrorKind::Cancelled => false,
    }
}

/// What one revision did.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) outcomes: Tally,
    /// Of its successful calls.
    pub(super) latencies: Latencies,
}

/// What both revisions did since the rollout began, and the limits for it.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    policy: Rollout,
    ends_at: Instant,
    current: Observed,
    candidate: Observed,
    /// A failure is an answer that differs.
    compared: Tally,
}

impl Judge {
    pub(super) fn new(policy: Rollout, now: Instant) -> Self {
        let nothing = Observed { outcomes: Tally::default(), latencies: Latencies::new() };
        let ends_at = now + policy.time_limit;
        Self { policy, ends_at, current: nothing.clone(), candidate: nothing, compared: Tally::default() }
    }

    /// One call of a revision has ended: after this time, or failed by the revision's own fault.
    pub(super) fn observe(&mut self, role: TrialRole, outcome: Result<Duration, ()>) {
        let revision = match role {
            TrialRole::Current => &mut self.current,
            TrialRole::Candidate => &mut self.candidate,
        };
        revision.outcomes.add(outcome.is_err());
        if let Ok(latency) = outcome {
            revision.latencies.observe(latency);
        }
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

    /// What is proven against the candidate.
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

    /// What a promotion still needs.
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
        let usual = &self.current.latencies;
        if usual.calls() < MIN_QUANTILE_CALLS {
            return None;
        }
        let usual = usual.quantile(QUANTILE)?;
        let times = usual.as_secs_f64() * self.policy.max_latency;
        let limit = Duration::try_from_secs_f64(times).unwrap_or(Duration::MAX).max(usual + NOTICEABLE);
        let candidate = &self.candidate.latencies;
        Some((limit, Tally { calls: candidate.calls(), failed: candidate.above(limit) }))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALL: Result<Duration, ()> = Ok(Duration::from_millis(10));

    /// Feeds calls of which this share goes to the candidate. Returns the decision, and the candidate's calls until it.
    fn run(
        judge: &mut Judge,
        calls: usize,
        mut current: impl FnMut() -> Result<Duration, ()>,
        mut candidate: impl FnMut() -> Result<Duration, ()>,
    ) -> (Option<Decision>, u64) {
        let now = judge.ends_at - Duration::from_secs(1);
        let every = (1.0 / judge.policy.share) as usize;
        for call in 0..calls {
            if call % every == every - 1 {
                judge.observe(TrialRole::Candidate, candidate());
            } else {
                judge.observe(TrialRole::Current, current());
            }
            if let Some(decision) = judge.decide(now) {
                return (Some(decision), judge.candidate.outcomes.calls);
            }
        }
        (None, judge.candidate.outcomes.calls)
    }

    fn judge(policy: Rollout) -> Judge {
        Judge::new(policy, Instant::now())
    }

    fn failing(random: &mut fastrand::Rng, rate: f64) -> Result<Duration, ()> {
        if random.f64() < rate { Err(()) } else { CALL }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        /// With the error rate of the current revision, at most two of a thousand rollouts end by proof: of 100, more
        /// than 4 with a probability below 1e-5.
        #[test]
        fn a_sound_revision_is_not_rolled_back(seed: u64, rate in prop::sample::select(vec![0.0, 0.01, 0.1, 0.4])) {
            let random = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let rolled_back = (0..100).filter(|_| {
                let mut judge = judge(Rollout::canary(0.05).min_calls(u64::MAX));
                let call = || failing(&mut random.borrow_mut(), rate);
                run(&mut judge, 4_000, call, call).0.is_some()
            });
            prop_assert!(rolled_back.count() <= 4);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Also if one call in a hundred of the current revision fails.
        #[test]
        fn a_revision_that_fails_every_second_call_is_rolled_back_within_30_of_its_calls(
            seed: u64, rate in 0.0..0.01_f64, starts_well: bool,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut fails = starts_well;
            let mut judge = judge(Rollout::canary(0.05));
            let (decision, calls) = run(&mut judge, 20 * 30, || failing(&mut random, rate), || {
                fails = !fails;
                if fails { Err(()) } else { CALL }
            });
            let decision = decision.expect("it is decided");
            prop_assert_eq!((decision.verdict, decision.cause), (Verdict::RollBack, DecisionCause::ErrorRate));
            prop_assert!(calls <= 30);
        }

        /// The latencies of both have one distribution, with a long tail.
        #[test]
        fn noise_in_the_latency_does_not_roll_back(seed: u64, median_ms in 1.0..200.0_f64) {
            let random = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let mut judge = judge(Rollout::canary(0.1).min_calls(u64::MAX));
            let call = || Ok(Duration::from_secs_f64(median_ms / 1e3 * 0.1 / (1.0 - random.borrow_mut().f64() * 0.99)));
            prop_assert_eq!(run(&mut judge, 10_000, call, call).0, None);
        }
    }

    #[test]
    fn a_sound_revision_is_promoted_after_its_calls() {
        let mut judge = judge(Rollout::canary(0.05).min_calls(50));
        let (decision, calls) = run(&mut judge, 10_000, || CALL, || CALL);
        let decision = decision.unwrap();
        assert_eq!((decision.verdict, calls), (Verdict::Promote, 50));
        assert_eq!(decision.reason, "0 of 50 calls failed, 0 of 950 calls failed of the current revision");
    }

    #[test]
    fn a_slow_revision_is_rolled_back() {
        let mut judge = judge(Rollout::canary(0.05));
        let (decision, calls) = run(&mut judge, 10_000, || CALL, || Ok(Duration::from_millis(25)));
        let decision = decision.unwrap();
        assert_eq!((decision.verdict, decision.cause), (Verdict::RollBack, DecisionCause::Latency));
        assert!(calls < 20 && decision.reason.contains("took longer than"), "{calls}: {decision:?}");
    }

    #[test]
    fn any_factor_is_compared_without_overflow() {
        let mut judge = judge(Rollout::canary(0.05).max_latency(f64::MAX).min_calls(100));
        assert_eq!(run(&mut judge, 10_000, || CALL, || CALL).0.unwrap().verdict, Verdict::Promote);
    }

    #[test]
    fn a_few_milliseconds_are_not_slow() {
        let mut judge = judge(Rollout::canary(0.05).min_calls(100));
        let (quick, slower) = (Ok(Duration::from_micros(100)), Ok(Duration::from_millis(3)));
        assert_eq!(run(&mut judge, 10_000, || quick, || slower).0.unwrap().verdict, Verdict::Promote);
    }

    #[test]
    fn a_shadow_whose_answers_differ_is_rolled_back_and_one_that_agrees_is_promoted() {
        let decided = |agrees: fn(u64) -> bool| {
            let mut judge = judge(Rollout::shadow(1.0).min_calls(100));
            (0..1_000).find_map(|n| {
                judge.observe(TrialRole::Current, CALL);
                judge.observe(TrialRole::Candidate, CALL);
                judge.compare(agrees(n));
                judge.decide(judge.ends_at - Duration::from_secs(1))
            })
        };
        let differs = decided(|n| n % 10 != 0).unwrap();
        assert_eq!((differs.verdict, differs.cause), (Verdict::RollBack, DecisionCause::Agreement));
        assert_eq!(decided(|n| n % 200 != 0).unwrap().verdict, Verdict::Promote);
    }

    #[test]
    fn without_enough_calls_the_time_limit_rolls_back_and_says_what_was_missing() {
        let mut judge = judge(Rollout::canary(0.5).min_calls(10).time_limit(Duration::from_secs(60)));
        run(&mut judge, 8, || CALL, || CALL);
        let ends_at = judge.ends_at();
        assert_eq!(judge.decide(ends_at - Duration::from_millis(1)), None);
        let decision = judge.decide(ends_at).unwrap();
        assert_eq!((decision.verdict, decision.cause), (Verdict::RollBack, DecisionCause::TimeLimit));
        assert_eq!(decision.reason, "after the time limit of 60s: 4 of 10 calls");
    }
}
