//! The state that all handles of a node share.

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use crate::actor::Directory;
use crate::call::AnswerObserver;
use crate::gateway::Gateway;
use crate::host::HostNode;
use crate::id::{RouteIndex, RouteName};
use crate::keyed::KeyedKinds;
use crate::metrics::{ExtraFamilies, ReportedFamilies, SharedMetrics};
use crate::router::Router;
use crate::supervisor::Places;
use crate::timeline::CallTracer;

/// The state that all handles of the node share.
#[derive(Debug)]
pub(crate) struct NodeState {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) router: Arc<Router>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) keyed: Arc<KeyedKinds>,
    pub(crate) metrics: SharedMetrics,
    /// The metrics of its edges and its program.
    pub(crate) extra: ExtraFamilies,
    /// The metrics of user code in other processes.
    pub(crate) reported: Arc<ReportedFamilies>,
    /// Records the calls of its edges, if spans have a sink.
    pub(crate) tracer: OnceLock<Arc<dyn CallTracer>>,
    /// Counts and logs the calls of the edges that do not do so themselves.
    pub(crate) answers: OnceLock<Arc<dyn AnswerObserver>>,
    /// The places of loaded stages in memory.
    pub(crate) places: Arc<Places>,
    /// The node's runtime, for tasks of callers outside of it.
    pub(crate) runtime: Handle,
    /// The root lives, and the tree with it.
    pub(crate) alive: AtomicBool,
    /// Still serving, but not ready: the node is about to drain.
    pub(crate) withdrawn: AtomicBool,
}

impl HostNode for NodeState {
    fn route_name(&self, index: RouteIndex) -> Option<RouteName> {
        self.router.table().name_of(index).cloned()
    }
}

impl NodeState {
    /// The state behind a handle that the parts below the client carry.
    pub(crate) fn of(node: &Arc<dyn HostNode>) -> Arc<Self> {
        let node: Arc<dyn Any + Send + Sync> = Arc::clone(node) as Arc<_>;
        node.downcast().expect("no other type is a node")
    }
}
