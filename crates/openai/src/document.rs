//! OpenAI's API as OpenAPI operations: those of the tasks that routes have.
//!
//! The schemas name what is demanded; all further fields are allowed, as clients send them.

use std::sync::Arc;

use callboard_core::Task;
use callboard_core::edge::Route;
use callboard_http::protocol::ProtocolDocument;
use serde_json::{Map, Value, json};

use crate::models::ids_of;
use crate::path::{RERANK, RESPONSES, path_of};

/// The name of the error response.
const ERROR: &str = "OpenAiError";

/// `None` without a route that has a task.
pub(crate) fn document(
    routes: &[Arc<Route>],
    add_schema: &mut dyn FnMut(&str, Value) -> Value,
) -> Option<ProtocolDocument> {
    let models = |task: Task| ids_of(routes, task);
    let mut paths = Map::new();
    for task in Task::ALL.into_iter().filter(|task| !models(*task).is_empty()) {
        let answer = add_schema(answer_of(task), json!({ "type": "object" }));
        let mut content = json!({ "application/json": { "schema": answer } });
        if matches!(task, Task::Chat | Task::Complete | Task::Transcribe | Task::Speak) {
            content["text/event-stream"] = json!({ "schema": { "type": "string" } });
        }
        match task {
            Task::Speak => content = json!({ "audio/*": {}, "text/event-stream": content["text/event-stream"] }),
            Task::Transcribe => {
                for media_type in ["text/plain", "text/vtt"] {
                    content[media_type] = json!({ "schema": { "type": "string" } });
                }
            }
            _ => {}
        }
        let body = if task == Task::Transcribe { "multipart/form-data" } else { "application/json" };
        let operation = json!({
            "operationId": format!("openai_{task}"),
            "summary": summary_of(task),
            "tags": [TAG],
            "requestBody": {
                "required": true,
                "content": { body: { "schema": request_of(task, &models(task)) } },
            },
            "responses": { "200": { "description": "The answer", "content": content }, "default": refusal() },
        });
        // A route may have this path.
        if task == Task::Rerank && !routes.iter().any(|route| route.name() == RERANK) {
            let mut short = operation.clone();
            short["operationId"] = "openai_rerank_short".into();
            paths.insert(RERANK.to_owned(), json!({ "post": short }));
        }
        paths.insert(path_of(task).to_owned(), json!({ "post": operation }));
    }
    if paths.is_empty() {
        return None;
    }
    let chats = models(Task::Chat);
    if !chats.is_empty() {
        let answer = add_schema("Response", json!({ "type": "object" }));
        let properties = json!({
            "model": { "type": "string", "enum": chats },
            "input": {},
            "instructions": text(),
            "stream": { "type": "boolean" },
        });
        let request = json!({ "type": "object", "required": ["model", "input"], "properties": properties });
        let content = json!({
            "application/json": { "schema": answer },
            "text/event-stream": { "schema": { "type": "string" } },
        });
        let operation = json!({
            "operationId": "openai_responses",
            "summary": "The next items of a conversation, whole or as events; nothing is kept",
            "tags": [TAG],
            "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
            "responses": { "200": { "description": "The answer", "content": content }, "default": refusal() },
        });
        paths.insert(RESPONSES.to_owned(), json!({ "post": operation }));
    }
    let fields = json!({ "message": text(), "type": text(), "param": {}, "code": {} });
    let error = json!({ "type": "object", "required": ["message", "type"], "properties": fields });
    let schema = json!({ "type": "object", "required": ["error"], "properties": { "error": error } });
    let schema = add_schema(ERROR, schema);
    let response = json!({ "description": "An error", "content": { "application/json": { "schema": schema } } });
    let list = json!({ "application/json": { "schema": { "type": "object", "required": ["object", "data"] } } });
    let operation = json!({
        "operationId": "openai_models",
        "summary": "The routes with a task, as models",
        "tags": [TAG],
        "responses": { "200": { "description": "The models", "content": list }, "default": refusal() },
    });
    paths.insert("/v1/models".to_owned(), json!({ "get": operation }));
    let one = json!({ "application/json": { "schema": { "type": "object", "required": ["id", "object"] } } });
    let ids: Vec<&str> = Task::ALL.into_iter().flat_map(models).collect();
    let operation = json!({
        "operationId": "openai_model",
        "summary": "One of these models",
        "tags": [TAG],
        "parameters": [{ "name": "model", "in": "path", "required": true, "schema": { "type": "string", "enum": ids } }],
        "responses": { "200": { "description": "The model", "content": one }, "default": refusal() },
    });
    paths.insert("/v1/models/{model}".to_owned(), json!({ "get": operation }));
    let tag = json!({ "name": TAG, "description": "Routes with a task as models of OpenAI's API." });
    Some(ProtocolDocument { tag, paths, responses: Map::from_iter([(ERROR.to_owned(), response)]) })
}

/// The tag of the operations.
const TAG: &str = "openai";

fn text() -> Value {
    json!({ "type": "string" })
}

fn refusal() -> Value {
    json!({ "$ref": format!("#/components/responses/{ERROR}") })
}

fn summary_of(task: Task) -> &'static str {
    match task {
        Task::Chat => "The next message of a conversation, whole or as events",
        Task::Complete => "The continuation of a text, whole or as events",
        Task::Embed => "A vector for each text",
        Task::Rerank => "Documents, the best for a query first",
        Task::Moderate => "What is wrong with each text",
        Task::Transcribe => "The text of a recording, whole or as events",
        Task::Speak => "A recording of a text, whole or as events",
        Task::Image => "Pictures of a text",
    }
}

fn answer_of(task: Task) -> &'static str {
    match task {
        Task::Chat => "ChatCompletion",
        Task::Complete => "Completion",
        Task::Embed => "EmbeddingList",
        Task::Rerank => "Ranking",
        Task::Moderate => "Moderation",
        Task::Transcribe => "Transcription",
        Task::Speak => "Speech",
        Task::Image => "PictureList",
    }
}

fn request_of(task: Task, models: &[&str]) -> Value {
    let model = json!({ "type": "string", "enum": models });
    let (required, mut properties) = match task {
        Task::Chat => {
            let messages = json!({ "type": "array", "minItems": 1, "items": { "type": "object" } });
            (vec!["model", "messages"], json!({ "messages": messages }))
        }
        Task::Complete => (vec!["model", "prompt"], json!({ "prompt": {} })),
        Task::Embed => {
            let format = json!({ "type": "string", "enum": ["float", "base64"] });
            (vec!["model", "input"], json!({ "input": {}, "encoding_format": format }))
        }
        Task::Rerank => {
            let documents = json!({ "type": "array", "minItems": 1 });
            (vec!["model", "query", "documents"], json!({ "query": text(), "documents": documents }))
        }
        Task::Moderate => (vec!["model", "input"], json!({ "input": {} })),
        Task::Transcribe => {
            let file = json!({ "type": "string", "contentMediaType": "application/octet-stream" });
            let formats = json!({ "type": "string", "enum": ["json", "verbose_json", "text", "srt", "vtt"] });
            (vec!["model", "file"], json!({ "file": file, "response_format": formats }))
        }
        Task::Speak => {
            let format = json!({ "type": "string", "enum": ["audio", "sse"] });
            (vec!["model", "input"], json!({ "input": text(), "stream_format": format }))
        }
        Task::Image => {
            let format = json!({ "type": "string", "enum": ["b64_json", "url"] });
            let count = json!({ "type": "integer", "minimum": 1, "maximum": 10 });
            (vec!["model", "prompt"], json!({ "prompt": text(), "response_format": format, "n": count }))
        }
    };
    properties["model"] = model;
    if matches!(task, Task::Chat | Task::Complete) {
        properties["stream"] = json!({ "type": "boolean" });
        properties["n"] = json!({ "type": "integer", "minimum": 1, "maximum": 128 });
    }
    json!({ "type": "object", "required": required, "properties": properties })
}
