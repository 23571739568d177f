//! The table of routes as callers see it.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::route::Route;
use crate::id::RouteName;

/// One version of the table.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    by_name: HashMap<RouteName, Arc<Route>>,
    /// In the order of declaration, for listings.
    in_order: Vec<Arc<Route>>,
}

impl Snapshot {
    pub(crate) fn new(routes: Vec<Arc<Route>>) -> Self {
        let by_name = routes.iter().map(|route| (route.id().clone(), Arc::clone(route))).collect();
        Self { by_name, in_order: routes }
    }
}

/// Where the current table is read and replaced.
#[derive(Debug, Default)]
pub(crate) struct Router(ArcSwap<Snapshot>);

impl Router {
    pub(crate) fn route(&self, name: &str) -> Option<Arc<Route>> {
        self.0.load().by_name.get(name).cloned()
    }

    pub(crate) fn routes(&self) -> Vec<Arc<Route>> {
        self.0.load().in_order.clone()
    }

    pub(super) fn publish(&self, snapshot: Snapshot) {
        self.0.store(Arc::new(snapshot));
    }
}
