//! What every client can do, in this process or over a network: so that a program does not care which one it was given.

use callboard_codec::{Data, Map, Value};
use futures_util::{Stream, StreamExt};

use super::{Client, FunctionCall, Replies};
use crate::call::CallOptions;
use crate::error::CallError;

/// Calls by route, by function name, and as a stream of outputs. [`Client`] is the one that needs no socket.
///
/// Every method returns without having waited for anything; what is returned does the work. Dropping it cancels the call, wherever
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
pub trait Caller: Clone + Send + Sync + 'static {
    /// Calls a route with a deadline, priority or session of its own.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`](crate::ErrorKind).
    fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> impl Future<Output = Result<Out, CallError>> + Send;

    /// Calls a function by its name; see [`Client::send_with`].
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

    /// Calls a route and reads its outputs one by one; see [`Client::replies_with`].
    ///
    /// # Errors
    ///
    /// What is clear at once. All else is an item.
    fn replies_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Replies<Out>, CallError>;

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
    /// What is clear at once. All else is an item.
    fn replies<In: Data, Out: Data + Clone>(&self, route: &str, input: In) -> Result<Replies<Out>, CallError> {
        self.replies_with(route, input, CallOptions::new())
    }

    /// Calls a route with each of `inputs`, at most `look_ahead` at once, and gives the outcomes in the order of the inputs, errors
    /// in their places. Who stops reading stops the rest.
    fn in_order<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        inputs: impl Stream<Item = In> + Send,
        look_ahead: usize,
    ) -> impl Stream<Item = Result<Out, CallError>> + Send {
        let (caller, route) = (self.clone(), route.to_owned());
        let calls = inputs.map(move |input| {
            let (caller, route) = (caller.clone(), route.clone());
            async move { caller.call::<In, Out>(&route, input).await }
        });
        calls.buffered(look_ahead.max(1))
    }
}

impl Caller for Client {
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
}
