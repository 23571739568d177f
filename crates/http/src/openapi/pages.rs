//! The fixed pages as OpenAPI operations.

use serde_json::{Map, Value, json};

use super::schema::Components;
use crate::metrics::{OPENMETRICS, PROMETHEUS_TEXT};

/// Path, what it answers, its forms, and whether a node that is not there yet answers otherwise (503).
type Page = (&'static str, &'static str, &'static str, Vec<(&'static str, Value)>, bool);

/// All of them.
pub(super) fn operations(components: &mut Components) -> Map<String, Value> {
    let health = components.insert("Health", health_schema());
    let index = components.insert("Index", index_schema());
    let text = || json!({ "type": "string" });
    let pages: [Page; 6] = [
        ("/livez", "live", "Whether the process answers", vec![("application/json", health.clone())], true),
        (
            "/readyz",
            "ready",
            "Whether traffic may come, and if not, which stage and why",
            vec![("application/json", health)],
            true,
        ),
        (
            "/metrics",
            "metrics",
            "Metrics for Prometheus",
            vec![(OPENMETRICS, text()), (PROMETHEUS_TEXT, text())],
            false,
        ),
        ("/openapi.json", "openapi", "This document", vec![("application/json", json!({ "type": "object" }))], true),
        (
            "/docs/",
            "docs",
            "This document for people, with which routes can be tried",
            vec![("text/html", text())],
            true,
        ),
        (
            "/",
            "index",
            "What is here, as JSON for programs and as a page for people",
            vec![("application/json", index), ("text/html", text())],
            true,
        ),
    ];
    pages.into_iter().map(|page| (page.0.to_owned(), operation(page))).collect()
}

fn operation((_, id, summary, forms, unavailable): Page) -> Value {
    let content: Map<String, Value> =
        forms.into_iter().map(|(media_type, schema)| (media_type.to_owned(), json!({ "schema": schema }))).collect();
    let mut responses = json!({ "200": { "description": "OK", "content": content } });
    if unavailable {
        responses["503"] = json!({ "$ref": "#/components/responses/Unavailable" });
    }
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
