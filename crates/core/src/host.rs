//! The interface of the node for the parts below it: they carry it for user code, which may call the node's routes.

use std::any::Any;
use std::fmt;

use crate::id::{RouteIndex, RouteName};

/// The node, for the parts below it. They run user code, and user code calls the node: this trait opens that circle.
/// Only `client/node_state.rs` implements it, and knows the type again.
pub(crate) trait HostNode: Any + fmt::Debug + Send + Sync {
    /// The name of a route that takes calls, or still has some.
    fn route_name(&self, index: RouteIndex) -> Option<RouteName>;
}
