//! Clients for user code: in a worker, and for the current call of a worker.

use super::{LocalClient, NodeState};
use crate::call::CallContext;
use crate::error::{CallError, ErrorKind};
use crate::metrics::SampleReporter;
use crate::worker::Replica;

impl Replica {
    /// Takes what user code of the replica counts in another process, for the page of the node's metrics.
    #[must_use]
    pub fn sample_reporter(&self) -> SampleReporter {
        NodeState::of(&self.node).reported.reporter(&self.stage, self.index)
    }

    /// A client of the node that runs the worker, to keep in the worker. A call for an item is made
    /// [within](LocalClient::within) that item's call; any other call is independent.
    ///
    /// ```
    /// use callboard_core::{Batch, Failure, LocalClient, Stage, Worker};
    ///
    /// /// Gives each text the length that another route counts.
    /// struct Lengths(LocalClient);
    ///
    /// impl Worker for Lengths {
    ///     type In = String;
    ///     type Out = usize;
    ///
    ///     fn call(&mut self, batch: Batch<String>) -> Vec<Result<usize, Failure>> {
    ///         let client = |index| self.0.within(&batch.context(index)).blocking();
    ///         let texts = batch.iter().enumerate();
    ///         texts.map(|(index, text)| Ok(client(index).call("/count", text.clone())?)).collect()
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let count = Stage::each("count", |text: &String| Ok(text.len()));
    /// let lengths = Stage::worker("lengths", |replica| Ok(Lengths(replica.client())));
    /// let app = callboard_core::App::new().route("/count", count).route("/lengths", lengths);
    /// let node = app.start_blocking()?;
    /// assert_eq!(node.client().call::<_, usize>("/lengths", "four".to_owned())?, 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn client(&self) -> LocalClient {
        LocalClient::new(NodeState::of(&self.node))
    }
}

impl CallContext {
    /// A client for inner calls of this call: they end with it, at its deadline at the latest, and have its priority,
    /// trace and origin unless their options say otherwise. They need no permit of their own, so a full node runs them;
    /// see [`LocalClient::within`].
    ///
    /// # Errors
    ///
    /// `Unavailable` when the node has ended, and in a program that serves a stage of another node without a client.
    ///
    /// # In an isolated replica
    ///
    /// The client calls routes of the replica's node, and only that node knows their names and types. So
    /// [`typed`](LocalClient::typed) accepts values only, and a route that is not served is an error of the call.
    /// A route that streams is read by [`replies`](LocalClient::replies). Only the timeout and deadline of the options
    /// count. A call that was spawned ends with the batch of its item.
    pub fn client(&self) -> Result<LocalClient, CallError> {
        if let Some(node) = self.flight().node_elsewhere() {
            return Ok(LocalClient::new(NodeState::of(&node.node)).within(self));
        }
        if self.flight().permit.is_none() {
            let message = "this program makes no calls of the node whose stage it serves";
            return Err(CallError::new(ErrorKind::Unavailable, message));
        }
        let node = self.flight().permit.as_ref().and_then(|permit| permit.node());
        let node = node.ok_or_else(|| CallError::new(ErrorKind::Unavailable, "the node has ended"))?;
        Ok(LocalClient::new(NodeState::of(&node)).within(self))
    }
}
