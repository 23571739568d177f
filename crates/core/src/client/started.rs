//! Calls whose outcome goes to a function, for code that neither awaits nor blocks.
//!
//! * **Full:** the outcome is the refusal.
//! * **Late:** the deadline ends it, as it ends a call.
//! * **Cancelled:** dropping the handle cancels the call, and its outcome goes nowhere.

use callboard_codec::{Data, Payload};
use futures_util::FutureExt;
use tokio::task::AbortHandle;

use super::LocalClient;
use crate::call::{CallOptions, PayloadReplies};
use crate::clock;
use crate::error::CallError;

/// A call that [`LocalClient::start_call`] has started. Dropping it cancels the call.
#[derive(Debug)]
#[must_use = "the call is cancelled when this is dropped"]
pub struct StartedCall(AbortHandle);

impl LocalClient {
    /// Starts a call on the node's runtime, which gives the outcome to `then`. Needs no `await` and no runtime: for a
    /// thread that has other things to wait for. `then` must not block.
    ///
    /// When the node ends before the call, `then` is dropped without a call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::mpsc::channel;
    /// use callboard_core::{App, Batch, CallOptions, Failure, LocalClient, Stage, Worker};
    ///
    /// /// Asks another route for all items at the same time.
    /// struct Lengths;
    ///
    /// impl Worker for Lengths {
    ///     type In = String;
    ///     type Out = usize;
    ///
    ///     fn call(&mut self, batch: Batch<String>) -> Vec<Result<usize, Failure>> {
    ///         let start = |(index, text): (usize, &String)| {
    ///             let (sender, outcome) = channel();
    ///             let then = move |outcome| _ = sender.send(outcome);
    ///             let client = batch.context(index).client()?;
    ///             Ok((client.start_call::<_, usize>("/count", text.clone(), CallOptions::new(), then), outcome))
    ///         };
    ///         let started: Vec<Result<_, Failure>> = batch.iter().enumerate().map(start).collect();
    ///         started.into_iter().map(|started| Ok(started?.1.recv()??)).collect()
    ///     }
    /// }
    ///
    /// let count = Stage::each("count", |text: &String| Ok(text.len()));
    /// let lengths = Stage::worker("lengths", |_| Ok(Lengths));
    /// let node = App::new().route("/count", count).route("/lengths", lengths).start_blocking()?;
    /// assert_eq!(node.client().call::<_, usize>("/lengths", "four".to_owned())?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_call<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
        then: impl FnOnce(Result<Out, CallError>) + Send + 'static,
    ) -> StartedCall {
        let (client, route) = (self.clone(), route.to_owned());
        let call = async move { then(client.call_with(&route, input, options).await) };
        StartedCall(self.runtime().spawn(call).abort_handle())
    }

    /// As [`start_call`](Self::start_call), with payloads: nothing is converted.
    pub(crate) fn start_payload(
        &self,
        route: &str,
        payload: Payload,
        options: CallOptions,
        then: impl FnOnce(Result<Payload, CallError>) + Send + 'static,
    ) -> StartedCall {
        let (client, route) = (self.clone(), route.to_owned());
        let call = async move {
            let held = client.hold(&route, options.session())?;
            let options = held.with_called_path(&route, options);
            let admission = client.let_in(clock::now(), held, payload.size_hint() as u64)?;
            let now = admission.admitted_at();
            client.submit_at(now, admission, payload, options).await.map(|reply| reply.payload)
        };
        StartedCall(self.runtime().spawn(call.map(then)).abort_handle())
    }

    /// As [`start_payload`](Self::start_payload), for a route that may stream: `read` gets its outputs, and drives the
    /// call.
    pub(crate) fn start_replies<Reading: Future<Output = ()> + Send + 'static>(
        &self,
        route: &str,
        payload: Payload,
        options: CallOptions,
        read: impl FnOnce(Result<PayloadReplies, CallError>) -> Reading + Send + 'static,
    ) -> StartedCall {
        let (client, route) = (self.clone(), route.to_owned());
        let call = async move { read(client.payload_replies(&route, payload, options)).await };
        StartedCall(self.runtime().spawn(call).abort_handle())
    }
}

impl Drop for StartedCall {
    fn drop(&mut self) {
        self.0.abort();
    }
}
