//! The Open Inference Protocol as OpenAPI operations: the same routes as models.
//!
//! The schemas are as wide as the protocol. What an array of a model has to be is told by the model itself, under `/v2/models/{model}`.

use std::sync::Arc;

use callboard_core::Route;
use serde_json::{Map, Value, json};

use super::schema::Components;

/// The answer to whatever does not succeed.
pub(super) const ERROR: &str = "ProtocolError";

/// What may be wrong with a question, and with a call.
const OF_QUESTIONS: [&str; 4] = ["400", "404", "500", "503"];
const OF_CALLS: [&str; 12] = ["400", "404", "408", "413", "415", "429", "500", "501", "503", "504", "4XX", "5XX"];

/// All of them.
pub(super) fn operations(routes: &[Arc<Route>], components: &mut Components) -> Map<String, Value> {
    components.insert(ERROR, object(&["error"], json!({ "error": { "type": "string" } })));
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        let mut operation = operation;
        if path.contains("{model}") {
            operation["parameters"] = json!([model(routes)]);
        }
        paths.insert(path.to_owned(), json!({ method: operation }));
    };
    let text = || json!({ "type": "string" });
    let flag = || json!({ "type": "boolean" });
    let list = |items: Value| json!({ "type": "array", "items": items });

    let server = object(
        &["name", "version", "extensions"],
        json!({ "name": text(), "version": text(), "extensions": list(text()) }),
    );
    add("/v2", "get", question("server", "Name, version and extensions", server));
    let live = object(&["live"], json!({ "live": flag() }));
    add("/v2/health/live", "get", question("server_live", "Whether the process answers", live));
    let ready = object(&["live", "ready"], json!({ "live": flag(), "ready": flag() }));
    add("/v2/health/ready", "get", question("server_ready", "Whether traffic may come", ready));

    let tensor = object(
        &["name", "datatype", "shape"],
        json!({ "name": text(), "datatype": text(), "shape": list(json!({ "type": "integer" })) }),
    );
    let metadata = object(
        &["name", "versions", "platform", "inputs", "outputs"],
        json!({
            "name": text(), "versions": list(text()), "platform": text(),
            "inputs": list(tensor.clone()), "outputs": list(tensor),
        }),
    );
    add("/v2/models/{model}", "get", question("model", "Names, datatypes and shapes of a model's arrays", metadata));
    let ready = object(&["name", "ready"], json!({ "name": text(), "ready": flag() }));
    add("/v2/models/{model}/ready", "get", question("model_ready", "Whether the model takes calls", ready));
    let config = object(&["name", "platform", "max_batch_size", "input", "output"], json!({ "name": text() }));
    add("/v2/models/{model}/config", "get", question("model_config", "The model's configuration", config));
    let statistics = object(&["model_stats"], json!({ "model_stats": list(json!({ "type": "object" })) }));
    add("/v2/models/{model}/stats", "get", question("model_statistics", "What was counted", statistics.clone()));
    add("/v2/models/stats", "get", question("statistics", "What was counted of all models", statistics));

    add("/v2/models/{model}/infer", "post", infer(components));
    let (request, response) = generate();
    let body = json!({ "application/json": { "schema": request } });
    let whole = json!({ "application/json": { "schema": response } });
    add("/v2/models/{model}/generate", "post", call("generate", "JSON in, JSON out", body.clone(), whole));
    let events = json!({ "text/event-stream": { "schema": { "type": "string" }, "x-item-schema": response } });
    add("/v2/models/{model}/generate_stream", "post", call("generate_stream", "JSON in, events out", body, events));

    let asked = json!({ "application/json": { "schema": object(&[], json!({ "ready": flag() })) } });
    let listed = list(object(
        &["name", "state"],
        json!({ "name": text(), "version": text(), "state": { "enum": ["READY", "UNAVAILABLE"] }, "reason": text() }),
    ));
    let listed = json!({ "application/json": { "schema": listed } });
    add("/v2/repository/index", "post", wish("repository_index", "Every model with its state", asked, Some(listed)));
    let parameters =
        json!({ "application/json": { "schema": object(&[], json!({ "parameters": { "type": "object" } })) } });
    let load = wish("model_load", "Serves a model, anew where it is served", parameters.clone(), None);
    add("/v2/repository/models/{model}/load", "post", load);
    let unload = wish("model_unload", "Serves a model no more", parameters, None);
    add("/v2/repository/models/{model}/unload", "post", unload);
    paths
}

/// Inference, with arrays as JSON or behind it.
fn infer(components: &mut Components) -> Value {
    let text = || json!({ "type": "string" });
    let array = |required: &[&str]| {
        object(
            required,
            json!({
                "name": text(), "datatype": text(), "parameters": { "type": "object" },
                "shape": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
                "data": { "type": "array" },
            }),
        )
    };
    let list = |items: Value| json!({ "type": "array", "items": items });
    let request = object(
        &["inputs"],
        json!({
            "id": text(), "parameters": { "type": "object" },
            "inputs": list(array(&["name", "datatype", "shape"])), "outputs": list(array(&["name"])),
        }),
    );
    let request = components.insert("InferenceRequest", request);
    let response = object(
        &["model_name", "model_version", "outputs"],
        json!({
            "model_name": text(), "model_version": text(), "id": text(),
            "outputs": list(array(&["name", "datatype", "shape"])),
        }),
    );
    let response = components.insert("InferenceResponse", response);
    let binary = json!({
        "schema": {
            "type": "string", "format": "binary",
            "description": "JSON of as many bytes as `inference-header-content-length` says, and the arrays that are not in it.",
        },
    });
    let body = json!({ "application/json": { "schema": request }, "application/octet-stream": binary });
    let answer = json!({ "application/json": { "schema": response }, "application/octet-stream": binary });
    let mut operation = call("infer", "Inference", body, answer);
    // A body is read by its headers alone.
    operation["description"] = json!("The content type of the body is not looked at.");
    operation
}

fn generate() -> (Value, Value) {
    let request = json!({ "type": "object", "description": "The model's inputs and parameters by their names." });
    let response = object(
        &["model_name", "model_version"],
        json!({ "model_name": { "type": "string" }, "model_version": { "type": "string" } }),
    );
    (request, response)
}

fn question(id: &str, summary: &str, schema: Value) -> Value {
    let content = json!({ "application/json": { "schema": schema } });
    json!({ "tags": ["models"], "operationId": id, "summary": summary, "responses": responses(Some(content), &OF_QUESTIONS) })
}

fn call(id: &str, summary: &str, body: Value, answer: Value) -> Value {
    json!({
        "tags": ["models"],
        "operationId": id,
        "summary": summary,
        "requestBody": { "required": true, "content": body },
        "responses": responses(Some(answer), &OF_CALLS),
    })
}

/// A question with a body that may be missing.
fn wish(id: &str, summary: &str, body: Value, answer: Option<Value>) -> Value {
    json!({
        "tags": ["models"],
        "operationId": id,
        "summary": summary,
        "requestBody": { "content": body },
        "responses": responses(answer, &["400", "404", "408", "413", "415", "429", "500", "503"]),
    })
}

fn responses(answer: Option<Value>, errors: &[&str]) -> Value {
    let mut success = json!({ "description": "OK" });
    if let Some(content) = answer {
        success["content"] = content;
    }
    let error = |status: &&str| ((*status).to_owned(), json!({ "$ref": format!("#/components/responses/{ERROR}") }));
    let mut responses: Map<String, Value> = errors.iter().map(error).collect();
    responses.insert("200".to_owned(), success);
    Value::Object(responses)
}

/// The component that all errors refer to.
pub(super) fn error_response() -> (String, Value) {
    let content = json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{ERROR}") } } });
    (ERROR.to_owned(), json!({ "description": "What went wrong, in the protocol's words.", "content": content }))
}

/// The part of a path that names a model.
fn model(routes: &[Arc<Route>]) -> Value {
    let mut schema = json!({ "type": "string" });
    if !routes.is_empty() {
        let names = routes.iter().map(|route| route.name().trim_start_matches('/'));
        schema["enum"] = names.collect();
    }
    json!({
        "name": "model", "in": "path", "required": true, "schema": schema,
        "description": "A route, without its first `/`.",
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    let mut object = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}
