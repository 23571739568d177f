//! The state that both revisions of a route share during a rollout: which revision takes a call, and the judge.
//!
//! A call is judged only if its caller could not know which revision it would get. Calls without a session are drawn
//! one by one. All calls of a session go to one revision, so the end of the first one tells which: only that one is
//! judged. This holds for any number of sessions and callers, and needs no names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::confidence::Tally;
use super::draw::Draw;
use super::judge::{Decision, Judge, Observation, Observed};
use super::policy::Rollout;
use super::record::RevisionDescription;
use crate::call::SessionKey;
use crate::clock::{self, Instant};
use crate::metrics::{RolloutMetrics, TrialRole};

/// Copied calls of a shadow at a time: enough to judge a revision, and too few to slow the others down.
const MAX_SHADOW_CALLS: usize = 16;

/// Bits that remember the sessions of which a call has ended: 128 KiB. A session whose bit is taken is not judged, so
/// that 100,000 sessions lose one in twenty of them.
const SESSION_BITS: u64 = 1 << 20;

/// A running rollout. Calls read and feed it without the router's actor.
#[derive(Debug)]
pub(crate) struct Trial {
    policy: Rollout,
    /// The share, of 2⁶⁴.
    share: u64,
    draw: Draw,
    /// The number of the next call without a session.
    next: AtomicU64,
    /// A bit for each session of which a call has ended. Sessions may share one.
    ended_sessions: Box<[AtomicU64]>,
    /// Whether the candidate gets calls.
    is_open: AtomicBool,
    judge: Mutex<Judge>,
    /// Set once, with the judge's decision.
    decision: Mutex<Option<Decision>>,
    decided: Notify,
    shadow_calls: Arc<Semaphore>,
    skipped: AtomicU64,
    metrics: RolloutMetrics,
}

impl Trial {
    pub(crate) fn new(policy: Rollout, draw: Draw, now: Instant, metrics: RolloutMetrics) -> Arc<Self> {
        metrics.share.set(policy.share);
        Arc::new(Self {
            // Saturates at the highest number.
            share: (policy.share * 2_f64.powi(64)) as u64,
            draw,
            next: AtomicU64::new(0),
            ended_sessions: (0..SESSION_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
            is_open: AtomicBool::new(true),
            judge: Mutex::new(Judge::new(policy.clone(), now)),
            decision: Mutex::default(),
            decided: Notify::new(),
            shadow_calls: Arc::new(Semaphore::new(MAX_SHADOW_CALLS)),
            skipped: AtomicU64::new(0),
            metrics,
            policy,
        })
    }

    /// Whether the candidate answers the next call.
    pub(crate) fn is_for_candidate(&self, session: Option<SessionKey>) -> bool {
        !self.policy.is_shadow && self.is_open() && self.is_within_share(session)
    }

    /// Whether the candidate runs the next call as well.
    pub(crate) fn is_for_shadow(&self, session: Option<SessionKey>) -> bool {
        self.policy.is_shadow && self.is_open() && self.is_within_share(session)
    }

    /// Room for one more copied call.
    pub(crate) fn shadow_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shadow_calls).try_acquire_owned().ok()
    }

    /// A call was not copied, because there was no room.
    pub(crate) fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn policy(&self) -> &Rollout {
        &self.policy
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    fn is_within_share(&self, session: Option<SessionKey>) -> bool {
        let place = match session {
            Some(session) => self.draw.of_session(session),
            None => self.draw.of_call(self.next.fetch_add(1, Ordering::Relaxed)),
        };
        place < self.share
    }

    /// A call of one of the revisions has ended.
    pub(crate) fn observe(&self, role: TrialRole, session: Option<SessionKey>, observation: Observation) {
        // Callers never learn what a shadow does.
        let is_judged = self.policy.is_shadow || session.is_none_or(|session| self.is_first_end(session));
        if !is_judged || !self.is_open() {
            return;
        }
        match observation {
            Observation::Succeeded(latency) => self.metrics.succeeded(role, latency),
            Observation::Failed => self.metrics.failed(role),
            Observation::Late(_) | Observation::Nothing => {}
        }
        let mut judge = self.judge.lock();
        judge.observe(role, observation);
        // A call of the current revision proves nothing against the candidate.
        if role == TrialRole::Candidate
            && let Some(decision) = judge.decide(clock::now())
        {
            drop(judge);
            self.conclude(decision);
        }
    }

    /// Whether no call of this session has ended before.
    fn is_first_end(&self, session: SessionKey) -> bool {
        // The lowest bits: the highest decide which revision the session gets.
        let place = self.draw.of_session(session) % SESSION_BITS;
        let bit = 1 << (place % 64);
        self.ended_sessions[(place / 64) as usize].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// The answers of both revisions were compared.
    pub(crate) fn compare(&self, agrees: bool) {
        if self.is_open() {
            self.metrics.compared(agrees);
            self.judge.lock().compare(agrees);
        }
    }

    /// Ends the trial, unless it has ended. The candidate gets no more calls from now on.
    fn conclude(&self, decision: Decision) {
        let mut decided = self.decision.lock();
        if decided.is_none() {
            self.is_open.store(false, Ordering::Release);
            *decided = Some(decision);
            self.decided.notify_one();
        }
    }

    /// Ends the trial by an order from outside of it.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        self.metrics.share.set(0.0);
    }

    /// Waits for the judge's decision, at most until the time limit.
    pub(crate) async fn concluded(&self) -> Decision {
        let ends_at = self.judge.lock().ends_at();
        loop {
            // Created before the check, so that a decision in between is noticed.
            let decided = self.decided.notified();
            if let Some(decision) = self.decision.lock().clone() {
                return decision;
            }
            if tokio::time::timeout_at(ends_at, decided).await.is_err()
                && let Some(decision) = { self.judge.lock().decide(ends_at) }
            {
                self.conclude(decision);
            }
        }
    }

    /// Observations of a revision so far.
    pub(crate) fn describe(&self, role: TrialRole) -> RevisionDescription {
        let judge = self.judge.lock();
        let Observed { outcomes, latencies } = judge.observed(role);
        RevisionDescription {
            calls: outcomes.calls,
            failed: outcomes.failed,
            error_rate: outcomes.rate(),
            p50: latencies.quantile(0.5),
            p95: latencies.quantile(0.95),
        }
    }

    /// The compared answers, and the part that agrees; and the calls that were not copied for want of room.
    pub(crate) fn agreement(&self) -> (u64, Option<f64>, u64) {
        let compared: Tally = self.judge.lock().compared();
        let agreement = (compared.calls > 0).then(|| 1.0 - compared.rate());
        (compared.calls, agreement, self.skipped.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::metrics::NodeMetrics;

    fn trial(policy: Rollout) -> Arc<Trial> {
        Trial::new(policy, Draw::from_seed(7), Instant::now(), NodeMetrics::new().rollout(&"/a".into()))
    }

    proptest! {
        #[test]
        fn a_session_stays_with_its_revision(name: String) {
            let trial = trial(Rollout::canary(0.5));
            let session = Some(SessionKey::new(&name));
            let first = trial.is_for_candidate(session);
            for _ in 0..10 {
                trial.is_for_candidate(None);
                prop_assert_eq!(trial.is_for_candidate(session), first);
            }
        }
    }

    #[test]
    fn calls_and_sessions_are_split_by_share() {
        let trial = trial(Rollout::canary(0.05));
        let taken = (0..10_000).filter(|_| trial.is_for_candidate(None)).count();
        let sessions = (0..10_000).filter(|n| trial.is_for_candidate(Some(SessionKey::new(&n.to_string())))).count();
        assert!((400..600).contains(&taken) && (400..600).contains(&sessions), "{taken} calls, {sessions} sessions");
    }

    #[test]
    fn each_rollout_draws_otherwise() {
        let drawn = |draw: Draw| {
            let session = |n: u64| SessionKey::from_number(n + 1).unwrap();
            (0..64).map(|n| (draw.of_call(n), draw.of_session(session(n)))).collect::<Vec<_>>()
        };
        assert_eq!(drawn(Draw::from_seed(1)), drawn(Draw::from_seed(1)));
        assert_ne!(drawn(Draw::from_seed(1)), drawn(Draw::from_seed(2)));
        assert_ne!(drawn(Draw::from_system()), drawn(Draw::from_system()));
    }

    #[test]
    fn of_a_session_only_the_first_call_is_judged_whatever_its_end() {
        let trial = trial(Rollout::canary(0.5));
        let session = |name: &str| Some(SessionKey::new(name));
        trial.observe(TrialRole::Candidate, session("a"), Observation::Failed);
        trial.observe(TrialRole::Candidate, session("a"), Observation::Failed);
        trial.observe(TrialRole::Candidate, session("b"), Observation::Nothing);
        trial.observe(TrialRole::Candidate, session("b"), Observation::Failed);
        trial.observe(TrialRole::Candidate, None, Observation::Failed);
        trial.observe(TrialRole::Candidate, None, Observation::Failed);
        assert_eq!(trial.describe(TrialRole::Candidate).failed, 3);
        // Hardly any of them share a bit.
        (0..1_000).for_each(|n| {
            trial.observe(TrialRole::Current, session(&n.to_string()), Observation::Succeeded(Duration::ZERO));
        });
        assert!(trial.describe(TrialRole::Current).calls > 990);
    }

    #[test]
    fn every_call_of_a_shadow_is_judged() {
        let trial = trial(Rollout::shadow(0.5));
        for _ in 0..5 {
            trial.observe(TrialRole::Current, Some(SessionKey::new("a")), Observation::Failed);
        }
        assert_eq!(trial.describe(TrialRole::Current).failed, 5);
    }

    #[test]
    fn a_shadow_has_copies_of_its_share_and_a_canary_has_calls() {
        let of = |policy| {
            let trial = trial(policy);
            let count = |is_taken: &dyn Fn() -> bool| (0..100).filter(|_| is_taken()).count();
            let taken = (count(&|| trial.is_for_candidate(None)), count(&|| trial.is_for_shadow(None)));
            trial.close();
            assert_eq!((count(&|| trial.is_for_candidate(None)), count(&|| trial.is_for_shadow(None))), (0, 0));
            taken
        };
        let (calls, copies) = of(Rollout::shadow(0.5));
        assert!(calls == 0 && (20..80).contains(&copies), "{calls} {copies}");
        let (calls, copies) = of(Rollout::canary(0.5));
        assert!(copies == 0 && (20..80).contains(&calls), "{calls} {copies}");
    }

    #[test]
    fn copies_run_a_few_at_a_time() {
        let trial = trial(Rollout::shadow(0.5));
        let places: Vec<_> = std::iter::from_fn(|| trial.shadow_place()).collect();
        assert_eq!(places.len(), MAX_SHADOW_CALLS);
        drop(places);
        assert!(trial.shadow_place().is_some());
    }

    #[test]
    fn answers_are_compared_and_skipped_calls_counted_until_the_end() {
        let trial = trial(Rollout::shadow(0.5));
        assert_eq!(trial.agreement(), (0, None, 0));
        trial.skip();
        trial.skip();
        [true, false, true, true].into_iter().for_each(|agrees| trial.compare(agrees));
        assert_eq!(trial.agreement(), (4, Some(0.75), 2));
        trial.close();
        trial.compare(true);
        assert_eq!(trial.agreement(), (4, Some(0.75), 2));
    }

    #[test]
    fn after_the_decision_the_candidate_gets_no_call() {
        let trial = trial(Rollout::canary(0.9));
        for _ in 0..100 {
            trial.observe(TrialRole::Current, None, Observation::Succeeded(Duration::ZERO));
        }
        assert!((0..10).any(|_| trial.is_for_candidate(None)));
        for _ in 0..20 {
            trial.observe(TrialRole::Candidate, None, Observation::Failed);
        }
        assert!((0..100).all(|_| !trial.is_for_candidate(None)));
        assert_eq!(trial.describe(TrialRole::Candidate).error_rate, 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_limit_concludes_a_trial_without_calls() {
        let trial = trial(Rollout::canary(0.5).time_limit(Duration::from_secs(60)));
        let begin = Instant::now();
        let decision = trial.concluded().await;
        assert_eq!(begin.elapsed().as_secs(), 60);
        assert!(decision.reason.contains("0 of 200 calls"), "{decision:?}");
    }
}
