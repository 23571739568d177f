//! Which authorization servers give tokens for this one (RFC 9728), for clients that have none.

use callboard_http::axum::http::StatusCode;
use callboard_http::axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use callboard_http::axum::response::Response;
use serde_json::json;

use crate::config::Authorization;
use crate::respond::json_response;

/// The path of the document; that of a resource may follow.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The document about this server.
pub(crate) fn document(authorization: &Authorization) -> Response {
    let document = json!({
        "resource": authorization.resource(),
        "authorization_servers": authorization.servers(),
        "bearer_methods_supported": ["header"],
    });
    json_response(200, document.to_string())
}

/// Tells a client without a valid token where the document is.
pub(crate) fn add_challenge(authorization: &Authorization, response: &mut Response) {
    if response.status() != StatusCode::UNAUTHORIZED {
        return;
    }
    let challenge = format!("Bearer resource_metadata=\"{}\"", authorization.metadata_url());
    // A URL is visible ASCII.
    if let Ok(challenge) = HeaderValue::from_str(&challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
}
