//! What to serve: routes over pipelines, and the node's bounds. Nothing runs before [`App::start`].

use std::any::TypeId;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, DataType, EncodeError, Value};
use schemars::JsonSchema;

use crate::actor::{ActorError, ActorGroup, ActorSpec};
use crate::call::Priority;
use crate::client::FunctionCall;
use crate::diagram::Diagram;
use crate::gateway::Limits;
use crate::id::{RouteName, StageName};
use crate::node::Node;
use crate::pipeline::{Graph, IntoPipeline, IntoStreamPipeline};
use crate::router::{ChangeError, RouteLimits, RouteParts};
use crate::stage::StageSpec;

/// What the inputs and outputs of a route are: [`Data`] with a schema that tells clients what it looks like.
///
/// Implemented for all such types; there is nothing to implement by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the input or output of a route",
    label = "needs `JsonSchema`, `Serialize` and `DeserializeOwned`",
    note = "derive all: `#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]`, with schemars 1",
    note = "types of other crates go in a newtype, or in a `Value`, whose schema is given to `route_described`"
)]
pub trait RouteData: Data + JsonSchema {}

impl<T: Data + JsonSchema> RouteData for T {}

/// Routes and limits to serve; [`start`](Self::start) makes it a [`Node`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, Stage};
///
/// let double = Stage::each("double", |number: &i64| Ok(number * 2));
/// let node = App::new().route("/double", double).start().await?;
/// let answer: i64 = node.client().call("/double", 21i64).await?;
/// assert_eq!(answer, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "an app does nothing until it is started"]
pub struct App {
    routes: Vec<RouteSpec>,
    actors: Vec<ActorGroup>,
    limits: Limits,
}

impl App {
    /// An app without routes, with the default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves a typed pipeline under `name`, a path such as `/greet`. The types' schemas describe it to clients.
    pub fn route<In, Out>(self, name: &str, pipeline: impl IntoPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        self.mount(RouteSpec::new(name, pipeline))
    }

    /// Serves a pipeline that answers one input with a stream of outputs, under `name`.
    pub fn route_streaming<In, Out>(self, name: &str, pipeline: impl IntoStreamPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        self.mount(RouteSpec::streaming(name, pipeline))
    }

    /// Serves a pipeline over [`Value`]s, with types that are described by hand.
    pub fn route_described(
        self,
        name: &str,
        pipeline: impl IntoPipeline<Value, Out = Value>,
        input: DataType,
        output: DataType,
    ) -> Self {
        self.mount(RouteSpec::described(name, pipeline, input, output))
    }

    /// Serves a route with its own settings; see [`RouteSpec`].
    pub fn mount(mut self, route: RouteSpec) -> Self {
        self.routes.push(route);
        self
    }

    /// Starts an actor with the node, before its stages; see [`ActorSpec`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
    /// use callboard_core::{App, Failure, Pipeline};
    ///
    /// /// Adds up the numbers that it is asked about.
    /// struct Tally(u64);
    ///
    /// struct Add(u64, ReplyPort<u64>);
    ///
    /// impl Actor for Tally {
    ///     type Message = Add;
    ///
    ///     async fn handle(&mut self, Add(n, answer): Add, _: &ActorContext<Self>) -> Result<(), Failure> {
    ///         self.0 += n;
    ///         answer.send(self.0);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let tally = ActorSpec::new("tally", |_| Tally(100));
    /// let asked = tally.reference();
    /// let count = Pipeline::ask("count", asked.clone(), |n: &u64, answer| Add(*n, answer));
    /// let node = App::new().actor(tally).route("/count", count).start().await?;
    ///
    /// assert_eq!(node.client().call::<u64, u64>("/count", 5).await?, 105);
    /// assert_eq!(asked.ask(Duration::from_secs(1), |answer| Add(1, answer)).await?, 106);
    /// # Ok(())
    /// # }
    /// ```
    pub fn actor<M: Send + 'static>(self, actor: ActorSpec<M>) -> Self {
        self.actors(actor.into())
    }

    /// Starts a group of actors with the node, before its stages; see [`ActorGroup`].
    pub fn actors(mut self, group: ActorGroup) -> Self {
        self.actors.push(group);
        self
    }

    /// Sets the node's bounds.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The current bounds of the node.
    #[must_use]
    pub fn node_limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn routes_mut(&mut self) -> &mut [RouteSpec] {
        &mut self.routes
    }

    /// The routes, in the order of their declaration.
    pub fn routes(&self) -> &[RouteSpec] {
        &self.routes
    }

    /// A picture of the routes, to be printed or drawn.
    #[must_use]
    pub fn diagram(&self) -> Diagram {
        Diagram::of(&self.routes)
    }

    /// Builds every stage and returns when all of them are warm and the routes are open.
    ///
    /// # Errors
    ///
    /// A contradiction in the app, or the message of the first worker that could not be built. Nothing keeps running
    /// then.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start(self) -> Result<Node, StartError> {
        Node::start(self.routes, self.actors, self.limits).await
    }
}

/// Each stage once, in the order of first use.
pub(crate) fn distinct_stages<'a>(routes: impl IntoIterator<Item = &'a RouteSpec>) -> Vec<Arc<StageSpec>> {
    let mut stages: Vec<Arc<StageSpec>> = Vec::new();
    for spec in routes.into_iter().flat_map(|route| route.graph.stages()) {
        if !stages.iter().any(|seen| Arc::ptr_eq(seen, spec)) {
            stages.push(Arc::clone(spec));
        }
    }
    stages
}

/// The characters of a route's name: those of a URL path that need no escape.
///
/// # Errors
///
/// [`ChangeError::BadRouteName`], as a start or a change with such a route would answer.
pub fn check_route_name(route: &RouteName) -> Result<(), ChangeError> {
    let name = route.as_str();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~:@".contains(&byte);
    let well_formed = name.len() > 1
        && name.starts_with('/')
        && !name.ends_with('/')
        && !name.contains("//")
        && name.bytes().all(allowed)
        && name.split('/').all(|segment| segment != "." && segment != "..");
    if well_formed { Ok(()) } else { Err(ChangeError::BadRouteName { route: route.clone() }) }
}

/// One route of an app.
///
/// ```
/// use std::time::Duration;
/// use callboard_core::{Priority, RouteSpec, Stage};
///
/// let index = Stage::each("index", |text: &String| Ok(text.len()));
/// let route = RouteSpec::new("/index", index)
///     .summary("Adds a text to the index")
///     .max_in_flight(100)
///     .default_timeout(Duration::from_secs(5))
///     .default_priority(Priority::Low);
/// assert_eq!(route.name(), "/index");
/// ```
#[must_use = "a route is served once it is added to an app"]
pub struct RouteSpec {
    pub(crate) name: RouteName,
    pub(crate) graph: Graph<Arc<StageSpec>>,
    pub(crate) parts: RouteParts,
}

impl RouteSpec {
    /// A typed pipeline under `name`.
    pub fn new<In, Out>(name: &str, pipeline: impl IntoPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        let mut route =
            Self::of(name, pipeline.into_pipeline().graph(), DataType::for_type::<In>(), DataType::for_type::<Out>());
        route.parts.is_function = TypeId::of::<In>() == TypeId::of::<FunctionCall>();
        route
    }

    /// A pipeline that answers one input with a stream of outputs, under `name`.
    pub fn streaming<In, Out>(name: &str, pipeline: impl IntoStreamPipeline<In, Out = Out>) -> Self
    where
        In: RouteData,
        Out: RouteData,
    {
        let pipeline = pipeline.into_stream_pipeline();
        let mut route = Self::of(name, pipeline.graph(), DataType::for_type::<In>(), DataType::for_type::<Out>());
        route.parts.streams_at = Some(pipeline.streams_at());
        route
    }

    /// A pipeline over [`Value`]s, described by hand.
    pub fn described(
        name: &str,
        pipeline: impl IntoPipeline<Value, Out = Value>,
        input: DataType,
        output: DataType,
    ) -> Self {
        Self::of(name, pipeline.into_pipeline().graph(), input, output)
    }

    fn of(name: &str, graph: &Graph<Arc<StageSpec>>, input: DataType, output: DataType) -> Self {
        let parts = RouteParts {
            input,
            output,
            summary: String::new(),
            examples: Vec::new(),
            is_function: false,
            streams_at: None,
            limits: RouteLimits::default(),
            headers: Arc::default(),
        };
        Self { name: RouteName::new(name), graph: graph.clone(), parts }
    }

    /// The request headers, by their names, that stages of this route may read with
    /// [`CallContext::header`](crate::CallContext::header). Default: none. The code of a stage sees no other header, so
    /// that it cannot depend on one, or tell one on, that nobody has listed. Headers come with requests over HTTP only.
    ///
    /// ```
    /// use callboard_core::{CallContext, RouteSpec, Stage};
    ///
    /// let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
    ///     Ok(format!("{} {name}", context.header("x-greeting").unwrap_or("hello")))
    /// });
    /// let route = RouteSpec::new("/greet", greet).headers(["X-Greeting"]);
    /// ```
    pub fn headers<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.parts.headers = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase().into()).collect();
        self
    }

    /// One line for people who read the documentation.
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.parts.summary = summary.into();
        self
    }

    /// The most calls in flight on this route; one more is refused with `Overloaded` before its body is read. Default:
    /// only the node's [`Limits`]. Set it if one route could take all of the node's permits. 0 counts as 1.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.parts.limits.max_in_flight = Some(NonZeroUsize::new(calls).unwrap_or(NonZeroUsize::MIN));
        self
    }

    /// The deadline of calls that set none. Default: [`Limits::default_timeout`].
    pub fn default_timeout(mut self, timeout: Duration) -> Self {
        self.parts.limits.timeout = Some(timeout);
        self
    }

    /// The longest that a call of this route may take, whatever its caller says. Default: only [`Limits::max_timeout`].
    /// A longer timeout is shortened to it, also the route's own default.
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.parts.limits.max_timeout = Some(timeout);
        self
    }

    /// The priority of calls that set none. Default [`Priority::Normal`].
    pub fn default_priority(mut self, priority: Priority) -> Self {
        self.parts.limits.priority = priority;
        self
    }

    /// A working input, for the documentation and for checks.
    pub fn example(mut self, example: Value) -> Self {
        self.parts.examples.push(example);
        self
    }

    /// A working input as a Rust value.
    ///
    /// # Errors
    ///
    /// If it cannot be expressed as a [`Value`].
    pub fn example_of<In: Data>(self, example: &In) -> Result<Self, EncodeError> {
        let value = Value::from_serialize(example)?;
        Ok(self.example(value))
    }

    /// Its public name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Its stages in order, wherever they run.
    #[must_use]
    pub fn stages(&self) -> Vec<StageName> {
        self.graph.stage_names(|spec| spec.name())
    }
}

impl fmt::Debug for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteSpec").field("name", &self.name).field("stages", &self.stages()).finish_non_exhaustive()
    }
}

/// Why an app did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A worker of this stage could not be built or warmed up; the message is its own. Nobody tried twice.
    #[error("stage `{stage}` did not start: {message}")]
    Stage {
        /// The stage.
        stage: StageName,
        /// What its constructor said.
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
    /// A route's name is not a plain path. Use `/` and letters, digits, `-`, `_`, `.`, `~`, `:`, `@`; no empty or dot
    /// segments.
    #[error("`{route}` cannot be a route: a route is a plain path such as `/digits`")]
    BadRouteName {
        /// The name.
        route: RouteName,
    },
    /// An actor could not be started, or its name is taken.
    #[error(transparent)]
    Actor(#[from] ActorError),
    /// The operating system refused a thread.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
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
            ChangeError::BadRouteName { route } => Self::BadRouteName { route },
            other => Self::Internal(other.to_string()),
        }
    }
}
