//! The line of the table about the rollout of a route, and what a description shows of it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::trial::Trial;
use crate::clock::Instant;
use crate::id::RouteName;
use crate::metrics::TrialRole;
use crate::router::Route;

/// The state of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RolloutState {
    /// The candidate gets its share of the calls.
    Running,
    /// The candidate has taken over.
    Promoted,
    /// The candidate is gone, or is leaving.
    RolledBack,
}

/// The running rollout of a route, or the last one.
#[derive(Clone, Debug)]
pub(crate) struct RolloutRecord {
    pub(crate) route: RouteName,
    pub(crate) trial: Arc<Trial>,
    /// The number of the change that started it: the candidate's.
    pub(crate) revision: u64,
    pub(crate) state: RolloutState,
    /// When it entered this state.
    pub(crate) since: Instant,
    pub(crate) reason: Option<String>,
    /// The open route that the table does not name: the candidate of a running rollout, or the old revision that is
    /// kept after a promotion.
    pub(crate) beside: Option<Arc<Route>>,
}

impl RolloutRecord {
    pub(crate) fn is_running(&self) -> bool {
        self.state == RolloutState::Running
    }

    /// When the kept revision ends.
    pub(crate) fn kept_until(&self) -> Instant {
        self.since + self.trial.policy().keep
    }

    pub(crate) fn enter(&mut self, state: RolloutState, reason: &str, now: Instant) {
        self.trial.close();
        (self.state, self.since, self.reason) = (state, now, Some(reason.to_owned()));
    }

    pub(crate) fn describe(&self, now: Instant) -> RolloutDescription {
        let (compared, agreement, skipped) = self.trial.agreement();
        RolloutDescription {
            state: self.state,
            age: now.saturating_duration_since(self.since),
            reason: self.reason.clone(),
            mode: self.trial.policy().mode(),
            share: if self.is_running() { self.trial.policy().share } else { 0.0 },
            revision: self.revision,
            min_calls: self.trial.policy().min_calls,
            current: self.trial.describe(TrialRole::Current),
            candidate: self.trial.describe(TrialRole::Candidate),
            compared,
            agreement,
            skipped,
            can_roll_back: self.beside.is_some(),
        }
    }
}

/// The running rollout of a route, or the last one.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RolloutDescription {
    /// Its state.
    pub state: RolloutState,
    /// The time in that state.
    pub age: Duration,
    /// The reason of the last decision.
    pub reason: Option<String>,
    /// `canary` or `shadow`.
    pub mode: &'static str,
    /// The share of the calls that the candidate gets now.
    pub share: f64,
    /// The revision of the candidate.
    pub revision: u64,
    /// The calls of the candidate that a promotion needs.
    pub min_calls: u64,
    /// Observations of the current revision during the rollout.
    pub current: RevisionDescription,
    /// Observations of the candidate during the rollout.
    pub candidate: RevisionDescription,
    /// The answers of a shadow that were compared.
    pub compared: u64,
    /// The part of them that agrees with those of the current revision.
    pub agreement: Option<f64>,
    /// Calls that were not copied to a shadow, because there was no room.
    pub skipped: u64,
    /// Whether a rollback is possible now: the rollout runs, or the old revision is still kept.
    pub can_roll_back: bool,
}

/// Observations of one revision during a rollout.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RevisionDescription {
    /// Its calls that succeeded, or failed by its own fault.
    pub calls: u64,
    /// The failed ones.
    pub failed: u64,
    /// The part of them that failed.
    pub error_rate: f64,
    /// The median time of the successful calls.
    pub p50: Option<Duration>,
    /// The time that 95 % of the successful calls did not exceed.
    pub p95: Option<Duration>,
}
