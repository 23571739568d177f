//! `/`: the index of the service. HTML for clients that prefer it by `Accept`, else JSON.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::header::{ACCEPT, HOST};
use axum::http::{HeaderMap, Uri};
use axum::response::{Html, IntoResponse, Response};
use axum::{Extension, Json};
use callboard_codec::MediaType;
use callboard_core::edge::Route;
use serde::Serialize;

use super::curl::curl;
use super::{PageState, for_browsers};
use crate::asgi::asgi_path;
use crate::guard::AUTH_ROUTE;
use crate::listener::PeerInfo;
use crate::mounted::prefix;
use crate::request::head::joined;
use crate::request::media::accepted;

#[derive(Serialize)]
struct ServiceIndex<'a> {
    title: &'a str,
    version: &'a str,
    ready: bool,
    routes: Vec<IndexEntry>,
    /// The pages of the edge, then those of mounted apps.
    pages: Vec<String>,
}

const PAGES: [&str; 5] = ["/docs/", "/openapi.json", "/readyz", "/livez", "/metrics"];

/// One route of the index.
#[derive(Serialize)]
struct IndexEntry {
    path: String,
    methods: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    summary: String,
    stages: Vec<String>,
    /// The steps in one line, with parallel and alternative branches.
    pipeline: String,
    accepts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    curl: Option<String>,
}

impl IndexEntry {
    fn new(route: &Route, pipeline: String, base: &str, needs_key: bool) -> Self {
        Self {
            pipeline,
            path: route.path().to_owned(),
            methods: route.methods().map(str::to_owned).collect(),
            summary: route.summary().to_owned(),
            stages: route.stages().iter().map(ToString::to_string).collect(),
            accepts: accepted(route.input()).into_iter().map(str::to_owned).collect(),
            curl: curl(route, base, None, needs_key),
        }
    }
}

pub(super) async fn index(
    State(sources): State<PageState>,
    peer: Option<Extension<PeerInfo>>,
    OriginalUri(original): OriginalUri,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let is_secure = peer.is_some_and(|Extension(peer)| peer.is_secure);
    let prefix = prefix(&original, &uri);
    let base = base_url(is_secure, &uri, &headers) + prefix;
    let routes = sources.client.edge().describe_routes();
    let pipeline = |route: &Route| {
        let described = routes.iter().find(|described| !described.closed && described.name.as_str() == route.name());
        described.map_or_else(String::new, |described| described.pipeline.clone())
    };
    // Only the code of an app that names its callers knows what they have to send.
    let needs_key = sources.info.needs_key && sources.client.route(AUTH_ROUTE).is_none();
    let listed = |route: &Arc<Route>| IndexEntry::new(route, pipeline(route), &base, needs_key);
    let private = sources.client.edge().private_routes();
    let apps: Vec<&str> = private.iter().filter_map(|route| asgi_path(route.name())).collect();
    let index = ServiceIndex {
        title: &sources.info.title,
        version: &sources.info.version,
        ready: sources.client.health().ready,
        routes: sources.client.routes().iter().map(listed).collect(),
        pages: PAGES.into_iter().chain(apps.iter().copied()).map(|page| format!("{prefix}{page}")).collect(),
    };
    if prefers_html(&headers) {
        for_browsers(Html(page(&index, &apps, directory(&original))).into_response(), POLICY)
    } else {
        Json(index).into_response()
    }
}

fn prefers_html(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(ACCEPT).iter().fold(None, |list, line| Some(joined(list, line)));
    let accept = accept.as_ref().and_then(|accept| accept.to_str().ok()).unwrap_or("*/*");
    MediaType::choose_index(accept, &["application/json", "text/html"]) == Some(1)
}

/// The URL by which the client reached the edge, so that a pasted line works: `Host`, or the authority of HTTP/2. A
/// header shows whether a proxy terminates TLS.
fn base_url(is_secure: bool, uri: &Uri, headers: &HeaderMap) -> String {
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| headers.get(HOST)?.to_str().ok());
    let is_secure = is_secure || headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let scheme = if is_secure { "https" } else { "http" };
    let is_plain = |host: &&str| host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c));
    format!("{scheme}://{}", host.filter(is_plain).unwrap_or("localhost:8000"))
}

/// The prefix from the page to its own directory: empty for `/api/`, and `api` for `/api`.
fn directory(original: &Uri) -> &str {
    original.path().rsplit('/').next().unwrap_or_default()
}

fn page(index: &ServiceIndex<'_>, apps: &[&str], directory: &str) -> String {
    let mut html = format!("{HEAD}<style>{STYLE}</style>\n");
    let title = escaped(index.title);
    let state = if index.ready { "ready" } else { "not ready" };
    _ = write!(html, "<title>{title}</title><h1>{title}</h1><p class=state>{} · {state}</p>", escaped(index.version));
    for route in &index.routes {
        _ = write!(
            html,
            "<section><h2>{} {}</h2><p>{}</p><p class=stages>{}</p><pre>{}</pre></section>",
            escaped(&route.methods.join(", ")),
            escaped(&route.path),
            escaped(&route.summary),
            escaped(&route.pipeline),
            escaped(route.curl.as_deref().unwrap_or("see docs")),
        );
    }
    html.push_str("<p>");
    for (path, shown) in PAGES.iter().chain(apps).zip(&index.pages) {
        // Relative, as in `/docs`: a proxy may add a path prefix.
        let path = if directory.is_empty() { path.trim_start_matches('/') } else { path };
        _ = write!(html, "<a href=\"{}{path}\">{shown}</a> ", escaped(directory));
    }
    html.push_str("</p>\n");
    html
}

const HEAD: &str = "<!doctype html><meta charset=utf-8><meta name=viewport content=\"width=device-width\">";

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}\
h2{font-size:1.1rem;margin:1.5rem 0 0}p{margin:.2rem 0}.state,.stages{color:#666}\
pre{background:#f4f4f4;padding:.6rem .8rem;overflow-x:auto;border-radius:4px}";

/// The one style by its hash. There is no script, and names of routes are text.
const POLICY: &str = "default-src 'none'; style-src 'sha256-JlLDtuVyNLCODoOk8ZJmYLrFETx1HtD/dvOD3664yjg='; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use callboard_codec::{Format, Value};

    use super::*;

    #[test]
    fn an_invalid_host_does_not_enter_a_shell_line() {
        let uri = Uri::from_static("/");
        let base = |host: &str| base_url(false, &uri, &HeaderMap::from_iter([(HOST, host.parse().unwrap())]));
        assert_eq!(base("example.org:8000"), "http://example.org:8000");
        assert_eq!(base("[::1]:8000"), "http://[::1]:8000");
        assert_eq!(base("x; rm -rf"), "http://localhost:8000");
        let by_http2 = base_url(false, &Uri::from_static("http://example.org:8000/"), &HeaderMap::new());
        assert_eq!(by_http2, "http://example.org:8000");
    }

    #[test]
    fn the_policy_names_the_style_by_its_hash() {
        let hash = <sha2::Sha256 as sha2::Digest>::digest(STYLE.as_bytes());
        let base64 = Value::Bytes(bytes::Bytes::copy_from_slice(hash.as_ref())).encode(Format::Json).unwrap();
        let base64 = std::str::from_utf8(&base64).unwrap().trim_matches('"').to_owned();
        assert!(POLICY.contains(&format!("'sha256-{base64}'")), "{base64}");
    }

    #[test]
    fn html_in_a_text_is_escaped() {
        assert_eq!(escaped("<script>\"&\"</script>"), "&lt;script&gt;&quot;&amp;&quot;&lt;/script&gt;");
    }
}
