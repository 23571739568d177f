//! What the document says about keys, where an edge asks for them.

use serde_json::{Value, json};

use super::operation::problem_response;
use super::protocol;
use crate::access::{X_API_KEY, is_open};
use crate::oip;

const UNAUTHENTICATED: &str = "Unauthenticated";

/// Adds both ways to show a key, and the answer to whoever does not, to every operation that asks for one.
pub(super) fn secure(document: &mut Value) {
    document["components"]["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "A key of this service." },
        "header": { "type": "apiKey", "in": "header", "name": X_API_KEY.as_str(), "description": "The same key." },
    });
    document["components"]["responses"][UNAUTHENTICATED] = problem_response("No key was sent, or not a valid one.");
    document["security"] = json!([{ "bearer": [] }, { "header": [] }]);
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, operations) in paths {
        for operation in operations.as_object_mut().into_iter().flat_map(|operations| operations.values_mut()) {
            if is_open(path) {
                operation["security"] = json!([]);
            } else if oip::owns(path) {
                operation["responses"]["401"] =
                    json!({ "$ref": format!("#/components/responses/{}", protocol::ERROR) });
            } else {
                operation["responses"]["401"] = json!({ "$ref": format!("#/components/responses/{UNAUTHENTICATED}") });
            }
        }
    }
}
