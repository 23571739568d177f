//! Ordered streams of calls: inputs from any producer, even an endless one; results in the order of the inputs.
//!
//! * **Full:** the look-ahead bounds the stream. Its calls are not refused; they wait for a place in a full stage and
//!   for a permit on a full node. What user code refuses is made again.
//! * **Late:** a late result is answered with `DeadlineExceeded`; the stream continues.
//! * **Cancelled:** dropping the stream cancels all outstanding calls. Nothing more is pulled.

mod attempts;
mod driver;
mod ordered;
mod prepare;
mod window;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use callboard_codec::{Data, Payload};
use futures_util::Stream;
use futures_util::stream::{self, Iter};
use tokio::runtime::Handle;

use self::driver::BoxedCall;
use self::ordered::{CallTarget, Ordered, Settings};
use self::window::default_look_ahead;
use super::LocalClient;
use crate::call::CallOptions;
use crate::clock;
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind, Failure};

pub use prepare::{NoPreprocess, Prepare, PreparedInput, Preprocess};

impl LocalClient {
    /// Calls a route with every input of an iterator, many at once, and yields the results in the order of the inputs.
    ///
    /// The iterator may be endless: [`look_ahead`](CallStream::look_ahead) bounds how many inputs are pulled ahead of
    /// the consumer. It is pulled in the consumer's task, so it should not block.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Stage};
    ///
    /// let square = Stage::each("square", |n: &u64| Ok(n * n));
    /// let node = App::new().route("/square", square).start().await?;
    ///
    /// let mut squares = node.client().stream("/square", 1u64..)?;
    /// let mut sum = 0;
    /// while let Some(square) = squares.next().await {
    ///     let square: u64 = square?;
    ///     if square > 100 {
    ///         break; // dropping the stream cancels what is outstanding
    ///     }
    ///     sum += square;
    /// }
    /// assert_eq!(sum, 385);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such route.
    pub fn stream<I, Out>(&self, route: &str, inputs: I) -> Result<CallStream<Iter<I::IntoIter>, Out>, CallError>
    where
        I: IntoIterator,
        Out: Data + Clone,
        NoPreprocess: Prepare<I::Item>,
    {
        CallStream::try_new(self.clone(), route, stream::iter(inputs))
    }

    /// Like [`stream`](Self::stream), with inputs that arrive over time.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such route.
    pub fn stream_from<S, Out>(&self, route: &str, inputs: S) -> Result<CallStream<Pin<Box<S>>, Out>, CallError>
    where
        S: Stream,
        Out: Data + Clone,
        NoPreprocess: Prepare<S::Item>,
    {
        CallStream::try_new(self.clone(), route, Box::pin(inputs))
    }
}

/// Results in the order of their inputs. Made by [`Caller::stream`](super::Caller::stream), in process and over a
/// network with the same options. Nothing is pulled or called before the first poll.
///
/// Every input gets one result, in its place. An error answers its own input, and the stream continues, unless
/// [`stop_at_error`](Self::stop_at_error) is set. The calls run in a task on the node's runtime; they continue while
/// the consumer is busy.
///
/// # Time
///
/// The consumer waits at most [`timeout`](Self::timeout) for a result, from when all earlier results are there. A
/// stream does not make its own calls late: the deadline of a call leaves the same time for each call ahead of it.
///
/// # Room
///
/// At most [`look_ahead`](Self::look_ahead) inputs are pulled and not yet answered, and one more while a result is
/// handed over. A plain call is refused with `Overloaded` by a full stage or node; a call of a stream waits for a place
/// or permit until it is late. Over a network, and if a stage's own code refuses it
/// ([`Failure::overloaded`](crate::Failure::overloaded)), it is made again after the time that the refusal gives, while
/// the deadline allows; see [`CallOptions::with_retry`]. `Overloaded` remains for an input that was late before there
/// was room; an input that fits no empty node is refused at once.
///
/// # Cancellation
///
/// Dropping the stream cancels its outstanding calls: no more of their work starts, and their permits are free after
/// the next turn of the runtime. Dropping a future of `next` loses nothing.
///
/// # Panics
///
/// The producer and the preprocessing function run in the consumer's task and panic there.
#[must_use = "a stream does nothing until it is polled"]
pub struct CallStream<S: Stream, Out, P: Prepare<S::Item> = NoPreprocess> {
    ordered: Ordered<S, Out, P>,
}

impl<S, Out> CallStream<S, Out>
where
    S: Stream,
    NoPreprocess: Prepare<S::Item>,
{
    pub(super) fn try_new(client: LocalClient, route: &str, inputs: S) -> Result<Self, CallError> {
        let served = client.served(route)?;
        let gateway = &client.shared.gateway;
        let (timeout, max_timeout) = (gateway.timeout_of(&served, None), gateway.max_timeout_of(&served));
        let look_ahead = default_look_ahead(served.workers_hold());
        let target = CallTarget::Local { client, route: route.to_owned() };
        Ok(Self::new(inputs, Settings::new(target, look_ahead, timeout, max_timeout)))
    }

    /// The ordered stream of another [`Caller`](super::Caller), such as a network client. `call` makes one call with a
    /// payload and waits for room until the deadline of its options. `look_ahead` and `timeout` are the defaults.
    ///
    /// # Errors
    ///
    /// `Unavailable` outside a Tokio runtime, on which the calls run.
    pub fn from_calls<F, C>(inputs: S, look_ahead: usize, timeout: Duration, call: F) -> Result<Self, CallError>
    where
        F: Fn(Payload, CallOptions) -> C + Send + Sync + 'static,
        C: Future<Output = Result<Out, CallError>> + Send + 'static,
    {
        let runtime = Handle::try_current()
            .map_err(|_| CallError::new(ErrorKind::Unavailable, "a stream of calls needs a Tokio runtime around it"))?;
        let call = Box::new(move |payload, options| Box::pin(call(payload, options)) as BoxedCall<Out>);
        let target = CallTarget::Remote { runtime, call };
        Ok(Self::new(inputs, Settings::new(target, look_ahead, timeout, Deadline::MAX_TIMEOUT)))
    }

    fn new(inputs: S, settings: Settings<Out>) -> Self {
        Self { ordered: Ordered::new(Some(inputs), NoPreprocess, settings) }
    }

    /// Makes the input of each call by a function, which runs in the consumer's task as the input is pulled. A failure
    /// answers its own input only.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Stage};
    ///
    /// let double = Stage::each("double", |n: &i64| Ok(n * 2));
    /// let node = App::new().route("/double", double).start().await?;
    ///
    /// let texts = ["8", "seven", "6"].map(str::to_owned);
    /// let mut doubled = node
    ///     .client()
    ///     .stream::<_, i64>("/double", texts)?
    ///     .preprocess(|text: &String| Ok(text.parse::<i64>()?))
    ///     .with_inputs();
    /// let mut failed = Vec::new();
    /// while let Some((text, outcome)) = doubled.next().await {
    ///     if outcome.is_err() {
    ///         failed.push(text);
    ///     }
    /// }
    /// assert_eq!(failed, ["seven"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn preprocess<In, F>(self, function: F) -> CallStream<S, Out, Preprocess<F>>
    where
        In: Data,
        F: FnMut(&S::Item) -> Result<In, Failure>,
    {
        CallStream { ordered: self.ordered.with_prepare(Preprocess(function)) }
    }
}

impl<S, Out, P> CallStream<S, Out, P>
where
    S: Stream,
    P: Prepare<S::Item>,
{
    /// The maximum number of inputs that are pulled and not yet answered. 0 counts as 1.
    ///
    /// Default: twice what the route's workers hold at once (replicas × largest batch, over all stages), at least 16
    /// and at most 1,024; over a network, where the workers are unknown, 64. Each takes memory for an input and a
    /// result, and one of the node's permits. Increase it if workers are idle because the consumer is slow at times.
    /// Decrease it if inputs are large, or if an early stop should waste little.
    pub fn look_ahead(mut self, inputs: usize) -> Self {
        self.ordered.settings.look_ahead = inputs;
        self
    }

    /// How long the consumer waits for a result when all earlier results are there, at most what the route and the node
    /// [allow](crate::Limits::max_timeout). Default: the node's timeout for calls.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.ordered.settings.set_timeout(timeout);
        self
    }

    /// The options of every call. A deadline, or a timeout, which begins here, covers the whole stream: inputs that are
    /// not answered by then get `DeadlineExceeded`.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.ordered.settings.options = options.started_at(clock::now());
        self
    }

    /// Ends the stream at the first error. The error is the last item and names the index of its input (from 0).
    /// Outstanding calls are cancelled.
    pub fn stop_at_error(mut self) -> Self {
        self.ordered.settings.stop_at_error = true;
        self
    }

    /// Yields each result with its input, as it was before [`preprocess`](Self::preprocess).
    ///
    /// An input is cloned only if a stage still holds it when its result is there.
    pub fn with_inputs(mut self) -> CallStreamWithInputs<S, Out, P> {
        self.ordered.settings.store_inputs = true;
        CallStreamWithInputs { ordered: self.ordered }
    }
}

impl<S, Out, P> CallStream<S, Out, P>
where
    S: Stream + Unpin,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    /// The next result, or `None` when all inputs are answered.
    pub async fn next(&mut self) -> Option<Result<Out, CallError>> {
        poll_fn(|cx| self.ordered.poll_next(cx)).await.map(|(_, outcome)| outcome)
    }
}

impl<S, Out, P> Stream for CallStream<S, Out, P>
where
    S: Stream + Unpin,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    type Item = Result<Out, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ordered.poll_next(cx).map(|item| item.map(|(_, outcome)| outcome))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ordered.size_hint()
    }
}

/// No field is pinned in place.
impl<S: Stream + Unpin, Out, P: Prepare<S::Item>> Unpin for CallStream<S, Out, P> {}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for CallStream<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordered.fmt(f)
    }
}

type InputAndResult<X, Out> = (X, Result<Out, CallError>);

/// Results with their inputs, in order. Made by [`CallStream::with_inputs`].
#[must_use = "a stream does nothing until it is polled"]
pub struct CallStreamWithInputs<S: Stream, Out, P: Prepare<S::Item> = NoPreprocess> {
    ordered: Ordered<S, Out, P>,
}

impl<S, Out, P> CallStreamWithInputs<S, Out, P>
where
    S: Stream + Unpin,
    S::Item: Clone,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    /// The next input with its result, or `None` when all inputs are answered.
    pub async fn next(&mut self) -> Option<InputAndResult<S::Item, Out>> {
        poll_fn(|cx| self.poll_pair(cx)).await
    }

    fn poll_pair(&mut self, cx: &mut Context<'_>) -> Poll<Option<InputAndResult<S::Item, Out>>> {
        self.ordered.poll_next(cx).map(|item| {
            let (stored, outcome) = item?;
            let stored = stored.expect("inputs are stored from the start");
            Some((P::restore(stored), outcome))
        })
    }
}

impl<S, Out, P> Stream for CallStreamWithInputs<S, Out, P>
where
    S: Stream + Unpin,
    S::Item: Clone,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    type Item = InputAndResult<S::Item, Out>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_pair(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ordered.size_hint()
    }
}

/// No field is pinned in place.
impl<S: Stream + Unpin, Out, P: Prepare<S::Item>> Unpin for CallStreamWithInputs<S, Out, P> {}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for CallStreamWithInputs<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordered.fmt(f)
    }
}
