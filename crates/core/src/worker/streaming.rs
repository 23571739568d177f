//! Streaming workers: many outputs for one input, as fast as the reader reads them.
//!
//! Each entry has its own channel for outputs. Its capacity is the reader's credit: a slow reader, or a slow later
//! stage, pauses only its own entry. The entry's outcome comes after its last output, by the same port as every other
//! outcome.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Payload};
use futures_util::future::{BoxFuture, join_all};
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{
    self, OwnedPermit,
    error::{SendError, TrySendError},
};
use tokio::time::error::Elapsed;
use tokio::time::timeout_at;

use super::asynchronous::DynAsyncWorker;
use super::clock_hold::{ClockHold, put_hold, take_hold};
use super::erased::{DynWorker, Item, ItemOutcome, WrongCount, read_input};
use super::{Batch, Turn};
use crate::call::Flight;
use crate::clock::{self, Instant};
use crate::error::Failure;
use crate::id::StageName;

/// The channel for an entry's outputs.
pub(crate) type OutputSender = mpsc::Sender<Payload>;

/// User code that answers each item with many outputs, for a whole batch at once: a language model, for example.
///
/// It runs on its own thread. [`call`](Self::call) emits outputs for any item at any time, in any order between the
/// items. An item ends when `call` returns, or with [`Outputs::fail`].
///
/// ```
/// use callboard_core::{App, Batch, NotEmitted, Outputs, StreamStage, StreamWorker};
///
/// /// Counts each of its items down, a step for all of them at a time.
/// struct Countdown;
///
/// impl StreamWorker for Countdown {
///     type In = u32;
///     type Out = u32;
///
///     fn call(&mut self, batch: Batch<u32>, outputs: &mut Outputs<u32>) {
///         let mut left: Vec<u32> = batch.into_inputs();
///         while left.iter().any(|left| *left > 0) {
///             for (index, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
///                 match outputs.emit(index, *left) {
///                     Ok(()) => *left -= 1,
///                     Err(NotEmitted::Gone(_) | NotEmitted::Full(_)) => *left = 0,
///                 }
///             }
///         }
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let countdown = StreamStage::worker("countdown", |_replica| Ok(Countdown)).max_batch_size(8);
/// let node = App::new().route_streaming("/countdown", countdown).start().await?;
/// let mut replies = node.client().replies::<u32, u32>("/countdown", 3)?;
/// assert_eq!(replies.next().await.transpose()?, Some(3));
/// assert_eq!(replies.next().await.transpose()?, Some(2));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `StreamWorker`",
    label = "does not implement `StreamWorker`",
    note = "`impl StreamWorker` for it: the types `In` and `Out`, and `call`, which takes a `Batch` and its `Outputs`",
    note = "a `Worker`, which gives one output for each item, goes to `Stage::worker`"
)]
pub trait StreamWorker: Send + 'static {
    /// The type of an item.
    type In: Data;
    /// The type of one output.
    type Out: Data;

    /// Runs one batch. `outputs` has a port for each item, by the item's index.
    fn call(&mut self, batch: Batch<Self::In>, outputs: &mut Outputs<Self::Out>);

    /// Runs once after construction, before the replica counts as ready.
    ///
    /// # Errors
    ///
    /// A failure here is a failed start.
    fn warmup(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Runs once when the replica is stopped in good order. Not after a panic.
    fn cleanup(&mut self) {}
}

/// Asynchronous user code that answers each item with a stream of outputs, built inside its replica.
///
/// Up to [`concurrency`](crate::StreamStage::concurrency) batches stream at once. A batch has one item, unless the
/// stage is made by [`async_batch_worker`](crate::StreamStage::async_batch_worker). Its stream is polled while the
/// reader has credit for an output, and dropped when all callers left.
///
/// ```
/// use callboard_core::{App, AsyncStreamWorker, Batch, Failure, StreamStage};
/// use futures_util::{Stream, stream};
///
/// struct Words;
///
/// impl AsyncStreamWorker for Words {
///     type In = String;
///     type Out = String;
///
///     fn call(&self, texts: Batch<String>) -> impl Stream<Item = (usize, Result<String, Failure>)> + Send {
///         stream::iter(texts[0].split(' ').map(|word| (0, Ok(word.to_owned()))).collect::<Vec<_>>())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let words = StreamStage::async_worker("words", |_replica| Ok(Words)).concurrency(8);
/// let node = App::new().route_streaming("/words", words).start().await?;
/// let mut replies = node.client().replies::<String, String>("/words", "one two".to_owned())?;
/// assert_eq!(replies.next().await.transpose()?.as_deref(), Some("one"));
/// assert_eq!(replies.next().await.transpose()?.as_deref(), Some("two"));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an `AsyncStreamWorker`",
    label = "does not implement `AsyncStreamWorker`",
    note = "`impl AsyncStreamWorker` for it: the types `In` and `Out`, and `call`, which returns a `Stream`",
    note = "a `StreamWorker` goes to `StreamStage::worker`, a function over one item to `StreamStage::each`"
)]
pub trait AsyncStreamWorker: Send + Sync + 'static {
    /// The type of an item.
    type In: Data;
    /// The type of one output.
    type Out: Data;

    /// Starts a batch: the outputs of its items, each with the index of its item. A failure is the last of its item.
    fn call(&self, batch: Batch<Self::In>) -> impl Stream<Item = (usize, Result<Self::Out, Failure>)> + Send;

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

/// An output that was not taken. Gives it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotEmitted<Out> {
    /// The count of unread outputs has reached the stage's credit. Try again later.
    Full(Out),
    /// The outputs have no reader: the caller left, the deadline passed, or the item ended. Stop working on it.
    Gone(Out),
}

/// The outputs of one item.
struct Port {
    outputs: Option<OutputSender>,
    flight: Arc<Flight>,
    failure: Option<Failure>,
}

/// The outputs of the items of one batch.
pub struct Outputs<Out> {
    ports: Vec<Port>,
    /// The longest wait for readers without credit, if the stage has a timeout: slow readers must not look like a hung
    /// worker.
    patience: Option<Instant>,
    /// Waits for credit, also on threads of the worker itself.
    runtime: Handle,
    /// In tests, keeps a paused clock still while the worker does not wait.
    clock: Option<ClockHold>,
    types: PhantomData<fn(Out)>,
}

impl<Out: Data> Outputs<Out> {
    /// Emits an output for the item at `index`, if its reader has credit.
    ///
    /// # Errors
    ///
    /// The output, with the reason.
    ///
    /// # Panics
    ///
    /// If there is no item at `index`.
    pub fn try_emit(&mut self, index: usize, output: Out) -> Result<(), NotEmitted<Out>> {
        let port = &mut self.ports[index];
        let Some(outputs) = port.outputs.as_ref().filter(|_| port.flight.is_wanted(clock::now())) else {
            return Err(NotEmitted::Gone(output));
        };
        // A permit first: the output is wrapped only if there is credit for it.
        match outputs.try_reserve() {
            Ok(permit) => {
                permit.send(Payload::new(output));
                Ok(())
            }
            Err(TrySendError::Full(())) => {
                // The worker may ask again until its reader has read, which may take time.
                self.clock = None;
                Err(NotEmitted::Full(output))
            }
            Err(TrySendError::Closed(())) => Err(NotEmitted::Gone(output)),
        }
    }

    /// Emits an output for the item at `index`; waits until its reader has credit. The other items wait with it: to
    /// continue with them, use [`try_emit`](Self::try_emit). If the stage has a timeout, this waits for readers only
    /// during its first half; an item whose reader has no credit after that fails.
    ///
    /// # Errors
    ///
    /// [`NotEmitted::Gone`] with the output, if it has no reader.
    ///
    /// # Panics
    ///
    /// If there is no item at `index`, or if it must wait inside the worker's own `block_on`: a worker that drives
    /// futures itself uses [`try_emit`](Self::try_emit), or is asynchronous
    /// ([`StreamStage::each`](crate::StreamStage::each)).
    pub fn emit(&mut self, index: usize, output: Out) -> Result<(), NotEmitted<Out>> {
        let port = &mut self.ports[index];
        let Some(outputs) = port.outputs.clone() else { return Err(NotEmitted::Gone(output)) };
        let deadline = port.flight.deadline.instant();
        let until = self.patience.map_or(deadline, |patience| patience.min(deadline));
        let waited = match outputs.try_reserve_owned() {
            Err(TrySendError::Full(outputs)) => self.wait_for_credit(outputs, until),
            at_once => Ok(at_once.map_err(|_| SendError(()))),
        };
        let port = &mut self.ports[index];
        let too_slow = match waited {
            Ok(Ok(permit)) if port.flight.is_wanted(clock::now()) => {
                permit.send(Payload::new(output));
                return Ok(());
            }
            Ok(_) => false,
            Err(_) => true,
        };
        if too_slow {
            port.failure = Some(Failure::new("the reader was too slow for the stage's timeout"));
            port.outputs = None;
        }
        Err(NotEmitted::Gone(output))
    }

    /// Waits until the reader has credit. In tests, a paused clock advances meanwhile.
    fn wait_for_credit(
        &mut self,
        outputs: OutputSender,
        until: Instant,
    ) -> Result<Result<OwnedPermit<Payload>, SendError<()>>, Elapsed> {
        // Its timer is made on the runtime: a worker may emit from a thread of its own.
        let reserving = async move { timeout_at(until, outputs.reserve_owned()).await };
        let Some(clock) = self.clock.take() else { return self.runtime.block_on(reserving) };
        // The task holds the clock again before another timer can fire.
        let waiting = self.runtime.spawn(async { (reserving.await, ClockHold::new()) });
        drop(clock);
        match self.runtime.block_on(waiting) {
            Ok((credit, clock)) => {
                self.clock = Some(clock);
                credit
            }
            Err(_stopping) => Ok(Err(SendError(()))),
        }
    }

    /// Ends the item at `index` with a failure, after its emitted outputs.
    ///
    /// # Panics
    ///
    /// If there is no item at `index`.
    pub fn fail(&mut self, index: usize, failure: Failure) {
        let port = &mut self.ports[index];
        port.outputs = None;
        port.failure = Some(failure);
    }

    /// Ends the item at `index` in good order before its batch ends: its caller gets its outcome when `call` returns,
    /// but nothing more can be emitted.
    ///
    /// # Panics
    ///
    /// If there is no item at `index`.
    pub fn end(&mut self, index: usize) {
        self.ports[index].outputs = None;
    }

    /// Whether the outputs of the item at `index` still have a reader.
    ///
    /// # Panics
    ///
    /// If there is no item at `index`.
    #[must_use]
    pub fn is_wanted(&self, index: usize) -> bool {
        let port = &self.ports[index];
        port.outputs.as_ref().is_some_and(|outputs| !outputs.is_closed()) && port.flight.is_wanted(clock::now())
    }
}

impl<Out> fmt::Debug for Outputs<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("items", &self.ports.len()).finish_non_exhaustive()
    }
}

/// The adapter for the [`StreamWorker`] trait.
pub(crate) struct ErasedStream<W> {
    pub(crate) worker: W,
    /// The timeout of the stage.
    pub(crate) timeout: Option<Duration>,
}

impl<W: StreamWorker> DynWorker for ErasedStream<W> {
    fn warmup(&mut self) -> Result<(), Failure> {
        self.worker.warmup()
    }

    fn run(
        &mut self,
        stage: &StageName,
        items: &mut Vec<Item>,
        outcomes: &mut Vec<ItemOutcome>,
    ) -> Result<(), WrongCount> {
        let mut batch = Batch::with_capacity(stage, items.len());
        let patience = self.timeout.and_then(|timeout| clock::now().checked_add(timeout / 2));
        let clock = take_hold();
        let holds_clock = clock.is_some();
        let mut outputs = Outputs {
            ports: Vec::with_capacity(items.len()),
            patience,
            runtime: Handle::current(),
            clock,
            types: PhantomData,
        };
        // The failures of the items outside of the batch, and a gap for each item in it.
        let mut failures = Vec::with_capacity(items.len());
        for item in items.drain(..) {
            match read_input::<W::In>(item.payload, &item.flight) {
                Ok(input) => {
                    batch.push(input, Arc::clone(&item.flight));
                    outputs.ports.push(Port { outputs: item.outputs, flight: item.flight, failure: None });
                    failures.push(None);
                }
                Err(failure) => failures.push(Some(failure)),
            }
        }
        if !batch.is_empty() {
            self.worker.call(batch, &mut outputs);
        }
        if holds_clock {
            // Until the callers have their outcomes.
            put_hold(outputs.clock.or_else(|| Some(ClockHold::new())));
        }
        let mut ports = outputs.ports.into_iter();
        outcomes.extend(failures.into_iter().map(|failure| {
            let failure = failure.or_else(|| ports.next().and_then(|port| port.failure));
            failure.map_or_else(|| ItemOutcome::Done(Payload::new(())), ItemOutcome::Failed)
        }));
        Ok(())
    }

    fn cleanup(&mut self) {
        self.worker.cleanup();
    }
}

/// A function from one item to a stream of outputs. All replicas share it; the items of a batch stream concurrently.
pub(crate) struct StreamClosure<F, In> {
    function: Arc<F>,
    types: PhantomData<fn(In)>,
}

impl<F, In> StreamClosure<F, In> {
    pub(crate) fn new(function: Arc<F>) -> Self {
        Self { function, types: PhantomData }
    }
}

impl<F, S, In, Out> DynAsyncWorker for StreamClosure<F, In>
where
    F: Fn(&In, &Arc<Flight>, &StageName) -> S + Send + Sync + 'static,
    S: Stream<Item = Result<Out, Failure>> + Send + 'static,
    In: Data,
    Out: Data,
{
    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        _: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>> {
        Box::pin(stream_items(items, move |input: Arc<In>, flight: &Arc<Flight>| {
            (self.function)(&input, flight, stage)
        }))
    }
}

/// The adapter for the [`AsyncStreamWorker`] trait.
pub(crate) struct ErasedAsyncStream<W> {
    pub(crate) worker: W,
    /// The timeout of the stage, if a reader without credit pauses its whole batch.
    pub(crate) timeout: Option<Duration>,
}

impl<W: AsyncStreamWorker> DynAsyncWorker for ErasedAsyncStream<W> {
    fn warmup(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.worker.warmup())
    }

    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        turn: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>> {
        Box::pin(async move {
            let mut batch = Batch::with_capacity(stage, items.len());
            let (mut ports, mut outcomes) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
            for item in items {
                match read_input::<W::In>(item.payload, &item.flight) {
                    Ok(input) => {
                        ports.push((outcomes.len(), item.outputs, item.flight.deadline.instant()));
                        outcomes.push(ItemOutcome::Done(Payload::new(())));
                        batch.push(input, item.flight);
                    }
                    Err(failure) => outcomes.push(ItemOutcome::Failed(failure)),
                }
            }
            if !ports.is_empty() {
                let outputs = self.worker.call(batch.with_turn(turn));
                let mut batch = StreamedBatch { ports, outcomes: &mut outcomes, patience: None };
                batch.drain(outputs, self.timeout).await;
            }
            Ok(outcomes)
        })
    }

    fn cleanup(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.worker.cleanup())
    }
}

/// The readers and outcomes of a batch that one stream answers.
struct StreamedBatch<'o> {
    /// For each item of the batch: the index of its outcome, its outputs while they have a reader, and its deadline.
    ports: Vec<(usize, Option<OutputSender>, Instant)>,
    outcomes: &'o mut [ItemOutcome],
    /// When the wait for credit ends; see [`Outputs`].
    patience: Option<Instant>,
}

impl StreamedBatch<'_> {
    /// Passes all outputs on.
    async fn drain<Out: Data>(
        &mut self,
        stream: impl Stream<Item = (usize, Result<Out, Failure>)>,
        timeout: Option<Duration>,
    ) {
        let mut stream = std::pin::pin!(stream);
        // A reader that pauses does not delay the deadline of the last item.
        let last = self.ports.iter().map(|(.., deadline)| *deadline).max();
        let patient = last.unwrap_or_else(clock::now);
        while let Ok(Some((index, output))) = timeout_at(patient, stream.next()).await {
            // From the first output on: a batch that was handed over ahead waits for its turn.
            self.patience = self.patience.or_else(|| clock::now().checked_add(timeout? / 2));
            self.pass(index, output).await;
        }
        let now = clock::now();
        for (place, outputs, deadline) in &self.ports {
            if outputs.is_some() && now >= *deadline {
                self.outcomes[*place] = ItemOutcome::Late;
            }
        }
    }

    async fn pass<Out: Data>(&mut self, index: usize, output: Result<Out, Failure>) {
        let (place, port, deadline) = &mut self.ports[index];
        let Some(outputs) = port else { return };
        let until = self.patience.map_or(*deadline, |patience| patience.min(*deadline));
        let outcome = match output {
            Err(failure) => ItemOutcome::Failed(failure),
            Ok(output) => match timeout_at(until, outputs.reserve()).await {
                Ok(Ok(credit)) => return credit.send(Payload::new(output)),
                Ok(Err(_)) => ItemOutcome::NotRun,
                Err(_) if clock::now() >= *deadline => ItemOutcome::Late,
                Err(_) => ItemOutcome::Failed(Failure::new("the reader was too slow for the stage's timeout")),
            },
        };
        self.outcomes[*place] = outcome;
        *port = None;
    }
}

/// Streams all items concurrently.
async fn stream_items<In: Data, Out: Data, S>(
    items: Vec<Item>,
    start: impl Fn(Arc<In>, &Arc<Flight>) -> S,
) -> Result<Vec<ItemOutcome>, WrongCount>
where
    S: Stream<Item = Result<Out, Failure>>,
{
    let start = &start;
    let streaming = items.into_iter().map(async |item| {
        let deadline = item.flight.deadline.instant();
        let input = match read_input::<In>(item.payload, &item.flight) {
            Ok(input) => input,
            Err(failure) => return ItemOutcome::Failed(failure),
        };
        let Some(outputs) = item.outputs else { return ItemOutcome::NotRun };
        // A reader that pauses does not delay the deadline.
        let drained = timeout_at(deadline, drain(start(input, &item.flight), &outputs)).await;
        drained.unwrap_or(ItemOutcome::Late)
    });
    Ok(join_all(streaming).await)
}

/// Sends all outputs of a stream. Polls for the next output only when there is credit for it.
async fn drain<Out: Data>(stream: impl Stream<Item = Result<Out, Failure>>, outputs: &OutputSender) -> ItemOutcome {
    let mut stream = std::pin::pin!(stream);
    loop {
        let Ok(credit) = outputs.reserve().await else { return ItemOutcome::NotRun };
        match stream.next().await {
            Some(Ok(output)) => credit.send(Payload::new(output)),
            Some(Err(failure)) => return ItemOutcome::Failed(failure),
            None => return ItemOutcome::Done(Payload::new(())),
        }
    }
}
