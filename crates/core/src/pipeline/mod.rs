//! Pipelines: connected stages, checked by their types, stored as data.
//!
//! ```
//! use callboard_core::{Pipeline, Stage};
//!
//! let parse = Stage::each("parse", |text: &String| Ok(text.parse::<f64>()?));
//! let root = Stage::each("root", |number: &f64| Ok(number.sqrt()));
//! let pipeline: Pipeline<String, f64> = Pipeline::from(parse).then(root);
//! assert_eq!(pipeline.to_string(), "parse → root");
//! ```
//!
//! A stage whose input is not the last one's output does not compile:
//!
//! ```compile_fail
//! use callboard_core::{Pipeline, Stage};
//!
//! let parse = Stage::each("parse", |text: &String| Ok(text.parse::<f64>()?));
//! let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
//! let pipeline = Pipeline::from(parse).then(shout);
//! ```

mod check;
mod ensemble;
mod fields;
mod graph;
mod into;
mod plan;
mod preprocess;
mod remote;
mod run;
mod stream;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Encoded, Payload, Value};

use crate::actor::{ActorRef, AskFn, ReplyPort, ask_step};
use crate::error::Failure;
use crate::stage::{Stage, StageSpec};

pub use check::{MAX_PLAN_DEPTH, PlanMistake};
pub use ensemble::{MemberError, Members};
pub use into::{IntoPipeline, IntoStreamPipeline};
pub use plan::{Choice, PipelinePlan, PlanError, Planned, StageOutline};
pub use stream::StreamPipeline;

pub(crate) use graph::Graph;
pub(crate) use remote::{StageStep, StreamPlace, place_stream, stream_remote, was_lost};
pub(crate) use run::{all_may_run_again, may_repeat};

use run::Combinator;

/// Connected stages, from `In` to `Out`.
pub struct Pipeline<In, Out> {
    graph: Graph<Arc<StageSpec>>,
    types: PhantomData<fn(In) -> Out>,
}

impl<In: Data> Pipeline<In, In> {
    /// Returns its input: the empty branch of a switch, or the original next to the other outputs of an ensemble.
    #[must_use]
    pub fn pass_through() -> Self {
        Self::from_graph(Graph::Sequence(Vec::new()))
    }

    /// Chooses one branch by the item's content. If the choice fails, panics or names no branch, only that item fails.
    ///
    /// ```
    /// use callboard_core::{Pipeline, Stage};
    ///
    /// let short = Stage::each("short", |text: &String| Ok(text.len()));
    /// let long = Stage::each("long", |text: &String| Ok(text.len() / 1000));
    /// let by_length = Pipeline::switch(
    ///     "by_length",
    ///     |text: &String| Ok(usize::from(text.len() > 10_000)),
    ///     [short, long],
    /// );
    /// assert_eq!(by_length.to_string(), "by_length{short / long}");
    /// ```
    #[must_use]
    pub fn switch<P, F>(name: &str, choose: F, branches: impl IntoIterator<Item = P>) -> Pipeline<In, P::Out>
    where
        P: IntoPipeline<In>,
        F: Fn(&In) -> Result<usize, Failure> + Send + Sync + 'static,
    {
        let choose = Arc::new(move |payload: &Payload| match payload.downcast_ref::<In>() {
            Some(input) => choose(input),
            None => choose(&*read::<In>(payload.clone())?),
        });
        let parts = branches.into_iter().map(|branch| branch.into_pipeline().graph).collect();
        let combinator = Combinator::Switch { name: name.into(), choose };
        Pipeline::from_graph(Graph::Nested { combinator, parts, labels: graph::Labels::default() })
    }
}

impl<In: Data> Pipeline<In, Encoded> {
    /// The same pipeline, whose outputs count as values: a reader decodes them, and other processes get their bytes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_codec::{DecodeLimits, Encoded, Format, Value};
    /// use callboard_core::{App, Pipeline, Stage};
    ///
    /// let stored = Value::from("tea").encode(Format::Envelope)?;
    /// let read = move |_: &u64| Ok(Encoded::read(&stored, &DecodeLimits::default())?);
    /// let first: Pipeline<u64, Value> = Pipeline::<u64, u64>::pass_through().map("stored", read).of_values();
    /// let shout = Stage::each("shout", |text: &Value| Ok(text.as_str().unwrap_or_default().to_uppercase()));
    /// let node = App::new().route("/stored", first.then(shout)).start().await?;
    /// assert_eq!(node.client().call::<u64, String>("/stored", 1).await?, "TEA");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of_values(self) -> Pipeline<In, Value> {
        Pipeline::from_graph(self.graph)
    }
}

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// An actor as a step: `message` makes a message from each item, with the deadline of its call, and the answer is
    /// the step's output. The actor's mailbox is the queue: a full one is `Overloaded`. If the actor restarts, the call
    /// waits for it until its deadline; if the actor crashes with the item, the call is `WorkerFailed` and the item is
    /// not sent again. See [`App::actor`](crate::App::actor) for an example.
    #[must_use]
    pub fn ask<M, F>(name: &str, actor: ActorRef<M>, message: F) -> Self
    where
        M: Send + 'static,
        F: Fn(&In, ReplyPort<Out>) -> M + Send + Sync + 'static,
    {
        Self::asking(name.into(), ask_step(actor, None, message))
    }

    /// As [`ask`](Self::ask), for at most `timeout`: a call whose answer takes longer is `DeadlineExceeded`, although
    /// the call itself may have more time. The earlier of `timeout` and the deadline of the call counts. In a
    /// [partial ensemble](Pipeline::ensemble_partial) the other members continue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
    /// use callboard_core::{App, ErrorKind, Failure, Pipeline};
    ///
    /// struct Lookup;
    ///
    /// impl Actor for Lookup {
    ///     type Message = (u64, ReplyPort<u64>);
    ///
    ///     async fn handle(&mut self, (ms, answer): Self::Message, _: &ActorContext<Self>) -> Result<(), Failure> {
    ///         tokio::time::sleep(Duration::from_millis(ms)).await;
    ///         answer.send(ms);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let spec = ActorSpec::new("lookup", |_| Lookup);
    /// let within = Duration::from_millis(200);
    /// let lookup = Pipeline::ask_with_timeout("lookup", spec.reference(), within, |ms: &u64, answer| (*ms, answer));
    /// let node = App::new().actor(spec).route("/lookup", lookup).start().await?;
    ///
    /// assert_eq!(node.client().call::<u64, u64>("/lookup", 20).await?, 20);
    /// let error = node.client().call::<u64, u64>("/lookup", 5_000).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ask_with_timeout<M, F>(name: &str, actor: ActorRef<M>, timeout: Duration, message: F) -> Self
    where
        M: Send + 'static,
        F: Fn(&In, ReplyPort<Out>) -> M + Send + Sync + 'static,
    {
        Self::asking(name.into(), ask_step(actor, Some(timeout), message))
    }

    /// Continues with `next`, which takes the output of this pipeline.
    #[must_use]
    pub fn then<Next: Data>(self, next: impl IntoPipeline<Out, Out = Next>) -> Pipeline<In, Next> {
        Pipeline::from_graph(self.graph.then(next.into_pipeline().graph))
    }

    /// Continues with a function that is too small to be a stage: it runs in the caller's own future, without queue,
    /// worker or batch. A panic in it fails that item only. It must have no effects: a call that has run nothing else
    /// counts as not started, and may be sent again.
    #[must_use]
    pub fn map<Next, F>(self, name: &str, function: F) -> Pipeline<In, Next>
    where
        Next: Data,
        F: Fn(&Out) -> Result<Next, Failure> + Send + Sync + 'static,
    {
        let function = Arc::new(move |payload| Ok(Payload::new(function(&*read::<Out>(payload)?)?)));
        Pipeline::from_graph(self.graph.then(Graph::Map { name: name.into(), function }))
    }

    /// Names the branches of a switch, or the members of an ensemble, in plans and pictures. The default names are
    /// numbers. No effect on other pipelines.
    #[must_use]
    pub fn labelled(self, labels: impl IntoIterator<Item = String>) -> Self {
        Self::from_graph(self.graph.labelled(labels.into_iter().collect()))
    }

    /// One question for each item.
    pub(crate) fn asking(name: Arc<str>, ask: AskFn) -> Self {
        Self::from_graph(Graph::Ask { name, ask })
    }

    fn from_graph(graph: Graph<Arc<StageSpec>>) -> Self {
        Self { graph, types: PhantomData }
    }

    pub(crate) fn graph(&self) -> &Graph<Arc<StageSpec>> {
        &self.graph
    }
}

fn read<T: Data>(payload: Payload) -> Result<Arc<T>, Failure> {
    payload.into_arc::<T>().map_err(|error| Failure::invalid_input(error.to_string()))
}

impl<In: Data, Out: Data> From<Stage<In, Out>> for Pipeline<In, Out> {
    fn from(stage: Stage<In, Out>) -> Self {
        Self::from_graph(Graph::Stage(Arc::clone(stage.spec())))
    }
}

impl<In, Out> Clone for Pipeline<In, Out> {
    fn clone(&self) -> Self {
        Self { graph: self.graph.clone(), types: PhantomData }
    }
}

impl<In, Out> fmt::Display for Pipeline<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.graph.plan(|spec| (spec.name(), spec.settings())).fmt(f)
    }
}

impl<In, Out> fmt::Debug for Pipeline<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline({self})")
    }
}
