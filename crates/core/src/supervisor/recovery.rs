//! A stage that has failed: it answers its callers with the reason, and tries again by itself.
//!
//! * **Failed:** no replica is up, and one of them crashed in a loop or left too many threads behind. Its routes answer
//!   `Unavailable` with the time of the next try.
//! * **Half-open:** after a wait one replica is started. If it comes up the stage serves again, and its other replicas
//!   start; else the next wait is longer ([`Recovery`]), and the next replica is tried: what one of them needs, such
//!   as its device, may be gone. Of a stage that scales only those count that it had: others would be surplus at once.
//! * While another replica is up, the stage is only degraded, and the replica in the loop has these waits.
//! * A stage that may have no replica is unloaded instead: its next call after the wait is the try.

use ractor::ActorRef;

use super::deployment::{DeploymentState, ReplicaRecord};
use super::message::DeploymentMessage;
use crate::clock::{self, Instant};
use crate::pool::{BatcherMessage, StageState};
use crate::restart::Recovery;
use crate::text::limit_error_text;

/// With more abandoned threads than this many times `max_abandoned_threads`, only their return lets a replica start:
/// the tries of a stage whose every call hangs must not add threads for ever.
const THREADS_CEILING: usize = 2;

/// The failures of a stage, as its supervisor knows them.
#[derive(Debug, Default)]
pub(super) struct FailedStage {
    recovery: Recovery,
    state: FailedState,
    /// The count of tries that have failed.
    tries: usize,
    /// The replicas that wait for abandoned threads to return.
    waits_for_threads: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum FailedState {
    #[default]
    Serving,
    /// The next try comes then.
    Waiting(Instant),
    /// Its trial replica starts.
    Trying,
}

impl FailedStage {
    pub(super) fn is_failed(&self) -> bool {
        self.state != FailedState::Serving
    }
}

impl DeploymentState {
    /// A replica cannot be started again for now.
    pub(super) fn give_up(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize, reason: String) {
        let (now, reason) = (clock::now(), limit_error_text(reason));
        let wait = self.failed.recovery.failed(now, fastrand::f64());
        self.failed.waits_for_threads = self.has_too_many_abandoned_threads();
        let stage = self.pool.name();
        if self.replicas[..self.pool.replicas.target()].iter().any(ReplicaRecord::is_up) {
            tracing::error!(
                parent: None, %stage, replica = index, reason, ?wait, "replica waits before it starts again"
            );
            return self.restart_after(myself, index, wait, reason);
        }
        tracing::error!(parent: None, %stage, reason, retry_after = ?wait, "stage has failed");
        self.part_with_all();
        if self.pool.settings().scaling().may_be_zero() {
            return self.unload(now, now + wait, reason);
        }
        self.scale.refuse_change(&reason);
        self.wait_for_trial(myself, now + wait, reason);
    }

    /// The replica that was to bring the stage back did not start, or ended at once.
    pub(super) fn trial_failed(&mut self, myself: &ActorRef<DeploymentMessage>, reason: String) {
        if self.failed.state != FailedState::Trying {
            return;
        }
        let now = clock::now();
        self.failed.tries = self.failed.tries.wrapping_add(1);
        let wait = self.failed.recovery.failed(now, fastrand::f64());
        tracing::warn!(
            parent: None, stage = %self.pool.name(), reason, retry_after = ?wait, "stage has not started again"
        );
        self.scale.refuse_change(&format!("{reason}; it tries again in {wait:.1?}"));
        self.wait_for_trial(myself, now + wait, reason);
    }

    fn wait_for_trial(&mut self, myself: &ActorRef<DeploymentMessage>, at: Instant, reason: String) {
        self.failed.state = FailedState::Waiting(at);
        self.pool.fail(reason, at);
        self.pool.tell_batcher(BatcherMessage::Close);
        myself.send_after(at.saturating_duration_since(clock::now()), || DeploymentMessage::TryAgain);
    }

    /// The timer of a wait. It may be that of an earlier one.
    pub(super) fn try_again_if_due(&mut self, myself: &ActorRef<DeploymentMessage>) {
        if matches!(self.failed.state, FailedState::Waiting(at) if clock::now() >= at) {
            self.try_again(myself);
        }
    }

    /// The threads for which the stage waited have returned: it need not wait longer.
    pub(super) fn try_again_if_threads_returned(&mut self, myself: &ActorRef<DeploymentMessage>) {
        if !self.failed.waits_for_threads || self.has_too_many_abandoned_threads() {
            return;
        }
        self.failed.waits_for_threads = false;
        if self.failed.is_failed() {
            self.try_again(myself);
        }
        for index in 0..self.pool.replicas.target() {
            if self.replicas[index].is_restart_due {
                self.start_replica(myself, index);
            }
        }
    }

    /// An operator wants this number of replicas of a failed stage, and may have mended it: it tries at once.
    pub(super) fn try_again_with(&mut self, myself: &ActorRef<DeploymentMessage>, replicas: usize) {
        self.pool.replicas.set_target(replicas);
        if self.replicas.len() < replicas {
            self.replicas.resize_with(replicas, ReplicaRecord::default);
        }
        self.try_again(myself);
    }

    /// Starts one replica of a failed stage, which stays failed until the replica is up.
    fn try_again(&mut self, myself: &ActorRef<DeploymentMessage>) {
        if self.is_stopping || !matches!(self.failed.state, FailedState::Waiting(_)) {
            return;
        }
        self.failed.state = FailedState::Trying;
        if self.must_wait_for_threads() {
            return self.trial_failed(myself, self.hung_threads());
        }
        // A replica that still starts is the try.
        let trial = self.failed.tries % self.pool.replicas.target().max(1);
        if !self.replicas[trial].is_up_or_starting() {
            self.pool.metrics.restarts.inc();
            self.start_replica(myself, trial);
        }
    }

    /// Starts a replica whose turn it is, or when threads have returned.
    pub(super) fn start_unless_threads_hang(&mut self, myself: &ActorRef<DeploymentMessage>, index: usize) {
        if self.must_wait_for_threads() {
            self.replicas[index].is_restart_due = true;
        } else {
            self.start_replica(myself, index);
        }
    }

    pub(super) fn must_wait_for_threads(&mut self) -> bool {
        let ceiling = self.pool.settings().max_abandoned_threads().saturating_mul(THREADS_CEILING);
        let must_wait = self.pool.replicas.abandoned_threads() > ceiling;
        self.failed.waits_for_threads |= must_wait;
        must_wait
    }

    pub(super) fn hung_threads(&self) -> String {
        format!("{} of its threads hang in user code", self.pool.replicas.abandoned_threads())
    }

    /// A replica is up: the stage serves again, and its other replicas start.
    pub(super) fn recover(&mut self, myself: &ActorRef<DeploymentMessage>) {
        let is_back = std::mem::take(&mut self.failed.state) != FailedState::Serving;
        if self.replicas[..self.pool.replicas.target()].iter().all(ReplicaRecord::is_up) {
            self.failed.recovery.recovered(clock::now());
        }
        if !is_back {
            return;
        }
        self.failed.waits_for_threads = false;
        tracing::info!(parent: None, stage = %self.pool.name(), "stage is back");
        self.pool.tell_batcher(BatcherMessage::Open);
        self.pool.enter(StageState::Degraded, Some("it starts again after it had failed".to_owned()));
        for index in 0..self.pool.replicas.target() {
            if !self.replicas[index].is_up_or_starting() {
                self.start_unless_threads_hang(myself, index);
            }
        }
    }

    /// Ends what is left of a failed stage. Replicas that are still starting may serve as its trial.
    fn part_with_all(&mut self) {
        for replica in &mut self.replicas {
            replica.is_restart_due = false;
            replica.handle = None;
        }
        for handle in self.pool.replicas.all() {
            handle.set_leaving();
            handle.actor().stop(None);
        }
    }
}
