//! The Open Inference Protocol as OpenAPI operations.
//!
//! The schemas are as wide as the protocol. `/v2/models/{model}` has the arrays of one model.

use std::sync::Arc;

use callboard_core::edge::Route;
use serde_json::{Map, Value, json};

use callboard_http::protocol::ProtocolDocument;

/// The name of the error response.
const ERROR: &str = "ProtocolError";

type AddSchema<'a> = &'a mut dyn FnMut(&str, Value) -> Value;

/// The tag, the operations and the error response.
pub(crate) fn document(routes: &[Arc<Route>], add_schema: AddSchema<'_>) -> ProtocolDocument {
    let tag = json!({ "name": "models", "description": "The same routes as models of the Open Inference Protocol." });
    let paths = operations(routes, add_schema);
    ProtocolDocument { tag, paths, responses: Map::from_iter([error_response()]) }
}

fn operations(routes: &[Arc<Route>], add_schema: AddSchema<'_>) -> Map<String, Value> {
    add_schema(ERROR, object(&["error"], json!({ "error": text() })));
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        let mut operation = operation;
        if path.contains("{model}") {
            operation["parameters"] = json!([model(routes)]);
        }
        paths.insert(path.to_owned(), json!({ method: operation }));
    };

    let server = object(
        &["name", "version", "extensions"],
        json!({ "name": text(), "version": text(), "extensions": list(text()) }),
    );
    let server = add_schema("ServerMetadata", server);
    add("/v2", "get", read("server", "Name, version and extensions", &server));
    let live = add_schema("ServerLive", object(&["live"], json!({ "live": flag() })));
    add("/v2/health/live", "get", read("server_live", "Whether the process answers", &live));
    let ready = object(&["live", "ready"], json!({ "live": flag(), "ready": flag() }));
    let ready = add_schema("ServerReady", ready);
    add("/v2/health/ready", "get", read("server_ready", "Whether the server accepts traffic", &ready));

    let metadata = metadata_schemas(add_schema);
    add("/v2/models/{model}", "get", read("model", "Names, datatypes and shapes of a model's arrays", &metadata));
    let ready = object(&["name", "ready"], json!({ "name": text(), "ready": flag() }));
    let ready = add_schema("ModelReady", ready);
    add("/v2/models/{model}/ready", "get", read("model_ready", "Whether the model accepts calls", &ready));
    let config = config_schemas(add_schema);
    add("/v2/models/{model}/config", "get", read("model_config", "The model's configuration", &config));
    let counted = add_schema("ModelStatistics", statistics_schema());
    let statistics = object(&["model_stats"], json!({ "model_stats": list(counted) }));
    let statistics = add_schema("Statistics", statistics);
    add("/v2/models/{model}/stats", "get", read("model_statistics", "The statistics of a model", &statistics));
    add("/v2/models/stats", "get", read("statistics", "The statistics of all models", &statistics));

    add("/v2/models/{model}/infer", "post", infer(add_schema));
    let instances = object(&["instances"], json!({ "instances": list(json!({})) }));
    let instances = json!({ "application/json": { "schema": add_schema("Instances", instances) } });
    let predictions = object(&["predictions"], json!({ "predictions": list(json!({})) }));
    let predictions = json!({ "application/json": { "schema": add_schema("Predictions", predictions) } });
    let predict = call("predict", "A call for each instance, and its output", instances, predictions);
    add("/v1/models/{model}:predict", "post", predict);
    let (request, response) = generate(add_schema);
    let body = json!({ "application/json": { "schema": request } });
    let whole = json!({ "application/json": { "schema": response } });
    add("/v2/models/{model}/generate", "post", call("generate", "JSON in, JSON out", body.clone(), whole));
    let events = json!({ "text/event-stream": { "schema": text(), "x-item-schema": response } });
    add("/v2/models/{model}/generate_stream", "post", call("generate_stream", "JSON in, events out", body, events));

    let index = add_schema("IndexRequest", object(&[], json!({ "ready": flag() })));
    let state = json!({ "type": "string", "enum": ["READY", "UNAVAILABLE"] });
    let listed = object(
        &["name", "state", "reason"],
        json!({ "name": text(), "version": text(), "state": state, "reason": text() }),
    );
    let listed = list(add_schema("ListedModel", listed));
    let listed = json!({ "application/json": { "schema": listed } });
    add("/v2/repository/index", "post", change("repository_index", "Every model with its state", &index, Some(listed)));
    let control = add_schema("ControlRequest", object(&[], json!({ "parameters": anything_by_name() })));
    let load = change("model_load", "Loads a model, or loads it again", &control, None);
    add("/v2/repository/models/{model}/load", "post", load);
    let unload = change("model_unload", "Unloads a model", &control, None);
    add("/v2/repository/models/{model}/unload", "post", unload);
    paths
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn whole() -> Value {
    json!({ "type": "integer", "format": "int64" })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// Values by names that no schema knows.
fn anything_by_name() -> Value {
    json!({ "type": "object", "additionalProperties": {} })
}

fn metadata_schemas(add_schema: AddSchema<'_>) -> Value {
    let tensor =
        object(&["name", "datatype", "shape"], json!({ "name": text(), "datatype": text(), "shape": list(whole()) }));
    let tensor = add_schema("TensorMetadata", tensor);
    let metadata = object(
        &["name", "versions", "platform", "inputs", "outputs"],
        json!({
            "name": text(), "versions": list(text()), "platform": text(),
            "inputs": list(tensor.clone()), "outputs": list(tensor),
        }),
    );
    add_schema("ModelMetadata", metadata)
}

fn config_schemas(add_schema: AddSchema<'_>) -> Value {
    let tensor =
        object(&["name", "data_type", "dims"], json!({ "name": text(), "data_type": text(), "dims": list(whole()) }));
    let tensor = add_schema("TensorConfig", tensor);
    let instances = object(&["name", "kind", "count"], json!({ "name": text(), "kind": text(), "count": whole() }));
    let instances = add_schema("InstanceGroup", instances);
    let config = object(
        &["name", "platform", "max_batch_size", "input", "output"],
        json!({
            "name": text(), "platform": text(), "backend": text(), "max_batch_size": whole(),
            "input": list(tensor.clone()), "output": list(tensor), "instance_group": list(instances),
            "version_policy": anything_by_name(), "dynamic_batching": anything_by_name(),
            "model_transaction_policy": anything_by_name(),
        }),
    );
    add_schema("ModelConfig", config)
}

fn statistics_schema() -> Value {
    let mut properties = Map::from_iter([("name".to_owned(), text()), ("version".to_owned(), text())]);
    for counted in ["last_inference", "inference_count", "execution_count"] {
        properties.insert(counted.to_owned(), whole());
    }
    for times in ["inference_stats", "response_stats"] {
        properties.insert(times.to_owned(), anything_by_name());
    }
    object(&["name", "version", "inference_count", "execution_count", "inference_stats"], Value::Object(properties))
}

/// Inference, with arrays in the JSON or after it.
fn infer(add_schema: AddSchema<'_>) -> Value {
    let shape = list(json!({ "type": "integer", "format": "int64", "minimum": 0 }));
    let data = json!({ "type": "array", "items": {}, "description": "The elements, flat or nested." });
    let tensor = |add_schema: AddSchema<'_>, name: &str| {
        let fields = json!({
            "name": text(), "datatype": text(), "shape": shape, "parameters": anything_by_name(), "data": data,
        });
        add_schema(name, object(&["name", "datatype", "shape"], fields))
    };
    let input = tensor(add_schema, "InferenceInput");
    let output = tensor(add_schema, "InferenceOutput");
    let requested_output = object(&["name"], json!({ "name": text(), "parameters": anything_by_name() }));
    let requested_output = add_schema("RequestedOutput", requested_output);
    let request = object(
        &["inputs"],
        json!({
            "id": text(), "parameters": anything_by_name(), "inputs": list(input), "outputs": list(requested_output),
        }),
    );
    let request = add_schema("InferenceRequest", request);
    let response = object(
        &["model_name", "model_version", "outputs"],
        json!({ "model_name": text(), "model_version": text(), "id": text(), "outputs": list(output) }),
    );
    let response = add_schema("InferenceResponse", response);
    let body = json!({ "application/json": { "schema": request } });
    let answer = json!({ "application/json": { "schema": response } });
    let mut operation = call("infer", "Inference", body, answer);
    operation["description"] = json!(
        "The content type of the body is ignored. With the header `inference-header-content-length` the body is JSON \
         of that many bytes, followed by the arrays in binary that are not in the JSON; outputs that are requested in \
         binary are returned in the same way."
    );
    operation
}

fn generate(add_schema: AddSchema<'_>) -> (Value, Value) {
    let mut request = anything_by_name();
    request["description"] = json!("The model's inputs and parameters by their names.");
    let mut response =
        object(&["model_name", "model_version"], json!({ "model_name": text(), "model_version": text() }));
    response["description"] = json!("The model's outputs by their names.");
    response["additionalProperties"] = json!({});
    (add_schema("GenerateRequest", request), add_schema("GenerateResponse", response))
}

fn read(id: &str, summary: &str, schema: &Value) -> Value {
    let content = json!({ "application/json": { "schema": schema } });
    json!({ "tags": ["models"], "operationId": id, "summary": summary, "responses": responses(Some(content)) })
}

fn call(id: &str, summary: &str, body: Value, answer: Value) -> Value {
    json!({
        "tags": ["models"],
        "operationId": id,
        "summary": summary,
        "requestBody": { "required": true, "content": body },
        "responses": responses(Some(answer)),
    })
}

/// An operation with an optional body.
fn change(id: &str, summary: &str, body: &Value, answer: Option<Value>) -> Value {
    json!({
        "tags": ["models"],
        "operationId": id,
        "summary": summary,
        "requestBody": { "content": { "application/json": { "schema": body } } },
        "responses": responses(answer),
    })
}

fn responses(answer: Option<Value>) -> Value {
    let mut success = json!({ "description": "OK" });
    if let Some(content) = answer {
        success["content"] = content;
    }
    json!({ "200": success, "default": { "$ref": format!("#/components/responses/{ERROR}") } })
}

/// The response that all operations refer to for errors.
fn error_response() -> (String, Value) {
    let content = json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{ERROR}") } } });
    (ERROR.to_owned(), json!({ "description": "What went wrong, in the form of the protocol.", "content": content }))
}

/// The part of a path that names a model.
fn model(routes: &[Arc<Route>]) -> Value {
    let mut schema = json!({ "type": "string" });
    let called: Vec<&str> = routes
        .iter()
        .filter(|route| route.has_method("POST"))
        .map(|route| route.name().trim_start_matches('/'))
        .collect();
    if !called.is_empty() {
        schema["enum"] = called.into();
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
