//! What can be seen of a running node: its health in a word, its parts in detail. Cheap enough to poll.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::Shared;
use crate::batcher::Pool;
use crate::clock;
use crate::id::StageName;
use crate::supervisor::StageState;

/// The answer to "are you well?".
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The process answers.
    pub live: bool,
    /// Traffic may be sent here: every stage is ready or degraded, and the node is not draining.
    pub ready: bool,
    /// The node is about to end: it is not offered any more, or takes nothing new already.
    pub draining: bool,
    /// Each stage.
    pub stages: Vec<StageHealth>,
}

/// The state of one stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StageHealth {
    /// Which stage.
    pub name: StageName,
    /// Where it is in its life.
    pub state: StageState,
    /// Why, where there is something to say.
    pub reason: Option<String>,
}

/// The running tree.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Description {
    /// Calls without an outcome yet.
    pub in_flight: usize,
    /// Their payload bytes.
    pub in_flight_bytes: u64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Calls let in since the start.
    pub admitted: u64,
    /// Calls refused at the gateway since the start.
    pub refused: u64,
    /// Outcomes given since the start, successful or not. With `in_flight` they add up to `admitted`.
    pub outcomes: u64,
    /// Each stage.
    pub stages: Vec<StageDescription>,
}

/// One stage in detail.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StageDescription {
    /// State and reason.
    #[serde(flatten)]
    pub health: StageHealth,
    /// Entries waiting.
    pub queued: usize,
    /// The bound of the queue.
    pub queue_limit: usize,
    /// The largest batch.
    pub max_batch_size: usize,
    /// Batches released since the start.
    pub batches: u64,
    /// How long a batch took lately, on average.
    pub batch_estimate: Duration,
    /// The part of it that every batch takes whatever is in it, as fitted to the batches seen.
    pub cost_per_batch: Duration,
    /// What each unit of cost adds: each entry, or each unit that the stage's cost function counts.
    pub cost_per_unit: Duration,
    /// Replicas started again after a crash.
    pub restarts: u64,
    /// The replicas that are up.
    pub replicas: Vec<ReplicaDescription>,
}

/// One replica that is up.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ReplicaDescription {
    /// Its number.
    pub index: usize,
    /// How often it was started before.
    pub generation: u64,
    /// Whether it runs a batch now.
    pub busy: bool,
    /// Batches completed in this life.
    pub batches: u64,
}

impl Shared {
    pub(crate) fn health(&self) -> Health {
        let stages: Vec<StageHealth> = self.pools.iter().map(stage_health).collect();
        let draining = self.withdrawn.load(Ordering::Acquire) || self.gateway.is_draining();
        Health { live: true, ready: !draining && stages.iter().all(|stage| stage.state.is_ready()), draining, stages }
    }

    pub(crate) fn describe(&self) -> Description {
        let now = clock::now();
        let oldest = self.gateway.with_lines(|lines| lines.map(|line| line.since).min());
        Description {
            in_flight: self.gateway.in_flight(),
            in_flight_bytes: self.gateway.bytes(),
            oldest: oldest.map(|since| now.saturating_duration_since(since)),
            admitted: self.gateway.admitted(),
            refused: self.metrics.refusals(),
            outcomes: self.router.routes().iter().map(|route| route.metrics().outcomes()).sum(),
            stages: self.pools.iter().map(describe_stage).collect(),
        }
    }

    pub(crate) fn encode_metrics(&self) -> String {
        for pool in &self.pools {
            pool.metrics().set_gauges(pool.queued(), pool.workers().len(), pool.state().0.is_ready());
        }
        self.metrics.encode(self.gateway.in_flight(), self.gateway.bytes())
    }
}

fn stage_health(pool: &Arc<Pool>) -> StageHealth {
    let (state, reason) = pool.state();
    StageHealth { name: pool.name().clone(), state, reason }
}

fn describe_stage(pool: &Arc<Pool>) -> StageDescription {
    StageDescription {
        health: stage_health(pool),
        queued: pool.queued(),
        queue_limit: pool.settings().queue().get(),
        max_batch_size: pool.policy().max_batch_size.get(),
        batches: pool.metrics().batches(),
        batch_estimate: pool.cost().mean(),
        cost_per_batch: pool.cost().line().per_batch(),
        cost_per_unit: pool.cost().line().per_unit(),
        restarts: pool.metrics().restarts(),
        replicas: pool
            .workers()
            .iter()
            .map(|slot| ReplicaDescription {
                index: slot.index(),
                generation: slot.generation(),
                busy: slot.is_busy(),
                batches: slot.batches(),
            })
            .collect(),
    }
}
