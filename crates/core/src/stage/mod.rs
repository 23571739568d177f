//! A stage is a recipe: a name, how to build a worker for each replica, and the knobs of its batcher and pool.
//!
//! Nothing runs until a node starts the routes that use it. A stage that several routes share is one queue and one pool.

mod settings;

pub use settings::{DEFAULT_QUEUE_BYTES, DEFAULT_QUEUE_ENTRIES, Placement, StageSettings};

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Data;

use crate::batcher::BatchPolicy;
use crate::failure::Failure;
use crate::id::StageName;
use crate::worker::{Batch, BatchClosure, DynWorker, EachClosure, Erased, Replica, Worker};

type Factory = dyn Fn(&Replica) -> Result<Box<dyn DynWorker>, Failure> + Send + Sync;

/// A stage without its types: what a node starts.
pub(crate) struct StageSpec {
    name: StageName,
    settings: StageSettings,
    factory: Arc<Factory>,
}

impl StageSpec {
    pub(crate) fn name(&self) -> &StageName {
        &self.name
    }

    pub(crate) fn settings(&self) -> &StageSettings {
        &self.settings
    }

    /// Builds the worker of one replica; runs inside the replica.
    pub(crate) fn build(&self, replica: &Replica) -> Result<Box<dyn DynWorker>, Failure> {
        (self.factory)(replica)
    }
}

impl fmt::Display for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, settings, factory: _ } = self;
        f.debug_struct("StageSpec").field("name", name).field("settings", settings).finish_non_exhaustive()
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
    /// A closure over one item. Runs as a task on the runtime: for code well under a millisecond.
    pub fn each<F>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(&In) -> Result<Out, Failure> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        Self::from_factory(name.into(), Placement::Task, move |_| Ok(Box::new(EachClosure::new(Arc::clone(&function)))))
    }

    /// A closure over a batch: one outcome per item, in order. Runs as a task on the runtime.
    pub fn batch<F>(name: impl Into<StageName>, function: F) -> Self
    where
        F: Fn(Batch<In>) -> Vec<Result<Out, Failure>> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        Self::from_factory(name.into(), Placement::Task, move |_| {
            Ok(Box::new(Erased(BatchClosure::new(Arc::clone(&function)))))
        })
    }

    /// A [`Worker`], built once per replica and inside it. Runs on an OS thread of its own.
    pub fn worker<W, F>(name: impl Into<StageName>, build: F) -> Self
    where
        W: Worker<In = In, Out = Out>,
        F: Fn(&Replica) -> Result<W, Failure> + Send + Sync + 'static,
    {
        Self::from_factory(name.into(), Placement::Thread, move |replica| Ok(Box::new(Erased(build(replica)?))))
    }

    fn from_factory<F>(name: StageName, placement: Placement, factory: F) -> Self
    where
        F: Fn(&Replica) -> Result<Box<dyn DynWorker>, Failure> + Send + Sync + 'static,
    {
        let settings = StageSettings::new(placement);
        Self::from_spec(StageSpec { name, settings, factory: Arc::new(factory) })
    }

    fn from_spec(spec: StageSpec) -> Self {
        Self { spec: Arc::new(spec), types: PhantomData }
    }
}

impl<In, Out> Stage<In, Out> {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &StageName {
        self.spec.name()
    }

    /// The knobs as they stand.
    #[must_use]
    pub fn settings(&self) -> &StageSettings {
        self.spec.settings()
    }

    pub(crate) fn spec(&self) -> &Arc<StageSpec> {
        &self.spec
    }

    /// Replaces all knobs.
    #[must_use]
    pub fn with_settings(self, settings: StageSettings) -> Self {
        // A clone of the stage keeps the knobs it had: a changed stage is another stage.
        let spec = StageSpec { name: self.spec.name.clone(), settings, factory: Arc::clone(&self.spec.factory) };
        Self { spec: Arc::new(spec), types: PhantomData }
    }

    fn change(self, change: impl FnOnce(StageSettings) -> StageSettings) -> Self {
        let settings = change(self.spec.settings.clone());
        self.with_settings(settings)
    }

    /// The largest batch; see [`BatchPolicy::max_batch_size`]. 0 counts as 1.
    #[must_use]
    pub fn max_batch_size(self, entries: usize) -> Self {
        self.change(|settings| {
            let max_batch_size = NonZeroUsize::new(entries).unwrap_or(NonZeroUsize::MIN);
            let batching = BatchPolicy { max_batch_size, ..settings.batching().clone() };
            settings.with_batching(batching)
        })
    }

    /// How long a batch that is not full may wait for more; see [`BatchPolicy::max_delay`].
    #[must_use]
    pub fn max_delay(self, max_delay: Duration) -> Self {
        self.change(|settings| {
            let batching = BatchPolicy { max_delay, ..settings.batching().clone() };
            settings.with_batching(batching)
        })
    }

    /// The number of replicas. 0 counts as 1.
    #[must_use]
    pub fn replicas(self, replicas: usize) -> Self {
        let replicas = NonZeroUsize::new(replicas).unwrap_or(NonZeroUsize::MIN);
        self.change(|settings| settings.with_replicas(replicas))
    }

    /// How many entries may wait; one more is refused with `Overloaded`. 0 counts as 1.
    #[must_use]
    pub fn queue(self, entries: usize) -> Self {
        let entries = NonZeroUsize::new(entries).unwrap_or(NonZeroUsize::MIN);
        self.change(|settings| settings.with_queue(entries))
    }

    /// Runs each replica on an OS thread of its own: for code that takes a millisecond or more.
    #[must_use]
    pub fn on_threads(self) -> Self {
        self.change(|settings| settings.with_placement(Placement::Thread))
    }

    /// Runs each replica on the runtime: for code well under a millisecond.
    #[must_use]
    pub fn as_tasks(self) -> Self {
        self.change(|settings| settings.with_placement(Placement::Task))
    }
}

impl<In, Out> Clone for Stage<In, Out> {
    /// The same stage: pipelines that use clones of it share one queue and one pool.
    fn clone(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), types: PhantomData }
    }
}

impl<In, Out> fmt::Debug for Stage<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}
