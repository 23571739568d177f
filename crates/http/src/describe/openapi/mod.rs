//! The OpenAPI 3.1 document, made from the routes that are being served.
//!
//! OpenAPI 3.1 takes JSON Schema 2020-12 as it is, so each route's schemas go in unchanged but for their place:
//! definitions move to `components/schemas` and references follow ([`schema`]). The document is a plain JSON value;
//! there is no second schema language between the types and it.

mod operation;
mod pages;
mod plain;
mod sample;
mod schema;
mod security;

use std::sync::Arc;

use callboard_core::edge::Route;
use serde_json::{Value, json};

use self::operation::OperationIds;
use self::schema::Components;
use crate::protocol::Protocols;

pub use self::operation::example_of;
pub use self::plain::plain_schema;

/// The description of the service in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiInfo {
    /// Its name. Default `Callboard`.
    pub title: String,
    /// The version of the service. Default the version of this crate.
    pub version: String,
    /// A description in CommonMark. Default empty.
    pub description: String,
    /// Whether callers need a key. Default no; an edge with [`api_keys`](crate::HttpConfig::api_keys) sets it.
    pub needs_key: bool,
}

impl Default for ApiInfo {
    fn default() -> Self {
        Self {
            title: "Callboard".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: String::new(),
            needs_key: false,
        }
    }
}

/// The OpenAPI 3.1 document of these routes: an operation for each method of a route, with its schemas, forms and errors; the call of a
/// route as a function; and the operations of the protocols.
///
/// Bodies are JSON only; other forms are named in an extension, because generators make a type of each form.
#[must_use]
pub fn openapi(routes: &[Arc<Route>], info: &ApiInfo, protocols: &Protocols) -> Value {
    document(routes, info, protocols, Audience::Programs)
}

/// The same for the documentation page, with forms for files.
pub(crate) fn openapi_for_people(routes: &[Arc<Route>], info: &ApiInfo, protocols: &Protocols) -> Value {
    document(routes, info, protocols, Audience::People)
}

/// The audience of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Generators of clients: several forms of one body would be several types, and some are not supported.
    Programs,
    /// People who try routes: each form with files has a button.
    People,
}

fn document(routes: &[Arc<Route>], info: &ApiInfo, protocols: &Protocols, audience: Audience) -> Value {
    let mut components = Components::default();
    components.insert("Problem", problem_schema());
    // Only events of a stream carry a timeline.
    if routes.iter().any(|route| route.streams()) {
        components.insert("Timeline", timeline_schema());
    }
    let mut ids = OperationIds::default();
    let mut paths: serde_json::Map<String, Value> = serde_json::Map::new();
    for route in routes {
        let path = paths.entry(route.path()).or_insert_with(|| json!({}));
        for method in operation::methods_of(route) {
            let id = ids.next(&method, route.path());
            path[&method] = operation::for_route(route, &method, id, audience, &mut components);
        }
    }
    paths.insert("/v1/call/{name}".to_owned(), json!({ "post": operation::for_calls(&mut components) }));
    let mut tags = vec![json!({ "name": "routes", "description": "What this node serves." })];
    let mut error_responses = operation::error_responses();
    let needs_key = info.needs_key;
    let mut info = info_object(info);
    for protocol in protocols.iter() {
        let document = protocol.document(routes, &mut |name, schema| components.insert(name, schema));
        let Some(document) = document else { continue };
        if audience == Audience::People && document.paths.is_empty() {
            add_paragraph(&mut info, &document.tag);
        }
        tags.push(document.tag);
        paths.extend(document.paths);
        error_responses.extend(document.responses);
    }
    tags.push(json!({ "name": "node", "description": "How the node itself does." }));
    paths.extend(pages::operations(&mut components));
    let mut document = json!({
        "openapi": "3.1.0",
        "info": info,
        // Relative to the document, so that it is correct behind a proxy with a path prefix.
        "servers": [{ "url": "." }],
        // No key is required, unless `secure` adds one.
        "security": [],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": components.into_schemas(),
            "responses": error_responses,
            "headers": operation::headers(),
            "parameters": operation::parameters(),
        },
    });
    if needs_key {
        security::secure(&mut document, protocols);
    }
    document
}

fn info_object(info: &ApiInfo) -> Value {
    let mut object = json!({ "title": info.title, "version": info.version });
    if !info.description.is_empty() {
        object["description"] = json!(info.description);
    }
    object
}

/// Describes a protocol without operations, of which the page shows nothing else.
fn add_paragraph(info: &mut Value, tag: &Value) {
    let before = info["description"].as_str().map(|before| format!("{before}\n\n")).unwrap_or_default();
    info["description"] = json!(before + tag["description"].as_str().unwrap_or_default());
}

/// RFC 9457 with our own members.
pub(crate) fn problem_schema() -> Value {
    json!({
        "type": "object",
        "description": format!("What went wrong (RFC 9457), by `status`:\n\n{}", operation::errors_in_words()),
        "required": ["type", "title", "status", "detail", "kind", "message", "retryable", "request_id"],
        "properties": {
            "type": { "type": "string", "description": "`urn:callboard:error:` and the kind." },
            "title": { "type": "string", "description": "The kind in words." },
            "status": { "type": "integer", "description": "The HTTP status." },
            "detail": { "type": "string", "description": "What happened, for people." },
            "kind": {
                "type": "string",
                "enum": callboard_core::ErrorKind::ALL.map(callboard_core::ErrorKind::as_str),
                "description": "The class of the error, for programs.",
            },
            "error_type": { "type": "string", "description": "The type of the error within its kind." },
            "message": { "type": "string", "description": "The same as `detail`." },
            "stage": { "type": "string", "description": "The stage in which it happened." },
            "details": {
                "description": "What the stage attached for programs. With 422 an object whose `fields` lists what \
                                does not fit, each with `path` and `message`.",
            },
            "remote_trace": { "type": "string", "description": "The last output of a worker that died." },
            "retryable": { "type": "boolean", "description": "Whether the same request may succeed later." },
            "request_id": { "type": "string", "description": "The same as the header `x-request-id`." },
        },
    })
}

/// The schema of the output of `explain`.
fn timeline_schema() -> Value {
    let run = json!({
        "type": "object",
        "required": ["queue_ms"],
        "properties": {
            "queue_ms": { "type": "number" },
            "batch_ms": { "type": "number" },
            "compute_ms": { "type": "number" },
            "batch": {
                "type": "object",
                "required": ["id", "size", "replica", "release"],
                "properties": {
                    "id": { "type": "integer" },
                    "size": { "type": "integer" },
                    "replica": { "type": "integer" },
                    "release": { "type": "string", "description": "Why the batch was closed at that moment." },
                },
            },
            "end": { "type": "string", "description": "How it ended; absent while it runs." },
        },
    });
    let remote = json!({
        "type": "object",
        "required": ["node"],
        "properties": {
            "node": { "type": "string" },
            "queue_ms": { "type": "number" },
            "batch_ms": { "type": "number" },
            "compute_ms": { "type": "number" },
        },
        "description": "The node that ran it, and its times.",
    });
    let stage = json!({
        "type": "object",
        "required": ["stage", "arrived_ms", "attempts", "runs"],
        "properties": {
            "stage": { "type": "string" },
            "arrived_ms": { "type": "number", "description": "Milliseconds since the head of the request." },
            "left_ms": { "type": "number" },
            "remote": { "type": "boolean", "description": "It ran on another node." },
            "there": remote,
            "attempts": { "type": "integer" },
            "runs": { "type": "array", "items": run },
        },
    });
    json!({
        "type": "object",
        "description": "Where the time of one request went.",
        "required": ["total_ms", "stages"],
        "properties": {
            "total_ms": { "type": "number" },
            "stages": { "type": "array", "items": stage },
            "omitted": { "type": "integer", "description": "The number of stages that were left out." },
        },
    })
}
