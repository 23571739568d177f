//! A stage is a recipe: a name, how to build a worker for each replica, and the knobs of its batcher and pool.
//!
//! Nothing runs until a node starts the routes that use it. Routes that share a stage share one queue and one pool.

mod cache;
mod rows;
mod scaling;
mod setters;
mod settings;
mod sizing;
mod stream;
mod types;

pub use cache::CacheSettings;
pub use rows::Rows;
pub use scaling::Scaling;
pub use settings::{Placement, StageSettings};

pub use stream::StreamStage;

pub(crate) use sizing::{Sizing, Splitting};
pub(crate) use types::{ReadFn, StageTypes};

use std::fmt;
use std::marker::PhantomData;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use callboard_codec::Data;

use self::setters::common_setters;
use self::settings::at_least_one;
use crate::call::{CallContext, Flight};
use crate::contract::Contract;
use crate::error::Failure;
use crate::id::StageName;
use crate::worker::{
    AsyncClosure, AsyncWorker, Batch, DynAsyncWorker, DynWorker, Erased, ErasedAsync, Replica, Worker, batch_closure,
    contained_closure, each_closure,
};

type BuildFn<W> = dyn Fn(&Replica) -> Result<W, Failure> + Send + Sync;

/// Builds the worker of one replica; runs inside the replica.
#[derive(Clone)]
pub(crate) enum Factory {
    Sync(Arc<BuildFn<Box<dyn DynWorker>>>),
    Async(Arc<BuildFn<Arc<dyn DynAsyncWorker>>>),
}

/// A stage whose replicas run other stages as well; see [`Stage::hosted_by`].
#[derive(Clone, Debug)]
pub struct ReplicaHost(Arc<StageSpec>);

/// A stage without its types: what a node starts.
#[derive(Clone)]
pub(crate) struct StageSpec {
    name: StageName,
    settings: StageSettings,
    sizing: Sizing,
    factory: Factory,
    is_streaming: bool,
    /// Its batches have one item, whatever the settings say.
    is_one_by_one: bool,
    types: StageTypes,
    /// The stage whose replicas run it, if they are not its own.
    host: Option<Arc<Self>>,
}

impl StageSpec {
    pub(crate) fn name(&self) -> &StageName {
        &self.name
    }

    pub(crate) fn settings(&self) -> &StageSettings {
        &self.settings
    }

    pub(crate) fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    pub(crate) fn factory(&self) -> &Factory {
        &self.factory
    }

    /// Whether it answers one input with many outputs.
    pub(crate) fn is_streaming(&self) -> bool {
        self.is_streaming
    }

    /// Whether the calls of a replica that dies may run again.
    pub(crate) fn contract(&self) -> Contract {
        // A sent output cannot be taken back. Only between nodes it is known that none was sent: there the contract of
        // the settings counts until the first output.
        if self.is_streaming { Contract::AtMostOnce } else { self.settings.contract() }
    }

    /// The stage whose replicas run it, if they are not its own.
    pub(crate) fn host(&self) -> Option<&Arc<Self>> {
        self.host.as_ref()
    }

    /// Its response cache, if it may have one.
    pub(crate) fn cache(&self) -> Option<CacheSettings> {
        self.settings.cache().filter(|_| self.contract() == Contract::Pure)
    }

    pub(crate) fn types(&self) -> StageTypes {
        self.types
    }

    /// The same stage for tests whose clock may be paused: as a task, if its code can be one.
    pub(crate) fn for_virtual_time(&self) -> Self {
        let placement = if self.is_streaming { self.settings.placement() } else { Placement::Task };
        Self { settings: self.settings.clone().with_placement(placement).with_virtual_time(), ..self.clone() }
    }

    /// Whether the first that reads its input is a worker that takes it encoded.
    pub(crate) fn reads_encoded(&self) -> bool {
        self.types.is_encoded && !self.sizing.has_cost() && self.cache().is_none()
    }

    /// The same stage with other workers and settings.
    pub(crate) fn with_workers(&self, factory: Factory, settings: StageSettings) -> Self {
        Self { factory, settings, ..self.clone() }
    }

    /// The same stage with other types, or with workers that read these types otherwise.
    pub(crate) fn with_types(&self, types: StageTypes) -> Self {
        Self { types, ..self.clone() }
    }

    pub(crate) fn is_async(&self) -> bool {
        matches!(self.factory, Factory::Async(_))
    }
}

impl fmt::Display for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, settings, sizing, factory: _, is_streaming, is_one_by_one, types, host } = self;
        f.debug_struct("StageSpec")
            .field("name", name)
            .field("settings", settings)
            .field("sizing", sizing)
            .field("is_streaming", is_streaming)
            .field("is_one_by_one", is_one_by_one)
            .field("types", types)
            .field("host", &host.as_ref().map(|host| host.name()))
            .finish_non_exhaustive()
    }
}

/// A step of a pipeline that turns `In` into `Out`.
///
/// ```
/// use callboard_core::{Failure, Stage};
///
/// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
/// let lengths = Stage::batch("lengths", |batch: callboard_core::Batch<String>| {
///     batch.iter().map(|text| Ok(text.len())).collect()
/// })
/// .max_batch_size(32);
/// assert_eq!(shout.name().as_str(), "shout");
/// assert_eq!(lengths.settings().batching().max_batch_size.get(), 32);
/// ```
pub struct Stage<In, Out> {
    spec: Arc<StageSpec>,
    types: PhantomData<fn(In) -> Out>,
}

impl<In: Data, Out: Data> Stage<In, Out> {
    /// A closure over one item. Runs as a task on the runtime: for code that takes well under a millisecond.
    pub fn each<F>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(&In) -> Result<Out, Failure> + Send + Sync + 'static, // `async` code: `Stage::each_async`
    {
        Self::each_in_flight(name.into(), move |input: &In, _: &Arc<Flight>, _: &StageName| function(input))
    }

    /// As [`each`](Self::each), for a closure that needs the context of its call: the caller, the headers, or a client
    /// for calls of its own.
    ///
    /// ```
    /// use callboard_core::{CallContext, Stage};
    ///
    /// let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
    ///     tracing::info!(id = context.request_id(), "greeting");
    ///     Ok(format!("hello {name}"))
    /// });
    /// assert_eq!(greet.name().as_str(), "greet");
    /// ```
    pub fn each_with_context<F>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(&In, &CallContext) -> Result<Out, Failure> + Send + Sync + 'static,
    {
        Self::each_in_flight(name.into(), move |input: &In, flight: &Arc<Flight>, stage: &StageName| {
            function(input, &CallContext::new(flight, stage))
        })
    }

    fn each_in_flight<F>(name: StageName, function: F) -> Self
    where
        F: Fn(&In, &Arc<Flight>, &StageName) -> Result<Out, Failure> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        Self::from_factory(name, Placement::Task, move |_| Ok(each_closure(Arc::clone(&function))))
    }

    /// As [`each_with_context`](Self::each_with_context), on one thread per core. A panic is the outcome of its item,
    /// not a crash.
    pub(crate) fn each_contained<F>(name: StageName, function: F) -> Self
    where
        F: Fn(&In, &CallContext) -> Result<Out, Failure> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        let stage = Self::from_factory(name, Placement::Thread, move |_| Ok(contained_closure(Arc::clone(&function))));
        stage.replicas(available_parallelism().map_or(1, NonZeroUsize::get))
    }

    /// A closure over a batch: one outcome per item, in order. Runs as a task on the runtime.
    pub fn batch<F>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(Batch<In>) -> Vec<Result<Out, Failure>> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        Self::from_factory(name.into(), Placement::Task, move |_| Ok(batch_closure(Arc::clone(&function))))
    }

    /// A [`Worker`], built once per replica and inside it. Runs on an OS thread of its own.
    pub fn worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: Worker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        Self::from_factory(name.into(), Placement::Thread, move |replica| Ok(Box::new(Erased(build(replica)?))))
    }

    /// An asynchronous closure over one item: for code that mostly waits. Runs on the runtime, up to
    /// [`concurrency`](Self::concurrency) batches at once, the items of a batch concurrently. A call whose caller has
    /// left is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Stage};
    /// use std::sync::Arc;
    ///
    /// let ask = Stage::each_async("ask", |question: Arc<String>| async move {
    ///     tokio::task::yield_now().await; // A database, another service.
    ///     Ok(question.len())
    /// });
    /// let node = App::new().route("/ask", ask).start().await?;
    /// let answer: usize = node.client().call("/ask", "why?".to_owned()).await?;
    /// assert_eq!(answer, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn each_async<F, Fut>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(Arc<In>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, Failure>> + Send + 'static, // `async move { … }`; without it: `Stage::each`
    {
        Self::each_async_in_flight(name.into(), move |input, _: &Arc<Flight>, _: &StageName| function(input))
    }

    /// As [`each_async`](Self::each_async), for a closure that needs the context of its call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, CallContext, Stage};
    /// use std::sync::Arc;
    ///
    /// let length = Stage::each("length", |text: &String| Ok(text.len()));
    /// let twice = Stage::each_async_with_context("twice", |text: Arc<String>, context: CallContext| async move {
    ///     // An error of the inner call is the outer call's, as it is.
    ///     let length: usize = context.client()?.call("/length", text.to_string()).await?;
    ///     Ok(2 * length)
    /// });
    /// let node = App::new().route("/length", length).route("/twice", twice).start().await?;
    /// assert_eq!(node.client().call::<_, usize>("/twice", "four".to_owned()).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn each_async_with_context<F, Fut>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(Arc<In>, CallContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, Failure>> + Send + 'static,
    {
        Self::each_async_in_flight(name.into(), move |input, flight: &Arc<Flight>, stage: &StageName| {
            function(input, CallContext::new(flight, stage))
        })
    }

    fn each_async_in_flight<F, Fut>(name: StageName, function: F) -> Self
    where
        F: Fn(Arc<In>, &Arc<Flight>, &StageName) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, Failure>> + Send + 'static,
    {
        let function = Arc::new(function);
        let factory =
            move |_: &Replica| Ok(Arc::new(AsyncClosure::new(Arc::clone(&function))) as Arc<dyn DynAsyncWorker>);
        Self::build_by(name, Placement::Task, Factory::Async(Arc::new(factory)))
    }

    /// An [`AsyncWorker`], built once per replica. Runs on the runtime, up to [`concurrency`](Self::concurrency)
    /// batches at once.
    pub fn async_worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: AsyncWorker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        let factory = move |replica: &Replica| Ok(Arc::new(ErasedAsync(build(replica)?)) as Arc<dyn DynAsyncWorker>);
        Self::build_by(name.into(), Placement::Task, Factory::Async(Arc::new(factory)))
    }

    fn from_factory<F>(name: StageName, placement: Placement, factory: F) -> Self
    where
        F: Fn(&Replica) -> Result<Box<dyn DynWorker>, Failure> + Send + Sync + 'static,
    {
        Self::build_by(name, placement, Factory::Sync(Arc::new(factory)))
    }

    fn build_by(name: StageName, placement: Placement, factory: Factory) -> Self {
        let settings = StageSettings::new(placement);
        let (sizing, types) = (Sizing::default(), StageTypes::for_types::<In, Out>());
        let (is_streaming, is_one_by_one, host) = (false, false, None);
        Self::from_spec(StageSpec { name, settings, sizing, factory, is_streaming, is_one_by_one, types, host })
    }

    /// Defines what an input costs, in a unit that time and memory depend on: rows, tokens, bytes. Without it every
    /// input costs 1.
    ///
    /// A batch then costs the sum of its entries; [`max_cost`](Self::max_cost) bounds it, and the stage's speed is
    /// measured per unit of cost. The function runs once per input, in its caller's own future before the input queues,
    /// so it should only count. A panic in it fails that input alone.
    ///
    /// ```
    /// use callboard_core::{Batch, Stage};
    ///
    /// let embed = Stage::batch("embed", |texts: Batch<String>| texts.iter().map(|text| Ok(text.len())).collect())
    ///     .max_batch_size(64)
    ///     .cost(|text: &String| text.split_whitespace().count() as u64)
    ///     .max_cost(4096);
    /// assert_eq!(embed.settings().batching().max_cost.unwrap().get(), 4096);
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&In) -> u64 + Send + Sync + 'static) -> Self {
        self.change_sizing(|sizing| sizing.with_cost(cost))
    }

    /// Defines how an input that costs more than [`max_cost`](Self::max_cost) is split, and how the outputs of its
    /// parts are joined. Without it such an input is refused with `InvalidInput`.
    ///
    /// `split` is given the input and the largest cost of a part; `join` gets the outputs in the order of the parts.
    /// Both run in the caller's own future. The parts run like calls of their own, several at once if there are
    /// replicas, but remain one call: one permit, one outcome. The first part that fails fails the call and cancels the
    /// other parts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Stage};
    ///
    /// let count = Stage::each("count", |text: &String| Ok(text.matches('a').count()))
    ///     .cost(|text: &String| text.len() as u64)
    ///     .max_cost(4)
    ///     .splitting(
    ///         |text: &String, most| {
    ///             let parts = text.as_bytes().chunks(most as usize);
    ///             Ok(parts.map(|part| String::from_utf8_lossy(part).into()).collect())
    ///         },
    ///         |counts| Ok(counts.into_iter().sum()),
    ///     );
    /// let node = App::new().route("/count", count).start().await?;
    /// let count: usize = node.client().call("/count", "abracadabra".to_owned()).await?;
    /// assert_eq!(count, 5);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn splitting(
        self,
        split: impl Fn(&In, u64) -> Result<Vec<In>, Failure> + Send + Sync + 'static,
        join: impl Fn(Vec<Out>) -> Result<Out, Failure> + Send + Sync + 'static,
    ) -> Self
    where
        Out: Clone,
    {
        self.change_sizing(|sizing| sizing.with_splitting(split, join))
    }

    /// Counts inputs in rows of their first axis, and splits inputs with more than [`max_cost`](Self::max_cost) rows:
    /// [`cost`](Self::cost) and [`splitting`](Self::splitting) for tensors, data frames, lists, and maps of these. An
    /// input without rows costs 1.
    ///
    /// The stage must treat rows independently: its output for the whole is the concatenation of its outputs for the
    /// parts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Stage};
    ///
    /// let double = Stage::each("double", |numbers: &Vec<i64>| {
    ///     assert!(numbers.len() <= 2);
    ///     Ok(numbers.iter().map(|number| number * 2).collect::<Vec<_>>())
    /// });
    /// let node = App::new().route("/double", double.by_rows().max_cost(2)).start().await?;
    /// let doubled: Vec<i64> = node.client().call("/double", vec![1i64, 2, 3, 4, 5]).await?;
    /// assert_eq!(doubled, [2, 4, 6, 8, 10]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn by_rows(self) -> Self
    where
        In: Rows,
        Out: Rows,
    {
        self.cost(|input: &In| input.rows().unwrap_or(1) as u64).splitting(
            |input: &In, max_cost| input.cut(&rows::lengths(input.rows().unwrap_or(1), max_cost)),
            |outputs| Out::paste(outputs),
        )
    }

    fn change_sizing(self, change: impl FnOnce(Sizing) -> Sizing) -> Self {
        let sizing = change(self.spec.sizing.clone());
        Self::from_spec(StageSpec { sizing, ..StageSpec::clone(&self.spec) })
    }
}

impl<In, Out> Stage<In, Out> {
    fn with_settings(self, settings: StageSettings) -> Self {
        // Clones of the stage keep their settings: a changed stage is another stage.
        Self::from_spec(StageSpec { settings, ..StageSpec::clone(&self.spec) })
    }
}

common_setters!(Stage);
