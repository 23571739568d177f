//! The table: the served routes and their stages. A plain value; every change makes the next version of it.
//!
//! A stage is **starting** until its change takes effect, then **serving** while a route uses it or calls of a closed
//! route still run through it, then **ending**. A closed route is **retiring** until its last call ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::change::{ChangeError, RouteChange};
use super::deployed_stage::DeployedStage;
use super::path_template::{shape, split_route_name};
use super::paths::Paths;
use super::rollout::{Draw, Rollout, RolloutRecord, RolloutState, Trial};
use super::route::{Route, RouteParts};
use super::spec::{RouteSpec, check_route_name, distinct_stages};
use crate::clock::Instant;
use crate::id::{RouteIndex, RouteName, StageName};
use crate::metrics::NodeMetrics;
use crate::pipeline::Graph;
use crate::pool::Pool;
use crate::remote::Cluster;
use crate::stage::StageSpec;

/// One version of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    revision: u64,
    next_index: u32,
    /// The other nodes of the node that serves these routes.
    cluster: Cluster,
    /// A fast hash without protection: callers choose the names to look up, not the names in the map.
    by_name: FxHashMap<RouteName, Arc<Route>>,
    /// The public ones of them by their paths.
    paths: Paths,
    /// The stages of the open routes, each with a route that keeps it.
    by_stage: FxHashMap<StageName, (Arc<Route>, Arc<Pool>)>,
    /// In the order of declaration.
    routes: Vec<Arc<Route>>,
    /// Those of them that are private, in the same order.
    private: Vec<Arc<Route>>,
    /// The running or last rollout of each route that had one.
    rollouts: Vec<RolloutRecord>,
    retiring: Vec<Arc<Route>>,
    serving: Vec<Arc<DeployedStage>>,
    starting: Vec<Arc<DeployedStage>>,
    ending: Vec<Arc<DeployedStage>>,
    /// The stages of the change in progress: none of them ends before the change is in effect or undone.
    change_stages: Vec<Arc<StageSpec>>,
}

impl Table {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, ..Self::default() }
    }

    /// A life of this stage, of the change that is planned.
    pub(super) fn deploy(&self, spec: Arc<StageSpec>, metrics: &NodeMetrics) -> Arc<DeployedStage> {
        let host = spec.host().map(|host| {
            let host = self.deployed(host).expect("a host is deployed before the stages that its replicas run");
            Arc::clone(&host.pool)
        });
        DeployedStage::new(Pool::new(spec, self.cluster.clone(), host, metrics), self.next_revision())
    }

    /// The stage with the replicas that run this one.
    pub(super) fn with_replicas<'a>(&'a self, stage: &'a Arc<DeployedStage>) -> &'a Arc<DeployedStage> {
        self.stages().find(|other| stage.is_hosted_by(other)).unwrap_or(stage)
    }

    /// The serving stages that the replicas of this one run beside it.
    pub(super) fn hosted_by(&self, host: &DeployedStage) -> Vec<Arc<DeployedStage>> {
        self.serving.iter().filter(|stage| stage.is_hosted_by(host)).cloned().collect()
    }

    /// The route of this name, or the one that it means: a method with a path, or a path alone, which may be one that a
    /// route with parameters takes.
    pub(crate) fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.by_name.get(name).or_else(|| {
            let (method, path) = split_route_name(name);
            self.route_at(path, method)
        })
    }

    /// The routes that the methods of HTTP call at this path.
    pub(crate) fn routes_at(&self, path: &str) -> &[Arc<Route>] {
        self.paths.at(path)
    }

    /// The route that this method calls at this path; without a method see [`Paths::called`].
    pub(crate) fn route_at(&self, path: &str, method: Option<&str>) -> Option<&Arc<Route>> {
        self.paths.called(path, method)
    }

    /// The route at this path, if no more than the path and a `POST` is needed to call it.
    pub(crate) fn direct_route(&self, path: &str) -> Option<&Arc<Route>> {
        self.paths.direct(path)
    }

    /// The name of an open route, or of a closed route with calls.
    pub(crate) fn name_of(&self, index: RouteIndex) -> Option<&RouteName> {
        self.all_routes().find(|route| route.index() == index).map(|route| route.id())
    }

    /// The open routes, in the order of their declaration.
    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// The private ones of them.
    pub(crate) fn private(&self) -> &[Arc<Route>] {
        &self.private
    }

    /// All routes: the open ones, the revisions beside them, and the closed ones with calls in flight.
    pub(crate) fn all_routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().chain(self.beside()).chain(&self.retiring)
    }

    /// The candidates of running rollouts, and the old revisions that are kept after one.
    pub(crate) fn beside(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.rollouts.iter().filter_map(|rollout| rollout.beside.as_ref())
    }

    pub(crate) fn rollouts(&self) -> &[RolloutRecord] {
        &self.rollouts
    }

    /// The rollouts whose candidate or kept revision uses this stage.
    pub(super) fn rollouts_with<'a>(&'a self, stage: &DeployedStage) -> impl Iterator<Item = &'a RolloutRecord> {
        self.rollouts.iter().filter(|rollout| rollout.beside.as_ref().is_some_and(|route| uses(route, stage)))
    }

    /// The running or last rollout of this route.
    pub(crate) fn rollout(&self, route: &RouteName) -> Option<&RolloutRecord> {
        self.rollouts.iter().find(|rollout| rollout.route == *route)
    }

    /// Closed routes with calls in flight.
    pub(crate) fn retiring(&self) -> &[Arc<Route>] {
        &self.retiring
    }

    /// The stages of the open routes, and of closed routes with calls.
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

    /// Whether a candidate or a kept revision uses this stage.
    pub(crate) fn is_beside(&self, stage: &DeployedStage) -> bool {
        self.beside().any(|route| uses(route, stage))
    }

    /// The number of the next change.
    pub(super) fn next_revision(&self) -> u64 {
        self.revision + 1
    }

    /// The stages that must start before `change` can take effect, or why it cannot.
    pub(super) fn plan(&self, change: &RouteChange) -> Result<Vec<Arc<StageSpec>>, ChangeError> {
        self.check_routes(change)?;
        let change_stages = distinct_stages(change.specs());
        let closed = closed_names(change);
        // A replaced revision ends; the revision beside a candidate stays.
        let remaining = |route: &&Arc<Route>| !closed.contains(&route.id());
        let mut specs: Vec<NamedStage<'_>> = Vec::new();
        for spec in change.specs() {
            specs.extend(distinct_stages([spec]).into_iter().map(|stage| (&spec.name, None, stage)));
        }
        let first_kept = specs.len();
        for route in self.routes.iter().chain(self.beside()).filter(remaining) {
            let of_route = self.serving.iter().filter(|stage| uses(route, stage));
            specs.extend(of_route.map(|stage| (route.id(), Some(route.index()), Arc::clone(stage.spec()))));
        }
        check_stage_names(&specs, change)?;
        let is_kept = |spec: &Arc<StageSpec>| specs[first_kept..].iter().any(|(.., other)| Arc::ptr_eq(other, spec));
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

    /// The replicas that a stage of a change starts with: as many as the stage that it replaces should have, if both
    /// have the same bounds. A number that an operator or the load has asked for outlives a new revision.
    pub(super) fn first_replicas(&self, change: &RouteChange, spec: &Arc<StageSpec>) -> usize {
        let scaling = spec.settings().scaling();
        let replaced = self.stage(spec.name().as_str()).or_else(|| {
            // The only stage of a route replaces the only one before it, whatever their names are.
            let is_only = |stages: &[Arc<StageSpec>]| matches!(stages, [only] if Arc::ptr_eq(only, spec));
            let route = change.replace.iter().find(|route| is_only(&distinct_stages([*route])))?;
            let [before] = &*self.by_name.get(&route.name)?.stages() else { return None };
            self.stage(before.as_str())
        });
        let kept = replaced.filter(|stage| {
            let before = stage.pool.settings().scaling();
            (before.min(), before.max()) == (scaling.min(), scaling.max())
        });
        // A stage that may have no replica is loaded by its first call.
        let kept = kept.filter(|_| !scaling.may_be_zero());
        kept.map_or_else(|| scaling.min(), |stage| stage.pool.replicas.target())
    }

    fn check_routes(&self, change: &RouteChange) -> Result<(), ChangeError> {
        let mut named = HashSet::new();
        let opened = change.specs().map(|route| &route.name);
        for name in opened.clone() {
            check_route_name(name)?;
        }
        // An edge has to know at its start that callers are named. Mounted apps are looked up for each request.
        if let Some(route) = change.add.iter().map(|route| &route.name).find(|name| name.is_fixed_at_start())
            && self.revision > 0
        {
            return Err(ChangeError::PrivateRoute { route: route.clone() });
        }
        for name in opened.chain(&change.remove) {
            if !named.insert(name) {
                return Err(ChangeError::RouteExists { route: name.clone() });
            }
        }
        if let Some(route) = change.add.iter().find(|route| self.by_name.contains_key(&route.name)) {
            return Err(ChangeError::RouteExists { route: route.name.clone() });
        }
        self.check_paths(change)?;
        let served = closed_names(change).into_iter().chain(change.roll_out.iter().map(|(spec, _)| &spec.name));
        if let Some(name) = served.into_iter().find(|name| !self.by_name.contains_key(*name)) {
            return Err(ChangeError::NoSuchRoute { route: name.clone() });
        }
        self.check_models(change)?;
        change.roll_out.iter().try_for_each(|(spec, rollout)| self.check_rollout(spec, rollout))
    }

    /// A method calls one route of a path, and the routes of a path agree on the names of its parameters.
    fn check_paths(&self, change: &RouteChange) -> Result<(), ChangeError> {
        let changed: HashSet<&RouteName> = change.specs().map(|spec| &spec.name).chain(&change.remove).collect();
        let stay = self.routes.iter().filter(|route| !changed.contains(route.id()));
        let stay = stay.map(|route| (route.id(), route.parts()));
        let opened = change.specs().map(|spec| (&spec.name, &spec.parts));
        let mut taken: HashMap<String, Vec<(&RouteName, &RouteParts)>> = HashMap::new();
        for (route, parts) in stay.chain(opened).filter(|(route, _)| !route.is_private()) {
            let path = split_route_name(route.as_str()).1;
            let others = taken.entry(shape(path)).or_default();
            for (other, theirs) in &*others {
                let (route, other) = (route.clone(), (*other).clone());
                if split_route_name(other.as_str()).1 != path {
                    return Err(ChangeError::SamePaths { route, other });
                }
                if let Some(method) = parts.shared_method(theirs).map(str::to_owned) {
                    return Err(ChangeError::SameMethod { route, other, method });
                }
            }
            others.push((route, parts));
        }
        Ok(())
    }

    /// Each name of a model is that of one route.
    fn check_models(&self, change: &RouteChange) -> Result<(), ChangeError> {
        let has_task = |spec: &&RouteSpec| spec.parts.task.is_some();
        if !change.specs().any(|spec| has_task(&spec)) {
            return Ok(());
        }
        let closed: HashSet<&RouteName> = change.specs().map(|spec| &spec.name).chain(&change.remove).collect();
        let stay = self.routes.iter().filter(|route| route.task().is_some() && !closed.contains(route.id()));
        let stay = stay.map(|route| (route.id(), route.aliases()));
        let opened = change.specs().filter(has_task).map(|spec| (&spec.name, &*spec.parts.aliases));
        let mut known: HashMap<&str, &RouteName> = HashMap::new();
        for (route, aliases) in stay.chain(opened) {
            let id = route.as_str().trim_start_matches('/');
            for model in std::iter::once(id).chain(aliases.iter().map(String::as_str)) {
                if let Some(other) = known.insert(model, route).filter(|other| *other != route) {
                    let (other, model) = (other.clone(), model.to_owned());
                    return Err(ChangeError::SameModel { route: route.clone(), other, model });
                }
            }
        }
        Ok(())
    }

    fn check_rollout(&self, spec: &RouteSpec, rollout: &Rollout) -> Result<(), ChangeError> {
        let (name, current) = (&spec.name, &self.by_name[&spec.name]);
        let refused = |message: String| Err(ChangeError::BadRollout { route: name.clone(), message });
        rollout.check(name)?;
        if self.rollout(name).is_some_and(RolloutRecord::is_running) {
            return Err(ChangeError::RolloutRunning { route: name.clone() });
        }
        if let Some(what) = current.parts().difference(&spec.parts) {
            return refused(format!(
                "the candidate has another {what}; callers do not know which revision answers them: replace the route"
            ));
        }
        if let Some(stage) = spec.graph.remote_stages().first() {
            return refused(format!("stage `{stage}` runs on other nodes: they split its revisions"));
        }
        if !rollout.is_shadow {
            return Ok(());
        }
        if current.streams() {
            return refused("the answers of a stream are not compared: use a canary".to_owned());
        }
        let unsafe_stage = spec.graph.stages().into_iter().find(|stage| !stage.contract().may_run_again());
        match unsafe_stage {
            Some(stage) if !rollout.runs_effects_twice => refused(format!(
                "stage `{}` is at_most_once, and a shadow runs each input twice: declare it idempotent or pure, or use \
                 run_effects_twice",
                stage.name()
            )),
            _ if !rollout.runs_effects_twice && spec.graph.asks_actors() => refused(
                "the candidate asks an actor, and a shadow runs each input twice: use run_effects_twice".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Lists starting stages.
    pub(super) fn start(&mut self, stages: &[Arc<DeployedStage>]) {
        self.starting.extend(stages.iter().cloned());
    }

    /// A change begins: the stages that it needs stay, even if their routes close in the meantime.
    pub(super) fn begin(&mut self, change: &RouteChange) {
        self.change_stages = distinct_stages(change.specs());
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
    pub(super) fn apply(&mut self, change: RouteChange, now: Instant, metrics: &NodeMetrics) -> Vec<Arc<Route>> {
        self.revision += 1;
        self.change_stages.clear();
        self.serving.append(&mut self.starting);
        let mut closed: Vec<Arc<Route>> =
            closed_names(&change).into_iter().filter_map(|name| self.by_name.get(name).cloned()).collect();
        for name in closed_names(&change) {
            closed.extend(self.end_rollout(name, "the route was replaced", now));
        }
        self.rollouts.retain(|rollout| !change.remove.contains(&rollout.route));
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
        for (spec, rollout) in change.roll_out {
            closed.extend(self.begin_rollout(spec, rollout, now, metrics));
        }
        self.retire(&closed);
        closed
    }

    /// Opens a candidate beside the current revision. Returns the revision that was kept after the last rollout.
    fn begin_rollout(
        &mut self,
        spec: RouteSpec,
        rollout: Rollout,
        now: Instant,
        metrics: &NodeMetrics,
    ) -> Option<Arc<Route>> {
        let current = Arc::clone(self.routes.iter().find(|route| *route.id() == spec.name)?);
        let kept = self.end_rollout(&spec.name, "", now);
        self.rollouts.retain(|rollout| rollout.route != spec.name);
        let candidate = self.open(spec, metrics);
        let route = candidate.id().clone();
        let trial = Trial::new(rollout, Draw::from_system(), now, metrics.rollout(&route));
        current.begin_trial(&trial, &candidate);
        self.rollouts.push(RolloutRecord {
            route,
            trial,
            revision: self.revision,
            state: RolloutState::Running,
            since: now,
            reason: None,
            beside: Some(candidate),
        });
        kept
    }

    /// Ends the rollout of a route that changes. Returns the revision beside it, which closes.
    fn end_rollout(&mut self, route: &RouteName, reason: &str, now: Instant) -> Option<Arc<Route>> {
        let record = self.rollouts.iter_mut().find(|rollout| rollout.route == *route)?;
        if record.is_running() {
            record.enter(RolloutState::RolledBack, reason, now);
            if let Some(current) = self.by_name.get(route) {
                current.end_trial();
            }
        }
        record.beside.take()
    }

    /// Gives a route to the candidate of its rollout. Returns the old revision if it is not kept: it closes.
    pub(super) fn promote(
        &mut self,
        route: &RouteName,
        reason: &str,
        now: Instant,
    ) -> Result<Option<Arc<Route>>, ChangeError> {
        let none = || ChangeError::NoRollout { route: route.clone(), wanted: "no rollout is running" };
        let record = self.rollouts.iter_mut().find(|rollout| rollout.route == *route && rollout.is_running());
        let record = record.ok_or_else(none)?;
        let candidate = record.beside.take().ok_or_else(none)?;
        let place = self.routes.iter_mut().find(|current| current.id() == route).ok_or_else(none)?;
        let old = std::mem::replace(place, candidate);
        place.end_trial();
        old.end_trial();
        record.enter(RolloutState::Promoted, reason, now);
        let closed = if record.trial.policy().keep.is_zero() {
            Some(old)
        } else {
            record.beside = Some(old);
            None
        };
        self.retire(closed.as_slice());
        Ok(closed)
    }

    /// Gives a route back to the revision before its rollout. Returns the other one, which closes.
    pub(super) fn roll_back(
        &mut self,
        route: &RouteName,
        reason: &str,
        now: Instant,
    ) -> Result<Arc<Route>, ChangeError> {
        let none = || ChangeError::NoRollout {
            route: route.clone(),
            wanted: "no rollout is running, and no older revision is kept",
        };
        let record = self.rollouts.iter_mut().find(|rollout| rollout.route == *route).ok_or_else(none)?;
        let mut closed = record.beside.take().ok_or_else(none)?;
        let current = self.routes.iter_mut().find(|current| current.id() == route).ok_or_else(none)?;
        if record.is_running() {
            current.end_trial();
        } else {
            std::mem::swap(current, &mut closed);
        }
        record.enter(RolloutState::RolledBack, reason, now);
        self.retire(std::slice::from_ref(&closed));
        Ok(closed)
    }

    /// Ends the time of a kept revision. Returns it: it closes.
    pub(super) fn release_kept(&mut self, route: &RouteName) -> Option<Arc<Route>> {
        let record = self.rollouts.iter_mut().find(|rollout| rollout.route == *route && !rollout.is_running())?;
        let kept = record.beside.take()?;
        self.retire(std::slice::from_ref(&kept));
        Some(kept)
    }

    /// Replaces a stage whose supervisor died, and those that it hosts, by their new lives. Returns the closed routes.
    pub(super) fn renew(&mut self, dead: &Arc<DeployedStage>, metrics: &NodeMetrics) -> Vec<Arc<Route>> {
        let lost: Vec<_> = self.hosted_by(dead).into_iter().chain([Arc::clone(dead)]).collect();
        self.serving.retain(|stage| !contains(&lost, stage));
        self.serving.append(&mut self.starting);
        let mut closed = Vec::new();
        for position in 0..self.routes.len() {
            let old = Arc::clone(&self.routes[position]);
            if !uses(&old, dead) {
                continue;
            }
            let graph = old.graph().map(&mut |pool| {
                let lost = lost.iter().find(|stage| Arc::ptr_eq(pool, &stage.pool));
                let renewed = lost.and_then(|stage| self.deployed(stage.spec()));
                Arc::clone(renewed.map_or(pool, |stage| &stage.pool))
            });
            let (name, parts) = (old.id().clone(), old.parts().clone());
            self.routes[position] = self.new_route(old.revision(), name, parts, graph, metrics);
            self.routes[position].take_trial(&old);
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
            self.all_routes().any(|route| uses(route, stage))
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
        let named = |route: &Arc<Route>| (route.id().clone(), Arc::clone(route));
        self.by_name = self.routes.iter().map(named).collect();
        self.private = self.routes.iter().filter(|route| route.is_private()).cloned().collect();
        self.paths = Paths::of(&self.routes);
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
        self.new_route(self.revision, spec.name, spec.parts, graph.reached_by(&self.cluster), metrics)
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

/// Whether a stage, or its replicas, are those of the route.
fn uses(route: &Route, stage: &DeployedStage) -> bool {
    let is_stage = |pool: &Arc<Pool>| Arc::ptr_eq(pool, &stage.pool);
    route.graph().stages().into_iter().any(|pool| is_stage(pool) || pool.host.as_ref().is_some_and(is_stage))
}

fn contains(stages: &[Arc<DeployedStage>], stage: &Arc<DeployedStage>) -> bool {
    stages.iter().any(|other| Arc::ptr_eq(other, stage))
}

/// A stage with the name of its route, and the revision of that which is open already.
type NamedStage<'a> = (&'a RouteName, Option<RouteIndex>, Arc<StageSpec>);

/// A name stands for one stage only, whichever revision of a route is in charge. Two revisions of one route may each
/// have their own stage of a name.
fn check_stage_names(specs: &[NamedStage<'_>], change: &RouteChange) -> Result<(), ChangeError> {
    let mut named: HashMap<&StageName, Vec<&NamedStage<'_>>> = HashMap::new();
    for stage in specs {
        let (route, revision, spec) = stage;
        let others = named.entry(spec.name()).or_default();
        let clashes =
            |other: &&&NamedStage<'_>| !Arc::ptr_eq(&other.2, spec) && (other.0 != *route || other.1 == *revision);
        if let Some((other, ..)) = others.iter().find(clashes) {
            let stage = spec.name().clone();
            let mut rolled_out = change.roll_out.iter().map(|(spec, _)| &spec.name);
            return Err(match rolled_out.find(|name| [*other, *route].contains(name)) {
                Some(name) if other != route => {
                    let other = if name == *route { other } else { route };
                    let message = format!(
                        "route `{other}` has a stage `{stage}` as well, and routes that share a stage or its replicas \
                         change together: replace them, or give each a stage with replicas of its own"
                    );
                    ChangeError::BadRollout { route: name.clone(), message }
                }
                _ => ChangeError::DuplicateStage { stage },
            });
        }
        others.push(stage);
    }
    Ok(())
}
