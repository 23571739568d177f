//! What the router can be told.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::route::Route;

/// Messages to the router; none of them is on the path of a request.
#[derive(Debug)]
pub(crate) enum RouterMessage {
    /// Serve these routes from now on. From the node.
    Publish {
        /// The whole table.
        routes: Vec<Arc<Route>>,
        /// Told when callers see it.
        published: oneshot::Sender<()>,
    },
}
