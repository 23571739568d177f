//! The handle on a running node: observe it, and change its routes and stages.

use std::sync::Arc;

use super::{Description, Health};
use crate::actor::{Actor, ActorContext, ActorError, ActorGroup, ActorRef, ActorSpec, RemoteRef};
use crate::call::OuterCall;
use crate::client::{LocalClient, NodeState};
use crate::keyed::{KeyContext, KeyedRef};
use crate::metrics::Verdict;
use crate::remote::RemoteStages;
use crate::router::{AppliedChange, ChangeError, Rollout, RouteChange, RouteSpec};

/// A handle on a running node. Cloning it is cheap; it does not keep the node alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, ErrorKind, RouteSpec, Stage};
///
/// let node = App::new().start().await?;
/// let admin = node.handle();
///
/// let double = Stage::each("double", |n: &i64| Ok(n * 2));
/// admin.add_route(RouteSpec::new("/double", double)).await?;
/// assert_eq!(admin.client().call::<i64, i64>("/double", 21).await?, 42);
///
/// admin.scale_stage("double", 4).await?;
/// assert_eq!(admin.describe().stages[0].replicas.len(), 4);
///
/// admin.remove_route("/double").await?.settled().await;
/// let gone = admin.client().call::<i64, i64>("/double", 21).await.unwrap_err();
/// assert_eq!(gone.kind(), ErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NodeHandle {
    pub(super) shared: Arc<NodeState>,
}

impl NodeHandle {
    pub(super) fn new(shared: Arc<NodeState>) -> Self {
        Self { shared }
    }

    /// Starts an actor under the node's supervision and returns when it is up. It runs until it is
    /// [stopped](ActorRef::stop), crashes too often, or the node ends; its name is free then. Unless it is
    /// [needed](ActorSpec::needed), no crash of it makes the node less ready.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::actor::{Actor, ActorContext, ActorSpec};
    /// use callboard_core::{App, Failure};
    ///
    /// struct Session(Vec<String>);
    ///
    /// impl Actor for Session {
    ///     type Message = String;
    ///
    ///     async fn handle(&mut self, event: String, _: &ActorContext<Self>) -> Result<(), Failure> {
    ///         self.0.push(event);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let node = App::new().start().await?;
    /// let session = node.spawn_actor(ActorSpec::new("session of ann", |_| Session(vec![]))).await?;
    /// session.tell("login".to_owned())?;
    /// assert!(node.actor::<String>("session of ann").is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ActorError`]. It does not run then.
    pub async fn spawn_actor<M: Send + 'static>(&self, actor: ActorSpec<M>) -> Result<ActorRef<M>, ActorError> {
        let reference = actor.reference();
        self.spawn_actors(actor.into()).await?;
        Ok(reference)
    }

    /// Starts a group of actors and returns when all of them are up.
    ///
    /// # Errors
    ///
    /// See [`ActorError`]. None of them runs then.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting.
    pub async fn spawn_actors(&self, group: ActorGroup) -> Result<(), ActorError> {
        if self.shared.gateway.is_draining() {
            return Err(ActorError::Ending);
        }
        self.shared.directory.spawn(group).await
    }

    /// The actor of this name, if it runs on this node and takes messages of this type.
    #[must_use]
    pub fn actor<M: Send + 'static>(&self, name: &str) -> Option<ActorRef<M>> {
        self.shared.directory.find(name)
    }

    /// A reference to the actor of this name, wherever it runs in the cluster, if it [accepts](ActorSpec::accepts)
    /// questions.
    #[must_use]
    pub fn remote_actor(&self, name: &str) -> RemoteRef {
        self.client().remote_actor(name)
    }

    /// A reference to the keyed actors of this kind, on this node and on other nodes of the cluster.
    #[must_use]
    pub fn keyed(&self, kind: &str) -> KeyedRef {
        self.client().keyed(kind)
    }

    /// Lets the stages of this node's calls run on other nodes as well, from now on, and lets references find the
    /// actors of those. A node joins once.
    ///
    /// # Errors
    ///
    /// When the node has joined before.
    pub fn join(&self, cluster: impl RemoteStages) -> Result<(), AlreadyJoined> {
        if self.shared.router.cluster.join(cluster) { Ok(()) } else { Err(AlreadyJoined) }
    }

    /// A handle for callers.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        LocalClient::new(Arc::clone(&self.shared))
    }

    /// Liveness, readiness, and the state of each stage.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The running tree: routes, stages, replicas, queues, calls in flight.
    #[must_use]
    pub fn describe(&self) -> Description {
        self.shared.describe()
    }

    /// The metrics as Prometheus text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.encode_metrics()
    }

    /// Shows the text of `families` after the node's own [metrics](Self::metrics) on the page of every edge: metric
    /// families in the text format of OpenMetrics, with or without its end mark. Each call of this method adds
    /// one. A family whose name is in use is left out, and the log says so once.
    pub fn show_metrics_of(&self, families: impl Fn() -> String + Send + Sync + 'static) {
        self.shared.extra.add(families);
    }

    /// Carries out a change and returns when callers see it. No call fails because of it: running calls finish where
    /// they are, later calls use the new table. See [`RouteChange`].
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Nothing has changed then.
    ///
    /// # Cancellation
    ///
    /// Dropping the future before the change took effect undoes the change: the stages started for it end. To limit the
    /// warm-up, put a timeout around this future.
    pub async fn change(&self, change: RouteChange) -> Result<AppliedChange, ChangeError> {
        if self.shared.gateway.is_draining() {
            return Err(ChangeError::Ending);
        }
        self.shared.router.change(change).await
    }

    /// Opens a route. Its stages that do not run yet are started and warmed up first.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Nothing has changed then.
    pub async fn add_route(&self, route: RouteSpec) -> Result<AppliedChange, ChangeError> {
        self.change(RouteChange::new().add_route(route)).await
    }

    /// Replaces the pipeline of a route. Its new stages warm up, then take over at once; the old ones end after their
    /// last call.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Nothing has changed then.
    pub async fn replace_route(&self, route: RouteSpec) -> Result<AppliedChange, ChangeError> {
        self.change(RouteChange::new().replace_route(route)).await
    }

    /// Begins a rollout of the next revision of a route, after its new stages are warm. The node promotes it or rolls
    /// it back by itself: see [`Rollout`]. If a stage does not start, nothing has changed.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Nothing has changed then.
    pub async fn roll_out(&self, route: RouteSpec, rollout: Rollout) -> Result<AppliedChange, ChangeError> {
        self.change(RouteChange::new().roll_out(route, rollout)).await
    }

    /// Gives a route to the candidate of its running rollout now.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NoRollout`] if none is running.
    pub async fn promote_route(&self, route: &str) -> Result<(), ChangeError> {
        self.shared.router.order(route, Verdict::Promote).await
    }

    /// Ends the running rollout of a route, or gives the route back to the revision before it, while that is
    /// [kept](Rollout::keep). Running calls finish where they are.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NoRollout`] if no rollout is running and no older revision is kept.
    pub async fn roll_back_route(&self, route: &str) -> Result<(), ChangeError> {
        self.shared.router.order(route, Verdict::RollBack).await
    }

    /// Closes a route. Running calls finish, new calls get `NotFound`; stages that no other route uses end after their
    /// last call.
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Nothing has changed then.
    pub async fn remove_route(&self, route: &str) -> Result<AppliedChange, ChangeError> {
        self.change(RouteChange::new().remove_route(route)).await
    }

    /// Sets the number of replicas of a stage, from 1 to [`MAX_REPLICAS`](crate::StageSettings::MAX_REPLICAS), or
    /// between the bounds of a stage that [scales by itself](crate::Stage::replicas_between), and returns when the new
    /// ones are warm and the surplus ones have ended. Such a stage goes on from that number as its load asks for. A
    /// surplus replica finishes its batch and cleans up first. A stage that replaces it by a change, with the same
    /// bounds, starts with this number.
    ///
    /// Of two requests for one stage the later wins; the earlier gets [`ChangeError::Superseded`].
    ///
    /// # Errors
    ///
    /// See [`ChangeError`]. Where a new replica cannot be built, the stage keeps the replicas that it had.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting.
    pub async fn scale_stage(&self, stage: &str, replicas: usize) -> Result<(), ChangeError> {
        if self.shared.gateway.is_draining() {
            return Err(ChangeError::Ending);
        }
        self.shared.router.scale(stage, replicas).await
    }
}

/// The node has already joined a cluster. A node joins once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has joined other nodes before")]
pub struct AlreadyJoined;

impl<A: Actor> ActorContext<A> {
    /// A client of the node's routes. During the first start they are not open yet.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.node().client()
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeHandle {
        NodeHandle::new(NodeState::of(&self.node))
    }
}

impl KeyContext {
    /// A client of the node's routes.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.node().client()
    }

    /// A client for calls that the asker of the message in hand waits for. If its question is a part of a call of this
    /// node, they are [inner calls](LocalClient::within) of that: they end with it, and need no permit of their own.
    /// Else it is as [`client`](Self::client).
    #[must_use]
    pub fn asker_client(&self) -> LocalClient {
        let asker = self.options().origin().and_then(|origin| origin.outer.as_ref());
        let is_here = |asker: &&Arc<OuterCall>| {
            let node = asker.flight.permit.as_ref().and_then(|permit| permit.node());
            node.is_some_and(|node| Arc::ptr_eq(&node, &self.node))
        };
        LocalClient { outer: asker.filter(is_here).cloned(), ..self.client() }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeHandle {
        NodeHandle::new(NodeState::of(&self.node))
    }
}
