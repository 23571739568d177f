//! Asynchronous workers: for code that mostly waits, such as calls of other services.
//!
//! An asynchronous worker runs several batches at once on the runtime. Its code can be cancelled: when all callers of a
//! batch left or are late, the batch's future is dropped.

use std::marker::PhantomData;
use std::sync::Arc;

use callboard_codec::{Data, Payload};
use futures_util::future::{BoxFuture, join_all};
use tracing::{Instrument, Span};

use super::erased::{Item, ItemOutcome, UnreadableItems, WrongCount, read_input};
use super::{Batch, Turn, span};
use crate::call::Flight;
use crate::containment::contain_future;
use crate::error::Failure;
use crate::id::StageName;

/// Asynchronous user code, built inside its replica.
///
/// The contract is that of [`Worker`](super::Worker), with one difference: `call` takes `&self`, because up to
/// [`concurrency`](crate::Stage::concurrency) batches run at once.
///
/// ```
/// use callboard_core::{App, AsyncWorker, Batch, Failure, Stage};
/// use std::time::Duration;
///
/// struct Weather;
///
/// impl AsyncWorker for Weather {
///     type In = String;
///     type Out = String;
///
///     async fn call(&self, cities: Batch<String>) -> Vec<Result<String, Failure>> {
///         tokio::time::sleep(Duration::from_millis(1)).await; // Ask a weather service.
///         cities.iter().map(|city| Ok(format!("fair in {city}"))).collect()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let weather = Stage::async_worker("weather", |_replica| Ok(Weather)).max_batch_size(8).concurrency(4);
/// let node = App::new().route("/weather", weather).start().await?;
/// let answer: String = node.client().call("/weather", "Lima".to_owned()).await?;
/// assert_eq!(answer, "fair in Lima");
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// The future of `call` is dropped when all callers of its batch left, and after the stage's timeout.
///
/// # Panics
///
/// A panic ends the replica. Its other batches are finished.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an `AsyncWorker`",
    label = "does not implement `AsyncWorker`",
    note = "`impl AsyncWorker` for it: the types `In` and `Out`, and `async fn call`, which takes a `Batch`",
    note = "a `Worker` goes to `Stage::worker`, an asynchronous function over one item to `Stage::each_async`"
)]
pub trait AsyncWorker: Send + Sync + 'static {
    /// The type of an item.
    type In: Data;
    /// The type of an item's output.
    type Out: Data;

    /// Runs one batch: one outcome per item, in order.
    fn call(&self, batch: Batch<Self::In>) -> impl Future<Output = Vec<Result<Self::Out, Failure>>> + Send;

    /// Runs once after construction, before the replica counts as ready.
    ///
    /// # Errors
    ///
    /// A failure here is a failed start.
    fn warmup(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Runs once when the replica is stopped in good order. Not after a panic.
    fn cleanup(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// An asynchronous worker without its types.
pub(crate) trait DynAsyncWorker: Send + Sync {
    fn warmup(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    /// Runs the batch: as many outcomes as items, in order. Only a stage that hands batches ahead looks at the turn.
    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        turn: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>>;

    fn cleanup(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The adapter for the [`AsyncWorker`] trait.
pub(crate) struct ErasedAsync<W>(pub(crate) W);

impl<W: AsyncWorker> DynAsyncWorker for ErasedAsync<W> {
    fn warmup(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.0.warmup())
    }

    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        turn: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>> {
        Box::pin(async move {
            let (batch, unreadable) = UnreadableItems::separate(stage, items);
            let results = if batch.is_empty() { Vec::new() } else { self.0.call(batch.with_turn(turn)).await };
            let mut outcomes = Vec::with_capacity(results.len());
            unreadable.lay_out(results, &mut outcomes)?;
            Ok(outcomes)
        })
    }

    fn cleanup(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.cleanup())
    }
}

/// An asynchronous closure over one item and its call. All replicas share it; the items of a batch run concurrently.
pub(crate) struct AsyncClosure<F, In, Out> {
    function: Arc<F>,
    types: PhantomData<fn(In) -> Out>,
}

impl<F, In, Out> AsyncClosure<F, In, Out> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<F, Fut, In, Out> DynAsyncWorker for AsyncClosure<F, In, Out>
where
    F: Fn(Arc<In>, &Arc<Flight>, &StageName) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Out, Failure>> + Send,
    In: Data,
    Out: Data,
{
    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        _: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>> {
        Box::pin(async move {
            let is_alone = items.len() == 1;
            let running = items.into_iter().map(async |item| match read_input::<In>(item.payload, &item.flight) {
                Ok(input) => {
                    let span = if is_alone { Span::none() } else { span::for_member(stage, &item.flight) };
                    let running = span.in_scope(|| (self.function)(input, &item.flight, stage));
                    running.instrument(span).await.map(Payload::new).into()
                }
                Err(failure) => ItemOutcome::Failed(failure),
            });
            Ok(join_all(running).await)
        })
    }
}

/// Warms up a new asynchronous worker. A panic counts as a failure.
pub(crate) async fn warm_up(worker: &dyn DynAsyncWorker) -> Result<(), Failure> {
    contain_future(worker.warmup()).await.unwrap_or_else(|words| Err(Failure::new(format!("panicked: {words}"))))
}
