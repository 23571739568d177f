//! What both revisions of a route share while a rollout runs: which of them takes a call, and the judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::confidence::Tally;
use super::judge::{Decision, Judge, Observed};
use super::policy::Rollout;
use super::record::RevisionDescription;
use crate::call::SessionKey;
use crate::clock::{self, Instant};
use crate::metrics::{RolloutMetrics, TrialRole};
use crate::splitmix64::splitmix64;

/// The step of a sequence that spreads evenly over all numbers: 2⁶⁴ divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Copied calls of a shadow at a time: enough to judge a revision, and too few to slow the others down.
const MAX_SHADOW_CALLS: usize = 16;

/// A running rollout. Calls read and feed it without the router's actor.
#[derive(Debug)]
pub(crate) struct Trial {
    policy: Rollout,
    /// The share, of 2⁶⁴.
    share: u64,
    /// The place of the next call in an even sequence, instead of chance: 5 % is 5 %, and no period of the callers
    /// meets it.
    place: AtomicU64,
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
    pub(crate) fn new(policy: Rollout, now: Instant, metrics: RolloutMetrics) -> Arc<Self> {
        metrics.share.set(policy.share);
        Arc::new(Self {
            // Saturates at the highest number.
            share: (policy.share * 2_f64.powi(64)) as u64,
            // The first call of the candidate comes neither at once nor last.
            place: AtomicU64::new(1 << 63),
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
            Some(session) => splitmix64(session.number()),
            None => self.place.fetch_add(GOLDEN, Ordering::Relaxed),
        };
        place < self.share
    }

    /// A call of one of the revisions has ended: after this time, or failed by the revision's own fault.
    pub(crate) fn observe(&self, role: TrialRole, outcome: Result<Duration, ()>) {
        if !self.is_open() {
            return;
        }
        self.metrics.count(role, outcome);
        let mut judge = self.judge.lock();
        judge.observe(role, outcome);
        // A call of the current revision proves nothing against the candidate.
        if role == TrialRole::Candidate
            && let Some(decision) = judge.decide(clock::now())
        {
            drop(judge);
            self.conclude(decision);
        }
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

    /// What a revision did so far.
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
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::NodeMetrics;

    fn trial(policy: Rollout) -> Arc<Trial> {
        Trial::new(policy, Instant::now(), NodeMetrics::new().rollout(&"/a".into()))
    }

    proptest! {
        /// After any count of calls, to within a few calls.
        #[test]
        fn the_share_of_the_candidate_is_exact(share in 0.001..0.999_f64, calls in 1_u32..5_000) {
            let trial = trial(Rollout::canary(share));
            let taken = (0..calls).filter(|_| trial.is_for_candidate(None)).count();
            prop_assert!((taken as f64 - f64::from(calls) * share).abs() < 6.0, "{taken} of {calls}");
        }

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
    fn sessions_are_split_by_share() {
        let trial = trial(Rollout::canary(0.05));
        let taken = (0..10_000).filter(|n| trial.is_for_candidate(Some(SessionKey::new(&n.to_string())))).count();
        assert!((400..600).contains(&taken), "{taken}");
    }

    #[test]
    fn after_the_decision_the_candidate_gets_no_call() {
        let trial = trial(Rollout::canary(0.9));
        for _ in 0..100 {
            trial.observe(TrialRole::Current, Ok(Duration::ZERO));
        }
        assert!((0..10).any(|_| trial.is_for_candidate(None)));
        for _ in 0..20 {
            trial.observe(TrialRole::Candidate, Err(()));
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
