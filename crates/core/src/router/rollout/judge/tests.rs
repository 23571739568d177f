//! The decisions of the judge, by example and on random calls.

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
    /// The count of slow calls is that of the buckets, and its limit that of the current revision a sixteenth of its
    /// calls ago. Some of the candidate's calls are above any limit.
    #[test]
    fn slow_calls_are_counted_as_they_end(times in prop::collection::vec((any::<bool>(), 1_u64..100), 0..1000)) {
        let mut judge = judge(Rollout::canary(0.5));
        let mut settled = None;
        for (is_candidate, millis) in times {
            let (role, factor) = if is_candidate { (TrialRole::Candidate, 3) } else { (TrialRole::Current, 1) };
            judge.observe(role, Observation::Succeeded(Duration::from_millis(millis * factor)));
            let current = judge.current.latencies.calls();
            prop_assert_eq!(judge.slow.is_some(), current >= MIN_QUANTILE_CALLS);
            if let Some(slow) = judge.slow {
                prop_assert_eq!(slow.failed, judge.candidate.latencies.above(slow.limit));
                prop_assert!(current < slow.of + slow.of / 16 + 1);
                let before = settled.replace(slow.of).unwrap_or_default();
                prop_assert!(slow.of == before || slow.of >= before + before / 16, "{} after {before}", slow.of);
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

/// Half of the calls of both fail.
#[test]
fn a_promotion_needs_its_calls_and_no_more() {
    let decided = |calls: u64| {
        let mut judge = judge(Rollout::canary(0.5).min_calls(50));
        for call in 0..calls {
            let end = if call % 2 == 0 { Observation::Failed } else { CALL };
            judge.observe(TrialRole::Current, end);
            judge.observe(TrialRole::Candidate, end);
        }
        judge.decide(judge.ends_at() - Duration::from_secs(1)).map(|decision| decision.verdict)
    };
    assert_eq!((decided(1_248), decided(1_250)), (None, Some(Verdict::Promote)));
}

/// A fifth of a thousand calls of the current revision fail, which may be a quarter in truth.
#[test]
fn a_rollback_needs_proof_against_all_that_the_current_revision_may_be() {
    let mut judge = judge(Rollout::canary(0.5).max_error_rate(0.05).min_calls(u64::MAX));
    (0..1_000).for_each(|n| judge.observe(TrialRole::Current, if n % 5 == 0 { Observation::Failed } else { CALL }));
    (0..4_000).for_each(|n| judge.observe(TrialRole::Candidate, if n % 100 < 27 { Observation::Failed } else { CALL }));
    assert_eq!(judge.decide(judge.ends_at() - Duration::from_secs(1)), None);
    (0..4_000).for_each(|_| judge.observe(TrialRole::Candidate, Observation::Failed));
    let decision = judge.decide(judge.ends_at() - Duration::from_secs(1)).unwrap();
    assert_eq!((decision.verdict, decision.cause), (Verdict::RollBack, DecisionCause::ErrorRate));
}

/// Three of four calls is the highest rate of failures that is compared.
#[test]
fn a_promotion_needs_one_call_in_four_that_succeeds() {
    let decided = |failed: u64| {
        let mut judge = judge(Rollout::canary(0.5).min_calls(4_000));
        for call in 0..4_000 {
            let end = if call < failed { Observation::Failed } else { CALL };
            judge.observe(TrialRole::Current, end);
            judge.observe(TrialRole::Candidate, end);
        }
        judge.decide(judge.ends_at() - Duration::from_secs(1)).map(|decision| decision.verdict)
    };
    assert_eq!((decided(3_000), decided(3_001)), (Some(Verdict::Promote), None));
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

/// Which calls are slow follows the factor, not only what is noticeable.
#[test]
fn a_revision_may_be_slower_by_the_factor() {
    let decided = |ms| {
        let mut judge = judge(Rollout::canary(0.05).max_latency(2.0).min_calls(100));
        let [usual, slower] = [100, ms].map(|ms| Observation::Succeeded(Duration::from_millis(ms)));
        run(&mut judge, 10_000, || usual, || slower).0.unwrap().verdict
    };
    assert_eq!((decided(180), decided(300)), (Verdict::Promote, Verdict::RollBack));
}

#[test]
fn a_revision_may_fail_more_often_by_the_allowed_rate() {
    let decided = |one_in: u64| {
        let mut judge = judge(Rollout::canary(0.5).max_error_rate(0.2).min_calls(u64::MAX));
        let mut calls = 0;
        let candidate = || {
            calls += 1;
            if u64::is_multiple_of(calls, one_in) { Observation::Failed } else { CALL }
        };
        run(&mut judge, 10_000, || CALL, candidate).0.map(|decision| decision.cause)
    };
    assert_eq!((decided(10), decided(2)), (None, Some(DecisionCause::ErrorRate)));
    // More than allowed, but by too few calls to prove it.
    let mut early = judge(Rollout::canary(0.5).max_error_rate(0.2));
    (0..100).for_each(|_| early.observe(TrialRole::Current, CALL));
    (0..8).for_each(|n| early.observe(TrialRole::Candidate, if n % 4 == 0 { Observation::Failed } else { CALL }));
    assert_eq!(early.decide(early.ends_at() - Duration::from_millis(1)), None);
    // Nothing more may fail, and nothing fails.
    let mut strict = judge(Rollout::canary(0.5).max_error_rate(0.0).min_calls(50));
    assert_eq!(run(&mut strict, 1_000, || CALL, || CALL).0.unwrap().verdict, Verdict::Promote);
}

/// What is suspicious but not proven delays a promotion.
#[test]
fn a_promotion_waits_for_calls_that_are_quick_enough_and_answers_that_agree() {
    let decided = |policy: Rollout, slow: u64, differing: u64| {
        let mut judge = judge(policy.min_calls(4));
        (0..MIN_QUANTILE_CALLS).for_each(|_| judge.observe(TrialRole::Current, CALL));
        for call in 0..4 {
            let time = Duration::from_millis(if call < slow { 1_000 } else { 10 });
            judge.observe(TrialRole::Candidate, Observation::Succeeded(time));
            judge.compare(call >= differing);
        }
        let early = judge.decide(judge.ends_at() - Duration::from_millis(1)).map(|decision| decision.verdict);
        (early, judge.decide(judge.ends_at()).unwrap().reason)
    };
    assert_eq!(decided(Rollout::canary(0.5), 0, 0).0, Some(Verdict::Promote));
    let (early, at_the_end) = decided(Rollout::canary(0.5), 1, 0);
    assert!(early.is_none() && at_the_end.contains("1 of 4 calls took longer than"), "{early:?} {at_the_end}");
    let (early, at_the_end) = decided(Rollout::shadow(1.0).min_agreement(0.99), 0, 1);
    assert!(early.is_none() && at_the_end.contains("1 of 4 answers differ"), "{early:?} {at_the_end}");
    assert_eq!(decided(Rollout::shadow(1.0).min_agreement(0.5), 0, 2).0, Some(Verdict::Promote));
}
