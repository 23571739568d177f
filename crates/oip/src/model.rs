//! A route as a model: its name, version and arrays. Derived once per revision of the route.
//!
//! A model's name is its route's path without the leading slash. Its version is the `revision` of its stages, at least
//! 1: a client that requests a version by number finds it after a restart or a reload. A route `/NAME/versions/V` is
//! version V of the model NAME, which may have several; `/NAME` is the version of requests without a version.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};
use std::time::SystemTime;

use callboard_codec::DataType;
use callboard_core::edge::Route;
use callboard_core::{ErrorKind, LocalClient};

use super::error::shown;
use super::signature::{BARE_INPUT, BARE_OUTPUT, Signature};
use callboard_http::protocol::ApiError;

/// One revision of a route.
#[derive(Debug)]
pub struct Model {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) inputs: Signature,
    pub(crate) outputs: Signature,
    route: Weak<Route>,
    /// When a call of this protocol last succeeded, in milliseconds since 1970.
    last_inference: AtomicU64,
}

impl Model {
    fn from_route(route: &Arc<Route>) -> Self {
        let (name, own) = named(route.name());
        Self::new(name, own.unwrap_or_else(|| version_of(route)), route.input(), route.output(), Arc::downgrade(route))
    }

    pub(crate) fn new(name: &str, version: u64, input: &DataType, output: &DataType, route: Weak<Route>) -> Self {
        Self {
            name: name.to_owned(),
            version,
            inputs: Signature::new(input, BARE_INPUT),
            outputs: Signature::new(output, BARE_OUTPUT),
            route,
            last_inference: AtomicU64::new(0),
        }
    }

    /// The name: that of the route, without the leading slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The name of an output.
    #[must_use]
    pub fn output_name(&self, index: usize) -> &str {
        self.outputs.fields.get(index).map_or("", |field| &field.name)
    }

    /// Whether a request may have many items, along a first axis of every array.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        self.inputs.stackable
    }

    /// Whether elements of its inputs are converted one by one: texts and documents.
    #[must_use]
    pub fn takes_elements(&self) -> bool {
        self.inputs.has_elements()
    }

    /// Notes that a call of this protocol has succeeded.
    pub fn inferred(&self) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_inference.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn last_inference(&self) -> u64 {
        self.last_inference.load(Ordering::Relaxed)
    }
}

/// The version of a model: the revision of its stages, unchanged by a reload.
fn version_of(route: &Route) -> u64 {
    route.stage_revision().max(1)
}

/// The text between the name of a model and the number of a version in a route.
const VERSIONS: &str = "/versions/";

/// The model of a route, and its version if the route says one.
pub(crate) fn named(route: &str) -> (&str, Option<u64>) {
    let name = route.trim_start_matches('/');
    let version = name.rsplit_once(VERSIONS).and_then(|(name, version)| {
        let is_plain = version.bytes().all(|byte| byte.is_ascii_digit()) && !version.starts_with('0');
        Some((name, version.parse().ok().filter(|_| is_plain && !name.is_empty())?))
    });
    version.map_or((name, None), |(name, version)| (name, Some(version)))
}

/// The versions of a model that are served, in order: those with routes of their own, else `own`.
pub(crate) fn versions(client: &LocalClient, name: &str, own: u64) -> Vec<u64> {
    let routes = client.routes();
    let mut versions: Vec<u64> = routes
        .iter()
        .filter_map(|route| match named(route.name()) {
            (of, Some(version)) if of == name => Some(version),
            _ => None,
        })
        .collect();
    versions.sort_unstable();
    if versions.is_empty() { vec![own] } else { versions }
}

/// The derived models, at most one per route.
#[derive(Debug, Default)]
pub(crate) struct Models(RwLock<HashMap<String, Arc<Model>>>);

impl Models {
    /// The model of this name and, if requested, version.
    pub(crate) fn find(
        &self,
        client: &LocalClient,
        name: &str,
        version: Option<u64>,
    ) -> Result<(Arc<Route>, Arc<Model>), ApiError> {
        let not_found = |what: String| ApiError::new(ErrorKind::NotFound, what);
        if let Some(route) = version.and_then(|version| client.route(&format!("/{name}{VERSIONS}{version}"))) {
            let model = self.get(&route);
            return Ok((route, model));
        }
        let route = client.route(&format!("/{name}"));
        let route =
            route.ok_or_else(|| not_found(format!("Request for unknown model: '{}' is not found", shown(name))))?;
        let has = version_of(&route);
        if let Some(version) = version.filter(|version| *version != has) {
            let has = versions(client, name, has).into_iter().map(|version| version.to_string());
            let has = has.collect::<Vec<_>>().join(", ");
            return Err(not_found(format!(
                "Request for unknown model: '{name}' version {version} is not found; it has {has}"
            )));
        }
        let model = self.get(&route);
        Ok((route, model))
    }

    /// Those that calls of the protocol reach: they are a `POST`.
    pub(crate) fn all(&self, client: &LocalClient) -> Vec<(Arc<Route>, Arc<Model>)> {
        let model = |route: Arc<Route>| {
            let model = self.get(&route);
            (route, model)
        };
        client.routes().into_iter().filter(|route| route.has_method("POST")).map(model).collect()
    }

    fn get(&self, route: &Arc<Route>) -> Arc<Model> {
        let is_same = |model: &&Arc<Model>| std::ptr::eq(model.route.as_ptr(), Arc::as_ptr(route));
        let read = |models: &HashMap<String, Arc<Model>>| models.get(route.name()).filter(is_same).cloned();
        if let Some(model) = self.0.read().ok().and_then(|models| read(&models)) {
            return model;
        }
        let model = Arc::new(Model::from_route(route));
        // Without the lock models are derived again each time.
        if let Ok(mut models) = self.0.write() {
            models.retain(|_, model| model.route.strong_count() > 0);
            models.insert(route.name().to_owned(), Arc::clone(&model));
        }
        model
    }
}
