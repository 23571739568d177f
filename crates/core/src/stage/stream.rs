//! Stages that answer one input with many outputs.

use std::fmt;
use std::marker::PhantomData;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Data;
use futures_util::Stream;

use super::setters::common_setters;
use super::settings::at_least_one;
use super::{Factory, Placement, ReplicaHost, Scaling, Sizing, StageSettings, StageSpec, StageTypes};
use crate::call::{CallContext, Flight};
use crate::error::Failure;
use crate::id::StageName;
use crate::worker::{
    AsyncStreamWorker, DynAsyncWorker, ErasedAsyncStream, ErasedStream, Replica, StreamClosure, StreamWorker,
};

/// A step of a pipeline that turns one `In` into a stream of `Out`.
///
/// It is a step of a [`StreamPipeline`](crate::StreamPipeline): the steps after it run for each output. Outputs keep
/// their order. A slow reader pauses only its own stream, when [`credit`](Self::credit) outputs wait for it. A call
/// whose node is lost before the first output runs on another node if the [contract](Self::contract) allows it. After
/// its first output a call never runs again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, Stage, StreamPipeline, StreamStage};
/// use futures_util::stream;
///
/// let words = StreamStage::each("words", |text: &String| {
///     stream::iter(text.split(' ').map(|word| Ok(word.to_owned())).collect::<Vec<_>>())
/// });
/// let upper = Stage::each("upper", |word: &String| Ok(word.to_uppercase()));
/// let node = App::new().route_streaming("/words", StreamPipeline::from(words).then(upper)).start().await?;
///
/// let mut replies = node.client().replies::<String, String>("/words", "one two".to_owned())?;
/// let mut heard = Vec::new();
/// while let Some(word) = replies.next().await {
///     heard.push(word?);
/// }
/// assert_eq!(heard, ["ONE", "TWO"]);
/// # Ok(())
/// # }
/// ```
pub struct StreamStage<In, Out> {
    spec: Arc<StageSpec>,
    types: PhantomData<fn(In) -> Out>,
}

impl<In: Data, Out: Data> StreamStage<In, Out> {
    /// A function from one item to a stream of outputs. Runs on the runtime, up to [`concurrency`](Self::concurrency)
    /// batches at once. The stream is polled for its next output when there is credit for it, and dropped when its
    /// caller leaves.
    ///
    /// The stream outlives the function and cannot borrow the input: `move` a copy of the data into it. A `fn` returns
    /// `impl Stream<…> + use<>`.
    pub fn each<F, S>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(&In) -> S + Send + Sync + 'static,
        S: Stream<Item = Result<Out, Failure>> + Send + 'static,
    {
        Self::each_in_flight(name.into(), move |input: &In, _: &Arc<Flight>, _: &StageName| function(input))
    }

    /// As [`each`](Self::each), for a function that needs the context of its call.
    pub fn each_with_context<F, S>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(&In, &CallContext) -> S + Send + Sync + 'static,
        S: Stream<Item = Result<Out, Failure>> + Send + 'static,
    {
        Self::each_in_flight(name.into(), move |input: &In, flight: &Arc<Flight>, stage: &StageName| {
            function(input, &CallContext::new(flight, stage))
        })
    }

    fn each_in_flight<F, S>(name: StageName, function: F) -> Self
    where
        F: Fn(&In, &Arc<Flight>, &StageName) -> S + Send + Sync + 'static,
        S: Stream<Item = Result<Out, Failure>> + Send + 'static,
    {
        let function = Arc::new(function);
        let factory =
            move |_: &Replica| Ok(Arc::new(StreamClosure::new(Arc::clone(&function))) as Arc<dyn DynAsyncWorker>);
        Self::build_by(name, Placement::Task, Factory::Async(Arc::new(factory))).one_by_one()
    }

    /// A [`StreamWorker`], built once per replica and inside it. Runs on an OS thread of its own.
    pub fn worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: StreamWorker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        let factory = move |replica: &Replica| {
            Ok(Box::new(ErasedStream { worker: build(replica)?, timeout: replica.timeout }) as _)
        };
        Self::build_by(name.into(), Placement::Thread, Factory::Sync(Arc::new(factory)))
    }

    /// An [`AsyncStreamWorker`], built once per replica and inside it. Runs on the runtime, in batches of one.
    pub fn async_worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: AsyncStreamWorker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        Self::streams(name, build, |_| None).one_by_one()
    }

    /// As [`async_worker`](Self::async_worker), in batches: a reader without credit pauses its whole batch.
    pub fn async_batch_worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: AsyncStreamWorker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        Self::streams(name, build, |replica| replica.timeout)
    }

    fn streams<W, F>(name: impl Into<StageName>, build: F, timeout: fn(&Replica) -> Option<Duration>) -> Self
    where
        W: AsyncStreamWorker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        let factory = move |replica: &Replica| {
            let worker = ErasedAsyncStream { worker: build(replica)?, timeout: timeout(replica) };
            Ok(Arc::new(worker) as Arc<dyn DynAsyncWorker>)
        };
        Self::build_by(name.into(), Placement::Task, Factory::Async(Arc::new(factory)))
    }

    fn one_by_one(self) -> Self {
        Self::from_spec(StageSpec { is_one_by_one: true, ..StageSpec::clone(&self.spec) })
    }

    fn build_by(name: StageName, placement: Placement, factory: Factory) -> Self {
        let settings = StageSettings::new(placement);
        let (sizing, types) = (Sizing::default(), StageTypes::for_types::<In, Out>());
        let (is_streaming, is_one_by_one, host) = (true, false, None);
        Self::from_spec(StageSpec { name, settings, sizing, factory, is_streaming, is_one_by_one, types, host })
    }
}

impl<In, Out> StreamStage<In, Out> {
    /// Keeps the placement, and the batch size of asynchronous code, which is 1.
    fn with_settings(self, settings: StageSettings) -> Self {
        let mut settings = settings.with_placement(self.settings().placement());
        if self.spec.is_one_by_one {
            settings = settings.with_max_batch_size(NonZeroUsize::MIN);
        }
        Self::from_spec(StageSpec { settings, ..StageSpec::clone(&self.spec) })
    }

    /// The largest batch of a [`worker`](Self::worker); see
    /// [`BatchPolicy::max_batch_size`](crate::BatchPolicy::max_batch_size). 0 counts as 1.
    /// Asynchronous code has batches of one, so that no stream waits for the end of another, unless it
    /// [asks for batches](Self::async_batch_worker).
    #[must_use]
    pub fn max_batch_size(self, entries: usize) -> Self {
        self.map_settings(|settings| settings.with_max_batch_size(at_least_one(entries)))
    }

    /// How many outputs of one call may wait for their reader; see [`StageSettings::credit`]. 0 counts as 1.
    #[must_use]
    pub fn credit(self, outputs: usize) -> Self {
        self.map_settings(|settings| settings.with_credit(at_least_one(outputs)))
    }
}

common_setters!(StreamStage);
