//! The models that clients see: the routes with a task. The id of a model is its route without the leading slash; it
//! may have other names.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_core::edge::{Route, nearest};
use callboard_core::{LocalClient, Task};
use callboard_http::protocol::ApiError;
use serde::Serialize;

use crate::error::no_model;
use crate::path::path_of;

#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// What it does; not part of the original API.
    task: &'static str,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

pub(crate) fn list(client: &LocalClient, created: u64) -> ModelList {
    let routes = client.routes();
    let models = routes.iter().filter_map(|route| Some((route, route.task()?)));
    let named = models.flat_map(|(route, task)| names_of(route).map(move |id| object(id, task, created)));
    ModelList { object: "list", data: named.collect() }
}

pub(crate) fn object(id: &str, task: Task, created: u64) -> ModelObject {
    ModelObject { id: id.to_owned(), object: "model", created, owned_by: "callboard", task: task.as_str() }
}

/// The id of a model, and then its other names.
fn names_of(route: &Route) -> impl Iterator<Item = &str> {
    std::iter::once(id_of(route)).chain(route.aliases().iter().map(String::as_str))
}

/// The ids of the models with this task, also by their other names.
pub(crate) fn ids_of(routes: &[Arc<Route>], task: Task) -> Vec<&str> {
    routes.iter().filter(|route| route.task() == Some(task)).flat_map(|route| names_of(route)).collect()
}

/// The model of this id, whatever its task.
pub(crate) fn any(client: &LocalClient, id: &str) -> Result<(Arc<Route>, Task), ApiError> {
    // A route that only this process calls begins with `@`.
    let is_id = id.starts_with(|first: char| first != '/' && first != '@');
    let name = format!("/{id}");
    let route = is_id.then(|| client.route(&name)).flatten();
    // Not one whose name has parameters.
    let route = route.filter(|route| route.name() == name && route.task().is_some());
    let route = route.or_else(|| {
        let routes = client.routes();
        routes.into_iter().find(|route| route.task().is_some() && route.aliases().iter().any(|alias| alias == id))
    });
    route.and_then(|route| route.task().map(|task| (route, task))).ok_or_else(|| unknown(client, id))
}

/// The model of this id for this task.
pub(crate) fn find(client: &LocalClient, id: &str, task: Task) -> Result<Arc<Route>, ApiError> {
    let (route, own) = any(client, id)?;
    if own == task {
        return Ok(route);
    }
    let (own, asked) = (path_of(own), path_of(task));
    Err(no_model(format!("model `{}` is called at {own}, not at {asked}", shown(id))))
}

fn unknown(client: &LocalClient, id: &str) -> ApiError {
    let routes = client.routes();
    let known: Vec<&str> =
        routes.iter().filter(|route| route.task().is_some()).flat_map(|route| names_of(route)).collect();
    let hint = match nearest(id, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`GET /v1/models` lists the models".to_owned(),
    };
    no_model(format!("there is no model `{}`; {hint}", shown(id)))
}

pub(crate) fn id_of(route: &Route) -> &str {
    route.name().trim_start_matches('/')
}

/// A client's text, shortened.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}
