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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALL: Observation = Observation::Succeeded(Duration::from_millis(10));

    /// Feeds calls of which this share goes to the candidate. Returns the decision, and the candidate's calls until it.
    fn run(
        judge: &mut Judge,
        calls: usize,
        mut current: impl FnMut() -> Observation,
        mut candidate: impl FnMut() -> Observation,
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

    fn failing(random: &mut fastrand::Rng, rate: f64) -> Observation {
        if random.f64() < rate { Observation::Failed } else { CALL }
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
                if fails { Observation::Failed } else { CALL }
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
            let call = || {
                let tail = 0.1 / (1.0 - random.borrow_mut().f64() * 0.99);
                Observation::Succeeded(Duration::from_secs_f64(median_ms / 1e3 * tail))
            };
            prop_assert_eq!(run(&mut judge, 10_000, call, call).0, None);
        }
    }

    proptest! {
        /// The count of slow calls is that of the buckets, and its limit that of the current revision some calls ago.
        #[test]
        fn slow_calls_are_counted_as_they_end(times in prop::collection::vec((any::<bool>(), 1_u64..100), 0..1000)) {
            let mut judge = judge(Rollout::canary(0.5));
            for (is_candidate, millis) in times {
                let role = if is_candidate { TrialRole::Candidate } else { TrialRole::Current };
                judge.observe(role, Observation::Succeeded(Duration::from_millis(millis)));
                let current = judge.current.latencies.calls();
                prop_assert_eq!(judge.slow.is_some(), current >= MIN_QUANTILE_CALLS);
                if let Some(slow) = judge.slow {
                    prop_assert_eq!(slow.failed, judge.candidate.latencies.above(slow.limit));
                    prop_assert!(current < slow.of + slow.of / 16 + 1);
                }
            }
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
        let (decision, calls) = run(&mut judge, 10_000, || CALL, || Observation::Succeeded(Duration::from_millis(25)));
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
        let (quick, slower) = [100, 3_000].map(|micros| Observation::Succeeded(Duration::from_micros(micros))).into();
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

    #[test]
    fn a_deadline_below_the_routes_is_no_fault_of_the_revision() {
        let of = |kind, status, ms| {
            let (after, timeout) = (Duration::from_millis(ms), Duration::from_secs(1));
            Observation::of_error(kind, status, after, timeout)
        };
        use ErrorKind::{Cancelled, DeadlineExceeded, Failed, InvalidInput, Overloaded, PermissionDenied, Unavailable};
        assert_eq!(of(DeadlineExceeded, None, 999), Observation::Late(Duration::from_millis(999)));
        assert_eq!(of(DeadlineExceeded, None, 1_000), Observation::Failed);
        for kind in [Cancelled, InvalidInput, Overloaded, PermissionDenied] {
            assert_eq!(of(kind, None, 5_000), Observation::Nothing, "{kind}");
        }
        for (status, seen) in [(399, false), (400, true), (499, true), (500, false)] {
            let nothing = of(Failed, Some(status), 1) == Observation::Nothing;
            assert_eq!(nothing, seen, "{status}");
        }
        assert_eq!((of(Failed, None, 1), of(Unavailable, Some(404), 1)), (Observation::Failed, Observation::Failed));
    }

    #[test]
    fn a_late_call_is_slow_if_it_had_the_time_of_a_slow_one_and_else_nothing() {
        let decided = |late_ms| {
            let mut judge = judge(Rollout::canary(0.05));
            let late = Observation::Late(Duration::from_millis(late_ms));
            (run(&mut judge, 2_000, || CALL, || late).0, judge.candidate.outcomes.calls)
        };
        // The limit is at most an eighth above 10 ms times 1.5.
        let (decision, calls) = decided(25);
        assert_eq!((decision.unwrap().cause, calls), (DecisionCause::Latency, 0));
        assert_eq!(decided(10), (None, 0));
    }

    #[test]
    fn late_calls_are_nothing_before_the_usual_time_is_known() {
        let mut judge = judge(Rollout::canary(0.5).min_calls(u64::MAX));
        let late = Observation::Late(Duration::from_secs(9));
        assert_eq!(run(&mut judge, 2 * MIN_QUANTILE_CALLS as usize - 1, || CALL, || late).0, None);
        assert_eq!(judge.candidate.latencies.calls(), 0);
    }

    #[test]
    fn nothing_is_promoted_where_nearly_every_call_fails() {
        let decided = |failing: usize| {
            let mut judge = judge(Rollout::canary(0.5).min_calls(50));
            let outcomes = std::cell::Cell::new(0);
            let call = || {
                outcomes.set(outcomes.get() + 1);
                // Both revisions fail the same calls.
                if outcomes.get() / 2 % 4 < failing { Observation::Failed } else { CALL }
            };
            let decision = run(&mut judge, 4_000, call, call).0;
            (decision, judge.decide(judge.ends_at()).map(|decision| decision.reason).unwrap_or_default())
        };
        assert_eq!(decided(3).0.unwrap().verdict, Verdict::Promote);
        let (decision, at_the_end) = decided(4);
        assert_eq!(decision, None);
        assert!(at_the_end.contains("too few calls succeed: 2000 of 2000 calls failed"), "{at_the_end}");
    }

    #[test]
    fn a_promotion_needs_more_calls_where_many_fail() {
        let promoted_after = |one_in: usize| {
            let mut judge = judge(Rollout::canary(0.5).min_calls(50));
            let calls = std::cell::Cell::new(0);
            let call = || {
                calls.set(calls.get() + 1);
                if usize::is_multiple_of(calls.get() / 2, one_in) { Observation::Failed } else { CALL }
            };
            let (decision, calls) = run(&mut judge, 10_000, call, call);
            assert_eq!(decision.unwrap().verdict, Verdict::Promote);
            calls
        };
        // Twice the variance of one rate: 2 · p (1 − p) / n ≤ 0.02².
        assert!((1_200..1_300).contains(&promoted_after(2)) && (400..500).contains(&promoted_after(10)));
        assert_eq!(promoted_after(1_000), 50);
    }
}
