//! The interface of the node for the parts below it: they carry it for user code, which may call the node's routes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::id::{RouteIndex, RouteName};

/// The node, for the gateway.
pub(crate) trait HostNode: fmt::Debug + Send + Sync + 'static {
    /// The name of a route that takes calls, or still has some.
    fn route_name(&self, index: RouteIndex) -> Option<RouteName>;

    /// The node itself, for the module that knows its type.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// A handle of the node, for user code. The parts that carry it do not know its type.
pub(crate) type OpaqueHandle = Arc<dyn Any + Send + Sync>;
