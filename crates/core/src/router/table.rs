//! The table: the served routes and their stages. A plain value; every change makes the next version of it.
//!
//! A stage is **starting** until its change takes effect, then **serving** while a route uses it or calls of a closed
//! route still run through it, then **ending**. A closed route is **retiring** until its last call has left.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::change::{ChangeError, RouteChange};
use super::deployed_stage::DeployedStage;
use super::route::{Route, RouteParts};
use super::spec::{RouteSpec, check_route_name, distinct_stages};
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::NodeMetrics;
use crate::pipeline::Graph;
use crate::pool::Pool;
use crate::stage::StageSpec;

/// One version of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    revision: u64,
    next_index: u32,
    /// A fast hash without protection: callers choose the names to look up, not the names in the map.
    by_name: FxHashMap<RouteName, Arc<Route>>,
    /// The stages of the open routes, each with a route that keeps it.
    by_stage: FxHashMap<StageName, (Arc<Route>, Arc<Pool>)>,
    /// In the order of declaration.
    routes: Vec<Arc<Route>>,
    retiring: Vec<Arc<Route>>,
    serving: Vec<Arc<DeployedStage>>,
    starting: Vec<Arc<DeployedStage>>,
    ending: Vec<Arc<DeployedStage>>,
    /// The stages of the change in progress: none of them ends before the change is in effect or undone.
    change_stages: Vec<Arc<StageSpec>>,
}

impl Table {
    pub(crate) fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.by_name.get(name)
    }

    /// The name of an open route, or of a closed route with calls.
    pub(crate) fn name_of(&self, index: RouteIndex) -> Option<&RouteName> {
        self.routes.iter().chain(&self.retiring).find(|route| route.index() == index).map(|route| route.id())
    }

    /// The open routes, in the order of their declaration.
    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// Closed routes with calls in flight.
    pub(crate) fn retiring(&self) -> &[Arc<Route>] {
        &self.retiring
    }

    /// The stages of the open routes, and those that closed routes still run through.
    pub(crate) fn serving(&self) -> &[Arc<DeployedStage>] {
        &self.serving
    }

    pub(crate) fn starting(&self) -> &[Arc<DeployedStage>] {
        &self.starting
    }

    pub(crate) fn ending(&self) -> &[Arc<DeployedStage>] {
        &self.ending
    }

    /// All running stages: starting, serving and ending.
    pub(crate) fn stages(&self) -> impl Iterator<Item = &Arc<DeployedStage>> {
        self.serving.iter().chain(&self.starting).chain(&self.ending)
    }

    /// The serving stage of this name that an open route uses.
    pub(crate) fn stage(&self, name: &str) -> Option<&Arc<DeployedStage>> {
        self.serving.iter().find(|stage| stage.name().as_str() == name && self.is_routed(stage))
    }

    /// The stage of this name that an open route uses, with such a route.
    pub(crate) fn routed_stage(&self, name: &str) -> Option<&(Arc<Route>, Arc<Pool>)> {
        self.by_stage.get(name)
    }

    /// Whether an open route uses this stage.
    pub(crate) fn is_routed(&self, stage: &DeployedStage) -> bool {
        self.routes.iter().any(|route| uses(route, stage))
    }

    /// The number of the next change.
    pub(super) fn next_revision(&self) -> u64 {
        self.revision + 1
    }

    /// The stages that must start before `change` can take effect, or why it cannot.
    pub(super) fn plan(&self, change: &RouteChange) -> Result<Vec<Arc<StageSpec>>, ChangeError> {
        self.check_routes(change)?;
        let change_stages = distinct_stages(change.add.iter().chain(&change.replace));
        let closed = closed_names(change);
        let remaining = self.routes.iter().filter(|route| !closed.contains(&route.id()));
        let mut specs: Vec<&Arc<StageSpec>> = change_stages.iter().collect();
        for route in remaining {
            specs.extend(self.serving.iter().filter(|stage| uses(route, stage)).map(|stage| stage.spec()));
        }
        check_stage_names(&specs)?;
        let is_kept = |spec: &Arc<StageSpec>| specs[change_stages.len()..].iter().any(|other| Arc::ptr_eq(other, spec));
        let mut to_start = Vec::new();
        for spec in &change_stages {
            match self.deployed(spec) {
                // Another life of a failed stage, unless a remaining route would keep the dead one under its name.
                Some(stage) if stage.has_failed() && is_kept(spec) => {
                    let (stage, (_, reason)) = (spec.name().clone(), stage.pool.health.state_and_reason());
                    return Err(ChangeError::Stage { stage, message: reason.unwrap_or_default() });
                }
                Some(stage) if !stage.has_failed() => {}
                _ => to_start.push(Arc::clone(spec)),
            }
        }
        Ok(to_start)
    }

    fn check_routes(&self, change: &RouteChange) -> Result<(), ChangeError> {
        let mut named = HashSet::new();
        let opened = change.add.iter().chain(&change.replace).map(|route| &route.name);
        for name in opened.clone() {
            check_route_name(name)?;
        }
        for name in opened.chain(&change.remove) {
            if !named.insert(name) {
                return Err(ChangeError::RouteExists { route: name.clone() });
            }
        }
        if let Some(route) = change.add.iter().find(|route| self.by_name.contains_key(&route.name)) {
            return Err(ChangeError::RouteExists { route: route.name.clone() });
        }
        match closed_names(change).into_iter().find(|name| !self.by_name.contains_key(*name)) {
            Some(name) => Err(ChangeError::NoSuchRoute { route: name.clone() }),
            None => Ok(()),
        }
    }

    /// Lists starting stages.
    pub(super) fn start(&mut self, stages: &[Arc<DeployedStage>]) {
        self.starting.extend(stages.iter().cloned());
    }

    /// A change begins: the stages that it needs stay, even if their routes close in the meantime.
    pub(super) fn begin(&mut self, change: &RouteChange) {
        self.change_stages = distinct_stages(change.add.iter().chain(&change.replace));
    }

    /// The starting stages will not serve: they end, together with the stages that only the change would have used.
    pub(super) fn abandon_start(&mut self) -> Vec<Arc<DeployedStage>> {
        self.change_stages.clear();
        let mut abandoned = std::mem::take(&mut self.starting);
        self.ending.extend(abandoned.iter().cloned());
        abandoned.append(&mut self.end_unused());
        abandoned
    }

    /// Puts a change with warm stages into effect. Returns the closed routes.
    pub(super) fn apply(&mut self, change: RouteChange, metrics: &NodeMetrics) -> Vec<Arc<Route>> {
        self.revision += 1;
        self.change_stages.clear();
        self.serving.append(&mut self.starting);
        let closed: Vec<Arc<Route>> =
            closed_names(&change).into_iter().filter_map(|name| self.by_name.get(name).cloned()).collect();
        self.routes.retain(|route| !change.remove.contains(route.id()));
        for spec in change.replace {
            let route = self.open(spec, metrics);
            if let Some(place) = self.routes.iter_mut().find(|old| old.id() == route.id()) {
                *place = route;
            }
        }
        for spec in change.add {
            let route = self.open(spec, metrics);
            self.routes.push(route);
        }
        self.retire(&closed);
        closed
    }

    /// Replaces a stage whose supervisor died by its new life. Returns the closed routes.
    pub(super) fn renew(&mut self, dead: &Arc<DeployedStage>, metrics: &NodeMetrics) -> Vec<Arc<Route>> {
        self.serving.retain(|stage| !Arc::ptr_eq(stage, dead));
        self.serving.append(&mut self.starting);
        let mut closed = Vec::new();
        for position in 0..self.routes.len() {
            let old = Arc::clone(&self.routes[position]);
            if !uses(&old, dead) {
                continue;
            }
            let graph = old.graph().map(&mut |pool| match self.deployed(dead.spec()) {
                Some(stage) if Arc::ptr_eq(pool, &dead.pool) => Arc::clone(&stage.pool),
                _ => Arc::clone(pool),
            });
            let (name, parts) = (old.id().clone(), old.parts().clone());
            self.routes[position] = self.new_route(old.revision(), name, parts, graph, metrics);
            closed.push(old);
        }
        self.retire(&closed);
        closed
    }

    /// Removes a closed route after its last call.
    pub(super) fn remove_route(&mut self, index: RouteIndex) {
        self.retiring.retain(|route| route.index() != index);
    }

    /// Moves the stages that no route needs any more to the ending ones.
    pub(super) fn end_unused(&mut self) -> Vec<Arc<DeployedStage>> {
        let is_used = |stage: &DeployedStage| {
            self.routes.iter().chain(&self.retiring).any(|route| uses(route, stage))
                || self.change_stages.iter().any(|spec| Arc::ptr_eq(spec, stage.spec()))
        };
        let unused: Vec<_> = self.serving.iter().filter(|stage| !is_used(stage)).cloned().collect();
        self.serving.retain(|stage| !contains(&unused, stage));
        self.ending.extend(unused.iter().cloned());
        unused
    }

    /// Removes an ended stage.
    pub(super) fn remove_stage(&mut self, stage: &Arc<DeployedStage>) {
        for list in [&mut self.serving, &mut self.starting, &mut self.ending] {
            list.retain(|other| !Arc::ptr_eq(other, stage));
        }
    }

    /// Updates the lists after a change of the routes.
    fn retire(&mut self, closed: &[Arc<Route>]) {
        // In the order of first use, not of start.
        let first_use = |stage: &Arc<DeployedStage>| self.routes.iter().position(|route| uses(route, stage));
        self.serving.sort_by_cached_key(|stage| first_use(stage).unwrap_or(usize::MAX));
        self.retiring.extend(closed.iter().cloned());
        self.by_name = self.routes.iter().map(|route| (route.id().clone(), Arc::clone(route))).collect();
        let routed = |route: &Arc<Route>| {
            let stage_in_route = |pool: &Arc<Pool>| (pool.name().clone(), (Arc::clone(route), Arc::clone(pool)));
            route.graph().stages().into_iter().map(stage_in_route).collect::<Vec<_>>()
        };
        // In reverse order, so that the first route that uses a stage keeps it.
        self.by_stage = self.routes.iter().rev().flat_map(routed).collect();
    }

    fn open(&mut self, spec: RouteSpec, metrics: &NodeMetrics) -> Arc<Route> {
        let graph = spec.graph.map(&mut |stage| {
            let deployed = self.deployed(stage).expect("a change is applied after its stages were started");
            Arc::clone(&deployed.pool)
        });
        self.new_route(self.revision, spec.name, spec.parts, graph, metrics)
    }

    fn new_route(
        &mut self,
        revision: u64,
        name: RouteName,
        parts: RouteParts,
        graph: Graph<Arc<Pool>>,
        metrics: &NodeMetrics,
    ) -> Arc<Route> {
        let index = RouteIndex(self.next_index);
        self.next_index += 1;
        let counted = metrics.route(&name);
        Arc::new(Route::new(index, revision, name, parts, graph, counted))
    }

    /// The running stage of this recipe, rather than a failed one; an ending stage does not count.
    fn deployed(&self, spec: &Arc<StageSpec>) -> Option<&Arc<DeployedStage>> {
        let lives = || self.serving.iter().chain(&self.starting).filter(|stage| Arc::ptr_eq(stage.spec(), spec));
        lives().find(|stage| !stage.has_failed()).or_else(|| lives().next())
    }
}

fn closed_names(change: &RouteChange) -> Vec<&RouteName> {
    change.replace.iter().map(|route| &route.name).chain(&change.remove).collect()
}

fn uses(route: &Route, stage: &DeployedStage) -> bool {
    route.graph().stages().iter().any(|pool| Arc::ptr_eq(pool, &stage.pool))
}

fn contains(stages: &[Arc<DeployedStage>], stage: &Arc<DeployedStage>) -> bool {
    stages.iter().any(|other| Arc::ptr_eq(other, stage))
}

/// A name stands for one stage only.
fn check_stage_names(specs: &[&Arc<StageSpec>]) -> Result<(), ChangeError> {
    let mut named: HashMap<&StageName, &Arc<StageSpec>> = HashMap::new();
    for spec in specs {
        let first = named.entry(spec.name()).or_insert(spec);
        if !Arc::ptr_eq(first, spec) {
            return Err(ChangeError::DuplicateStage { stage: spec.name().clone() });
        }
    }
    Ok(())
}
