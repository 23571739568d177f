//! The Messages API as an OpenAPI operation.

use std::sync::Arc;

use callboard_core::Task;
use callboard_core::edge::Route;
use callboard_http::protocol::ProtocolDocument;
use serde_json::{Map, Value, json};

use crate::models::ids_of;

/// The name of the error response.
const ERROR: &str = "AnthropicError";

/// The tag of the operation.
const TAG: &str = "anthropic";

/// `None` without a route that chats.
pub(super) fn document(
    routes: &[Arc<Route>],
    add_schema: &mut dyn FnMut(&str, Value) -> Value,
) -> Option<ProtocolDocument> {
    let models = ids_of(routes, Task::Chat);
    if models.is_empty() {
        return None;
    }
    let request = json!({
        "type": "object",
        "required": ["model", "max_tokens", "messages"],
        "properties": {
            "model": { "type": "string", "enum": models },
            "max_tokens": { "type": "integer", "minimum": 1 },
            "messages": { "type": "array", "minItems": 1, "items": { "type": "object" } },
            "stream": { "type": "boolean" },
        },
    });
    let message = add_schema("AnthropicMessage", json!({ "type": "object" }));
    let error = json!({ "type": "object", "required": ["type", "message"] });
    let properties = json!({ "type": { "const": "error" }, "error": error });
    let error = json!({ "type": "object", "required": ["type", "error"], "properties": properties });
    let error = add_schema(ERROR, error);
    let answers = json!({
        "application/json": { "schema": message },
        "text/event-stream": { "schema": { "type": "string" } },
    });
    let operation = json!({
        "operationId": "anthropic_messages",
        "summary": "The next message of a conversation, whole or as events",
        "tags": [TAG],
        "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
        "responses": {
            "200": { "description": "The answer", "content": answers },
            "default": { "$ref": format!("#/components/responses/{ERROR}") },
        },
    });
    let response = json!({ "description": "An error", "content": { "application/json": { "schema": error } } });
    let tag = json!({ "name": TAG, "description": "Routes that chat as models of Anthropic's Messages API." });
    Some(ProtocolDocument {
        tag,
        paths: Map::from_iter([(super::PATH.to_owned(), json!({ "post": operation }))]),
        responses: Map::from_iter([(ERROR.to_owned(), response)]),
    })
}
