//! The client for programs without a runtime: each call blocks its thread.

use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Map, Value};
use futures_util::Stream;
use futures_util::stream::Iter;
use tokio::runtime::Handle;

use super::stream::{CallStream, CallStreamWithInputs, NoPreprocess, Prepare, Preprocess};
use super::{LocalClient, lost};
use crate::call::{CallOptions, FunctionCall, OuterCall};
use crate::error::{CallError, ErrorKind, Failure};

impl LocalClient {
    /// A client for synchronous code: its methods block the calling thread.
    #[must_use]
    pub fn blocking(&self) -> BlockingClient {
        BlockingClient { client: self.clone() }
    }
}

/// A [`LocalClient`] whose methods block. Cloning it is cheap; any number of threads may share one.
///
/// The node runs on the runtime it was started on, which must continue to run. A program without a runtime starts its
/// node with [`App::start_blocking`](crate::App::start_blocking).
///
/// ```
/// use callboard_core::{App, Stage};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let double = Stage::each("double", |n: &i64| Ok(n * 2));
/// let node = App::new().route("/double", double).start_blocking()?;
/// let client = node.client();
///
/// assert_eq!(client.call::<_, i64>("/double", 21i64)?, 42);
/// let doubled: Result<Vec<i64>, _> = client.stream("/double", 0..3i64)?.collect();
/// assert_eq!(doubled?, [0, 2, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Every method that waits panics inside a runtime's async context (an `async fn`, a task), before it calls anything,
/// with tokio's message "Cannot start a runtime from within a runtime": a thread that blocks there could wait for ever
/// for its own task. Use the [`LocalClient`] there, or `tokio::task::spawn_blocking`.
/// [`call_detached`](Self::call_detached) does not wait and never panics.
#[derive(Clone, Debug)]
pub struct BlockingClient {
    client: LocalClient,
}

impl BlockingClient {
    /// [`LocalClient::call`], blocking.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context.
    #[track_caller]
    pub fn call<In: Data, Out: Data + Clone>(&self, route: &str, input: In) -> Result<Out, CallError> {
        self.call_with(route, input, CallOptions::new())
    }

    /// [`LocalClient::call_with`], blocking.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context.
    #[track_caller]
    pub fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Out, CallError> {
        let (client, route) = (self.client.clone(), route.to_owned());
        self.wait(async move { client.call_with(&route, input, options).await })
    }

    /// [`LocalClient::send`], blocking.
    ///
    /// # Errors
    ///
    /// As [`LocalClient::send`].
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context.
    #[track_caller]
    pub fn send<A>(&self, name: &str, args: A, kwargs: Map) -> Result<Value, CallError>
    where
        A: IntoIterator,
        A::Item: Into<Value>,
    {
        self.send_with(name, FunctionCall::new(args, kwargs), CallOptions::new())
    }

    /// [`LocalClient::send_with`], blocking.
    ///
    /// # Errors
    ///
    /// As [`LocalClient::send`].
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context.
    #[track_caller]
    pub fn send_with(&self, name: &str, call: FunctionCall, options: CallOptions) -> Result<Value, CallError> {
        let (client, name) = (self.client.clone(), name.to_owned());
        self.wait(async move { client.send_with(&name, call, options).await })
    }

    /// [`LocalClient::call_detached`], which never waits.
    ///
    /// # Errors
    ///
    /// As [`LocalClient::call_detached`].
    pub fn call_detached<In: Data>(&self, route: &str, input: In) -> Result<(), CallError> {
        self.client.call_detached(route, input)
    }

    /// [`LocalClient::call_detached_with`], which never waits.
    ///
    /// # Errors
    ///
    /// As [`LocalClient::call_detached`].
    pub fn call_detached_with<In: Data>(&self, route: &str, input: In, options: CallOptions) -> Result<(), CallError> {
        self.client.call_detached_with(route, input, options)
    }

    /// [`LocalClient::stream`] as an iterator, whose `next` blocks. The inputs are pulled on the consumer's thread and
    /// may be slow: they delay nothing else.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such route.
    pub fn stream<I, Out>(&self, route: &str, inputs: I) -> Result<BlockingStream<CallsOf<I, Out>>, CallError>
    where
        I: IntoIterator,
        Out: Data + Clone,
        NoPreprocess: Prepare<I::Item>,
    {
        let stream = self.client.stream(route, inputs)?;
        Ok(BlockingStream { stream, runtime: self.client.runtime().clone() })
    }

    /// Blocks until the call is over. The call is a task on the node's runtime, so that its timers end with the
    /// runtime's other tasks. If this thread polled them, they would panic when the runtime ends first.
    #[track_caller]
    fn wait<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> Result<T, CallError> {
        let (runtime, outer) = (self.client.runtime(), self.client.outer.clone());
        let call_or_shutdown = async move {
            tokio::select! {
                biased;
                outcome = call => outcome,
                error = outlived(outer) => Err(error),
            }
        };
        runtime.block_on(async { runtime.spawn(call_or_shutdown).await.unwrap_or_else(|error| Err(lost(error))) })
    }

    /// The client for async code.
    #[must_use]
    pub fn client(&self) -> &LocalClient {
        &self.client
    }
}

/// How often an inner call checks whether its outer call continues: blocking code cannot drop it.
const LOOK_AT_OUTER_EVERY: Duration = Duration::from_millis(20);

/// Ends when the outer call has ended; never without an outer call.
async fn outlived(outer: Option<Arc<OuterCall>>) -> CallError {
    let Some(outer) = outer else { return pending().await };
    while !outer.flight.is_abandoned() {
        tokio::time::sleep(LOOK_AT_OUTER_EVERY).await;
    }
    CallError::new(ErrorKind::Cancelled, "the call that it was made for has ended")
}

/// The stream over an iterator's items.
type CallsOf<I, Out> = CallStream<Iter<<I as IntoIterator>::IntoIter>, Out>;

/// A [`CallStream`] as an iterator. Made by [`BlockingClient::stream`].
///
/// # Panics
///
/// `next` panics inside a runtime's async context.
#[must_use = "an iterator does nothing until it is advanced"]
pub struct BlockingStream<T> {
    stream: T,
    runtime: Handle,
}

impl<T> BlockingStream<T> {
    fn map_stream<U>(self, change: impl FnOnce(T) -> U) -> BlockingStream<U> {
        BlockingStream { stream: change(self.stream), runtime: self.runtime }
    }
}

impl<S, Out> BlockingStream<CallStream<S, Out>>
where
    S: Stream,
    NoPreprocess: Prepare<S::Item>,
{
    /// See [`CallStream::preprocess`].
    pub fn preprocess<In, F>(self, function: F) -> BlockingStream<CallStream<S, Out, Preprocess<F>>>
    where
        In: Data,
        F: FnMut(&S::Item) -> Result<In, Failure>,
    {
        self.map_stream(|stream| stream.preprocess(function))
    }
}

impl<S, Out, P> BlockingStream<CallStream<S, Out, P>>
where
    S: Stream,
    P: Prepare<S::Item>,
{
    /// See [`CallStream::look_ahead`].
    pub fn look_ahead(self, inputs: usize) -> Self {
        self.map_stream(|stream| stream.look_ahead(inputs))
    }

    /// See [`CallStream::timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        self.map_stream(|stream| stream.timeout(timeout))
    }

    /// See [`CallStream::options`].
    pub fn options(self, options: CallOptions) -> Self {
        self.map_stream(|stream| stream.options(options))
    }

    /// See [`CallStream::stop_at_error`].
    pub fn stop_at_error(self) -> Self {
        self.map_stream(CallStream::stop_at_error)
    }

    /// See [`CallStream::with_inputs`].
    pub fn with_inputs(self) -> BlockingStream<CallStreamWithInputs<S, Out, P>> {
        self.map_stream(CallStream::with_inputs)
    }
}

impl<T: Stream + Unpin> Iterator for BlockingStream<T> {
    type Item = T::Item;

    #[track_caller]
    fn next(&mut self) -> Option<T::Item> {
        let stream = &mut self.stream;
        self.runtime.block_on(poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.size_hint()
    }
}

impl<T: fmt::Debug> fmt::Debug for BlockingStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingStream").field(&self.stream).finish()
    }
}
