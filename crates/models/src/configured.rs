//! The models of a configuration: loading a route builds it again from the configuration file.
//!
//! The file is read again each time, so loading a route serves a model that was replaced on disk. Only routes and
//! stages come from it; settings are those of the start. Routes that share a stage or its replicas are built and
//! replaced together, because a stage has one queue and one set of workers.
//!
//! * **Full:** a route has one change at a time, and routes do not wait for each other; a load of all routes waits for
//!   the loads before it.
//! * **Cancelled:** the new stages end, and nothing has changed. An unload ends a load of its route.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use callboard_config::{Plan, assemble, chain};
use callboard_core::{ChangeError, NodeHandle, Rollout, RouteChange, RouteSpec};
use callboard_http::{ModelRepository, RepositoryChange, RepositoryError, RepositoryModel};
use callboard_server::own_protocols;
use tokio::sync::RwLock;
use tokio::task::spawn_blocking;

use crate::turns::Turns;

/// Reads the configuration again.
pub type ReadAgain = Box<dyn Fn() -> Result<Plan, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// The routes that the configuration of a running node has.
pub struct ConfiguredRoutes {
    reload: Arc<ReadAgain>,
    node: NodeHandle,
    /// How often the configuration was read.
    reads: Arc<AtomicU64>,
    loaded: Mutex<Loaded>,
    turns: Turns,
    /// Taken as a whole by a load of all routes.
    all: Arc<RwLock<()>>,
}

/// What the node has of the configuration. Loads run at the same time, so an older reading may arrive after a newer
/// one.
#[derive(Debug, Default)]
struct Loaded {
    /// The routes of the newest reading, and its number.
    routes: (u64, Vec<String>),
    /// The reading that each route is from.
    readings: HashMap<String, u64>,
}

impl Loaded {
    fn note_routes(&mut self, reading: u64, routes: Vec<String>) {
        if reading >= self.routes.0 {
            self.routes = (reading, routes);
        }
    }

    /// Whether this reading of a route is the newest one, which it is from now on.
    fn is_newest(&mut self, route: &str, reading: u64) -> bool {
        let newest = self.readings.entry(route.to_owned()).or_default();
        let is_newest = reading >= *newest;
        *newest = reading.max(*newest);
        is_newest
    }
}

impl ConfiguredRoutes {
    /// The routes of a node that was started with this plan.
    pub fn new(reload: ReadAgain, node: NodeHandle, plan: &Plan) -> Self {
        Self {
            reload: Arc::new(reload),
            node,
            reads: Arc::default(),
            loaded: Mutex::new(Loaded { routes: (0, names(plan)), ..Loaded::default() }),
            turns: Turns::default(),
            all: Arc::default(),
        }
    }

    /// With a rollout instead of that of the configuration.
    async fn load_in_turn(&self, route: &str, own: Option<Rollout>) -> Result<(), RepositoryError> {
        let turn = (Arc::clone(&self.all).read_owned().await, self.turns.place().await);
        let reloaded = spawn_blocking({
            let (reload, route, served) = (Arc::clone(&self.reload), route.to_owned(), self.served());
            let reading = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
            // The place is taken until the work ends, even if the request was cancelled.
            move || reload_routes(&reload, &route, &served).map(|reloaded| (reading, reloaded, turn))
        });
        let (reading, (all, reloaded), _turn) =
            reloaded.await.map_err(|panic| RepositoryError::Source(panic.to_string()))??;
        self.loaded().note_routes(reading, all);
        let mut together = reloaded?;
        // A route that shares a stage may have been unloaded meanwhile, or loaded from a newer reading.
        let served = self.served();
        together.retain(|(spec, _)| spec.name() == route || served.contains(spec.name()));
        together.retain(|(spec, _)| self.loaded().is_newest(spec.name(), reading));
        let change = together.into_iter().fold(RouteChange::new(), |change, (route, rollout)| {
            let is_served = served.contains(route.name());
            take_over(change, (route, own.clone().or(rollout)), is_served)
        });
        self.node.change(change).await?;
        Ok(())
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self) -> HashSet<String> {
        self.node.client().routes().iter().map(|route| route.name().to_owned()).collect()
    }

    /// Builds all routes of the configuration again, and removes the other routes.
    pub async fn load_all(&self) -> Result<(), RepositoryError> {
        let turn = Arc::clone(&self.all).write_owned().await;
        let reload = Arc::clone(&self.reload);
        let reading = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let built = spawn_blocking(move || {
            let plan = reload().map_err(|error| RepositoryError::Source(error.to_string()))?;
            let routes = assemble::routes(&plan).map_err(|error| RepositoryError::Source(chain(&error)))?;
            Ok::<_, RepositoryError>((names(&plan), with_rollouts(&plan, routes), turn))
        });
        let (all, routes, _turn) = built.await.map_err(|panic| RepositoryError::Source(panic.to_string()))??;
        let is_served = |route: &str| self.node.client().route(route).is_some();
        let mut change = RouteChange::new();
        for route in routes {
            let is_served = is_served(route.0.name());
            change = take_over(change, route, is_served);
        }
        let former = self.loaded().routes.1.clone();
        for route in former.iter().filter(|route| !all.contains(route) && is_served(route)) {
            change = change.remove_route(route);
        }
        self.node.change(change).await?;
        self.loaded().note_routes(reading, all);
        Ok(())
    }

    async fn unload_in_turn(&self, route: &str) -> Result<(), RepositoryError> {
        if self.node.client().route(route).is_some() {
            self.node.remove_route(route).await?;
            return Ok(());
        }
        if self.routes().iter().any(|known| known == route) { Ok(()) } else { Err(RepositoryError::Unknown) }
    }
}

impl ModelRepository for ConfiguredRoutes {
    fn routes(&self) -> Vec<String> {
        // A private route is no model.
        self.loaded().routes.1.iter().filter(|route| !route.starts_with('@')).cloned().collect()
    }

    fn models(&self) -> Vec<RepositoryModel> {
        let loading = self.turns.loading();
        // A route in its first load may not be known yet.
        let in_load = loading.keys().filter(|route| !route.starts_with('@')).cloned();
        let names: BTreeSet<String> = self.routes().into_iter().chain(in_load).collect();
        let described = |route: &String| RepositoryModel {
            loading: loading.get(route).copied(),
            ..RepositoryModel::without_versions(route)
        };
        names.iter().map(described).collect()
    }

    fn load<'a>(&'a self, route: &'a str) -> RepositoryChange<'a> {
        Box::pin(self.turns.load(route, self.load_in_turn(route, None)))
    }

    fn unload<'a>(&'a self, route: &'a str) -> RepositoryChange<'a> {
        Box::pin(self.turns.at_once(route, self.unload_in_turn(route)))
    }

    fn roll_out<'a>(&'a self, route: &'a str, version: Option<u64>, rollout: Rollout) -> RepositoryChange<'a> {
        Box::pin(async move {
            if version.is_some() {
                return Err(RepositoryError::Source("a route of a configuration has no versions".to_owned()));
            }
            if self.node.client().route(route).is_none() {
                return Err(ChangeError::NoSuchRoute { route: route.into() }.into());
            }
            self.turns.load(route, self.load_in_turn(route, Some(rollout))).await
        })
    }
}

impl fmt::Debug for ConfiguredRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfiguredRoutes").field("routes", &self.routes()).finish_non_exhaustive()
    }
}

fn names(plan: &Plan) -> Vec<String> {
    plan.routes.iter().map(|route| route.path.value.clone()).collect()
}

/// A route, and the rollout by which it takes over from the served one.
type ReloadedRoute = (RouteSpec, Option<Rollout>);

/// All routes of the configuration, and the routes to replace together.
type ReloadedRoutes = (Vec<String>, Result<Vec<ReloadedRoute>, RepositoryError>);

fn with_rollouts(plan: &Plan, routes: Vec<RouteSpec>) -> Vec<ReloadedRoute> {
    let rollout = |spec: &RouteSpec| {
        let planned = plan.routes.iter().find(|planned| planned.path.value == spec.name());
        planned?.rollout.value.as_ref().map(|rollout| rollout.rollout.clone())
    };
    routes.into_iter().map(|route| (rollout(&route), route)).map(|(rollout, route)| (route, rollout)).collect()
}

fn take_over(change: RouteChange, (route, rollout): ReloadedRoute, is_served: bool) -> RouteChange {
    match rollout {
        _ if !is_served => change.add_route(route),
        Some(rollout) => change.roll_out(route, rollout),
        None => change.replace_route(route),
    }
}

fn reload_routes(reload: &ReadAgain, route: &str, served: &HashSet<String>) -> Result<ReloadedRoutes, RepositoryError> {
    let plan = reload().map_err(|error| RepositoryError::Source(error.to_string()))?;
    let all = names(&plan);
    let Some(together) = together(&plan, route, served) else { return Ok((all, Err(RepositoryError::Unknown))) };
    if let Err(error) = own_protocols().check_route(route) {
        return Ok((all, Err(RepositoryError::Source(error.to_string()))));
    }
    let reloaded = assemble::some_routes(&plan, |name| together.contains(name))
        .map(|routes| with_rollouts(&plan, routes))
        .map_err(|error| RepositoryError::Source(chain(&error)));
    Ok((all, reloaded))
}

/// A route, and the served routes that share a stage or its replicas with it, directly or through others.
fn together(plan: &Plan, route: &str, served: &HashSet<String>) -> Option<HashSet<String>> {
    let stages = |name: &str| {
        let route = plan.routes.iter().find(|route| route.path.value == name)?;
        let stages = route.steps.value.stages().into_iter();
        Some(stages.map(|index| plan.with_replicas(*index)).collect::<HashSet<usize>>())
    };
    let mut used = stages(route)?;
    let mut together = HashSet::from([route.to_owned()]);
    loop {
        let before = together.len();
        for other in plan.routes.iter().map(|route| &route.path.value) {
            let Some(own) = stages(other) else { continue };
            if served.contains(other) && !own.is_disjoint(&used) && together.insert(other.clone()) {
                used.extend(own);
            }
        }
        if together.len() == before {
            return Some(together);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use callboard_config::{Environment, Flags, Target};

    const STAGES: &str = "[[stage]]\nname = \"one\"\nkind = \"labels\"\n[[stage]]\nname = \"two\"\nkind = \"labels\"\n";

    fn text(routes: &[(&str, &str)]) -> String {
        let route = |(path, stages): &(&str, &str)| format!("[[route]]\npath = \"{path}\"\nstages = {stages}\n");
        STAGES.to_owned() + &routes.iter().map(route).collect::<String>()
    }

    fn plan(text: String) -> Result<Plan, Box<dyn Error + Send + Sync>> {
        Ok(Plan::resolve(Target::File { path: "f".into(), text }, &Flags::new(), &Environment::default())?)
    }

    /// A node of this configuration, and the place where the configuration is read again.
    async fn node(text: String) -> (callboard_core::Node, ConfiguredRoutes, Arc<Mutex<String>>) {
        let file = Arc::new(Mutex::new(text));
        let reload = {
            let file = Arc::clone(&file);
            move || plan(file.lock().unwrap().clone())
        };
        let first = reload().unwrap();
        let node = assemble::app(&first).unwrap().start().await.unwrap();
        let configured = ConfiguredRoutes::new(Box::new(reload), node.handle(), &first);
        (node, configured, file)
    }

    fn revisions(node: &callboard_core::Node) -> Vec<(String, u64)> {
        let mut routes: Vec<_> =
            node.client().routes().iter().map(|route| (route.name().to_owned(), route.revision())).collect();
        routes.sort();
        routes
    }

    #[tokio::test]
    async fn routes_that_share_a_stage_change_together_and_others_do_not() {
        let routes = [("/a", "\"one\""), ("/b", "[\"one\", \"two\"]"), ("/c", "\"two\"")];
        let (node, configured, _) = node(text(&routes)).await;
        configured.unload("/b").await.unwrap();
        configured.load("/a").await.unwrap();
        let after = revisions(&node);
        assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["/a", "/c"]);
        assert!(after[0].1 > after[1].1, "only `/a` is new: {after:?}");

        // `/b` uses the stages of both.
        configured.load("/b").await.unwrap();
        let revisions: HashSet<u64> = revisions(&node).into_iter().map(|(_, revision)| revision).collect();
        assert_eq!(revisions.len(), 1);
    }

    #[test]
    #[cfg(feature = "process")]
    fn routes_whose_stages_run_in_the_same_replicas_change_together() {
        let stage = |name: &str, rest: &str| format!("[[stage]]\nname = \"{name}\"\nkind = \"python\"\n{rest}\n");
        let stages = stage("search", "app = \"app.py:Search\"")
            + &stage("embed", "app = \"app.py:Search.embed\"\nreplicas_of = \"search\"")
            + &stage("rank", "app = \"app.py:Search.rank\"\nreplicas_of = \"search\"")
            + &stage("apart", "app = \"app.py:Search.apart\"");
        let routes = ["search", "embed", "rank", "apart"];
        let route = |name: &str| format!("[[route]]\npath = \"/{name}\"\nstages = \"{name}\"\n");
        let plan = plan(stages + &routes.map(route).concat()).unwrap();
        let together = |route: &str, served: &[&str]| {
            let served = served.iter().map(|route| (*route).to_owned()).collect();
            let mut routes: Vec<_> = together(&plan, route, &served).unwrap().into_iter().collect();
            routes.sort();
            routes
        };
        let all = ["/search", "/embed", "/rank", "/apart"];
        assert_eq!(together("/search", &all), ["/embed", "/rank", "/search"]);
        assert_eq!(together("/rank", &all), ["/embed", "/rank", "/search"], "also of a stage that is hosted");
        assert_eq!(together("/search", &["/rank", "/apart"]), ["/rank", "/search"], "it comes back with those served");
        assert_eq!(together("/apart", &all), ["/apart"]);
    }

    #[tokio::test]
    async fn a_private_route_is_no_model_and_is_removed_with_its_configuration() {
        let (node, configured, file) = node(text(&[("/a", "\"one\""), ("@auth", "\"two\"")])).await;
        assert_eq!(configured.routes(), ["/a"]);
        *file.lock().unwrap() = text(&[("/a", "\"one\"")]);
        configured.load_all().await.unwrap();
        assert!(node.client().route("@auth").is_none());
    }

    #[tokio::test]
    async fn a_slow_load_of_one_route_delays_no_other() {
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go, may_go) = std::sync::mpsc::channel();
        let first = Mutex::new(Some((begun, may_go)));
        let (_node, mut configured, file) = node(text(&[("/a", "\"one\""), ("/b", "\"two\"")])).await;
        configured.reload = Arc::new(Box::new(move || {
            let first = first.lock().unwrap().take();
            if let Some((begun, may_go)) = first {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
            }
            plan(file.lock().unwrap().clone())
        }));
        let others = async {
            has_begun.await.unwrap();
            configured.load("/b").await.unwrap();
            configured.unload("/b").await.unwrap();
            go.send(()).unwrap();
        };
        let (slow, ()) = tokio::join!(configured.load("/a"), others);
        slow.unwrap();
    }

    #[tokio::test]
    async fn a_load_of_all_routes_replaces_adds_and_removes() {
        let (node, configured, file) = node(text(&[("/a", "\"one\""), ("/b", "\"two\"")])).await;
        let before = revisions(&node);
        *file.lock().unwrap() = text(&[("/a", "\"one\""), ("/c", "\"two\"")]);
        configured.load_all().await.unwrap();
        let after = revisions(&node);
        assert_eq!(after.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["/a", "/c"]);
        assert!(after[0].1 > before[0].1, "{before:?} {after:?}");

        file.lock().unwrap().push_str("[[");
        assert!(matches!(configured.load_all().await, Err(RepositoryError::Source(_))));
        assert_eq!((revisions(&node), configured.routes()), (after, vec!["/a".to_owned(), "/c".to_owned()]));
    }

    #[tokio::test]
    async fn a_route_with_a_rollout_is_loaded_again_beside_the_served_one() {
        let with_rollout = text(&[("/a", "\"one\""), ("/b", "\"two\"")])
            .replace("path = \"/a\"\n", "path = \"/a\"\nrollout = { canary = \"5%\", min_calls = 50 }\n");
        let (node, configured, _) = node(with_rollout).await;
        configured.load_all().await.unwrap();
        let described = node.describe();
        let rollouts: Vec<_> = described.routes.iter().map(|route| (route.revision, &route.rollout)).collect();
        let (revision, Some(rollout)) = &rollouts[0] else { panic!("no rollout: {rollouts:?}") };
        assert_eq!(
            (*revision, rollout.revision, rollout.mode, rollout.share, rollout.min_calls),
            (1, 2, "canary", 0.05, 50)
        );
        assert!(rollouts[1].1.is_none(), "`/b` was replaced");
        let again = configured.load("/a").await.unwrap_err().to_string();
        assert!(again.contains("a rollout of `/a` is running"), "{again}");
        node.promote_route("/a").await.unwrap();
        configured.load("/a").await.unwrap();
        node.promote_route("/a").await.unwrap();
        let shadow = Rollout::shadow(0.1);
        configured.roll_out("/b", None, shadow.clone().run_effects_twice()).await.unwrap();
        assert!(matches!(configured.roll_out("/b", Some(2), shadow).await, Err(RepositoryError::Source(_))));
    }

    #[tokio::test]
    async fn a_load_whose_client_has_left_keeps_the_lock_until_it_ends() {
        let (_node, configured, file) = node(text(&[("/a", "\"one\"")])).await;
        {
            // The load cannot finish while the test holds the file.
            let _reading = file.lock().unwrap();
            let mut load = configured.load("/a");
            assert!(load.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(load);
            assert!(configured.all.try_write().is_err());
        }
        let _next = configured.all.write().await;
    }

    #[tokio::test]
    async fn a_reload_reads_the_file_and_an_invalid_file_changes_nothing() {
        let (node, configured, file) = node(text(&[("/a", "\"one\"")])).await;
        assert!(matches!(configured.load("/new").await, Err(RepositoryError::Unknown)));
        *file.lock().unwrap() = text(&[("/a", "\"one\""), ("/new", "\"two\"")]);
        configured.load("/new").await.unwrap();
        assert_eq!(configured.routes(), ["/a", "/new"]);

        file.lock().unwrap().push_str("[[");
        let error = configured.load("/a").await.unwrap_err().to_string();
        assert!(error.contains("f:"), "{error}");
        assert_eq!(revisions(&node).len(), 2);

        configured.unload("/a").await.unwrap();
        configured.unload("/a").await.unwrap();
        assert!(matches!(configured.unload("/never").await, Err(RepositoryError::Unknown)));
        let _ = node.drain(std::time::Duration::ZERO).await;
        let ending = configured.unload("/new").await;
        assert!(matches!(ending, Err(RepositoryError::Change(ChangeError::Ending))), "{ending:?}");
    }
}
