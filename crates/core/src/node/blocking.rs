//! A node for a program without a runtime of its own: it brings one along.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use super::{Drained, Node};
use crate::app::{App, StartError};
use crate::client::BlockingClient;

/// How long the runtime gets to drop what still runs on it when its node is dropped.
const RUNTIME_ENDS_WITHIN: Duration = Duration::from_secs(1);

impl App {
    /// Starts the app from a synchronous program, on a runtime that the node brings along: one thread per core.
    ///
    /// A program that has a runtime starts the app on that and uses [`LocalClient::blocking`](crate::LocalClient::blocking).
    ///
    /// ```
    /// use std::time::Duration;
    /// use callboard_core::{App, Drained, Stage};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    /// let node = App::new().route("/shout", shout).start_blocking()?;
    /// let loud: String = node.client().call("/shout", "hey".to_owned())?;
    /// assert_eq!(loud, "HEY");
    /// assert_eq!(node.shutdown(Duration::from_secs(5)), Drained::Completely);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the system refuses the threads.
    ///
    /// # Panics
    ///
    /// Inside a runtime's async context: use [`start`](Self::start) there.
    #[track_caller]
    pub fn start_blocking(self) -> Result<BlockingNode, StartError> {
        let runtime = OwnRuntime::try_new().map_err(StartError::Thread)?;
        let node = runtime.handle().block_on(self.start())?;
        Ok(BlockingNode { node, runtime })
    }
}

/// A running node with its own runtime. Dropping it ends everything at once, first the node and then the runtime;
/// [`shutdown`](Self::shutdown) ends it in good order.
#[derive(Debug)]
#[must_use = "a node ends when it is dropped"]
pub struct BlockingNode {
    // In the order in which they end.
    node: Node,
    runtime: OwnRuntime,
}

impl BlockingNode {
    /// A handle for callers in this process.
    #[must_use]
    pub fn client(&self) -> BlockingClient {
        self.node.client().blocking()
    }

    /// The node itself: its health, description and metrics, and the client for async code.
    pub fn node(&self) -> &Node {
        &self.node
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

/// A runtime that may be dropped anywhere. Tokio's own panics when it is dropped in an async context.
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
            // Nobody may block here.
            Ok(_) => runtime.shutdown_background(),
            Err(_) => runtime.shutdown_timeout(RUNTIME_ENDS_WITHIN),
        }
    }
}
