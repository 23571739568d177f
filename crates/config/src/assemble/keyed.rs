//! Keyed classes of a plan: their kinds, with the store of the node, and the routes that compute their methods.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use callboard_codec::{DataType, Value};
use callboard_core::description::{PipelinePlan, Planned};
use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Pipeline, RouteSpec};
use callboard_process::PythonKeyed;
use callboard_state::{PostgresStore, RedbStore};
use parking_lot::Mutex;

use super::part::Part;
use crate::error::chain;
use crate::{ConfigError, Plan, RoutePlan, Source, StagePlan, StateStoreAt};

/// The code of a method, behind the step that routes have in its place.
#[derive(Clone, Debug)]
pub(super) struct Computed {
    code: Planned,
    class: PythonKeyed,
}

impl Computed {
    /// The step for routes, if the stage is a method of a keyed class.
    pub(super) fn behind(keyed: Option<(PythonKeyed, String)>, stage: &str, code: Planned) -> (Planned, Option<Self>) {
        match keyed {
            None => (code, None),
            Some((class, path)) => (Planned::Single(class.step(&path, stage)), Some(Self { code, class })),
        }
    }
}

/// The route that computes a method, if this is one.
pub(super) fn route(plan: &Plan, route: &RoutePlan, parts: &[Option<Part>]) -> Option<RouteSpec> {
    let PipelinePlan::Stage(index) = &route.steps.value else { return None };
    let computed = parts[*index].as_ref()?.computed.as_ref()?;
    let Planned::Single(code) = &computed.code else { return None };
    let code: Pipeline<Value, Value> = code.clone();
    let is_its_own = route.path.value == PythonKeyed::route_of(&plan.stages[*index].name.value);
    is_its_own.then(|| RouteSpec::described(&route.path.value, code, DataType::value(), DataType::value()))
}

/// The app with the kinds of the plan.
pub(super) fn add_to(app: App, plan: &Plan, parts: &[Option<Part>]) -> Result<App, ConfigError> {
    let mut classes: BTreeMap<&str, &PythonKeyed> = BTreeMap::new();
    for (stage, part) in plan.stages.iter().zip(parts) {
        let Some(Computed { class, .. }) = part.as_ref().and_then(|part| part.computed.as_ref()) else { continue };
        check_route(plan, stage)?;
        let other = classes.insert(&class.kind, class);
        if let Some(other) = other.filter(|other| *other != class) {
            let message = format!(
                "`{}` and `{}` have the name `{}`, which is that of their keys: give one another `name`",
                other.source, class.source, class.kind
            );
            return Err(rejected(plan, stage, message));
        }
    }
    if classes.is_empty() {
        return Ok(app);
    }
    let store: Arc<dyn StateStore> = Arc::new(NodeStore::of(plan));
    Ok(classes.into_values().fold(app, |app, class| class.add_to(app, Arc::clone(&store))))
}

/// The instance of a key calls this route.
fn check_route(plan: &Plan, stage: &StagePlan) -> Result<(), ConfigError> {
    let name = &stage.name.value;
    let path = PythonKeyed::route_of(name);
    if plan.routes.iter().any(|route| route.path.value == path) {
        return Ok(());
    }
    let message =
        format!("it is a method of a keyed class: add a route with `path = \"{path}\"`, `stages = \"{name}\"`");
    Err(rejected(plan, stage, message))
}

/// Checks that the variable of the store has a connection string, before a node says that it is ready.
///
/// # Errors
///
/// [`ConfigError::Rejected`].
pub fn check_store(plan: &Plan) -> Result<(), ConfigError> {
    let setting = &plan.settings.actor_store;
    let StateStoreAt::Server(variable) = &setting.value else { return Ok(()) };
    server_of(variable).map(drop).map_err(|reason| ConfigError::Rejected {
        place: plan.place(&setting.source, "actors.store".to_owned()),
        message: reason,
    })
}

/// The store on the server whose connection string this variable has.
fn server_of(variable: &str) -> Result<PostgresStore, String> {
    let config = std::env::var(variable).map_err(|error| format!("the variable {variable}: {error}"))?;
    PostgresStore::try_new(&config).map_err(|error| format!("the variable {variable}: {}", chain(&error)))
}

fn rejected(plan: &Plan, stage: &StagePlan, message: String) -> ConfigError {
    let place = plan.place(&stage.name.source, format!("stage `{}`", stage.name.value));
    ConfigError::Rejected { place, message }
}

/// The store of a node, which is opened when the first key is asked: commands that only describe an app open none.
struct NodeStore {
    place: StorePlace,
    opened: Mutex<Option<Arc<dyn StateStore>>>,
}

/// Where it is.
#[derive(Debug)]
enum StorePlace {
    Memory,
    File(PathBuf),
    /// A server, by a variable with its connection string.
    Server(String),
}

/// The file of a node that is given no other, beside what it serves.
const FILE: &str = ".callboard/actors.redb";

impl NodeStore {
    fn of(plan: &Plan) -> Self {
        let setting = &plan.settings.actor_store;
        let is_of_file = matches!(setting.source, Source::File { .. } | Source::ModelDefaults { .. });
        let place = match &setting.value {
            StateStoreAt::Memory => StorePlace::Memory,
            StateStoreAt::Server(variable) => StorePlace::Server(variable.clone()),
            StateStoreAt::File(path) if is_of_file => StorePlace::File(plan.target.base().join(path)),
            StateStoreAt::File(path) => StorePlace::File(path.clone()),
            StateStoreAt::Auto => StorePlace::File(plan.target.base().join(FILE)),
        };
        Self { place, opened: Mutex::default() }
    }

    /// The store. One that could not be opened is tried again by the next key.
    fn opened(&self) -> Result<Arc<dyn StateStore>, StoreError> {
        let mut opened = self.opened.lock();
        if let Some(store) = &*opened {
            return Ok(Arc::clone(store));
        }
        let store = self.open().map_err(|reason| StoreError::Failed(format!("{self:?}: {reason}")))?;
        *opened = Some(Arc::clone(&store));
        Ok(store)
    }

    fn open(&self) -> Result<Arc<dyn StateStore>, String> {
        Ok(match &self.place {
            StorePlace::Memory => Arc::new(MemoryStore::new()),
            StorePlace::File(path) => {
                let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
                directory.map_or(Ok(()), std::fs::create_dir_all).map_err(|error| error.to_string())?;
                let store = RedbStore::open(path).map_err(|error| chain(&error))?;
                Arc::new(store)
            }
            StorePlace::Server(variable) => Arc::new(server_of(variable)?.making_table()),
        })
    }
}

impl StateStore for NodeStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        Box::pin(async move { self.opened()?.claim(key, owner).await })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        Box::pin(async move { self.opened()?.load(key).await })
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: bytes::Bytes) -> StoreFuture<'a, u64> {
        Box::pin(async move { self.opened()?.save(key, fence, state).await })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.opened()?.remove(key, fence).await })
    }

    fn is_local(&self) -> bool {
        !matches!(self.place, StorePlace::Server(_))
    }
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            StorePlace::Memory => f.write_str("the store in memory"),
            StorePlace::File(path) => write!(f, "the store {}", path.display()),
            StorePlace::Server(variable) => write!(f, "the store of the variable {variable}"),
        }
    }
}
