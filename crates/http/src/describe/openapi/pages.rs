//! The fixed pages as OpenAPI operations.

use serde_json::{Map, Value, json};

use super::schema::Components;
use crate::observe::metrics::PROMETHEUS_TEXT;

/// Path, id, summary and form of a page. Pages for people only are left out.
type PageRow = (&'static str, &'static str, &'static str, (&'static str, Value));

/// The operations of all pages.
pub(super) fn operations(components: &mut Components) -> Map<String, Value> {
    let health = components.insert("Health", health_schema());
    let index = components.insert("ServiceIndex", index_schema());
    let pages: [PageRow; 5] = [
        ("/livez", "live", "Whether the process answers", ("application/json", health.clone())),
        (
            "/readyz",
            "ready",
            "Whether the node accepts traffic; if not, which stage is not ready and why",
            ("application/json", health),
        ),
        ("/metrics", "metrics", "Metrics for Prometheus", (PROMETHEUS_TEXT, json!({ "type": "string" }))),
        (
            "/metrics/load",
            "load",
            "How much the node has to do, for load balancers",
            (PROMETHEUS_TEXT, json!({ "type": "string" })),
        ),
        ("/", "index", "The routes and pages of this service", ("application/json", index)),
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
        "description": "The health of the node.",
        "required": ["live", "ready"],
        "properties": {
            "live": { "type": "boolean", "description": "The process answers." },
            "ready": { "type": "boolean", "description": "The node accepts traffic." },
            "starting": { "type": "boolean", "description": "The node is still starting." },
            "draining": { "type": "boolean", "description": "The node is shutting down." },
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
            "down_actors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "state"],
                    "properties": {
                        "name": { "type": "string" },
                        "state": { "type": "string" },
                        "reason": { "type": ["string", "null"] },
                    },
                },
            },
            "joining": {
                "type": ["string", "null"],
                "description": "What a node with keyed actors waits for before it has keys.",
            },
        },
    })
}

fn index_schema() -> Value {
    json!({
        "type": "object",
        "description": "The routes and pages of this service.",
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
