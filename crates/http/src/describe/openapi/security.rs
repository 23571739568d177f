//! The security schemes of the document, if the edge requires keys.

use serde_json::{Value, json};

use crate::guard::X_API_KEY;
use crate::protocol::Protocols;

/// Adds both ways to send a key, and marks the open operations. The error is among the problems.
pub(super) fn secure(document: &mut Value, protocols: &Protocols) {
    document["components"]["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "A key of this service." },
        "header": { "type": "apiKey", "in": "header", "name": X_API_KEY.as_str(), "description": "The same key." },
    });
    document["security"] = json!([{ "bearer": [] }, { "header": [] }]);
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, operations) in paths {
        for operation in operations.as_object_mut().into_iter().flat_map(|operations| operations.values_mut()) {
            if protocols.is_open(path) {
                operation["security"] = json!([]);
            }
        }
    }
}
