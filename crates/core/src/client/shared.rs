//! The state that all handles of a node share.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::runtime::Handle;

use crate::actor::Directory;
use crate::gateway::Gateway;
use crate::host::HostNode;
use crate::id::{RouteIndex, RouteName};
use crate::metrics::SharedMetrics;
use crate::router::Router;
use crate::supervisor::Places;

/// The state that all handles of the node share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) router: Arc<Router>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) metrics: SharedMetrics,
    /// The places of loaded stages in memory.
    pub(crate) places: Arc<Places>,
    /// The node's runtime, for tasks of callers outside of it.
    pub(crate) runtime: Handle,
    /// The root lives, and the tree with it.
    pub(crate) alive: AtomicBool,
    /// Still serving, but not ready: the node is about to drain.
    pub(crate) withdrawn: AtomicBool,
}

impl HostNode for Shared {
    fn route_name(&self, index: RouteIndex) -> Option<RouteName> {
        self.router.table().name_of(index).cloned()
    }
}

impl Shared {
    /// The state behind a handle that the parts below the client carry.
    pub(crate) fn of(node: &Arc<dyn HostNode>) -> Arc<Self> {
        let node: Arc<dyn Any + Send + Sync> = Arc::clone(node) as Arc<_>;
        node.downcast().expect("no other type is a node")
    }
}
