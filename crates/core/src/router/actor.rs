//! The owner of the table: carries out changes one after the other, and renews a stage after its supervisor died.
//!
//! It never waits: tasks do the slow work and report back, so the node can be stopped at any moment. Important state is
//! in the table that the handles share, so a new actor continues after a crash.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::AbortHandle;

use super::change::{AppliedChange, ChangeError, RouteChange, SettlementGuard};
use super::deployed_stage::DeployedStage;
use super::handle::Router;
use super::message::{ChangeReply, RouterMessage};
use super::rollout::{Decision, RolloutRecord};
use super::route::Route;
use super::table::Table;
use crate::clock;
use crate::executor::Watchdog;
use crate::host::HostNode;
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::{DecisionCause, SharedMetrics, Verdict};
use crate::pool::StageState;
use crate::restart::{Recovery, RestartDecision, RestartIntensity, RestartWindow};
use crate::supervisor::{DeploymentActor, DeploymentArgs, Places};

pub(crate) struct RouterActor;

#[derive(Clone)]
pub(crate) struct RouterArgs {
    pub(crate) router: Arc<Router>,
    pub(crate) metrics: SharedMetrics,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The node, for user code.
    pub(crate) node: Arc<dyn HostNode>,
    /// The places in memory, which the stages share.
    pub(crate) places: Arc<Places>,
    /// Stages are the root's children: they survive a crash of the router.
    pub(crate) root: ActorCell,
}

pub(crate) struct RouterState {
    parts: RouterArgs,
    table: Table,
    waiting: VecDeque<Work>,
    current: Option<Work>,
    /// The deaths of supervisors by stage.
    deaths: HashMap<StageName, Deaths>,
    /// The tasks that wait for the end of a rollout, or of a kept revision.
    waits: HashMap<RouteName, AbortOnDrop>,
    is_stopping: bool,
}

/// The deaths of one stage's supervisors.
struct Deaths {
    window: RestartWindow,
    recovery: Recovery,
}

/// Work that is done one after the other.
enum Work {
    Change {
        change: RouteChange,
        reply: Option<ChangeReply>,
        _turn: OwnedSemaphorePermit,
    },
    /// Start another life of a stage whose supervisor died.
    Renew(Arc<DeployedStage>),
}

/// A task that ends with its owner.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Gets the outcome of a supervisor once: all replicas are up, or the reason why not.
type FirstStart = oneshot::Receiver<Result<(), String>>;

impl Actor for RouterActor {
    type Msg = RouterMessage;
    type State = RouterState;
    type Arguments = RouterArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<RouterMessage>,
        parts: RouterArgs,
    ) -> Result<RouterState, ActorProcessingErr> {
        let table = Table::clone(&parts.router.table());
        parts.router.set_actor(myself.clone());
        let mut state = RouterState {
            parts,
            table,
            waiting: VecDeque::new(),
            current: None,
            deaths: HashMap::new(),
            waits: HashMap::new(),
            is_stopping: false,
        };
        state.take_over(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<RouterMessage>,
        message: RouterMessage,
        state: &mut RouterState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RouterMessage::Change { change, reply, turn } => {
                state.waiting.push_back(Work::Change { change, reply: Some(reply), _turn: turn });
            }
            RouterMessage::Order { route, verdict, reply, turn: _turn } => {
                let done =
                    if state.is_stopping { Err(ChangeError::Ending) } else { state.order(&myself, &route, verdict) };
                let _ = reply.send(done);
            }
            RouterMessage::Decided(route, decision) => state.decided(&myself, &route, &decision),
            RouterMessage::KeptLongEnough(route) => state.release_kept(&myself, &route),
            RouterMessage::Started(outcome, reply) => state.started(&myself, outcome, reply),
            RouterMessage::RouteEmptied(index, unsettled) => state.route_emptied(&myself, index, &unsettled),
            RouterMessage::StageEnded(stage, _unsettled) => state.stage_ended(&stage),
            RouterMessage::Renew(dead) => state.waiting.push_back(Work::Renew(dead)),
            RouterMessage::SupervisorDied { who, why } => state.supervisor_died(&myself, who, &why),
            RouterMessage::Stop { within, stopped } => state.stop(within, stopped),
        }
        while state.current.is_none()
            && let Some(work) = state.waiting.pop_front()
        {
            state.begin(&myself, work).await;
        }
        Ok(())
    }
}

impl RouterState {
    /// Continues after a crash of the last actor. The callers of waiting changes were notified by their dropped ports.
    fn take_over(&mut self, myself: &ActorRef<RouterMessage>) {
        self.table.abandon_start();
        for stage in self.table.ending().to_vec() {
            self.end(myself, stage, None);
        }
        for route in self.table.retiring().to_vec() {
            let (unsettled, _) = AppliedChange::pair(0);
            self.await_empty(myself, route, unsettled);
        }
        self.await_rollouts(myself);
    }

    fn publish(&self) {
        self.parts.router.publish(self.table.clone());
    }

    /// Starts the stages that this work needs. `Started` reports the outcome.
    async fn begin(&mut self, myself: &ActorRef<RouterMessage>, work: Work) {
        let (specs, work, reply) = match work {
            Work::Change { reply: Some(reply), .. } if reply.is_closed() => return,
            Work::Change { change, mut reply, _turn } => {
                let plan = if self.is_stopping { Err(ChangeError::Ending) } else { self.table.plan(&change) };
                let asker = reply.take();
                match plan {
                    Ok(specs) => {
                        self.table.begin(&change);
                        let with_replicas = |spec| (self.table.first_replicas(&change, &spec), spec);
                        let specs: Vec<_> = specs.into_iter().map(with_replicas).collect();
                        (specs, Work::Change { change, reply: None, _turn }, asker)
                    }
                    Err(refused) => return answer(asker, Err(refused)),
                }
            }
            // A change has replaced the stage.
            Work::Renew(dead) if self.is_stopping || !self.table.is_routed(&dead) => return,
            Work::Renew(dead) => {
                let target = dead.pool.replicas.target();
                let lost = [Arc::clone(&dead)].into_iter().chain(self.table.hosted_by(&dead));
                let specs = lost.map(|stage| (target, Arc::clone(stage.spec()))).collect();
                (specs, Work::Renew(dead), None)
            }
        };
        let mut stages = Vec::with_capacity(specs.len());
        for (count, spec) in specs {
            let stage = self.table.deploy(spec, &self.parts.metrics);
            self.table.start(std::slice::from_ref(&stage));
            stages.push((count, stage));
        }
        self.publish();
        self.current = Some(work);

        let mut starts = Vec::with_capacity(stages.len());
        for (count, stage) in stages {
            starts.push((stage.name().clone(), self.deploy(&stage, count).await));
        }
        let myself = myself.clone();
        tokio::spawn(async move {
            let mut reply = reply;
            let outcome = tokio::select! {
                biased;
                outcome = all_started(starts) => outcome,
                // The caller left: undo the change before it takes effect.
                () = caller_left(&mut reply) => Err(ChangeError::Superseded),
            };
            let _ = myself.cast(RouterMessage::Started(outcome, reply));
        });
    }

    async fn deploy(&self, stage: &Arc<DeployedStage>, replicas: usize) -> Result<FirstStart, ChangeError> {
        let (started, outcome) = oneshot::channel();
        if stage.pool.host.is_some() {
            // Its host says whether it has started.
            let _ = started.send(Ok(()));
            return Ok(outcome);
        }
        stage.pool.replicas.set_target(replicas);
        let args = DeploymentArgs {
            pool: Arc::clone(&stage.pool),
            watchdog: Arc::clone(&self.parts.watchdog),
            node: Arc::clone(&self.parts.node),
            places: Arc::clone(&self.parts.places),
            started,
        };
        let spawned = Actor::spawn_linked(None, DeploymentActor, args, self.parts.root.clone()).await;
        let (supervisor, _) = spawned.map_err(|error| ChangeError::Internal(error.to_string()))?;
        stage.set_supervisor(supervisor);
        Ok(outcome)
    }

    fn started(
        &mut self,
        myself: &ActorRef<RouterMessage>,
        outcome: Result<(), ChangeError>,
        reply: Option<ChangeReply>,
    ) {
        let Some(work) = self.current.take() else { return };
        let outcome = if self.is_stopping { Err(ChangeError::Ending) } else { outcome };
        match (work, outcome) {
            (Work::Change { change, .. }, Ok(())) => {
                for (route, rollout) in &change.roll_out {
                    let (route, share) = (route.name(), rollout.share);
                    tracing::info!(parent: None, route, mode = rollout.mode(), share, "a rollout begins");
                }
                let closed = self.table.apply(change, clock::now(), &self.parts.metrics);
                let (unsettled, changed) = AppliedChange::pair(self.table.next_revision() - 1);
                self.take_effect(myself, closed, &unsettled);
                self.await_rollouts(myself);
                answer(reply, Ok(changed));
            }
            (Work::Renew(dead), Ok(())) => {
                tracing::info!(parent: None, stage = %dead.name(), "stage is back");
                self.deaths_of(&dead).recovery.recovered(clock::now());
                let closed = self.table.renew(&dead, &self.parts.metrics);
                let (unsettled, _) = AppliedChange::pair(0);
                self.take_effect(myself, closed, &unsettled);
            }
            (work, Err(error)) => {
                for stage in self.table.abandon_start() {
                    self.end(myself, stage, None);
                }
                self.publish();
                if let Work::Renew(dead) = work
                    && !self.is_stopping
                {
                    self.renew_later(myself, dead, error.to_string());
                }
                answer(reply, Err(error));
            }
        }
    }

    /// Publishes the table first, then closes the old routes, so that a refused caller finds the new ones.
    fn take_effect(&self, myself: &ActorRef<RouterMessage>, closed: Vec<Arc<Route>>, unsettled: &SettlementGuard) {
        self.publish();
        for route in closed {
            route.close();
            self.await_empty(myself, route, unsettled.clone());
        }
    }

    fn await_empty(&self, myself: &ActorRef<RouterMessage>, route: Arc<Route>, unsettled: SettlementGuard) {
        let myself = myself.clone();
        tokio::spawn(async move {
            route.emptied().await;
            let _ = myself.cast(RouterMessage::RouteEmptied(route.index(), unsettled));
        });
    }

    fn route_emptied(&mut self, myself: &ActorRef<RouterMessage>, index: RouteIndex, unsettled: &SettlementGuard) {
        let Some(route) = self.table.retiring().iter().find(|route| route.index() == index).cloned() else { return };
        self.table.remove_route(index);
        let mut named = self.table.routes().iter().chain(self.table.retiring());
        if !named.any(|other| other.id() == route.id()) {
            self.parts.metrics.forget_route(route.name(), route.metrics().outcomes());
        }
        for stage in self.table.end_unused() {
            self.end(myself, stage, Some(unsettled.clone()));
        }
        self.publish();
    }

    /// Waits for the end of each rollout, and of each kept revision.
    fn await_rollouts(&mut self, myself: &ActorRef<RouterMessage>) {
        self.waits.clear();
        for record in self.table.rollouts().iter().filter(|record| record.beside.is_some()) {
            let (myself, route, trial) = (myself.clone(), record.route.clone(), Arc::clone(&record.trial));
            let ends_at = (!record.is_running()).then(|| record.kept_until());
            let wait = tokio::spawn(async move {
                let message = match ends_at {
                    Some(ends_at) => {
                        tokio::time::sleep_until(ends_at).await;
                        RouterMessage::KeptLongEnough(route)
                    }
                    None => {
                        let decision = trial.concluded().await;
                        RouterMessage::Decided(route, decision)
                    }
                };
                let _ = myself.cast(message);
            });
            self.waits.insert(record.route.clone(), AbortOnDrop(wait.abort_handle()));
        }
    }

    fn decided(&mut self, myself: &ActorRef<RouterMessage>, route: &RouteName, decision: &Decision) {
        // An order may have come first.
        if self.is_stopping || !self.table.rollout(route).is_some_and(RolloutRecord::is_running) {
            return;
        }
        let _ = self.carry_out(myself, route, decision);
    }

    fn order(
        &mut self,
        myself: &ActorRef<RouterMessage>,
        route: &RouteName,
        verdict: Verdict,
    ) -> Result<(), ChangeError> {
        if self.table.route(route.as_str()).is_none() {
            return Err(ChangeError::NoSuchRoute { route: route.clone() });
        }
        let (cause, reason) = (DecisionCause::Order, "by order".to_owned());
        self.carry_out(myself, route, &Decision { verdict, cause, reason })
    }

    /// Ends a rollout. Callers see it at once; a revision that is over finishes its calls.
    fn carry_out(
        &mut self,
        myself: &ActorRef<RouterMessage>,
        route: &RouteName,
        decision: &Decision,
    ) -> Result<(), ChangeError> {
        let Decision { verdict, cause, reason } = decision;
        let now = clock::now();
        let closed = match verdict {
            Verdict::Promote => self.table.promote(route, reason, now)?,
            Verdict::RollBack => Some(self.table.roll_back(route, reason, now)?),
        };
        let revision = self.table.rollout(route).map_or(0, |record| record.revision);
        match verdict {
            Verdict::Promote => {
                tracing::info!(parent: None, %route, revision, %cause, reason, "a revision was promoted")
            }
            Verdict::RollBack => {
                tracing::warn!(parent: None, %route, revision, %cause, reason, "a revision was rolled back")
            }
        }
        self.parts.metrics.rollout_decided(route, *verdict, *cause);
        let (unsettled, _) = AppliedChange::pair(0);
        self.take_effect(myself, closed.into_iter().collect(), &unsettled);
        self.await_rollouts(myself);
        Ok(())
    }

    fn release_kept(&mut self, myself: &ActorRef<RouterMessage>, route: &RouteName) {
        let due = |record: &RolloutRecord| !record.is_running() && record.kept_until() <= clock::now();
        if self.table.rollout(route).is_some_and(due) {
            self.end_kept(myself, route);
        }
    }

    fn end_kept(&mut self, myself: &ActorRef<RouterMessage>, route: &RouteName) {
        let Some(kept) = self.table.release_kept(route) else { return };
        tracing::info!(parent: None, %route, revision = kept.revision(), "the revision before a rollout ends");
        let (unsettled, _) = AppliedChange::pair(0);
        self.take_effect(myself, vec![kept], &unsettled);
    }

    /// Revisions beside others end with their stage: they are not worth a second life.
    fn lose_beside(&mut self, myself: &ActorRef<RouterMessage>, dead: &DeployedStage, why: &str) {
        let lost: Vec<_> =
            self.table.rollouts_with(dead).map(|record| (record.route.clone(), record.is_running())).collect();
        for (route, is_running) in lost {
            if is_running {
                let reason = format!("the supervisor of stage `{}` died: {why}", dead.name());
                let _ = self.carry_out(myself, &route, &Decision::roll_back(DecisionCause::Lost, reason));
            } else {
                self.end_kept(myself, &route);
            }
        }
    }

    /// Stops an unused stage. `StageEnded` reports its end.
    fn end(&self, myself: &ActorRef<RouterMessage>, stage: Arc<DeployedStage>, unsettled: Option<SettlementGuard>) {
        let stopped = stage.stop(Duration::MAX);
        let myself = myself.clone();
        tokio::spawn(async move {
            if let Some(stopped) = stopped {
                // An error means that it was already gone.
                let _ = stopped.await;
            }
            let _ = myself.cast(RouterMessage::StageEnded(stage, unsettled));
        });
    }

    fn stage_ended(&mut self, stage: &Arc<DeployedStage>) {
        self.table.remove_stage(stage);
        stage.pool.leave_host();
        self.forget_if_last(stage.name());
        self.publish();
    }

    /// Removes the metric series of a stage after its last revision.
    fn forget_if_last(&mut self, name: &StageName) {
        if !self.table.stages().any(|stage| stage.name() == name) {
            self.parts.metrics.forget_stage(name);
            self.deaths.remove(name);
        }
    }

    /// A stage without its supervisor has lost its queue and its workers. If routes use it, it gets a new life, or
    /// fails if that happens too often.
    fn supervisor_died(&mut self, myself: &ActorRef<RouterMessage>, who: ActorId, why: &str) {
        // For a starting or ending stage, a waiting task notices the death.
        let serving = self.table.serving();
        let Some(dead) = serving.iter().find(|stage| stage.is_supervised_by(who)).cloned() else { return };
        if self.is_stopping {
            return;
        }
        tracing::error!(parent: None, stage = %dead.name(), why, "the supervisor of a stage died: this is a defect");
        self.lose_beside(myself, &dead, why);
        if !self.table.is_routed(&dead) {
            dead.pool.enter(StageState::Failed, Some(format!("its supervisor died: {why}")));
            return;
        }
        if self.deaths_of(&dead).window.record(clock::now()) == RestartDecision::GiveUp {
            let RestartIntensity { max_restarts, within } = RestartIntensity::default();
            let reason = format!("its supervisor died more than {max_restarts} times in {within:?}, the last: {why}");
            self.renew_later(myself, dead, reason);
        } else {
            dead.pool.enter(StageState::Failed, Some(format!("its supervisor died: {why}; it is started again")));
            // Before the waiting changes, which may depend on this stage.
            self.waiting.push_front(Work::Renew(dead));
        }
    }

    fn deaths_of(&mut self, stage: &DeployedStage) -> &mut Deaths {
        let none = || Deaths { window: RestartWindow::new(RestartIntensity::default()), recovery: Recovery::default() };
        self.deaths.entry(stage.name().clone()).or_insert_with(none)
    }

    /// The stage has failed until it is tried again.
    fn renew_later(&mut self, myself: &ActorRef<RouterMessage>, dead: Arc<DeployedStage>, reason: String) {
        let now = clock::now();
        let wait = self.deaths_of(&dead).recovery.failed(now, fastrand::f64());
        tracing::error!(parent: None, stage = %dead.name(), reason, retry_after = ?wait, "stage has failed");
        dead.pool.fail(reason, now + wait);
        myself.send_after(wait, move || RouterMessage::Renew(dead));
    }

    fn stop(&mut self, within: Duration, stopped: oneshot::Sender<()>) {
        self.is_stopping = true;
        self.waits.clear();
        let stopping: Vec<_> = self.table.stages().filter_map(|stage| stage.stop(within)).collect();
        tokio::spawn(async move {
            join_all(stopping).await;
            let _ = stopped.send(());
        });
    }
}

/// Waits for all starts. The error is that of the first stage in order that did not start.
async fn all_started(starts: Vec<(StageName, Result<FirstStart, ChangeError>)>) -> Result<(), ChangeError> {
    for (stage, start) in starts {
        let outcome = start?.await.unwrap_or_else(|_| Err("its supervisor died".to_owned()));
        outcome.map_err(|message| ChangeError::Stage { stage, message })?;
    }
    Ok(())
}

/// Resolves when the caller leaves; never without a caller.
async fn caller_left(reply: &mut Option<ChangeReply>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

fn answer(reply: Option<ChangeReply>, outcome: Result<AppliedChange, ChangeError>) {
    if let Some(reply) = reply {
        let _ = reply.send(outcome);
    }
}
