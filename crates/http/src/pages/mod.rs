//! The fixed pages, as an outline: for the machines that watch the node, for the people and programs that use it.

mod docs;
mod document;
mod health;
mod index;
mod metrics;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use callboard_core::LocalClient;

use self::document::DocumentCache;
pub(crate) use self::health::unreachable;
use crate::error::ApiError;
use crate::metrics::EdgeMetrics;
use crate::openapi::ApiInfo;

/// Paths that no user route may take, with everything below them. `/v1` is for function calls, `/v2` for the Open Inference Protocol.
const RESERVED: [&str; 7] = ["/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1", "/v2"];

/// Whether a route of this name would hide a page of the edge: its own paths and everything below them.
///
/// [`Edge::open`](crate::Edge::open) refuses such a route; whoever makes routes can ask before.
#[must_use]
pub fn is_reserved(route: &str) -> bool {
    route == "/"
        || RESERVED
            .iter()
            .any(|reserved| route.strip_prefix(reserved).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// What pages are made of.
#[derive(Clone, Debug)]
struct Sources {
    client: LocalClient,
    metrics: Arc<EdgeMetrics>,
    info: Arc<ApiInfo>,
    document: Arc<DocumentCache>,
    scraped: Arc<metrics::Scraped>,
}

pub(crate) fn router(client: LocalClient, metrics: Arc<EdgeMetrics>, info: Arc<ApiInfo>) -> Router {
    machines()
        // For programs that generate clients, and for people who try calls in a browser.
        .route("/openapi.json", get(openapi_page))
        .route("/docs", get(docs::redirect))
        .route("/docs/", get(docs::index))
        .route("/docs/{*file}", get(docs::file))
        // For whoever comes by.
        .route("/", get(index::index))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Sources { client, metrics, info, document: Arc::default(), scraped: Arc::default() })
}

/// The pages that the admin listener has, too.
pub(crate) fn for_machines(client: LocalClient, metrics: Arc<EdgeMetrics>) -> Router {
    let (info, document, scraped) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
    machines().with_state(Sources { client, metrics, info, document, scraped })
}

fn machines() -> Router<Sources> {
    Router::new()
        // For orchestrators: restart it? send it traffic? Some load balancers (HAProxy) ask by OPTIONS.
        .route("/livez", get(health::live).options(health::live))
        .route("/readyz", get(health::ready).options(health::ready))
        // For Prometheus.
        .route("/metrics", get(metrics_page))
}

/// The answers of an edge whose node is not there yet.
pub(crate) fn while_starting(path: &str, headers: &HeaderMap, counted: &EdgeMetrics) -> Result<Response, ApiError> {
    match path {
        "/livez" => {
            Ok(axum::Json(serde_json::json!({ "live": true, "ready": false, "starting": true })).into_response())
        }
        // The same question in the protocol's words.
        "/v2/health/live" => Ok(axum::Json(serde_json::json!({ "live": true })).into_response()),
        "/metrics" => Ok(metrics::Page::new(counted.encode_after(String::new())).answer(headers).into_response()),
        _ => Err(ApiError::starting()),
    }
}

/// A page for browsers: it loads what its policy allows, is shown in no frame, and its links do not tell where they were. What
/// holds for every answer is added where all of them pass.
fn for_browsers(mut page: Response, policy: &'static str) -> Response {
    let headers = page.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The same as `frame-ancestors`, for browsers from before it.
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    page
}

async fn metrics_page(State(sources): State<Sources>, headers: HeaderMap) -> impl IntoResponse {
    let (client, counted) = (sources.client, sources.metrics);
    sources.scraped.get(move || counted.encode_after(client.metrics())).await.answer(&headers)
}

async fn openapi_page(State(sources): State<Sources>) -> impl IntoResponse {
    let document = sources.document.of(sources.client.routes(), &sources.info);
    ([(CONTENT_TYPE, "application/json")], document)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::no_such_route(uri.path())
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::method_not_allowed(&method, "GET, HEAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_its_own_paths_and_what_is_below_them() {
        for reserved in
            ["/", "/livez", "/readyz", "/openapi.json", "/metrics", "/docs", "/docs/mine", "/v1/call/x", "/v2"]
        {
            assert!(is_reserved(reserved), "{reserved}");
        }
        for free in ["/digits", "/metrics2", "/docsearch", "/v10", "/my/docs"] {
            assert!(!is_reserved(free), "{free}");
        }
    }
}
