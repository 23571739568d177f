//! Why a node did not start.

use crate::actor::ActorError;
use crate::id::{RouteName, StageName};
use crate::router::ChangeError;

/// Why an app did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A worker of this stage could not be built or warmed up. There was no second attempt.
    #[error("stage `{stage}` did not start: {message}")]
    Stage {
        /// The stage.
        stage: StageName,
        /// The constructor's message.
        message: String,
    },
    /// Two stages have this name. Clone one stage to share it; name two stages differently.
    #[error("two different stages are named `{stage}`")]
    DuplicateStage {
        /// The name.
        stage: StageName,
    },
    /// Two routes have this name.
    #[error("two routes are named `{route}`")]
    DuplicateRoute {
        /// The name.
        route: RouteName,
    },
    /// Two routes take the same paths: their names differ in the names of parameters only.
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
    /// Two routes with a [task](crate::Task) have one name as models: an id, or one of their
    /// [other names](crate::RouteSpec::aliases). Name one differently.
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
    /// segments. A whole segment may be a parameter, such as `{item_id}`.
    #[error("`{route}` cannot be a route: a route is a plain path such as `/digits`")]
    BadRouteName {
        /// The name.
        route: RouteName,
    },
    /// With this limit at zero no call could be admitted, or none could end in time.
    #[error("`{limit}` must be above zero")]
    ZeroLimit {
        /// The field of [`Limits`](crate::Limits).
        limit: &'static str,
    },
    /// An actor could not be started, or its name is taken.
    #[error(transparent)]
    Actor(#[from] ActorError),
    /// The operating system refused a thread.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
    /// The start was [cancelled](crate::App::start_unless).
    #[error("the start was cancelled")]
    Cancelled,
    /// A part of the node could not be started: a defect of this framework.
    #[error("could not start the node: {0}")]
    Internal(String),
}

impl From<ChangeError> for StartError {
    /// A start is the first change of a node that serves nothing yet.
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Stage { stage, message } => Self::Stage { stage, message },
            ChangeError::DuplicateStage { stage } => Self::DuplicateStage { stage },
            ChangeError::RouteExists { route } => Self::DuplicateRoute { route },
            ChangeError::SamePaths { route, other } => Self::SamePaths { route, other },
            ChangeError::SameMethod { route, other, method } => Self::SameMethod { route, other, method },
            ChangeError::SameModel { route, other, model } => Self::SameModel { route, other, model },
            ChangeError::BadRouteName { route } => Self::BadRouteName { route },
            other => Self::Internal(other.to_string()),
        }
    }
}
