//! An app: routes over pipelines, and the node's bounds. Nothing runs before [`App::start`].

use std::fmt;

use callboard_codec::{DataType, Value};

use crate::actor::{ActorGroup, ActorSpec};
use crate::gateway::Limits;
use crate::keyed::{Keyed, KeyedSpec, KindStart};
use crate::node::{BlockingNode, Node, StartError};
use crate::pipeline::{IntoPipeline, IntoStreamPipeline};
use crate::router::{RouteData, RouteSpec};

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
    keyed: Vec<KindStart>,
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

    /// Starts a kind of keyed actors with the node, before its actors and stages; see
    /// [`KeyedSpec`](crate::keyed::KeyedSpec).
    pub fn keyed<K: Keyed>(mut self, kind: KeyedSpec<K>) -> Self {
        self.keyed.push(kind.into());
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
        self.start_unless(std::future::pending()).await
    }

    /// As [`start`](Self::start), until `cancelled` ends: then what has started is ended in good order, actors after
    /// the stages. Workers that are being built are given up first: children are killed, and only blocking code on a
    /// thread of this process goes on. Dropping the future instead kills all.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`StartError::Cancelled`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start_unless(self, cancelled: impl Future<Output = ()> + Send) -> Result<Node, StartError> {
        Node::start(self.routes, self.actors, self.keyed, self.limits, cancelled).await
    }
}

impl App {
    /// Starts the app from a synchronous program, on a runtime that the node brings along: one thread per core.
    ///
    /// A program that has a runtime starts the app on that and uses
    /// [`LocalClient::blocking`](crate::LocalClient::blocking).
    ///
    /// ```
    /// use std::time::Duration;
    /// use callboard_core::{App, Drained, Stage};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    /// let node = App::new().route("/shout", shout).start_blocking()?;
    /// let loud: String = node.client().call("/shout", "hey".to_owned())?;
    /// assert_eq!(loud, "HEY");
    /// assert_eq!(node.shutdown(Duration::from_secs(5)), Drained::Completely);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the system refuses the threads.
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context: use [`start`](Self::start) there.
    #[track_caller]
    pub fn start_blocking(self) -> Result<BlockingNode, StartError> {
        BlockingNode::start(self.start())
    }
}

impl fmt::Display for App {
    /// One line per route: `/digits: decode → (a | b) → join`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.routes.iter().try_for_each(|route| writeln!(f, "{}: {}", route.name(), route.plan()))
    }
}
