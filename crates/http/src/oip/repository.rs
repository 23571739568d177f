//! The repository extension: which models there are, and in which state.
//!
//! Models cannot be loaded or unloaded by clients: what is served is what the node was started with or told in process.

use bytes::Bytes;
use callboard_core::Client;
use serde::{Deserialize, Serialize};

use super::error::Refusal;
use super::metadata::unready;
use super::model::Models;

/// The body of `POST /v2/repository/index`, which may be empty.
#[derive(Default, Deserialize)]
struct IndexRequest {
    /// Only those that take calls.
    #[serde(default)]
    ready: bool,
}

#[derive(Serialize)]
pub(super) struct Listed {
    name: String,
    version: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub(super) fn index(client: &Client, models: &Models, body: &Bytes) -> Result<Vec<Listed>, Refusal> {
    let asked: IndexRequest = match body.trim_ascii() {
        [] => IndexRequest::default(),
        json => serde_json::from_slice(json)
            .map_err(|error| Refusal::new(format!("failed to parse the request JSON buffer: {error}")))?,
    };
    let health = client.health();
    let listed = models.all(client).into_iter().map(|(route, model)| {
        let reason = unready(&health, &route);
        let state = if reason.is_none() { "READY" } else { "UNAVAILABLE" };
        Listed { name: model.name.clone(), version: model.version.to_string(), state, reason }
    });
    Ok(listed.filter(|model| !asked.ready || model.state == "READY").collect())
}

pub(super) fn no_control(name: &str, load: bool) -> Refusal {
    let verb = if load { "load" } else { "unload" };
    Refusal::new(format!(
        "failed to {verb} '{}': model control is not enabled on this server",
        super::error::shown(name)
    ))
}
