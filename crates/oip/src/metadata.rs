//! The description of the server and of models: extensions, signatures, configuration, readiness.

use callboard_core::LocalClient;
use callboard_core::description::Health;
use callboard_core::edge::Route;
use callboard_http::protocol::{not_ready_reason, unreachable_reason};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::model::{Model, versions};
use super::request::{MAX_ROWS, full_shape};
use super::signature::{Field, Signature};

/// The extensions of the protocol that are offered.
const EXTENSIONS: [&str; 10] = [
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "sequence(string_id)",
    "statistics",
];

/// The platform of all models.
const PLATFORM: &str = "callboard";

#[derive(Serialize)]
struct TensorMetadata<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: Vec<i64>,
}

#[derive(Serialize)]
struct TensorConfig<'a> {
    name: &'a str,
    data_type: &'static str,
    dims: Vec<i64>,
}

/// What a client reads about the server.
#[must_use]
pub fn server() -> Json {
    json!({ "name": PLATFORM, "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS })
}

/// What a client reads about a model: its versions and arrays.
#[must_use]
pub fn model(client: &LocalClient, model: &Model) -> Json {
    let versions = versions(client, &model.name, model.version);
    let versions: Vec<String> = versions.iter().map(u64::to_string).collect();
    // The outputs have the axis of items exactly if the inputs do.
    let tensors = |signature: &Signature| {
        let tensor = |field: &Field| {
            let shape = full_shape(model.is_batched(), field);
            json!(TensorMetadata { name: &field.name, datatype: field.datatype.name(), shape })
        };
        signature.fields.iter().map(tensor).collect::<Vec<Json>>()
    };
    json!({
        "name": model.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": tensors(&model.inputs),
        "outputs": tensors(&model.outputs),
    })
}

/// The model's configuration, as far as the protocol has words for it.
#[must_use]
pub fn config(client: &LocalClient, route: &Route, model: &Model) -> Json {
    let tensors = |signature: &Signature| {
        let tensor = |field: &Field| {
            let dims = full_shape(false, field);
            json!(TensorConfig { name: &field.name, data_type: field.datatype.config_name(), dims })
        };
        signature.fields.iter().map(tensor).collect::<Vec<Json>>()
    };
    let description = client.describe();
    let stages: Vec<_> =
        description.stages.iter().filter(|stage| route.stages().contains(&stage.health.name)).collect();
    let instances: Vec<Json> = stages
        .iter()
        .map(|stage| json!({ "name": stage.health.name, "kind": "KIND_CPU", "count": stage.replicas.len() }))
        .collect();
    // The largest batch. A request may have more rows and is divided. Without a local stage nothing more is known.
    let largest = stages.iter().map(|stage| stage.max_batch_size).max().unwrap_or(MAX_ROWS).min(MAX_ROWS);
    let mut config = json!({
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": { "latest": { "num_versions": 1 } },
        "max_batch_size": if model.is_batched() { largest } else { 0 },
        "input": tensors(&model.inputs),
        "output": tensors(&model.outputs),
        "instance_group": instances,
        "model_transaction_policy": { "decoupled": route.streams() },
    });
    if model.is_batched() {
        config["dynamic_batching"] = json!({ "preferred_batch_size": [largest] });
    }
    config
}

/// Why a model does not take calls, if so: a stage of its own, or the node.
#[must_use]
pub fn unready(health: &Health, route: &Route) -> Option<String> {
    if !health.live {
        return Some("the node has ended".to_owned());
    }
    if health.draining {
        return Some("the node is draining".to_owned());
    }
    let stages = route.stages();
    let unready = health.stages.iter().filter(|stage| stages.contains(&stage.name)).find_map(not_ready_reason);
    unready.or_else(|| {
        let remote = route.remote_stages();
        health.remote_stages.iter().filter(|stage| remote.contains(&stage.name)).find_map(unreachable_reason)
    })
}
