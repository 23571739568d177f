//! The repository extension: the models with their states, and changes of them.
//!
//! The [`ModelRepository`] decides whether a change succeeds.

use std::fmt;

use bytes::Bytes;
use callboard_core::{ChangeError, LocalClient};
use callboard_http::axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{Refusal, shown};
use super::metadata::unready;
use super::model::Models;
use crate::model_repository::{ModelRepository, RepositoryError};
use callboard_http::protocol::ApiError;

/// The body of `POST /v2/repository/index`, which may be empty.
#[derive(Default, Deserialize)]
struct IndexRequest {
    /// Only models that take calls.
    #[serde(default)]
    ready: bool,
}

#[derive(Serialize)]
pub(crate) struct ListedModel {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    state: &'static str,
    /// Empty if the model is ready: clients require the key.
    reason: String,
}

pub(crate) fn index(
    client: &LocalClient,
    models: &Models,
    repository: Option<&dyn ModelRepository>,
    body: &Bytes,
) -> Result<Vec<ListedModel>, Refusal> {
    let request: IndexRequest = read(body)?;
    let health = client.health();
    let served = models.all(client);
    let unloaded = repository.map(ModelRepository::routes).unwrap_or_default();
    let unloaded = unloaded.into_iter().filter(|name| !served.iter().any(|(route, _)| route.name() == name));
    let unloaded: Vec<_> = unloaded.map(|name| ListedModel::unloaded(name.trim_start_matches('/'))).collect();
    let listed = served.iter().map(|(route, model)| {
        let reason = unready(&health, route);
        let state = if reason.is_none() { READY } else { UNAVAILABLE };
        ListedModel {
            name: model.name.clone(),
            version: Some(model.version.to_string()),
            state,
            reason: reason.unwrap_or_default(),
        }
    });
    Ok(listed.chain(unloaded).filter(|model| !request.ready || model.state == READY).collect())
}

const READY: &str = "READY";
const UNAVAILABLE: &str = "UNAVAILABLE";

impl ListedModel {
    /// A model that could be loaded.
    fn unloaded(name: &str) -> Self {
        Self { name: name.to_owned(), version: None, state: UNAVAILABLE, reason: "unloaded".to_owned() }
    }
}

/// A request to load or unload a model.
#[derive(Debug)]
pub(crate) struct ModelChange<'a> {
    name: String,
    load: bool,
    repository: &'a dyn ModelRepository,
}

/// The body of a load or an unload, which may be empty.
#[derive(Default, Deserialize)]
struct ChangeRequest {
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// Also unloads models that only this one needs. Stages end with their last route in any case.
const DEPENDENTS: &str = "unload_dependents";

impl<'a> ModelChange<'a> {
    /// A change in a repository that this client may change.
    pub(crate) fn try_new(
        name: String,
        load: bool,
        repository: Option<&'a dyn ModelRepository>,
    ) -> Result<Self, Refusal> {
        match repository {
            Some(repository) => Ok(Self { name, load, repository }),
            None => Err(refusal(&name, load, "model control is not enabled on this server")),
        }
    }

    /// Checks the body. No parameter may change what is loaded: the configuration decides.
    pub(crate) fn check(&self, body: &Bytes) -> Result<(), Refusal> {
        let request: ChangeRequest = read(body)?;
        match request.parameters.iter().find(|(key, value)| self.load || *key != DEPENDENTS || !value.is_boolean()) {
            None => Ok(()),
            Some((key, _)) => Err(self.refusal(format_args!(
                "parameter '{}' is not supported: the server's configuration defines the model",
                shown(key)
            ))),
        }
    }

    /// Completes when callers see the change.
    pub(crate) async fn apply(self) -> Result<StatusCode, ApiError> {
        let route = format!("/{}", self.name);
        let changing = if self.load { self.repository.load(&route) } else { self.repository.unload(&route) };
        match changing.await {
            Ok(()) => Ok(StatusCode::OK),
            Err(RepositoryError::Change(error @ (ChangeError::Busy { .. } | ChangeError::Ending))) => Err(error.into()),
            Err(error) => Err(self.refusal(error).into()),
        }
    }

    fn refusal(&self, why: impl fmt::Display) -> Refusal {
        refusal(&self.name, self.load, why)
    }
}

fn refusal(name: &str, load: bool, why: impl fmt::Display) -> Refusal {
    let verb = if load { "load" } else { "unload" };
    Refusal::new(format!("failed to {verb} '{}': {why}", shown(name)))
}

/// An object, or nothing. serde would also take a list of its members.
fn read<T: Default + DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    let members = match body.trim_ascii() {
        [] => return Ok(T::default()),
        json => serde_json::from_slice::<Map<String, Value>>(json),
    };
    members
        .and_then(|members| T::deserialize(Value::Object(members)))
        .map_err(|error| Refusal::new(format!("failed to parse the request JSON buffer: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_repository::RepositoryChange;

    /// A repository without models.
    #[derive(Debug)]
    struct Nothing;

    impl ModelRepository for Nothing {
        fn routes(&self) -> Vec<String> {
            Vec::new()
        }

        fn load<'a>(&'a self, _: &'a str) -> RepositoryChange<'a> {
            Box::pin(async { Err(RepositoryError::Unknown) })
        }

        fn unload<'a>(&'a self, _: &'a str) -> RepositoryChange<'a> {
            Box::pin(async { Err(RepositoryError::Unknown) })
        }
    }

    #[test]
    fn parameters_that_would_change_the_model_are_refused_by_name() {
        let check = |load, body: &'static str| {
            ModelChange::try_new("m".to_owned(), load, Some(&Nothing)).unwrap().check(&Bytes::from(body))
        };
        let refused = |load, body| check(load, body).unwrap_err().to_string();
        assert!(check(true, "").is_ok());
        assert!(check(true, "{\"parameters\":{}}").is_ok());
        assert!(check(false, "{\"parameters\":{\"unload_dependents\":false}}").is_ok());
        let why =
            "failed to load 'm': parameter 'config' is not supported: the server's configuration defines the model";
        assert_eq!(refused(true, "{\"parameters\":{\"config\":\"{}\"}}"), why);
        assert!(refused(true, "{\"parameters\":{\"unload_dependents\":true}}").contains("unload_dependents"));
        for body in ["[", "[]", "[{}]", "null", "{\"parameters\":[]}"] {
            assert!(refused(false, body).starts_with("failed to parse"), "{body}");
        }
    }
}
