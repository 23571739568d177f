//! What may be changed while the node serves, what comes of it, and why it may be refused.

use tokio::sync::mpsc;

use super::spec::RouteSpec;
use crate::id::{RouteName, StageName};
use crate::stage::MAX_REPLICAS;

/// How many changes may wait for their turn. One more is refused with [`ChangeError::Busy`].
pub(crate) const MAX_WAITING_CHANGES: usize = 64;

/// Changes to the routes of a running node that take effect together, or not at all.
///
/// Stages that no route has used yet are started and warmed up first, while everything that is served stays served.
/// Then callers see all of it at once: no call finds one half of a change. Routes that were replaced or removed finish
/// the calls they have; stages that no route uses any more end when their last call has left.
///
/// Changes are carried out one after the other, in the order in which they were asked for.
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
}

impl RouteChange {
    /// Nothing to change yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a route under a name that is not served yet.
    pub fn add_route(mut self, route: RouteSpec) -> Self {
        self.add.push(route);
        self
    }

    /// Puts another pipeline behind a route that is served. Calls that are in it finish in the old one.
    pub fn replace_route(mut self, route: RouteSpec) -> Self {
        self.replace.push(route);
        self
    }

    /// Closes a route. Calls that are in it finish; new ones get `NotFound`.
    pub fn remove_route(mut self, route: &str) -> Self {
        self.remove.push(RouteName::new(route));
        self
    }
}

/// A change that callers see.
#[derive(Debug)]
pub struct AppliedChange {
    revision: u64,
    settled: mpsc::Receiver<()>,
}

impl AppliedChange {
    pub(super) fn pair(revision: u64) -> (Unsettled, Self) {
        let (unsettled, settled) = mpsc::channel(1);
        (Unsettled(unsettled), Self { revision, settled })
    }

    /// The number of the change: the start was 1. Stages and routes that it brought carry it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Waits until what was replaced or removed is over: the last call has left, and unused stages have
    /// cleaned up and ended. At most as long as the deadlines of those calls, and the time their workers take to stop.
    ///
    /// # Cancellation
    ///
    /// Dropping the future only ends the waiting.
    pub async fn settled(mut self) {
        // Nothing is ever sent: the end of the last sender is the news.
        let _ = self.settled.recv().await;
    }
}

/// Held by everything that a change still waits for. Never sends; its drop is the message.
#[derive(Clone, Debug)]
pub(crate) struct Unsettled(#[expect(dead_code, reason = "kept for its drop")] mpsc::Sender<()>);

/// Why a change did not happen. Nothing has changed then, and nothing that was started for it runs on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// A worker of this stage could not be built or warmed up; the message is its own. There was no second attempt.
    #[error("stage `{stage}` did not start: {message}")]
    Stage {
        /// The stage.
        stage: StageName,
        /// What its constructor said.
        message: String,
    },
    /// Another stage of this name would be in use at the same time. Clone one stage to share it; to put a new revision
    /// of a shared stage in place, replace all routes that use it in one change.
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
    /// A route's name is not a plain path. Use `/` and letters, digits, `-`, `_`, `.`, `~`, `:`, `@`; no empty or dot
    /// segments.
    #[error("`{route}` cannot be a route: a route is a plain path such as `/digits`")]
    BadRouteName {
        /// The name.
        route: RouteName,
    },
    /// A stage has at least one replica and at most [`MAX_REPLICAS`].
    #[error("a stage has 1 to {MAX_REPLICAS} replicas, not {asked}")]
    BadReplicaCount {
        /// What was asked for.
        asked: usize,
    },
    /// A later request for the same stage took this one's place.
    #[error("a later change of the same stage took the place of this one")]
    Superseded,
    /// Too many changes wait for their turn already: try again when they are done.
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
