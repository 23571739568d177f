//! The fixed pages, as an outline: for monitoring, and for users of the node.

pub(crate) mod curl;
mod docs;
mod document;
mod health;
mod index;
pub(crate) mod load;
mod metrics;
pub(crate) mod openapi;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use callboard_core::LocalClient;
use callboard_core::edge::{Route, nearest};

use self::document::DocumentCache;
use crate::call::functions::name_of as route_of_function;
use crate::describe::openapi::{ApiInfo, openapi, openapi_for_people};
use crate::error::{ApiError, starting};
use crate::mounted::prefix;
use crate::observe::metrics::EdgeMetrics;
use crate::protocol::Protocols;

type MakeDocument = fn(&[Arc<Route>], &ApiInfo, &Protocols) -> serde_json::Value;

/// The sources of all pages.
#[derive(Clone, Debug)]
struct PageState {
    client: LocalClient,
    metrics: Arc<EdgeMetrics>,
    info: Arc<ApiInfo>,
    protocols: Protocols,
    document: Arc<DocumentCache>,
    metrics_page: Arc<metrics::MetricsCache>,
    /// The document for the documentation page.
    document_for_people: Arc<DocumentCache>,
}

impl PageState {
    fn new(client: LocalClient, metrics: Arc<EdgeMetrics>, info: Arc<ApiInfo>, protocols: Protocols) -> Self {
        Self {
            client,
            metrics,
            info,
            protocols,
            document: Arc::default(),
            document_for_people: Arc::default(),
            metrics_page: Arc::default(),
        }
    }
}

pub(crate) fn router(
    client: LocalClient,
    metrics: Arc<EdgeMetrics>,
    info: Arc<ApiInfo>,
    protocols: Protocols,
) -> Router {
    machines()
        // For programs that generate clients, and for people who try calls in a browser.
        .route("/openapi.json", get(openapi_page))
        .route("/docs", get(docs::redirect))
        .route("/docs/", get(docs::index))
        .route("/docs/{*file}", get(docs::file))
        // For visitors.
        .route("/", get(index::index))
        // Browsers request it on every site.
        .route("/favicon.ico", get(favicon))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(PageState::new(client, metrics, info, protocols))
}

/// The pages of the admin listener.
pub(crate) fn machine_pages(client: LocalClient, metrics: Arc<EdgeMetrics>) -> Router {
    machines().with_state(PageState::new(client, metrics, Arc::default(), Protocols::default()))
}

fn machines() -> Router<PageState> {
    Router::new()
        // For orchestrators: restart the process, send traffic? Some load balancers (HAProxy) check by OPTIONS.
        .route("/livez", get(health::live).options(health::live))
        .route("/readyz", get(health::ready).options(health::ready))
        // For Prometheus.
        .route("/metrics", get(metrics_page))
        // For load balancers and autoscalers, which read it many times a second.
        .route(load::PATH, get(load_page))
}

/// The pages of an edge whose node is starting.
pub(crate) fn starting_page(path: &str, headers: &HeaderMap, counted: &EdgeMetrics) -> Result<Response, ApiError> {
    match path {
        "/livez" => {
            Ok(axum::Json(serde_json::json!({ "live": true, "ready": false, "starting": true })).into_response())
        }
        "/metrics" => Ok(metrics::MetricsPage::new(counted.encode()).answer(headers).into_response()),
        _ => Err(starting().into()),
    }
}

/// Adds the headers of a page for browsers: it loads only what its policy allows, is not shown in frames, and its links
/// send no referrer. The layers add the headers of all responses.
pub(crate) fn for_browsers(mut page: Response, policy: &'static str) -> Response {
    let headers = page.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The same as `frame-ancestors`, for older browsers.
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    page
}

async fn metrics_page(State(sources): State<PageState>, headers: HeaderMap) -> impl IntoResponse {
    let (client, counted) = (sources.client, sources.metrics);
    sources.metrics_page.get(move || counted.page(&client)).await.answer(&headers)
}

async fn load_page(State(sources): State<PageState>) -> impl IntoResponse {
    load::page(sources.client.edge().load())
}

async fn openapi_page(State(sources): State<PageState>, uri: Uri) -> impl IntoResponse {
    let routes = sources.client.routes();
    let make = |make: MakeDocument| move |routes: &[Arc<Route>]| make(routes, &sources.info, &sources.protocols);
    let document = if uri.query() == Some(docs::WITH_FORMS) {
        sources.document_for_people.get(routes, make(openapi_for_people))
    } else {
        sources.document.get(routes, make(openapi))
    };
    ([(CONTENT_TYPE, "application/json")], document)
}

/// A board with three cards.
const FAVICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\">\
                       <rect width=\"16\" height=\"16\" rx=\"3\" fill=\"#234\"/>\
                       <path fill=\"#fff\" d=\"M3 4h10v2H3zM3 7h7v2H3zM3 10h4v2H3z\"/></svg>";

async fn favicon() -> impl IntoResponse {
    ([(CONTENT_TYPE, "image/svg+xml"), (CACHE_CONTROL, "public, max-age=86400")], FAVICON)
}

async fn not_found(State(sources): State<PageState>, OriginalUri(original): OriginalUri, uri: Uri) -> ApiError {
    let prefix = prefix(&original, &uri);
    match nearly(uri.path()).filter(|path| sources.client.route(path).is_some()) {
        Some(path) => ApiError::no_such_page(uri.path(), &format!("did you mean `{prefix}{path}`?")),
        None => {
            // A function is called by the name of its route.
            let route = route_of_function(uri.path()).unwrap_or_else(|| Cow::Borrowed(uri.path()));
            let routes = sources.client.routes();
            match nearest(&route, routes.iter().map(|route| route.path())) {
                Some(near) => ApiError::no_such_page(&route, &format!("did you mean `{prefix}{near}`?")),
                None => ApiError::no_such_route(&route, prefix),
            }
        }
    }
}

/// The same path without the differences that many servers ignore: repeated slashes and percent-encoded letters. `None`
/// if it has none.
fn nearly(path: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
    let plain: String = decoded.split('/').filter(|part| !part.is_empty()).flat_map(|part| ["/", part]).collect();
    (plain != path).then_some(plain)
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::method_not_allowed(&method, "GET, HEAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_paths_are_recognized() {
        for near in ["/simple/", "//simple", "/%73imple", "/simple//"] {
            assert_eq!(nearly(near).as_deref(), Some("/simple"), "{near}");
        }
        assert_eq!(nearly("/a%2Fb").as_deref(), Some("/a/b"));
        for other in ["/simple", "/%ff"] {
            assert_eq!(nearly(other), None, "{other}");
        }
    }
}
