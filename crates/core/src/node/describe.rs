//! The health and the description of a running node. Both are cheap enough to poll.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::wanted::NodesWanted;
use crate::actor::{ActorState, ActorStatus};
use crate::client::{LocalClient, NodeState};
use crate::clock::{self, Instant};
use crate::gateway::Gateway;
use crate::id::{CallId, RouteName, StageName};
use crate::metrics::{ProcessUsage, ReplicaState, StageMetrics};
use crate::pool::{Pool, ReplicaHandle, Restart, StageState};
use crate::remote::{MemberDescription, PeerDescription};
use crate::router::{DeployedStage, RolloutDescription, Route, Table};
use crate::timeline::ReleaseReason;

/// The maximum count of calls in flight that a description lists.
const LISTED_CALLS: usize = 16;

/// The health of a node.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The process answers.
    pub live: bool,
    /// Traffic may be sent here: every stage is ready, or degraded with a replica that is up or was within the last
    /// 5 s; every stage that runs on other nodes only has a reachable node; all actors that are needed are up; a node
    /// with keyed actors has seen the nodes that it joins; the node is not draining.
    pub ready: bool,
    /// The node is about to end: it was withdrawn, or already refuses new calls.
    pub draining: bool,
    /// Each stage.
    pub stages: Vec<StageHealth>,
    /// Each stage that runs on other nodes only.
    pub remote_stages: Vec<RemoteStageHealth>,
    /// The last actors that have failed, and were not [needed](crate::actor::ActorSpec::needed): at most 16. They do
    /// not matter to the node, and their names are free.
    pub failed_actors: Vec<String>,
    /// The actors because of which the node is not ready: they are [needed](crate::actor::ActorSpec::needed) and not
    /// up.
    pub down_actors: Vec<ActorHealth>,
    /// What a node with keyed actors waits for before it has keys: it has not seen all nodes that it joins.
    pub joining: Option<String>,
}

/// The state of an actor that is down.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ActorHealth {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ActorState,
    /// Why it ended last.
    pub reason: Option<String>,
}

/// The state of one stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StageHealth {
    /// Its name.
    pub name: StageName,
    /// Its state.
    pub state: StageState,
    /// The reason of the state, if there is one.
    pub reason: Option<String>,
    /// Whether it takes calls: ready or degraded, and with a replica that is up, was up within the last 5 s, or that
    /// its next call starts.
    pub ready: bool,
}

/// The state of a stage that runs on other nodes only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RemoteStageHealth {
    /// Its name.
    pub name: StageName,
    /// Why it takes no calls, if it takes none.
    pub reason: Option<String>,
    /// Whether a node that runs it can be reached.
    pub ready: bool,
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
    /// The oldest of them, at most sixteen, oldest first.
    pub calls: Vec<CallDescription>,
    /// The nodes like this one that its load needs.
    pub nodes_wanted: NodesWanted,
    /// Calls admitted since the start.
    pub admitted: u64,
    /// Calls refused at the gateway since the start.
    pub refused: u64,
    /// Outcomes of routes since the start, successful or not. `outcomes` + `in_flight` is `admitted`, less requests
    /// with an incomplete body and calls of a single stage by another node.
    pub outcomes: u64,
    /// The routes in the order of their declaration, then closed routes with calls in flight.
    pub routes: Vec<RouteDescription>,
    /// Each stage.
    pub stages: Vec<StageDescription>,
    /// The users' actors in the order of their declaration, then the kinds of keyed actors.
    pub actors: Vec<ActorDescription>,
    /// The other nodes that its stages may run on.
    pub peers: Vec<PeerDescription>,
    /// The members of its cluster, with this node; empty if it is in none.
    pub members: Vec<MemberDescription>,
}

/// One call in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CallDescription {
    /// Its number on this node.
    pub id: CallId,
    /// Its route.
    pub route: RouteName,
    /// The time since its admission.
    pub age: Duration,
}

/// Why a replica was started again.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RestartDescription {
    /// The index of the replica.
    pub replica: usize,
    /// How long ago.
    pub age: Duration,
    /// Why its last life ended.
    pub reason: String,
}

/// One actor of a user, or one kind of keyed actors: its mailbox has the messages that wait for all keys, and its
/// restarts are the crashes of keys.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ActorDescription {
    /// Its name. That of a kind begins with `keyed:`.
    pub name: String,
    /// The group that supervises it.
    pub group: String,
    /// Its state.
    pub state: ActorState,
    /// The time in that state.
    pub age: Duration,
    /// Waiting messages.
    pub waiting: usize,
    /// The bound of the mailbox.
    pub mailbox: usize,
    /// Messages refused by the full mailbox.
    pub refused: u64,
    /// Starts after the first.
    pub restarts: u64,
    /// Why it ended the last times, the newest last. At most eight.
    pub reasons: Vec<String>,
    /// The keys of a kind that are active on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_keys: Option<usize>,
}

/// One route.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RouteDescription {
    /// Its public name.
    pub name: RouteName,
    /// The number of the change that opened it; the start has number 1.
    pub revision: u64,
    /// Its pipeline in one line, as [`PipelinePlan`](crate::description::PipelinePlan) writes it.
    pub pipeline: String,
    /// Whether it was replaced or removed, and only finishes its calls.
    pub closed: bool,
    /// Its running rollout, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutDescription>,
}

/// One stage in detail.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StageDescription {
    /// State and reason.
    #[serde(flatten)]
    pub health: StageHealth,
    /// The number of the change that started it; the start of the node has number 1.
    pub revision: u64,
    /// Its part in the table: only a serving stage gets new calls.
    pub part: StagePart,
    /// What operators should know of it, such as why it runs items one by one; see
    /// [`StageSettings::note`](crate::StageSettings::note) and [`Replica::leave_note`](crate::Replica::leave_note).
    pub note: Option<String>,
    /// The stage whose replicas run it, if it has none of its own.
    pub replicas_of: Option<StageName>,
    /// Entries waiting.
    pub queued: usize,
    /// The bound of the queue.
    pub queue_limit: usize,
    /// The largest batch.
    pub max_batch_size: usize,
    /// Batches released since the start.
    pub batches: u64,
    /// The recent mean duration of a batch.
    pub batch_estimate: Duration,
    /// The fixed part of a batch's duration, fitted to the measured batches.
    pub cost_per_batch: Duration,
    /// The duration of each unit of cost: an entry, or a unit of the stage's cost function.
    pub cost_per_unit: Duration,
    /// The mean count of entries per batch, 0 before the first. Like `batches` and `releases`, it covers all revisions
    /// of this name.
    pub mean_batch_size: f64,
    /// Batches, by the reason for their release.
    pub releases: Vec<(ReleaseReason, u64)>,
    /// Replicas started again after a crash.
    pub restarts: u64,
    /// The last restarts, at most eight, the newest last.
    pub last_restarts: Vec<RestartDescription>,
    /// The number of replicas that it should have, and why.
    pub scaling: ScalingDescription,
    /// The replicas that are up.
    pub replicas: Vec<ReplicaDescription>,
}

/// The number of replicas that a stage should have.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ScalingDescription {
    /// The fewest. With 0 the stage is loaded by its first call.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// The number that it should have now.
    pub target: usize,
    /// The last change of that number.
    pub last: Option<ScaleDescription>,
}

/// A change of the number of replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScaleDescription {
    /// The number before.
    pub from: usize,
    /// The number after.
    pub to: usize,
    /// Why.
    pub reason: String,
    /// How long ago.
    pub age: Duration,
}

/// The part of a stage in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StagePart {
    /// The stage warms up for a change that has not taken effect yet.
    Starting,
    /// Routes lead to it.
    Serving,
    /// It belongs to the candidate of a rollout, or to the revision that is kept after one.
    Beside,
    /// No route leads to it any more: it finishes its calls, and ends.
    Ending,
}

/// One replica that is up.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ReplicaDescription {
    /// Its number.
    pub index: usize,
    /// The count of its earlier starts.
    pub generation: u64,
    /// The age of this life.
    pub age: Duration,
    /// Whether it runs a batch now.
    pub busy: bool,
    /// Whether it will leave, because its stage was scaled down.
    pub leaving: bool,
    /// Batches completed in this life.
    pub batches: u64,
    /// What its process uses, if its code runs in one of its own and the system tells.
    pub process: Option<ProcessUsage>,
}

impl LocalClient {
    /// Whether the node is alive and ready, and the state of each stage.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The running tree: stages, replicas, queues, calls in flight.
    #[must_use]
    pub fn describe(&self) -> Description {
        self.shared.describe()
    }

    /// The metrics as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.encode_metrics()
    }
}

impl NodeState {
    pub(crate) fn health(&self) -> Health {
        let table = self.router.table();
        // A stage that warms up for a change, or finishes after one, does not affect the health of the routes.
        let stages: Vec<_> = table.serving().iter().filter(|stage| table.is_routed(stage)).map(stage_health).collect();
        let live = self.alive.load(Ordering::Acquire);
        let draining = self.withdrawn.load(Ordering::Acquire) || self.gateway.is_draining();
        let down = |actor: &Arc<ActorStatus>| {
            let (state, _, _, mut reasons) = actor.life();
            let is_down = actor.is_needed() && state != ActorState::Up;
            is_down.then(|| ActorHealth { name: actor.name().to_owned(), state, reason: reasons.pop() })
        };
        let down_actors: Vec<ActorHealth> = self.directory.statuses().iter().filter_map(down).collect();
        let failed_actors = self.directory.failed();
        let remote_stages = self.remote_stage_health(&table);
        let all_run = stages.iter().all(|stage| stage.ready) && remote_stages.iter().all(|stage| stage.ready);
        let joining = self.keyed.join_reason(&self.router.cluster);
        let ready = live && !draining && down_actors.is_empty() && all_run && joining.is_none();
        Health { live, ready, draining, stages, remote_stages, failed_actors, down_actors, joining }
    }

    /// The stages of the open routes, each once.
    fn remote_stage_health(&self, table: &Table) -> Vec<RemoteStageHealth> {
        let cluster = self.router.cluster.stages();
        let mut stages: Vec<RemoteStageHealth> = Vec::new();
        for name in table.routes().iter().flat_map(|route| route.graph().remote_stages()) {
            if !stages.iter().any(|stage| stage.name == *name) {
                let reason = match cluster {
                    None => Some("this node has not joined others"),
                    Some(cluster) if cluster.offers(name.as_str()) => None,
                    Some(_) => Some("no node that runs it can be reached"),
                };
                let (ready, reason) = (reason.is_none(), reason.map(str::to_owned));
                stages.push(RemoteStageHealth { name: name.clone(), reason, ready });
            }
        }
        stages
    }

    pub(crate) fn describe(&self) -> Description {
        let now = clock::now();
        let table = self.router.table();
        let calls = oldest_calls(&self.gateway, &table, now);
        Description {
            in_flight: self.gateway.in_flight(),
            in_flight_bytes: self.gateway.bytes(),
            oldest: calls.first().map(|call| call.age),
            calls,
            nodes_wanted: self.nodes_wanted(),
            admitted: self.gateway.admitted(),
            refused: self.metrics.refusals(),
            outcomes: outcomes(&table) + self.metrics.past_outcomes(),
            routes: describe_routes(&table, now),
            stages: table.stages().map(|stage| describe_stage(&table, stage, now)).collect(),
            actors: self.describe_actors(now),
            peers: self.router.cluster.stages().map(|cluster| cluster.peers()).unwrap_or_default(),
            members: self.router.cluster.stages().map(|cluster| cluster.members()).unwrap_or_default(),
        }
    }

    fn describe_actors(&self, now: Instant) -> Vec<ActorDescription> {
        let mut actors: Vec<_> =
            self.directory.statuses().iter().map(|actor| describe_actor(actor, None, now)).collect();
        let kinds = self.keyed.all().map(|(_, running)| &running.kind);
        actors.extend(kinds.map(|kind| describe_actor(kind.status(), Some(kind.active()), now)));
        actors
    }

    /// The routes alone, which cost much less than the whole.
    pub(crate) fn describe_routes(&self) -> Vec<RouteDescription> {
        describe_routes(&self.router.table(), clock::now())
    }

    pub(crate) fn encode_metrics(&self) -> String {
        let table = self.router.table();
        for stage in table.stages() {
            let (pool, name) = (&stage.pool, stage.name());
            // The revisions of a stage share its series.
            let all = || table.stages().filter(|other| other.name() == name).map(|other| &other.pool);
            let queued = all().map(|pool| pool.queued()).sum();
            // Replicas are counted once, with the stage that has them.
            let own = || all().filter(|pool| pool.host.is_none());
            let replicas = own().map(|pool| pool.replicas.all().len()).sum();
            let abandoned: usize = own().map(|pool| pool.replicas.abandoned_threads()).sum();
            pool.metrics.abandoned_threads.set(abandoned as i64);
            let wanted: usize = own().map(|pool| pool.replicas.target()).sum();
            pool.metrics.replicas_wanted.set(wanted as i64);
            set_replica_states(&pool.metrics, &own().flat_map(|pool| pool.replicas.all()).collect::<Vec<_>>(), wanted);
            let cached = all().map(|pool| pool.cached_bytes()).sum();
            pool.metrics.set_gauges(queued, replicas, all().any(|pool| pool.health.state().is_ready()), cached);
        }
        self.keyed.all().for_each(|(_, running)| running.kind.set_series());
        let in_flight = (self.gateway.in_flight(), self.gateway.bytes());
        self.metrics.encode(in_flight, self.load(), self.nodes_wanted().nodes, &process_usages(&table))
    }
}

/// What the processes of replicas use. Two revisions of a stage may have the same replica.
fn process_usages(table: &Table) -> Vec<(StageName, usize, ProcessUsage)> {
    let own = table.stages().filter(|stage| stage.pool.host.is_none());
    own.flat_map(|stage| {
        let measure = |replica: Arc<ReplicaHandle>| Some((stage.name().clone(), replica.index(), replica.usage()?));
        stage.pool.replicas.all().into_iter().filter_map(measure)
    })
    .collect()
}

/// Counts replicas by state.
fn set_replica_states(metrics: &StageMetrics, workers: &[Arc<ReplicaHandle>], target: usize) {
    let leaving = workers.iter().filter(|handle| handle.is_leaving()).count();
    let busy = workers.iter().filter(|handle| !handle.is_leaving() && handle.running() > 0).count();
    let staying = workers.len() - leaving;
    metrics.set_replica_state(ReplicaState::Leaving, leaving);
    metrics.set_replica_state(ReplicaState::Busy, busy);
    metrics.set_replica_state(ReplicaState::Free, staying - busy);
    metrics.set_replica_state(ReplicaState::Missing, target.saturating_sub(staying));
}

/// The outcomes of all routes in the table. Revisions of a route share one count.
fn outcomes(table: &Table) -> u64 {
    let routes: HashMap<_, _> = table.all_routes().map(|route| (route.name(), route.metrics())).collect();
    routes.values().map(|metrics| metrics.outcomes()).sum()
}

fn describe_routes(table: &Table, now: Instant) -> Vec<RouteDescription> {
    let describe = |route: &Arc<Route>, closed: bool| RouteDescription {
        name: route.id().clone(),
        revision: route.revision(),
        pipeline: route.graph().plan(|pool| (pool.name(), pool.settings())).to_string(),
        closed,
        rollout: if closed { None } else { table.rollout(route.id()).map(|rollout| rollout.describe(now)) },
    };
    let open = table.routes().iter().map(|route| describe(route, false));
    open.chain(table.retiring().iter().map(|route| describe(route, true))).collect()
}

fn stage_health(stage: &Arc<DeployedStage>) -> StageHealth {
    let (state, reason) = stage.pool.health.state_and_reason();
    // A stage that may have no replica takes calls without one.
    let manned = stage.pool.settings().scaling().may_be_zero() || stage.pool.replicas.is_manned(clock::now());
    let reason = reason.or_else(|| (state.is_ready() && !manned).then(|| "no replica is up".to_owned()));
    StageHealth { name: stage.name().clone(), state, reason, ready: state.is_ready() && manned }
}

fn part_of(table: &Table, stage: &Arc<DeployedStage>) -> StagePart {
    if table.starting().iter().any(|starting| Arc::ptr_eq(starting, stage)) {
        StagePart::Starting
    } else if table.is_routed(stage) {
        StagePart::Serving
    } else if table.is_beside(stage) {
        StagePart::Beside
    } else {
        StagePart::Ending
    }
}

fn describe_stage(table: &Table, stage: &Arc<DeployedStage>, now: Instant) -> StageDescription {
    let pool = &stage.pool;
    StageDescription {
        health: stage_health(stage),
        revision: stage.revision,
        part: part_of(table, stage),
        note: pool.settings().note().or_else(|| pool.note.get()).map(str::to_owned),
        replicas_of: pool.settings().replicas_of().cloned(),
        queued: pool.queued(),
        queue_limit: pool.settings().queue().get(),
        max_batch_size: pool.policy().max_batch_size.get(),
        batches: pool.metrics.batches(),
        batch_estimate: pool.cost.mean(),
        cost_per_batch: pool.cost.line().per_batch(),
        cost_per_unit: pool.cost.line().per_unit(),
        mean_batch_size: pool.metrics.released_entries() as f64 / pool.metrics.batches().max(1) as f64,
        releases: pool.metrics.releases().to_vec(),
        restarts: pool.metrics.restarts.get(),
        last_restarts: describe_restarts(pool, now),
        scaling: describe_scaling(pool, now),
        replicas: describe_replicas(pool, now),
    }
}

fn describe_scaling(pool: &Pool, now: Instant) -> ScalingDescription {
    let scaling = pool.settings().scaling();
    let last = pool.demand.last_change().map(|change| ScaleDescription {
        from: change.from,
        to: change.to,
        reason: change.reason,
        age: now.saturating_duration_since(change.at),
    });
    ScalingDescription { min: scaling.min(), max: scaling.max().get(), target: pool.replicas.target(), last }
}

/// The oldest calls. The lock on the ledger is held for one pass over its entries.
fn oldest_calls(gateway: &Gateway, table: &Table, now: Instant) -> Vec<CallDescription> {
    let mut oldest: BinaryHeap<(Instant, CallId, u32)> = BinaryHeap::with_capacity(LISTED_CALLS + 1);
    gateway.with_lines(|lines| {
        for line in lines {
            if oldest.len() < LISTED_CALLS || oldest.peek().is_some_and(|youngest| line.since < youngest.0) {
                oldest.push((line.since, line.id, line.route.0));
                if oldest.len() > LISTED_CALLS {
                    oldest.pop();
                }
            }
        }
    });
    let names: HashMap<u32, &RouteName> = table.all_routes().map(|route| (route.index().0, route.id())).collect();
    let describe = |(since, id, route)| CallDescription {
        id,
        // A route that has ended since is not in the table any more.
        route: names.get(&route).map_or_else(|| RouteName::new("?"), |name| (*name).clone()),
        age: now.saturating_duration_since(since),
    };
    oldest.into_sorted_vec().into_iter().map(describe).collect()
}

/// The last restarts of the replicas that the stage has itself.
fn describe_restarts(pool: &Pool, now: Instant) -> Vec<RestartDescription> {
    if pool.host.is_some() {
        return Vec::new();
    }
    let describe = |restart| {
        let Restart { replica, at, reason } = restart;
        RestartDescription { replica, age: now.saturating_duration_since(at), reason }
    };
    pool.replicas.last_restarts().into_iter().map(describe).collect()
}

fn describe_actor(actor: &ActorStatus, active_keys: Option<usize>, now: Instant) -> ActorDescription {
    let (state, since, restarts, reasons) = actor.life();
    ActorDescription {
        name: actor.name().to_owned(),
        group: actor.group().to_string(),
        state,
        age: since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
        waiting: actor.waiting(),
        mailbox: actor.capacity(),
        refused: actor.refusals(),
        restarts,
        reasons,
        active_keys,
    }
}

/// The replicas that the stage has itself.
fn describe_replicas(pool: &Pool, now: Instant) -> Vec<ReplicaDescription> {
    if pool.host.is_some() {
        return Vec::new();
    }
    let describe = |handle: &Arc<ReplicaHandle>| ReplicaDescription {
        index: handle.index(),
        generation: handle.generation(),
        age: now.saturating_duration_since(handle.since()),
        busy: handle.running() > 0,
        leaving: handle.is_leaving(),
        batches: handle.batches(),
        process: handle.usage(),
    };
    let mut replicas: Vec<_> = pool.replicas.all().iter().map(describe).collect();
    replicas.sort_unstable_by_key(|replica| (replica.index, replica.generation));
    replicas
}
