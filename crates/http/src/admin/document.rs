//! The OpenAPI document of the admin listener.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Admin;
use crate::describe::openapi::problem_schema;

/// `GET /openapi.json`.
pub(super) async fn openapi(State(_): State<Admin>) -> Json<Value> {
    Json(document())
}

fn document() -> Value {
    let model = json!({ "$ref": "#/components/schemas/Model" });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Callboard: the admin listener", "version": env!("CARGO_PKG_VERSION") },
        "servers": [{ "url": "." }],
        "paths": {
            "/v1/status": { "get": operation("status", "The version, health and running tree of the node", &[], &anything()) },
            "/v1/cluster": { "get": operation(
                "cluster",
                "The nodes of the cluster as this one knows them, with the load of their stages",
                &[],
                &anything(),
            ) },
            "/v1/live": { "get": events() },
            "/v1/stages/{stage}/replicas": { "post": with_replicas(
                operation("scale_stage", "Scales a stage; answered when the new replicas are warm", &["stage"], &anything()),
            ) },
            "/v1/routes/{route}": {
                "delete": operation("remove_route", "Closes a route; running calls finish", &["route"], &anything()),
            },
            "/v1/routes/{route}/promote": { "post": operation(
                "promote_route",
                "Gives a route to the candidate of its rollout",
                &["route"],
                &anything(),
            ) },
            "/v1/routes/{route}/rollback": { "post": operation(
                "roll_back_route",
                "Ends the rollout of a route, or gives it back to the revision that is kept after one",
                &["route"],
                &anything(),
            ) },
            "/v1/drain": { "post": accepted("drain", "Asks the process to finish its calls and to end") },
            "/v1/actors": {
                "get": operation("actors", "The kinds of keyed actors, with their active keys", &[], &anything()),
            },
            "/v1/actors/{kind}": { "get": keys() },
            "/v1/actors/{kind}/ask": { "post": with_body(
                of_key("ask_actor", "Asks the actor of a key a question; `question` is its name", &["question"]),
                "application/json",
                &json!({}),
            ) },
            "/v1/actors/{kind}/passivate": { "post": of_key(
                "passivate_actor",
                "Asks a key to save its state and end on this node, unless a message waits; answered at once",
                &[],
            ) },
            "/v1/actors/{kind}/release": { "post": of_key(
                "release_actor",
                "Asks a key to save its state and end on this node; its messages follow it to the node that has it now; \
                 answered at once",
                &[],
            ) },
            "/v1/actors/{kind}/forget": { "post": of_key(
                "forget_actor",
                "Removes the state of a key, on whichever node it is, as if it had never been asked",
                &[],
            ) },
            "/v1/models": { "get": page() },
            "/v1/models/{name}": { "get": operation("model", "A model with its versions", &["name"], &model) },
            "/v1/models/{name}/load": { "post": operation(
                "load_model",
                "Serves a model, or its new and changed versions; answered when callers see the change",
                &["name"],
                &model,
            ) },
            "/v1/models/{name}/unload": { "post": operation(
                "unload_model",
                "Closes a model with all of its versions; running calls finish",
                &["name"],
                &model,
            ) },
            "/v1/models/{name}/canary": { "post": rollout("canary", "answers a share of the calls", &model) },
            "/v1/models/{name}/shadow": { "post": rollout("shadow", "gets copies of a share of the calls", &model) },
            "/v1/models/{name}/promote": { "post": operation(
                "promote_model",
                "Gives a model's route to the candidate of its rollout",
                &["name"],
                &anything(),
            ) },
            "/v1/models/{name}/rollback": { "post": operation(
                "roll_back_model",
                "Ends the rollout of a model, or goes back to the revision that is kept after one",
                &["name"],
                &anything(),
            ) },
            "/v1/models/{name}/scale": { "post": scaling() },
            "/v1/models/{name}/versions/{version}": {
                "put": with_body(
                    operation(
                        "put_version",
                        "Takes a model file as a version, checks it, and serves it if the model's settings say so; \
                         403 unless `models.uploads` is set, 413 beyond that size",
                        &["name", "version"],
                        &model,
                    ),
                    "application/octet-stream",
                    &json!({}),
                ),
                "delete": removal(),
            },
        },
        "components": {
            "schemas": { "Problem": problem_schema(), "Model": model_schema(), "Version": version_schema() },
            "responses": {
                "Problem": {
                    "description": "The request was refused, and nothing has changed.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
        },
    })
}

fn anything() -> Value {
    json!({ "type": "object" })
}

fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({ "type": "object", "required": required });
    schema["properties"] = properties;
    schema
}

fn operation(id: &str, summary: &str, parameters: &[&str], answer: &Value) -> Value {
    let parameter =
        |name: &&str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    json!({
        "operationId": id,
        "summary": summary,
        "parameters": parameters.iter().map(parameter).collect::<Vec<Value>>(),
        "responses": {
            "200": { "description": "Done.", "content": { "application/json": { "schema": answer } } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    })
}

fn with_body(mut operation: Value, media_type: &str, schema: &Value) -> Value {
    operation["requestBody"] = json!({ "required": true, "content": { media_type: { "schema": schema } } });
    operation
}

fn with_replicas(operation: Value) -> Value {
    let replicas = json!({ "replicas": { "type": "integer", "minimum": 0 } });
    with_body(operation, "application/json", &object(&["replicas"], replicas))
}

fn scaling() -> Value {
    let summary = "Scales the stage of a model's default version, or of another version; answered when the new \
                   replicas are warm";
    let mut scaling = with_replicas(operation("scale_model", summary, &["name"], &anything()));
    if let Value::Array(parameters) = &mut scaling["parameters"] {
        let whole = json!({ "type": "integer", "minimum": 1 });
        parameters.push(json!({ "name": "version", "in": "query", "schema": whole }));
    }
    scaling
}

/// The answer of `/v1/live`.
fn events() -> Value {
    let mut operation = operation("live", "An event each second with the figures of that second", &[], &anything());
    operation["responses"]["200"]["content"] = json!({ "text/event-stream": { "schema": { "type": "string" } } });
    operation
}

fn keys() -> Value {
    let mut operation = operation("actor_keys", "A kind, with some of its active keys", &["kind"], &anything());
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 });
    if let Value::Array(parameters) = &mut operation["parameters"] {
        parameters.push(json!({ "name": "limit", "in": "query", "schema": limit }));
    }
    operation
}

fn of_key(id: &str, summary: &str, more: &[&str]) -> Value {
    let mut operation = operation(id, summary, &["kind"], &anything());
    if let Value::Array(parameters) = &mut operation["parameters"] {
        let text = |name| json!({ "name": name, "in": "query", "required": true, "schema": { "type": "string" } });
        parameters.extend(["key"].iter().chain(more).map(text));
    }
    operation
}

fn accepted(id: &str, summary: &str) -> Value {
    json!({ "operationId": id, "summary": summary, "responses": { "202": { "description": "It has begun." } } })
}

fn rollout(mode: &str, does: &str, model: &Value) -> Value {
    let summary = format!("Begins a rollout of a model: its next revision {does}");
    let mut operation = operation(&format!("{mode}_model"), &summary, &["name"], model);
    let query = |name: &str, schema: Value| json!({ "name": name, "in": "query", "schema": schema });
    let mut share = query("share", json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }));
    share["required"] = true.into();
    let whole = |name: &str| query(name, json!({ "type": "integer", "minimum": 1 }));
    if let Value::Array(parameters) = &mut operation["parameters"] {
        parameters.extend([share, whole("version"), whole("min_calls")]);
    }
    operation
}

fn removal() -> Value {
    let mut removal = operation(
        "delete_version",
        "Closes the route of a version and removes its files; 403 unless `models.uploads` is set",
        &["name", "version"],
        &anything(),
    );
    removal["responses"] = json!({
        "204": { "description": "It is removed." },
        "default": { "$ref": "#/components/responses/Problem" },
    });
    removal
}

fn page() -> Value {
    let models = json!({ "type": "array", "items": { "$ref": "#/components/schemas/Model" } });
    let next = json!({ "type": ["string", "null"], "description": "The `after` of the next page." });
    let page = object(&["models", "next"], json!({ "models": models, "next": next }));
    let mut operation = operation("models", "The models in the order of their names", &[], &page);
    operation["parameters"] = json!([
        { "name": "limit", "in": "query", "schema": { "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 } },
        { "name": "after", "in": "query", "schema": { "type": "string" }, "description": "Models after this name." },
    ]);
    operation
}

fn model_schema() -> Value {
    let reason = json!({ "type": ["string", "null"], "description": "What is wrong with the model as a whole." });
    object(
        &["name", "served", "default_version", "reason", "loading_seconds", "versions"],
        json!({
            "name": { "type": "string" },
            "served": { "type": "boolean", "description": "Whether the model's own route is open." },
            "default_version": { "type": ["integer", "null"] },
            "reason": reason,
            "loading_seconds": { "type": ["number", "null"], "description": "How long its load has taken so far." },
            "versions": { "type": "array", "items": { "$ref": "#/components/schemas/Version" } },
        }),
    )
}

fn version_schema() -> Value {
    object(
        &["version", "served", "reason"],
        json!({
            "version": { "type": "string", "description": "A number, or the name that is none." },
            "served": { "type": "boolean" },
            "reason": { "type": ["string", "null"], "description": "Why it is not served, or what is wrong with it." },
        }),
    )
}
