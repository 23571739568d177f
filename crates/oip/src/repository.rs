//! The repository extension: the models with their states, and changes of them.
//!
//! The [`ModelRepository`] decides whether a change succeeds.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use callboard_core::{ChangeError, LocalClient};
use callboard_http::axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{Refusal, shown};
use super::metadata::unready;
use super::model::{Models, named};
use callboard_http::protocol::ApiError;
use callboard_http::{ModelRepository, RepositoryError, RepositoryModel};

/// The body of `POST /v2/repository/index`, which may be empty.
#[derive(Default, Deserialize)]
struct IndexRequest {
    /// Only models that take calls.
    #[serde(default)]
    ready: bool,
}

/// Whether the body of a request for the index asks for ready models only.
pub(crate) fn asks_for_ready(body: &Bytes) -> Result<bool, Refusal> {
    read::<IndexRequest>(body).map(|request| request.ready)
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
    only_ready: bool,
) -> Vec<ListedModel> {
    let health = client.health();
    let mut served = models.all(client);
    // The route of a model without a version is one of its versions.
    let versioned: HashSet<String> = served
        .iter()
        .filter(|(route, _)| named(route.name()).1.is_some())
        .map(|(_, model)| model.name.clone())
        .collect();
    served.retain(|(route, model)| named(route.name()).1.is_some() || !versioned.contains(&model.name));
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
    let known = repository.map(ModelRepository::models).unwrap_or_default();
    let unserved = known.into_iter().flat_map(|model| {
        let is_served = served.iter().any(|(_, served)| served.name == model.name);
        ListedModel::unserved(model, is_served)
    });
    listed.chain(unserved).filter(|model| !only_ready || model.state == READY).collect()
}

const READY: &str = "READY";
const UNAVAILABLE: &str = "UNAVAILABLE";
const LOADING: &str = "LOADING";

impl ListedModel {
    /// The versions of a model that are not served, each with its reason; the model itself if it has no version.
    fn unserved(model: RepositoryModel, is_served: bool) -> Vec<Self> {
        let RepositoryModel { name, versions, reason, loading, .. } = model;
        let (state, open) = if loading.is_some() { (LOADING, "it is being loaded") } else { (UNAVAILABLE, "unloaded") };
        let listed = |version, reason: Option<String>| Self {
            name: name.clone(),
            version,
            state,
            reason: reason.unwrap_or_else(|| open.to_owned()),
        };
        if versions.is_empty() {
            return if is_served { Vec::new() } else { vec![listed(None, reason)] };
        }
        let unserved = versions.into_iter().filter(|version| !version.served);
        unserved.map(|version| listed(Some(version.version), version.reason)).collect()
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

    /// Checks the body.
    pub(crate) fn check(&self, body: &Bytes) -> Result<(), Refusal> {
        let request: ChangeRequest = read(body)?;
        self.check_parameters(request.parameters.iter().map(|(key, value)| (key.as_str(), value.is_boolean())))
    }

    /// Checks the parameters, each with whether it is true or false. None may change what is loaded: the configuration
    /// decides.
    pub(crate) fn check_parameters<'k>(
        &self,
        parameters: impl IntoIterator<Item = (&'k str, bool)>,
    ) -> Result<(), Refusal> {
        let refused = |(key, is_bool): &(&str, bool)| self.load || *key != DEPENDENTS || !is_bool;
        match parameters.into_iter().find(refused) {
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
    use callboard_http::RepositoryChange;

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
