//! The shared handle of the router: reads the current table without a lock, and requests changes.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use ractor::ActorRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::change::{AppliedChange, ChangeError, MAX_WAITING_CHANGES, RouteChange};
use super::elsewhere;
use super::message::RouterMessage;
use super::route::{HeldRoute, Route};
use super::table::Table;
use crate::call::SessionKey;
use crate::metrics::{RouteMetrics, Verdict};
use crate::pool::{Pool, StageState};
use crate::remote::Cluster;
use crate::stage::StageSettings;
use crate::supervisor::{DeploymentMessage, ScaleError};

/// Shared by every handle of the node.
#[derive(Debug)]
pub(crate) struct Router {
    table: ArcSwap<Table>,
    /// The other nodes, once this one has joined them.
    pub(crate) cluster: Cluster,
    actor: Mutex<Option<ActorRef<RouterMessage>>>,
    /// One permit per unfinished change: the bound of the actor's mailbox.
    turns: Arc<Semaphore>,
    /// If every other name is a route of a node in another process: how its calls are counted.
    elsewhere: OnceLock<RouteMetrics>,
}

impl Router {
    pub(crate) fn new() -> Self {
        let turns = Arc::new(Semaphore::new(MAX_WAITING_CHANGES));
        let cluster = Cluster::default();
        let table = ArcSwap::from_pointee(Table::new(cluster.clone()));
        Self { table, cluster, actor: Mutex::default(), turns, elsewhere: OnceLock::new() }
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    pub(crate) fn route(&self, name: &str) -> Option<Arc<Route>> {
        let own = self.table.load().route(name).cloned();
        own.or_else(|| Some(Arc::new(elsewhere::route(name, self.elsewhere.get()?.clone()))))
    }

    pub(crate) fn direct_route(&self, name: &str) -> Option<Arc<Route>> {
        self.table.load().direct_route(name).cloned()
    }

    pub(crate) fn route_at(&self, path: &str, method: Option<&str>) -> Option<Arc<Route>> {
        self.table.load().route_at(path, method).cloned()
    }

    pub(crate) fn routes_at(&self, path: &str) -> Vec<Arc<Route>> {
        self.table.load().routes_at(path).to_vec()
    }

    pub(crate) fn routes(&self) -> Vec<Arc<Route>> {
        self.table.load().routes().iter().filter(|route| !route.is_private()).cloned().collect()
    }

    pub(crate) fn private_routes(&self) -> Vec<Arc<Route>> {
        self.table.load().private().to_vec()
    }

    /// Begins a call on the route of this name, or on the candidate of its rollout. If the route closes meanwhile, the
    /// table has its successor or none.
    pub(crate) fn hold(&self, name: &str, session: Option<SessionKey>) -> Option<HeldRoute> {
        loop {
            if let Some(held) = self.route(name)?.hold_revision(session) {
                return Some(held);
            }
        }
    }

    /// Begins a call of the stage of this name, on a route that keeps the stage, as [`hold`](Self::hold).
    pub(crate) fn hold_stage(&self, name: &str) -> Option<(HeldRoute, Arc<Pool>)> {
        loop {
            let (route, pool) = self.table.load().routed_stage(name).cloned()?;
            if let Some(held) = route.hold() {
                return Some((held, pool));
            }
        }
    }

    /// From now on every name that this node does not serve is a route of a node in another process.
    pub(crate) fn call_elsewhere(&self, metrics: RouteMetrics) {
        let _ = self.elsewhere.set(metrics);
    }

    pub(super) fn publish(&self, table: Table) {
        self.table.store(Arc::new(table));
    }

    pub(super) fn set_actor(&self, actor: ActorRef<RouterMessage>) {
        *self.actor.lock() = Some(actor);
    }

    /// Requests a change and waits until callers see it.
    pub(crate) async fn change(&self, change: RouteChange) -> Result<AppliedChange, ChangeError> {
        let turn = self.take_turn()?;
        let (reply, outcome) = oneshot::channel();
        self.tell(RouterMessage::Change { change, reply, turn })?;
        outcome.await.unwrap_or(Err(ChangeError::Ending))
    }

    /// Requests the end of a rollout and waits until callers see it.
    pub(crate) async fn order(&self, route: &str, verdict: Verdict) -> Result<(), ChangeError> {
        let turn = self.take_turn()?;
        let (reply, outcome) = oneshot::channel();
        self.tell(RouterMessage::Order { route: route.into(), verdict, reply, turn })?;
        outcome.await.unwrap_or(Err(ChangeError::Ending))
    }

    /// Requests a number of replicas and waits until they are up, and the surplus ones gone.
    pub(crate) async fn scale(&self, stage: &str, replicas: usize) -> Result<(), ChangeError> {
        if replicas > StageSettings::MAX_REPLICAS {
            return Err(ChangeError::BadReplicaCount { asked: replicas });
        }
        let turn = self.take_turn()?;
        let (pool, supervisor) = {
            let table = self.table.load();
            let found = table.stage(stage).ok_or_else(|| ChangeError::NoSuchStage { stage: stage.into() })?;
            if replicas == 0 && !found.pool.settings().scaling().may_be_zero() {
                return Err(ChangeError::BadReplicaCount { asked: replicas });
            }
            let supervisor = table.with_replicas(found).supervisor().cloned();
            let supervisor = supervisor.ok_or_else(|| ChangeError::NoSuchStage { stage: stage.into() })?;
            (Arc::clone(&found.pool), supervisor)
        };
        let (scaled, outcome) = oneshot::channel();
        let message = DeploymentMessage::Scale { replicas, scaled, turn };
        // Without its supervisor the message, or its answer, is lost.
        let _ = supervisor.cast(message);
        outcome.await.unwrap_or(Err(ScaleError::Ending)).map_err(|error| match error {
            ScaleError::NotStarted(message) => ChangeError::Stage { stage: stage.into(), message },
            ScaleError::OutOfBounds { min, max } => ChangeError::OutOfBounds { stage: stage.into(), min, max },
            ScaleError::Superseded => ChangeError::Superseded,
            ScaleError::Ending => match pool.health.state_and_reason() {
                (StageState::Failed, Some(message)) => ChangeError::Stage { stage: stage.into(), message },
                _ => ChangeError::Ending,
            },
        })
    }

    #[cfg(test)]
    pub(super) fn kill_actor(&self) {
        if let Some(actor) = &*self.actor.lock() {
            actor.kill();
        }
    }

    fn take_turn(&self) -> Result<OwnedSemaphorePermit, ChangeError> {
        let busy = |_| ChangeError::Busy { limit: MAX_WAITING_CHANGES };
        Arc::clone(&self.turns).try_acquire_owned().map_err(busy)
    }

    pub(crate) fn tell(&self, message: RouterMessage) -> Result<(), ChangeError> {
        match &*self.actor.lock() {
            Some(actor) => actor.cast(message).map_err(|_| ChangeError::Ending),
            None => Err(ChangeError::Ending),
        }
    }
}
