//! This process as a server of routes: the running tree, from its start to its last reply.

mod blocking;
mod describe;
mod handle;
mod load;
mod report;
mod root;
mod start_error;
mod wanted;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ractor::{Actor, ActorRef as EngineRef};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::actor::{ActorGroup, Directory};
use crate::client::NodeState;
use crate::clock;
use crate::containment::note_places;
use crate::executor::Watchdog;
use crate::gateway::{Gateway, Limits};
use crate::host::HostNode;
use crate::keyed::{KeyedKinds, KindNode, KindStart};
use crate::metrics::{ExtraFamilies, NodeMetrics, ReportedFamilies, SharedMetrics};
use crate::pool::BatcherMessage;
use crate::router::{RouteChange, RouteSpec, Router, RouterMessage};
use crate::supervisor::{LoadedLimits, Places};

pub use blocking::BlockingNode;
pub use describe::{
    ActorDescription, ActorHealth, CallDescription, Description, Health, RemoteStageHealth, ReplicaDescription,
    RestartDescription, RouteDescription, ScaleDescription, ScalingDescription, StageDescription, StageHealth,
    StagePart,
};
pub use handle::{AlreadyJoined, NodeHandle};
pub(crate) use root::RootMessage;
use root::{RootActor, RootArgs};
pub use start_error::StartError;
pub use wanted::NodesWanted;

/// A running node. Dropping it ends everything at once; [`shutdown`](Self::shutdown) ends it in good order.
///
/// It is used by the methods of its [`NodeHandle`]: calls, health, description, and changes while it serves.
#[derive(Debug)]
#[must_use = "a node ends when it is dropped"]
pub struct Node {
    handle: NodeHandle,
    root: EngineRef<RootMessage>,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// Every admitted call has its outcome.
    Completely,
    /// Time ran out with this many calls in flight.
    TimedOut {
        /// The calls that were still in flight.
        in_flight: usize,
    },
}

/// What keyed actors have for their saves when stages and actors have taken all of the time of a stop.
const LEAST_SAVE: Duration = Duration::from_secs(1);

impl Node {
    pub(crate) async fn start(
        routes: Vec<RouteSpec>,
        actors: Vec<ActorGroup>,
        keyed: Vec<KindStart>,
        limits: Limits,
        cancelled: impl Future<Output = ()> + Send,
    ) -> Result<Self, StartError> {
        if let Some(limit) = limits.zero() {
            return Err(StartError::ZeroLimit { limit });
        }
        let metrics: SharedMetrics = Arc::new(NodeMetrics::new());
        let (extra, reported) = (ExtraFamilies::default(), Arc::<ReportedFamilies>::default());
        let of_workers = Arc::clone(&reported);
        extra.add(move || of_workers.encode());
        let loaded = LoadedLimits { stages: limits.max_loaded, bytes: limits.max_loaded_bytes };
        let shared = Arc::new(NodeState {
            gateway: Arc::new(Gateway::new(limits, Arc::clone(&metrics))),
            router: Arc::new(Router::new()),
            places: Arc::new(Places::new(loaded)),
            directory: Arc::new(Directory::new()),
            keyed: Arc::<KeyedKinds>::default(),
            metrics,
            extra,
            reported,
            tracer: OnceLock::new(),
            answers: OnceLock::new(),
            runtime: Handle::current(),
            alive: AtomicBool::new(false),
            withdrawn: AtomicBool::new(false),
        });
        let host: Weak<dyn HostNode> = Arc::downgrade(&shared) as Weak<dyn HostNode>;
        shared.gateway.set_node(host);
        note_places();
        let watchdog = Arc::new(Watchdog::spawn().map_err(StartError::Thread)?);
        let args = RootArgs { shared: Arc::clone(&shared), watchdog };
        let (root, _) =
            Actor::spawn(None, RootActor, args).await.map_err(|error| StartError::Internal(error.to_string()))?;
        // Dropping the node ends the started parts at once.
        let node = Self { handle: NodeHandle { shared }, root };
        let has_actors = !actors.is_empty() || !keyed.is_empty();
        let outcome = tokio::select! {
            biased;
            outcome = node.start_parts(routes, actors, keyed) => outcome,
            () = cancelled => Err(StartError::Cancelled),
        };
        match outcome {
            Ok(()) => Ok(node),
            Err(error) => {
                // An actor that has started is stopped, whatever became of the others.
                if has_actors {
                    node.stop(Duration::ZERO).await;
                }
                Err(error)
            }
        }
    }

    async fn start_parts(
        &self,
        routes: Vec<RouteSpec>,
        actors: Vec<ActorGroup>,
        keyed: Vec<KindStart>,
    ) -> Result<(), StartError> {
        // First: actors may ask keys when they start. Nothing of a key runs before.
        let shared = &self.handle.shared;
        let host: Weak<dyn HostNode> = Arc::downgrade(shared) as Weak<dyn HostNode>;
        let (cluster, metrics) = (shared.router.cluster.clone(), Arc::clone(&shared.metrics));
        shared.keyed.start(keyed, &KindNode { node: host, cluster, metrics })?;
        // Before the stages: their workers may ask actors while they warm up.
        for group in actors {
            self.spawn_actors(group).await?;
        }
        self.change(routes.into_iter().fold(RouteChange::new(), RouteChange::add_route)).await?;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &NodeState {
        &self.handle.shared
    }

    /// A handle that can be cloned and kept by edges, user code and other tasks. It does not keep the node alive.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Makes the node not ready from now on; it still serves calls. Its keyed actors move to other nodes that have them.
    ///
    /// The first step of a shutdown without lost calls: load balancers stop sending before the node refuses calls.
    pub fn withdraw(&self) {
        self.handle.shared.withdrawn.store(true, Ordering::Release);
        self.handle.shared.keyed.leave();
        self.handle.shared.directory.leave();
    }

    /// Refuses new calls and waits until every admitted call has its outcome, at most for `grace`.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting; the node stays closed to new calls.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.handle.shared.keyed.leave();
        self.handle.shared.directory.leave();
        self.handle.shared.gateway.drain();
        let (emptied, empty) = oneshot::channel();
        let sent = self.root.cast(RootMessage::Drain { emptied });
        // Batches no longer wait for more entries.
        for stage in self.handle.shared.router.table().stages() {
            stage.pool.tell_batcher(BatcherMessage::Drain);
        }
        if sent.is_ok() && matches!(tokio::time::timeout(grace, empty).await, Ok(Ok(()))) {
            return Drained::Completely;
        }
        match self.handle.shared.gateway.in_flight() {
            0 => Drained::Completely,
            in_flight => Drained::TimedOut { in_flight },
        }
    }

    /// Drains, then stops every worker in good order and ends. Calls still in flight after `grace` get `Unavailable`. A
    /// worker that takes longer than its stage's [`stop_timeout`](crate::StageSettings::stop_timeout) is ended.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let drained = self.drain(grace).await;
        self.stop(Duration::MAX).await;
        drained
    }

    /// Stops every worker in good order and ends. A worker that takes longer than `within`, or than its stage's
    /// [`stop_timeout`](crate::StageSettings::stop_timeout), is ended. Keyed actors save in what is left of it, for a
    /// second at least. Calls in flight get `Unavailable`: [drain](Self::drain) first.
    pub async fn stop(self, within: Duration) {
        let began = clock::now();
        let (stopped, done) = oneshot::channel();
        if self.handle.shared.router.tell(RouterMessage::Stop { within, stopped }).is_ok() {
            // An error means that everything was already gone.
            let _ = done.await;
        }
        // The actors stop after the stages, which may ask them until their last call.
        let (stopped, done) = oneshot::channel();
        if self.root.cast(RootMessage::StopActors { stopped }).is_ok() {
            let _ = done.await;
        }
        // Keys last: stages and actors may ask them until then.
        let left = within.saturating_sub(clock::now() - began).max(LEAST_SAVE);
        self.handle.shared.keyed.stop(left).await;
    }

    /// Ends everything now. Calls in flight get `Unavailable` or `WorkerFailed`.
    pub fn abort(self) {
        drop(self);
    }
}

impl Deref for Node {
    type Target = NodeHandle;

    fn deref(&self) -> &NodeHandle {
        &self.handle
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.handle.shared.gateway.drain();
        self.handle.shared.end();
        // ractor ends the children of a killed actor with it.
        self.root.kill();
    }
}
