//! Ordered streams of calls: inputs from any producer, maybe endless, results in the inputs' order.
//!
//! * **Full:** a stream bounds itself by its look-ahead, and so it is never refused for want of room: its calls wait, in a full
//!   stage for a place, on a full node for a permit.
//! * **Late:** a result that is not there in time answers its input with `DeadlineExceeded`; the stream goes on.
//! * **Cancelled:** dropping the stream cancels every call that is outstanding and pulls nothing more.

mod bells;
mod calls;
mod driver;
mod ordered;
mod prepare;
mod sync;
mod window;

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use callboard_codec::{Data, Payload};
use futures_util::Stream;
use futures_util::stream::{self, Iter};
use tokio::runtime::Handle;

use self::driver::Calling;
use self::ordered::{Away, Door, Ordered, Timer};
use self::window::{Window, default_look_ahead};
use super::LocalClient;
use crate::call::CallOptions;
use crate::clock;
use crate::deadline::MAX_TIMEOUT;
use crate::error::{CallError, ErrorKind};
use crate::failure::Failure;

pub use prepare::{NoPreprocess, Prepare, PreparedInput, Preprocess};

impl LocalClient {
    /// Calls a route with every input of an iterator, many at once, and yields the results in the order of the inputs.
    ///
    /// The iterator may be endless: it is pulled only as far ahead of the consumer as
    /// [`look_ahead`](CallStream::look_ahead) allows. It is pulled in the consumer's own task, so it should not block.
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

    /// Like [`stream`](Self::stream), with inputs that come in their own time.
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
/// network with the same options; nothing is pulled or called before the first poll.
///
/// Every input has one result, in its place: an error answers its own input, and the stream goes on, unless it is to
/// [`stop_at_error`](Self::stop_at_error). The calls run in a task on the node's runtime and go on while the consumer does
/// something else.
///
/// # Time
///
/// A result is late [`timeout`](Self::timeout) after the consumer began to wait for it with every earlier one there. What the
/// stream itself has put into the queues does not count: a call's own deadline leaves the calls ahead of it the same time each.
///
/// # Room
///
/// At most [`look_ahead`](Self::look_ahead) inputs are pulled beyond those whose results were yielded, and one more
/// while a result is being handed over. Calls wait for room where a plain call would be refused with `Overloaded`: in a
/// full stage for a place, on a full node for a permit, until they are late. Over a network a call that is refused for
/// want of room asks again after the time that the node says, until it is late. `Overloaded` remains for an input that
/// fits no empty node, and for one that waited in vain.
///
/// # Cancellation
///
/// Dropping the stream cancels what is outstanding: nothing of it starts any more, and its permits are free when the runtime
/// has had its next turn. A `next` that is dropped loses nothing.
///
/// # Panics
///
/// The producer and the preprocessing function run in the consumer's task; their panics are the consumer's.
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
        let served = client.hold(route)?;
        let window = Window::new(default_look_ahead(served.workers_hold()));
        let max_timeout = client.shared.gateway.max_timeout_of(&served);
        let timeout = client.timeout_of(&served, None);
        Ok(Self::of(Door::Here(client), route, inputs, window, (timeout, max_timeout)))
    }

    /// The ordered stream of a [`Caller`](super::Caller) that is not this node's client: `call` makes one call of a
    /// payload, and waits for room until the deadline of its options. `look_ahead` and `timeout` are the defaults.
    ///
    /// # Errors
    ///
    /// `Unavailable` outside a Tokio runtime, on which the calls run.
    pub fn of_calls<F, C>(inputs: S, look_ahead: usize, timeout: Duration, call: F) -> Result<Self, CallError>
    where
        F: Fn(Payload, CallOptions) -> C + Send + Sync + 'static,
        C: Future<Output = Result<Out, CallError>> + Send + 'static,
    {
        let runtime = Handle::try_current()
            .map_err(|_| CallError::new(ErrorKind::Unavailable, "a stream of calls needs a Tokio runtime around it"))?;
        let call = Box::new(move |payload, options| Box::pin(call(payload, options)) as Calling<Out>);
        let window = Window::new(look_ahead);
        Ok(Self::of(Door::Away(Away { runtime, call }), "", inputs, window, (timeout, MAX_TIMEOUT)))
    }

    fn of(
        door: Door<Out>,
        route: &str,
        inputs: S,
        window: Window,
        (timeout, max_timeout): (Duration, Duration),
    ) -> Self {
        let ordered = Ordered {
            door,
            route: route.to_owned(),
            inputs: Some(inputs),
            prepare: NoPreprocess,
            keep_inputs: false,
            stop_at_error: false,
            options: CallOptions::new(),
            timeout: timeout.min(max_timeout),
            max_timeout,
            window,
            held: None,
            calls: VecDeque::new(),
            driver: None,
            timer: Timer::default(),
            head_late_at: None,
            over: false,
        };
        Self { ordered }
    }

    /// Makes the input of each call by a function that runs as the input is pulled, in the consumer's task. Its failure answers
    /// that input only, and it is called for the next ones.
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
        let Ordered { door, route, inputs, keep_inputs, stop_at_error, options, timeout, max_timeout, window, .. } =
            self.ordered;
        let ordered = Ordered {
            door,
            route,
            inputs,
            prepare: Preprocess(function),
            keep_inputs,
            stop_at_error,
            options,
            timeout,
            max_timeout,
            window,
            held: None,
            calls: VecDeque::new(),
            driver: None,
            timer: Timer::default(),
            head_late_at: None,
            over: false,
        };
        CallStream { ordered }
    }
}

impl<S, Out, P> CallStream<S, Out, P>
where
    S: Stream,
    P: Prepare<S::Item>,
{
    /// How many inputs may be pulled beyond those whose results were yielded. 0 counts as 1.
    ///
    /// Default: twice what the route's workers have in hand at once (replicas × largest batch, over all stages), at
    /// least 16 and at most 1,024; over a network, where nobody knows the workers, 64. It costs memory for as many
    /// inputs and results, and as many of the node's permits. Turn it up when workers run dry because the consumer
    /// comes late in bursts; turn it down when inputs are large, or when an early stop should waste little.
    pub fn look_ahead(mut self, inputs: usize) -> Self {
        self.ordered.window.set_look_ahead(inputs);
        self
    }

    /// How long the consumer waits for one result when all earlier ones are there, at most what the route and
    /// the node [allow](crate::Limits::max_timeout). Default: the node's
    /// own timeout for calls.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.ordered.timeout = timeout.min(self.ordered.max_timeout);
        self
    }

    /// The priority of every call, and a deadline for the stream as a whole if `options` has one, or a timeout, which begins
    /// here: what is not there by then is answered with `DeadlineExceeded`.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.ordered.options = options.begun(clock::now());
        self
    }

    /// Ends the stream at the first error, which names the index of its input (from 0) and is the last item. What is
    /// outstanding is cancelled.
    pub fn stop_at_error(mut self) -> Self {
        self.ordered.stop_at_error = true;
        self
    }

    /// Yields each result with its original input, the one before [`preprocess`](Self::preprocess) if there is one.
    ///
    /// An input is cloned only if a stage still holds it when its result is there.
    pub fn with_inputs(mut self) -> CallStreamWithInputs<S, Out, P> {
        self.ordered.keep_inputs = true;
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

/// Nothing in it is pinned but what it has boxed.
impl<S: Stream + Unpin, Out, P: Prepare<S::Item>> Unpin for CallStream<S, Out, P> {}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for CallStream<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordered.fmt(f)
    }
}

/// An input and its result.
type Answered<X, Out> = (X, Result<Out, CallError>);

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
    pub async fn next(&mut self) -> Option<Answered<S::Item, Out>> {
        poll_fn(|cx| self.poll_pair(cx)).await
    }

    fn poll_pair(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered<S::Item, Out>>> {
        self.ordered.poll_next(cx).map(|item| {
            let (kept, outcome) = item?;
            let kept = kept.expect("inputs are kept from the start");
            Some((P::give_back(kept), outcome))
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
    type Item = Answered<S::Item, Out>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_pair(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ordered.size_hint()
    }
}

/// Nothing in it is pinned but what it has boxed.
impl<S: Stream + Unpin, Out, P: Prepare<S::Item>> Unpin for CallStreamWithInputs<S, Out, P> {}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for CallStreamWithInputs<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ordered.fmt(f)
    }
}
