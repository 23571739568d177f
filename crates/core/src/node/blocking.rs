//! A node with its own runtime, for a program without one.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use super::{Drained, Node, StartError};
use crate::client::BlockingClient;

/// How long the runtime may take to drop its remaining tasks when its node is dropped.
const RUNTIME_ENDS_WITHIN: Duration = Duration::from_secs(1);

/// A running node with its own runtime. Dropping it ends everything at once, first the node and then the runtime;
/// [`shutdown`](Self::shutdown) ends it in good order.
#[derive(Debug)]
#[must_use = "a node ends when it is dropped"]
pub struct BlockingNode {
    // The fields are dropped in this order.
    node: Node,
    runtime: OwnRuntime,
}

impl BlockingNode {
    /// Runs `start` on a new runtime.
    pub(crate) fn start(start: impl Future<Output = Result<Node, StartError>>) -> Result<Self, StartError> {
        let runtime = OwnRuntime::try_new().map_err(StartError::Thread)?;
        let node = runtime.handle().block_on(start)?;
        Ok(Self { node, runtime })
    }

    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> BlockingClient {
        self.node.client().blocking()
    }

    /// The node itself: its health, description and metrics, and the client for async code.
    pub fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// [`Node::shutdown`], blocking; then ends the runtime.
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context.
    #[track_caller]
    pub fn shutdown(self, grace: Duration) -> Drained {
        let Self { node, runtime } = self;
        runtime.handle().block_on(node.shutdown(grace))
    }
}

/// A runtime that may be dropped anywhere. Tokio's runtime panics when it is dropped in an async context.
#[derive(Debug)]
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn try_new() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().thread_name("callboard").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken only by its drop").handle()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        match Handle::try_current() {
            // This thread must not block.
            Ok(_) => runtime.shutdown_background(),
            Err(_) => runtime.shutdown_timeout(RUNTIME_ENDS_WITHIN),
        }
    }
}
