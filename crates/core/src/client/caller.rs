//! The interface of every client, local or over a network, so that a program can use either.

use std::pin::Pin;

use callboard_codec::{Data, Map, Payload, Value};
use futures_util::Stream;
use futures_util::stream::{self, Iter};

use super::stream::{CallStream, NoPreprocess, Prepare};
use super::{LocalClient, Replies};
use crate::call::{CallOptions, FunctionCall};
use crate::error::CallError;

/// Calls by route and by function name, with one output or a stream of outputs, singly or as an ordered stream of
/// calls. [`LocalClient`] needs no socket: use it to test code that is written for any caller.
///
/// Every method returns at once, with a future or stream that does the work. Dropping that cancels the call, wherever
/// it runs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, CallError, Caller, Stage};
///
/// async fn shout_at(caller: &impl Caller, name: &str) -> Result<String, CallError> {
///     caller.call("/shout", name.to_owned()).await
/// }
///
/// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
/// let node = App::new().route("/shout", shout).start().await?;
/// assert_eq!(shout_at(&node.client(), "ada").await?, "ADA");
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Caller`",
    label = "cannot call routes",
    note = "callers are the `LocalClient` of a node or server (`.client()`) and, over a network, the `Client`"
)]
pub trait Caller: Clone + Send + Sync + 'static {
    /// A call with a ready input: encoded if it leaves this process. Clones share it.
    type Prepared: Clone + Send + Sync + 'static;

    /// Calls a route with options: a deadline, a priority, a session.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind). An output that cannot be read as `Out` is `Internal`.
    fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send;

    /// Calls a function by its name; see [`LocalClient::send_with`].
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    fn send_with(
        &self,
        name: &str,
        call: FunctionCall,
        options: CallOptions,
    ) -> impl Future<Output = Result<Value, CallError>> + Send;

    /// Calls a route and reads its outputs one by one; see [`LocalClient::replies_with`].
    ///
    /// # Errors
    ///
    /// Errors that are known at once. All others are items.
    fn replies_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Replies<Out>, CallError>;

    /// Prepares the input of a call, such as the next one while a caller waits for the outcome of this one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, CallError, CallOptions, Caller, Stage};
    ///
    /// async fn two(caller: &impl Caller) -> Result<[u64; 2], CallError> {
    ///     let first = caller.prepare("/double", 1_u64)?;
    ///     let first = caller.call_prepared(first, CallOptions::new());
    ///     let (first, second) = tokio::join!(first, async { caller.prepare("/double", 2_u64) });
    ///     Ok([first?, caller.call_prepared(second?, CallOptions::new()).await?])
    /// }
    ///
    /// let node = App::new().route("/double", Stage::each("double", |n: &u64| Ok(2 * n))).start().await?;
    /// assert_eq!(two(&node.client()).await?, [2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the input has to be encoded and the type's own `Serialize` fails.
    fn prepare<In: Data>(&self, route: &str, input: In) -> Result<Self::Prepared, CallError>;

    /// Makes a call that was [prepared](Self::prepare).
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    fn call_prepared<Out: Data + Clone>(
        &self,
        prepared: Self::Prepared,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send;

    /// Calls a route and waits for its outcome.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    fn call<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.call_with(route, input, CallOptions::new())
    }

    /// Calls a function by its name, with positional and keyword arguments.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    fn send<A>(&self, name: &str, args: A, kwargs: Map) -> impl Future<Output = Result<Value, CallError>> + Send
    where
        A: IntoIterator,
        A::Item: Into<Value>,
    {
        self.send_with(name, FunctionCall::new(args, kwargs), CallOptions::new())
    }

    /// Calls a route and reads its outputs one by one.
    ///
    /// # Errors
    ///
    /// Errors that are known at once. All others are items.
    fn replies<In: Data, Out: Data + Clone>(&self, route: &str, input: In) -> Result<Replies<Out>, CallError> {
        self.replies_with(route, input, CallOptions::new())
    }

    /// Calls a route with every input of an iterator, many at once, and yields the results in the order of the inputs.
    /// The calls wait for capacity where a plain call would be refused. Options and guarantees are those of
    /// [`CallStream`], the same for every caller.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, CallError, Caller, Stage};
    ///
    /// async fn sum(caller: &impl Caller, numbers: Vec<u64>) -> Result<u64, CallError> {
    ///     let mut doubled = caller.stream::<_, u64>("/double", numbers)?.look_ahead(8).stop_at_error();
    ///     let mut sum = 0;
    ///     while let Some(number) = doubled.next().await {
    ///         sum += number?;
    ///     }
    ///     Ok(sum)
    /// }
    ///
    /// let node = App::new().route("/double", Stage::each("double", |n: &u64| Ok(2 * n)).queue(1)).start().await?;
    /// assert_eq!(sum(&node.client(), vec![1, 2, 3]).await?, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Errors that are known at once, such as a missing route.
    fn stream<I, Out>(&self, route: &str, inputs: I) -> Result<CallStream<Iter<I::IntoIter>, Out>, CallError>
    where
        I: IntoIterator,
        Out: Data + Clone,
        NoPreprocess: Prepare<I::Item>,
    {
        self.call_each(route, stream::iter(inputs))
    }

    /// As [`stream`](Self::stream), with inputs that arrive over time.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream).
    fn stream_from<S, Out>(&self, route: &str, inputs: S) -> Result<CallStream<Pin<Box<S>>, Out>, CallError>
    where
        S: Stream,
        Out: Data + Clone,
        NoPreprocess: Prepare<S::Item>,
    {
        self.call_each(route, Box::pin(inputs))
    }

    /// Makes the stream of calls for [`stream`](Self::stream) and [`stream_from`](Self::stream_from): other transports
    /// implement it with [`CallStream::from_calls`].
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream).
    fn call_each<S, Out>(&self, route: &str, inputs: S) -> Result<CallStream<S, Out>, CallError>
    where
        S: Stream,
        Out: Data + Clone,
        NoPreprocess: Prepare<S::Item>;
}

/// A prepared call within this process. Nothing is encoded, and no permit is held.
#[derive(Clone, Debug)]
pub struct LocalPrepared {
    route: String,
    payload: Payload,
}

impl Caller for LocalClient {
    type Prepared = LocalPrepared;

    fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        Self::call_with(self, route, input, options)
    }

    fn send_with(
        &self,
        name: &str,
        call: FunctionCall,
        options: CallOptions,
    ) -> impl Future<Output = Result<Value, CallError>> + Send {
        Self::send_with(self, name, call, options)
    }

    fn replies_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Replies<Out>, CallError> {
        Self::replies_with(self, route, input, options)
    }

    fn prepare<In: Data>(&self, route: &str, input: In) -> Result<LocalPrepared, CallError> {
        Ok(LocalPrepared { route: route.to_owned(), payload: Payload::new(input) })
    }

    fn call_prepared<Out: Data + Clone>(
        &self,
        prepared: LocalPrepared,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send {
        self.call_payload(prepared.route, prepared.payload, options)
    }

    fn call_each<S, Out>(&self, route: &str, inputs: S) -> Result<CallStream<S, Out>, CallError>
    where
        S: Stream,
        Out: Data + Clone,
        NoPreprocess: Prepare<S::Item>,
    {
        CallStream::try_new(self.clone(), route, inputs)
    }
}
