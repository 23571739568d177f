//! The models of a directory as routes of a node: loads versions, changes the node's routes, and remembers why a
//! version is not served.
//!
//! A version is built and warmed up before callers see it, and all changes of one model take effect together. A version
//! that cannot be built or warmed up is left out, with its reason, and is not tried again before its files change or
//! an operator asks for it. A version whose files did not change keeps its stage.
//!
//! * **Full:** see [`Turns`].
//! * **Late:** a version that is not served within the time of its start counts as broken. Its thread is abandoned.
//! * **Cancelled:** the new stages end, and nothing changes.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use callboard_config::assemble::{BuildError, SharedStage};
use callboard_config::models::settings::ModelSettings;
use callboard_config::models::{route_name, stage_name, version_route_name};
use callboard_config::{FoundModel, Plan, chain, show_duration};
use callboard_core::description::StageState;
use callboard_core::{ChangeError, NodeHandle, RouteChange};
use callboard_http::RepositoryError;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::check::check;
use super::look::{look, look_at_model};
use super::state::{Failed, ModelState, Running, Step, VersionStamp};
use crate::turns::Turns;

/// The models of a directory, served by a node.
pub struct ModelDirectory {
    pub(super) root: PathBuf,
    /// The settings of the start.
    pub(super) plan: Plan,
    pub(super) node: NodeHandle,
    notes: Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>,
    models: Mutex<BTreeMap<String, ModelState>>,
    lives: AtomicU64,
    /// Whether the start is over.
    pub(super) is_open: AtomicBool,
    pub(super) turns: Turns,
}

/// The stage of a plan with one, or why there is none. A panic is a reason too: it must not end what waits for it.
pub(super) fn build_stage(plan: Plan) -> Result<SharedStage, String> {
    match catch_unwind(AssertUnwindSafe(|| SharedStage::build(plan))) {
        Ok(built) => built.map_err(|error| chain(&error)),
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// The longest that the start of a version may take.
fn start_timeout(name: &str, found: &FoundModel, version: u64, settings: &ModelSettings) -> Duration {
    let found = &found.versions[&version];
    settings.stage(name, version, &found.file).kind.start_timeout(found.bytes())
}

fn late(limit: Duration) -> String {
    format!("it was not loaded within start_timeout = {}", show_duration(limit))
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("its load panicked: {}", message.unwrap_or("without a message"))
}

/// The engine of a child ends with its own words before its node gives it up.
const FOR_WORDS: Duration = Duration::from_secs(5);

impl ModelDirectory {
    /// The directory of this plan, of which nothing is served yet: [`open`](Self::open) does that. `notes` gets a line
    /// for people of each change while the node serves.
    pub fn new(
        root: &Path,
        plan: &Plan,
        node: NodeHandle,
        notes: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            root: root.to_owned(),
            plan: plan.clone(),
            node,
            notes: Box::new(notes),
            models: Mutex::default(),
            lives: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            turns: Turns::default(),
        }
    }

    /// Serves a model as it was found by a look: new and changed versions are loaded, removed ones closed. Versions
    /// that failed before are not tried again, unless `again`.
    pub(super) async fn update(
        &self,
        name: &str,
        found: Option<FoundModel>,
        again: bool,
    ) -> Result<(), RepositoryError> {
        self.turns.load(name, self.update_in_turn(name, found, again, None)).await
    }

    /// `checked` is a version that needs no check any more.
    pub(super) async fn update_in_turn(
        &self,
        name: &str,
        found: Option<FoundModel>,
        again: bool,
        checked: Option<&VersionStamp>,
    ) -> Result<(), RepositoryError> {
        let is_open = self.is_open.load(Ordering::Relaxed);
        let mut state = self.states().get(name).cloned().unwrap_or_default();
        if again {
            state.is_unloaded = false;
            state.failed.clear();
            self.forget_failed_stages(name, &mut state);
        }
        let Some(found) = found else { return Box::pin(self.withdraw(name, state)).await };
        let before = state.found.replace(found.clone());
        if state.is_unloaded {
            self.keep(name, state);
            return Ok(());
        }
        let settings = match &found.problem {
            Some(problem) => Err(problem.clone()),
            None => ModelSettings::read(&found, &self.plan.settings).map_err(|error| error.to_string()),
        };
        let settings = match settings {
            Ok(settings) => settings,
            Err(reason) => {
                if is_open && state.problem.as_ref() != Some(&reason) {
                    tracing::error!(model = name, "not served anew: {reason}");
                }
                state.problem = Some(reason.clone());
                self.keep(name, state);
                return Err(RepositoryError::Source(reason));
            }
        };
        state.problem = None;
        if is_open {
            Self::log_unusable(name, &found, before.as_ref());
        }
        // Boxed: a load is a large future, and its callers hold it.
        let outcome = Box::pin(self.serve(name, &found, &settings, &mut state, checked)).await;
        // A change that the node refused is tried again at the next look: nothing was found.
        if !matches!(outcome, Err(RepositoryError::Change(_))) {
            self.keep(name, state);
        }
        outcome
    }

    /// Loads what has to be loaded, and puts it into effect. A version that fails is marked, and the choice is made
    /// again without it.
    async fn serve(
        &self,
        name: &str,
        found: &FoundModel,
        settings: &ModelSettings,
        state: &mut ModelState,
        checked: Option<&VersionStamp>,
    ) -> Result<(), RepositoryError> {
        let mut loaded: BTreeMap<u64, Running> = BTreeMap::new();
        let mut failures = Vec::new();
        'choice: loop {
            let usable = state.usable(found, settings);
            let chosen = settings.choose(&usable, state.default);
            let served = self.served_default(name);
            let default = state.next_default(chosen.default, served, &usable);
            let mut next = BTreeMap::new();
            for version in &chosen.versions.iter().copied().chain(default).collect::<BTreeSet<u64>>() {
                let kept = match state.step(found, *version, settings) {
                    Step::Keep => state.running.get(version),
                    Step::Load => loaded.get(version),
                };
                let running = match kept {
                    Some(kept) => kept.clone(),
                    None => match self.build(name, found, *version, settings, checked).await? {
                        Ok(running) => {
                            loaded.insert(*version, running.clone());
                            running
                        }
                        Err(failed) => {
                            failures.push(self.mark_failed(name, *version, failed, state));
                            continue 'choice;
                        }
                    },
                };
                next.insert(*version, running);
            }
            let change = self.change(name, state, &next, default);
            let change = change.map_err(|error| {
                let reason = chain(&error);
                if self.is_open.load(Ordering::Relaxed) {
                    tracing::error!(model = name, "not served anew: {reason}");
                }
                state.problem = Some(reason.clone());
                RepositoryError::Source(reason)
            })?;
            let limits = loaded.keys().map(|version| start_timeout(name, found, *version, settings));
            let limit = limits.max().unwrap_or(Duration::MAX);
            let changed = match change {
                Some(change) => match timeout(limit.saturating_add(FOR_WORDS), self.node.change(change)).await {
                    Ok(changed) => changed.map(drop),
                    Err(_) => {
                        // Which of them it is cannot be told; each is tried again when its file changes.
                        for (version, Running { stamp, .. }) in std::mem::take(&mut loaded) {
                            let failed = Failed { stamp, reason: late(limit) };
                            failures.push(self.mark_failed(name, version, failed, state));
                        }
                        continue 'choice;
                    }
                },
                None => Ok(()),
            };
            match changed {
                Ok(()) => {
                    self.note_served(name, state, &next, (served, default));
                    state.loads += loaded.len() as u64;
                    state.failed.retain(|version, _| found.versions.contains_key(version));
                    (state.running, state.default) = (next, chosen.default);
                    break;
                }
                Err(ChangeError::Stage { stage, message }) => {
                    let version = loaded.keys().copied().find(|version| stage.as_str() == stage_name(name, *version));
                    let Some((version, running)) = version.and_then(|version| loaded.remove_entry(&version)) else {
                        return Err(ChangeError::Stage { stage, message }.into());
                    };
                    let failed = Failed { stamp: running.stamp, reason: message };
                    failures.push(self.mark_failed(name, version, failed, state));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(RepositoryError::Source(failures.join("; "))) }
    }

    /// Builds the stage of a version, off the runtime's threads. While callers are served, and at any time in a watched
    /// directory, a child has loaded it before this process does.
    async fn build(
        &self,
        name: &str,
        found: &FoundModel,
        version: u64,
        settings: &ModelSettings,
        checked: Option<&VersionStamp>,
    ) -> Result<Result<Running, Failed>, RepositoryError> {
        let planned = settings.stage(name, version, &found.versions[&version].file);
        let stamp = VersionStamp::new(found, version, settings).expect("a chosen version was found");
        let is_open = self.is_open.load(Ordering::Relaxed);
        let place = if is_open { self.turns.place().await } else { None };
        let is_isolated = planned.kind.is_isolated();
        let plan = self.plan.of_stage(planned);
        // While callers are served, every version is checked in a child: one that never finishes loading would hold up
        // the changes of other models, even if it is isolated. At the start only a file that can end this process is
        // checked, and only in a watched directory, where a refused file may still lie.
        let is_checked = is_open || (!is_isolated && self.plan.settings.models_watch.value.is_some());
        if is_checked
            && checked != Some(&stamp)
            && let Err(reason) = check(plan.clone()).await
        {
            return Ok(Err(Failed { stamp, reason }));
        }
        let (root, own, own_settings, own_stamp) =
            (self.root.clone(), name.to_owned(), settings.clone(), stamp.clone());
        let building = spawn_blocking(move || {
            let _place = place;
            let built = build_stage(plan);
            // A file that was written meanwhile may have been read half old, half new.
            let now = look_at_model(&root, &own).ok().flatten();
            let is_same =
                now.and_then(|now| VersionStamp::new(&now, version, &own_settings)).as_ref() == Some(&own_stamp);
            match built {
                Ok(_) if !is_same => Err("the file has changed while it was read".to_owned()),
                built => built,
            }
        });
        let limit = start_timeout(name, found, version, settings);
        let built = match timeout(limit, building).await {
            Ok(built) => built.map_err(|panic| RepositoryError::Source(panic.to_string()))?,
            Err(_) => Err(late(limit)),
        };
        Ok(match built {
            Ok(stage) => Ok(self.running(stamp, stage)),
            Err(reason) => Err(Failed { stamp, reason }),
        })
    }

    fn running(&self, stamp: VersionStamp, stage: SharedStage) -> Running {
        Running { stamp, stage, life: self.lives.fetch_add(1, Ordering::Relaxed) }
    }

    /// The change from what is served to `next`; `None` if there is none.
    fn change(
        &self,
        name: &str,
        state: &ModelState,
        next: &BTreeMap<u64, Running>,
        default: Option<u64>,
    ) -> Result<Option<RouteChange>, BuildError> {
        let is_served = |route: &str| self.node.client().route(route).is_some();
        let (mut change, mut is_empty) = (RouteChange::new(), true);
        let own = (route_name(name), self.served_default(name).and_then(|default| state.running.get(&default)));
        let own_next = default.and_then(|default| next.get(&default));
        let numbers = state.running.keys().chain(next.keys()).copied().chain(self.served_versions(name));
        let numbers: BTreeSet<u64> = numbers.collect();
        let versions = numbers
            .into_iter()
            .map(|version| (version_route_name(name, version), state.running.get(&version), next.get(&version)));
        for (route, before, after) in versions.chain([(own.0, own.1, own_next)]) {
            let is_open = is_served(&route);
            change = match after {
                Some(after) if is_open && before.is_some_and(|before| before.life == after.life) => continue,
                Some(after) if is_open => change.replace_route(after.stage.route(&route)?),
                Some(after) => change.add_route(after.stage.route(&route)?),
                // A load may have opened the route, and ended before it noted that.
                None if is_open => change.remove_route(&route),
                None => continue,
            };
            is_empty = false;
        }
        Ok((!is_empty).then_some(change))
    }

    /// The version behind the route of a model.
    pub(super) fn served_default(&self, name: &str) -> Option<u64> {
        self.node.client().route(&route_name(name)).map(|route| route.stage_revision())
    }

    /// The versions with a route of their own.
    fn served_versions(&self, name: &str) -> Vec<u64> {
        let (routes, own) = (self.node.client().routes(), route_name(name));
        let own = routes.iter().filter(|route| route.name().starts_with(&own));
        let versions = own.map(|route| (route.name(), route.stage_revision()));
        versions.filter(|(route, version)| *route == version_route_name(name, *version)).map(|(_, own)| own).collect()
    }

    /// Closes the routes of a model that is not in the directory any more.
    async fn withdraw(&self, name: &str, mut state: ModelState) -> Result<(), RepositoryError> {
        if !self.states().contains_key(name) {
            return Err(RepositoryError::Unknown);
        }
        self.close(name, &mut state).await?;
        self.states().remove(name);
        self.note(format_args!("model {name}: it is not in the directory any more, and is not served"));
        Ok(())
    }

    pub(super) async fn close(&self, name: &str, state: &mut ModelState) -> Result<(), RepositoryError> {
        let change = self.change(name, state, &BTreeMap::new(), None);
        if let Some(change) = change.map_err(|error| RepositoryError::Source(error.to_string()))? {
            self.node.change(change).await?;
        }
        (state.running, state.default) = (BTreeMap::new(), None);
        Ok(())
    }

    /// All models of the directory now.
    pub(super) async fn look(&self) -> Result<BTreeMap<String, FoundModel>, RepositoryError> {
        let root = self.root.clone();
        let found = spawn_blocking(move || look(&root)).await;
        found.map_err(|panic| RepositoryError::Source(panic.to_string()))?.map_err(|error| self.unreadable(&error))
    }

    /// The models that were found at the last look.
    pub(super) fn known(&self) -> BTreeMap<String, FoundModel> {
        let models = self.states();
        models.iter().filter_map(|(name, model)| Some((name.clone(), model.found.clone()?))).collect()
    }

    pub(super) fn unreadable(&self, error: &io::Error) -> RepositoryError {
        RepositoryError::Source(format!("{}: {error}", self.root.display()))
    }

    /// Forgets failed stages, so that an order makes them again.
    fn forget_failed_stages(&self, name: &str, state: &mut ModelState) {
        let failed = |version: &u64| {
            let stage = stage_name(name, *version);
            let health = self.node.health();
            health.stages.iter().any(|health| health.name.as_str() == stage && health.state == StageState::Failed)
        };
        for running in state.running.iter_mut().filter(|(version, _)| failed(version)).map(|(_, running)| running) {
            running.stamp = VersionStamp::none();
        }
    }

    fn mark_failed(&self, name: &str, version: u64, failed: Failed, state: &mut ModelState) -> String {
        if self.is_open.load(Ordering::Relaxed) {
            tracing::error!(model = name, version, "not served: {}", failed.reason);
        }
        let reason = format!("version {version}: {}", failed.reason);
        state.failures += 1;
        state.failed.insert(version, failed);
        reason
    }

    pub(super) fn note(&self, text: fmt::Arguments<'_>) {
        (self.notes)(text);
    }

    pub(super) fn keep(&self, name: &str, state: ModelState) {
        self.states().insert(name.to_owned(), state);
    }

    pub(super) fn states(&self) -> MutexGuard<'_, BTreeMap<String, ModelState>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ModelDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDirectory").field("root", &self.root).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::{App, RouteSpec, Stage};

    use super::*;
    use callboard_config::{Environment, Flags, Target};

    /// A load that was ended when its change took effect has not noted its versions.
    #[tokio::test]
    async fn a_closed_model_has_no_route_although_no_version_was_noted() {
        let stage = |name| Stage::each(name, |n: &u64| Ok(*n)).revision(1);
        let (own, other) = (stage("m:1"), stage("mm:1"));
        let routes = [("/m", &own), ("/m/versions/1", &own), ("/mm", &other), ("/mm/versions/1", &other)];
        let app =
            routes.iter().fold(App::new(), |app, (name, stage)| app.mount(RouteSpec::new(name, (*stage).clone())));
        let node = app.start().await.unwrap();
        let plan = Plan::resolve(Target::Program { file: None }, &Flags::new(), &Environment::default()).unwrap();
        let directory = ModelDirectory::new(Path::new("models"), &plan, node.handle(), |_| ());
        directory.close("m", &mut ModelState::default()).await.unwrap();
        let left: Vec<String> = node.client().routes().iter().map(|route| route.name().to_owned()).collect();
        assert_eq!(left, ["/mm", "/mm/versions/1"]);
    }

    #[test]
    fn a_panic_is_the_reason_of_a_failed_load() {
        for (panic, reason) in [
            (Box::new("no") as Box<dyn Any + Send>, "its load panicked: no"),
            (Box::new("no".to_owned()), "its load panicked: no"),
            (Box::new(1), "its load panicked: without a message"),
        ] {
            assert_eq!(panicked(&*panic), reason);
        }
    }
}
