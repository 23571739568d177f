//! This process as a server of routes: the running tree, from its start to its last reply.

mod blocking;
mod describe;
mod root;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorRef};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::app::{RouteSpec, StartError, distinct_stages};
use crate::batcher::Pool;
use crate::client::Client;
use crate::clock;
use crate::gateway::{Gateway, Limits};
use crate::id::RouteIndex;
use crate::metrics::{NodeMetrics, SharedMetrics};
use crate::router::{Route, Router};
use crate::stage::StageSpec;
use crate::supervisor::{DeploymentActor, DeploymentArgs, DeploymentMessage};
use crate::worker::Watchdog;

pub use blocking::BlockingNode;
pub use describe::{Description, Health, ReplicaDescription, StageDescription, StageHealth};
pub(crate) use root::{RootActor, RootMessage};

/// How long a worker gets to clean up when everything it had in hand is done.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// What every handle of the node shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) router: Arc<Router>,
    pub(crate) pools: Vec<Arc<Pool>>,
    pub(crate) metrics: SharedMetrics,
    /// Where the node runs, for what callers start on it from outside.
    pub(crate) runtime: Handle,
    /// Still serving, but no longer offered: the node is about to drain.
    pub(crate) withdrawn: AtomicBool,
}

/// A running node. Dropping it ends everything at once; [`shutdown`](Self::shutdown) ends it in good order.
#[derive(Debug)]
#[must_use = "a node ends when it is dropped"]
pub struct Node {
    shared: Arc<Shared>,
    root: ActorRef<RootMessage>,
    deployments: Vec<ActorRef<DeploymentMessage>>,
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

impl Node {
    pub(crate) async fn start(routes: Vec<RouteSpec>, limits: Limits) -> Result<Self, StartError> {
        let metrics: SharedMetrics = Arc::new(NodeMetrics::new());
        let gateway = Arc::new(Gateway::new(limits, Arc::clone(&metrics)));
        let router = Arc::new(Router::default());
        let watchdog = Arc::new(Watchdog::spawn().map_err(StartError::Thread)?);

        let specs = distinct_stages(&routes);
        let pools: Vec<Arc<Pool>> = specs.iter().map(|spec| Arc::new(Pool::new(spec, &metrics))).collect();
        let shared = Arc::new(Shared {
            gateway,
            router,
            pools,
            metrics,
            runtime: Handle::current(),
            withdrawn: AtomicBool::new(false),
        });

        // The root first, so that everything else is born supervised.
        let (root, _) = Actor::spawn(None, RootActor, Arc::clone(&shared)).await.map_err(internal)?;
        let mut node = Self { shared, root, deployments: Vec::new() };
        // Dropping the half-built node on an error ends what was started.
        node.deploy(&specs, &watchdog).await?;
        // Last, so that no route is open before all of its stages are warm.
        node.publish(&routes).await?;
        Ok(node)
    }

    /// Starts all stages side by side; the first that fails is the one that is told.
    async fn deploy(&mut self, specs: &[Arc<StageSpec>], watchdog: &Arc<Watchdog>) -> Result<(), StartError> {
        let mut starting = Vec::new();
        for (spec, pool) in specs.iter().zip(&self.shared.pools) {
            let (started, outcome) = oneshot::channel();
            let args = DeploymentArgs {
                spec: Arc::clone(spec),
                pool: Arc::clone(pool),
                watchdog: Arc::clone(watchdog),
                started,
            };
            let (deployment, _) =
                Actor::spawn_linked(None, DeploymentActor, args, self.root.get_cell()).await.map_err(internal)?;
            self.deployments.push(deployment);
            starting.push((spec.name().clone(), outcome));
        }
        for (stage, outcome) in starting {
            let outcome = outcome.await.unwrap_or_else(|_| Err("its supervisor died".to_owned()));
            outcome.map_err(|message| StartError::Stage { stage, message })?;
        }
        Ok(())
    }

    async fn publish(&self, routes: &[RouteSpec]) -> Result<(), StartError> {
        let routes = routes
            .iter()
            .enumerate()
            .map(|(index, route)| self.open(RouteIndex(index), route))
            .collect::<Result<Vec<_>, _>>()?;
        let (published, done) = oneshot::channel();
        self.root.cast(RootMessage::Publish { routes, published }).map_err(internal)?;
        done.await.map_err(internal)
    }

    /// Puts a route over the pools that run its stages.
    fn open(&self, index: RouteIndex, spec: &RouteSpec) -> Result<Arc<Route>, StartError> {
        let graph = spec.graph.try_map(&mut |stage| {
            let pool = self.shared.pools.iter().find(|pool| pool.name() == stage.name());
            pool.cloned().ok_or_else(|| internal(format!("stage `{}` has no pool", stage.name())))
        })?;
        let metrics = self.shared.metrics.route(&spec.name);
        Ok(Arc::new(Route::new(index, spec.name.clone(), spec.parts.clone(), graph, metrics)))
    }

    /// A handle for callers in this process, and for edges.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// Whether the node lives, is ready, and how each stage does.
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

    /// Stops being a candidate: readiness says no from now on, while calls are still served.
    ///
    /// The first step of an ending that loses nothing: whoever spreads the load stops sending before the doors close.
    pub fn withdraw(&self) {
        self.shared.withdrawn.store(true, Ordering::Release);
    }

    /// Admits nothing new and waits until every admitted call has its outcome, at most for `grace`.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting; the node stays closed to new calls.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.shared.gateway.drain();
        let (emptied, empty) = oneshot::channel();
        let told = self.root.cast(RootMessage::Drain { emptied });
        let end = clock::now() + grace;
        if told.is_ok() && tokio::time::timeout_at(end, empty).await.is_ok() {
            return Drained::Completely;
        }
        match self.shared.gateway.in_flight() {
            0 => Drained::Completely,
            in_flight => Drained::TimedOut { in_flight },
        }
    }

    /// Drains, then stops every worker in good order and ends. What is still in flight after `grace` is answered with
    /// `Unavailable`.
    pub async fn shutdown(self, grace: Duration) -> Drained {
        let drained = self.drain(grace).await;
        let mut stopping = Vec::new();
        for deployment in &self.deployments {
            let (stopped, done) = oneshot::channel();
            if deployment.cast(DeploymentMessage::Stop { within: STOP_WITHIN, stopped }).is_ok() {
                stopping.push(done);
            }
        }
        for done in stopping {
            // An error says that the stage was gone already.
            let _ = done.await;
        }
        drained
    }

    /// Ends everything now. Calls in flight are answered with `Unavailable` or `WorkerFailed`.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.gateway.drain();
        // ractor ends the children of a killed actor with it.
        self.root.kill();
    }
}

fn internal(error: impl ToString) -> StartError {
    StartError::Internal(error.to_string())
}
