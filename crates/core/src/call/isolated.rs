//! The way from a call in an isolated replica back to its node, which runs in another process.

use std::fmt;
use std::sync::Arc;

use callboard_codec::Payload;
use futures_util::future::BoxFuture;

use super::flight::Flight;
use super::reply::PayloadReplies;
use crate::error::CallError;
use crate::host::HostNode;

/// Makes the inner calls of one item on the node that has sent it to this process.
pub trait InnerCalls: Send + Sync + 'static {
    /// Calls a route of that node, as an [inner call](crate::LocalClient::within) of the item.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call. Its deadline is the caller's concern.
    fn call(&self, route: &str, input: Payload) -> BoxFuture<'static, Result<Payload, CallError>>;

    /// As [`call`](Self::call): the outputs of a route that may stream. The call begins when they are polled, and ends
    /// when they are dropped.
    fn replies(&self, route: &str, input: Payload) -> PayloadReplies;
}

/// The node, as a call in an isolated replica reaches it.
#[derive(Clone)]
pub(crate) struct NodeElsewhere {
    /// The node of this process.
    pub(crate) node: Arc<dyn HostNode>,
    pub(crate) calls: Arc<dyn InnerCalls>,
}

impl Flight {
    /// The node of this call or of its outer calls, if it runs in another process.
    pub(crate) fn node_elsewhere(&self) -> Option<&NodeElsewhere> {
        self.origin.as_ref()?.node.as_ref()
    }
}

impl fmt::Debug for NodeElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeElsewhere(..)")
    }
}
