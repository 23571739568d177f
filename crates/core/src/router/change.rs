//! Changes while the node serves: their contents, their results and their errors.

use tokio::sync::mpsc;

use super::rollout::Rollout;
use super::spec::RouteSpec;
use crate::id::{RouteName, StageName};
use crate::stage::StageSettings;

/// The maximum count of changes that wait for their turn. One more is refused with [`ChangeError::Busy`].
pub(crate) const MAX_WAITING_CHANGES: usize = 64;

/// Changes to the routes of a running node that take effect together, or not at all.
///
/// New stages are started and warmed up first, while all served routes stay served. Then callers see the whole change
/// at once. Replaced or removed routes finish their calls; stages that no route uses any more end after their last
/// call.
///
/// Changes are carried out one after the other, in the order of their requests.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, RouteChange, RouteSpec, Stage};
///
/// let first = Stage::each("add", |n: &i64| Ok(n + 1));
/// let node = App::new().route("/add", first).start().await?;
///
/// // The next revision of the stage, and a second route over it.
/// let second = Stage::each("add", |n: &i64| Ok(n + 100));
/// let change = RouteChange::new()
///     .replace_route(RouteSpec::new("/add", second.clone()))
///     .add_route(RouteSpec::new("/add/more", second));
/// let changed = node.change(change).await?;
/// assert_eq!(node.client().call::<i64, i64>("/add", 1).await?, 101);
///
/// changed.settled().await; // the first revision has ended
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a change does nothing until a node is given it"]
pub struct RouteChange {
    pub(crate) add: Vec<RouteSpec>,
    pub(crate) replace: Vec<RouteSpec>,
    pub(crate) remove: Vec<RouteName>,
    pub(crate) roll_out: Vec<(RouteSpec, Rollout)>,
}

impl RouteChange {
    /// An empty change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a route under a name that is not served yet.
    pub fn add_route(mut self, route: RouteSpec) -> Self {
        self.add.push(route);
        self
    }

    /// Replaces the pipeline of a served route. Running calls finish in the old pipeline.
    pub fn replace_route(mut self, route: RouteSpec) -> Self {
        self.replace.push(route);
        self
    }

    /// Opens the next revision of a served route beside the current one, as a candidate: see [`Rollout`]. The change is
    /// over when the rollout begins. A route that is replaced or removed meanwhile loses its candidate.
    pub fn roll_out(mut self, route: RouteSpec, rollout: Rollout) -> Self {
        self.roll_out.push((route, rollout));
        self
    }

    /// The routes that it opens.
    pub(super) fn specs(&self) -> impl Iterator<Item = &RouteSpec> + Clone {
        self.add.iter().chain(&self.replace).chain(self.roll_out.iter().map(|(spec, _)| spec))
    }

    /// Closes a route. Running calls finish; new ones get `NotFound`.
    pub fn remove_route(mut self, route: &str) -> Self {
        self.remove.push(RouteName::new(route));
        self
    }
}

/// A change in effect.
#[derive(Debug)]
pub struct AppliedChange {
    revision: u64,
    settled: mpsc::Receiver<()>,
}

impl AppliedChange {
    pub(super) fn pair(revision: u64) -> (SettlementGuard, Self) {
        let (unsettled, settled) = mpsc::channel(1);
        (SettlementGuard(unsettled), Self { revision, settled })
    }

    /// The number of the change; the start has number 1. New stages and routes carry it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Waits until replaced or removed parts end: the last call ended, and unused stages cleaned up and ended. Waits at
    /// most for the deadlines of those calls and the stop time of their workers.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting.
    pub async fn settled(mut self) {
        // Nothing is sent: the drop of the last sender ends the wait.
        let _ = self.settled.recv().await;
    }
}

/// Held by every part that a change still waits for. Never sends; its drop is the message.
#[derive(Clone, Debug)]
pub(crate) struct SettlementGuard(#[expect(dead_code, reason = "kept for its drop")] mpsc::Sender<()>);

/// Why a change did not happen. Nothing has changed, and the stages started for it end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// A worker of this stage could not be built or warmed up. There was no second attempt.
    #[error("stage `{stage}` did not start: {message}")]
    Stage {
        /// The stage.
        stage: StageName,
        /// The constructor's message.
        message: String,
    },
    /// Another stage of this name would be in use at the same time. Clone one stage to share it. To change a shared
    /// stage, replace all routes that use it in one change.
    #[error("two different stages would be named `{stage}`")]
    DuplicateStage {
        /// The name.
        stage: StageName,
    },
    /// The route is served already, or named twice. Replace it instead.
    #[error("the route `{route}` exists already")]
    RouteExists {
        /// The name.
        route: RouteName,
    },
    /// No such route is served.
    #[error("there is no route `{route}`")]
    NoSuchRoute {
        /// The name.
        route: RouteName,
    },
    /// No route uses a stage of this name.
    #[error("there is no stage `{stage}`")]
    NoSuchStage {
        /// The name.
        stage: StageName,
    },
    /// The rollout cannot be done so: the message names the field or the stage.
    #[error("route `{route}` cannot be rolled out so: {message}")]
    BadRollout {
        /// The name.
        route: RouteName,
        /// The reason.
        message: String,
    },
    /// One rollout at a time: promote or roll back the running one first, or replace the route.
    #[error("a rollout of `{route}` is running")]
    RolloutRunning {
        /// The name.
        route: RouteName,
    },
    /// Nothing to promote, or to roll back to.
    #[error("route `{route}`: {wanted}")]
    NoRollout {
        /// The name.
        route: RouteName,
        /// The missing route or stage.
        wanted: &'static str,
    },
    /// Another route takes the same paths: their names differ in the names of parameters only.
    #[error("the routes `{other}` and `{route}` take the same paths")]
    SamePaths {
        /// The name.
        route: RouteName,
        /// That of the other one.
        other: RouteName,
    },
    /// One method of HTTP calls two routes at one path: give one of them other methods, or another path.
    #[error("the routes `{other}` and `{route}` are both called by `{method}`")]
    SameMethod {
        /// The name.
        route: RouteName,
        /// That of the other one.
        other: RouteName,
        /// The method.
        method: String,
    },
    /// Two routes with a [task](crate::Task) would have one name as models: an id, or one of their
    /// [other names](RouteSpec::aliases). Name one differently.
    #[error("routes `{other}` and `{route}` are both the model `{model}`")]
    SameModel {
        /// The name.
        route: RouteName,
        /// That of the other one.
        other: RouteName,
        /// The name of both as a model.
        model: String,
    },
    /// A route's name is not a plain path. Use `/` and letters, digits, `-`, `_`, `.`, `~`, `:`, `@`; no empty or dot
    /// segments. A whole segment may be a parameter, such as `{item_id}`. A method and a space may precede the path.
    #[error("`{route}` cannot be a route: a route is a plain path such as `/digits`")]
    BadRouteName {
        /// The name.
        route: RouteName,
    },
    /// Remedy: declare the route before the node starts.
    #[error("`{route}` can only be declared before the node starts")]
    PrivateRoute {
        /// The name.
        route: RouteName,
    },
    /// A stage has at least one replica and at most [`StageSettings::MAX_REPLICAS`].
    #[error("a stage has 1 to {} replicas, not {asked}", StageSettings::MAX_REPLICAS)]
    BadReplicaCount {
        /// The requested count.
        asked: usize,
    },
    /// The stage [scales by itself](crate::Stage::replicas_between), and the requested count is outside its bounds.
    #[error("stage `{stage}` scales by itself, from {min} to {max} replicas")]
    OutOfBounds {
        /// The stage.
        stage: StageName,
        /// Its fewest replicas.
        min: usize,
        /// Its most replicas.
        max: usize,
    },
    /// A later request for the same stage superseded this one.
    #[error("a later change of the same stage took the place of this one")]
    Superseded,
    /// Too many changes wait for their turn. Try again when they are done.
    #[error("{limit} changes wait already")]
    Busy {
        /// The bound.
        limit: usize,
    },
    /// The node drains or has ended.
    #[error("the node is ending")]
    Ending,
    /// A part of the node could not be started: a defect of this framework.
    #[error("the change could not be carried out: {0}")]
    Internal(String),
}
