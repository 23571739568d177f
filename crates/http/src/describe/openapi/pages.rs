//! The fixed pages as OpenAPI operations.

use serde_json::{Map, Value, json};

use super::schema::Components;
use crate::observe::metrics::PROMETHEUS_TEXT;

/// Path, id, summary and form of a page. Pages for people only are left out.
type PageRow = (&'static str, &'static str, &'static str, (&'static str, Value));

/// All of them.
pub(super) fn operations(components: &mut Components) -> Map<String, Value> {
    let health = components.insert("Health", health_schema());
    let index = components.insert("ServiceIndex", index_schema());
    let pages: [PageRow; 4] = [
        ("/livez", "live", "Whether the process answers", ("application/json", health.clone())),
        ("/readyz", "ready", "Whether traffic may come, and if not, which stage and why", ("application/json", health)),
        ("/metrics", "metrics", "Metrics for Prometheus", (PROMETHEUS_TEXT, json!({ "type": "string" }))),
        ("/", "index", "What is here", ("application/json", index)),
    ];
    pages.into_iter().map(|page| (page.0.to_owned(), operation(page))).collect()
}

fn operation((_, id, summary, (media_type, schema)): PageRow) -> Value {
    let responses = json!({
        "200": { "description": "OK", "content": { media_type: { "schema": schema } } },
        "default": { "$ref": "#/components/responses/Problem" },
    });
    json!({ "get": { "tags": ["node"], "operationId": id, "summary": summary, "responses": responses } })
}

fn health_schema() -> Value {
    json!({
        "type": "object",
        "description": "How the node does.",
        "required": ["live", "ready"],
        "properties": {
            "live": { "type": "boolean", "description": "The process answers." },
            "ready": { "type": "boolean", "description": "Traffic may come." },
            "starting": { "type": "boolean", "description": "The node is not there yet." },
            "draining": { "type": "boolean", "description": "The node is about to end." },
            "stages": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "state", "ready"],
                    "properties": {
                        "name": { "type": "string" },
                        "state": { "type": "string" },
                        "reason": { "type": ["string", "null"] },
                        "ready": { "type": "boolean" },
                    },
                },
            },
            "failed_actors": { "type": "array", "items": { "type": "string" } },
        },
    })
}

fn index_schema() -> Value {
    json!({
        "type": "object",
        "description": "What is here.",
        "required": ["title", "version", "ready", "routes", "pages"],
        "properties": {
            "title": { "type": "string" },
            "version": { "type": "string" },
            "ready": { "type": "boolean" },
            "routes": { "type": "array", "items": { "type": "object" } },
            "pages": { "type": "array", "items": { "type": "string" } },
        },
    })
}
