//! Access control from the head of a request alone: API keys, rates, and web pages.
//!
//! Nearly everything here is opt-in. With [`api_keys`](crate::HttpConfig::api_keys), a request without a valid key gets
//! 401 and costs a hash for each key that it shows; pages that only describe the service stay open. A key **over its
//! limit** gets 429 with `retry-after`, and the request is not counted; the calls of a stream wait instead. On a
//! listener that only this machine can reach, foreign web pages get 403: see [`LoopbackGuard`]. An app may [name its
//! callers](AUTH_ROUTE) itself.

mod api_keys;
mod auth;
mod cors;
mod host;
mod keyring;
mod loopback_guard;
mod proxies;
mod rate_limit;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use callboard_core::edge::Route;

use self::auth::Callers;
use self::keyring::Keyring;
use crate::error::ApiError;

pub(crate) use self::host::NamedHost;
pub use self::keyring::{KeyHolder, OverLimit};
pub(crate) use self::loopback_guard::LoopbackGuard;

pub use self::api_keys::{ApiKeys, ApiKeysError};
pub use self::auth::{AUTH_ROUTE, AuthCaller, AuthRequest};
pub use self::cors::{Cors, CorsError};
pub use self::loopback_guard::{Hosts, HostsError};
pub use self::proxies::TrustedProxies;
pub use self::rate_limit::{RateLimit, RateLimitError};

/// The key of a client that cannot set `authorization`.
pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The edge's own paths that need no key: health, for orchestrators, and the description of the service, which people
/// read before they can enter a key. Protocols have further ones.
pub(crate) const OPEN_PATHS: [&str; 5] = ["/livez", "/readyz", "/openapi.json", "/docs", "/favicon.ico"];

/// The keys and the CORS rules of an edge.
#[derive(Debug)]
pub(crate) struct AccessPolicy {
    keys: Option<Keyring>,
    cors: Option<Cors>,
    /// Set if the app names the callers without a key.
    pub(crate) callers: Option<Callers>,
}

/// What the head of an admitted request says of its caller.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// Its key, if keys are required.
    Known(Option<KeyHolder>),
    /// The app is to be asked.
    Asks,
}

impl AccessPolicy {
    /// `None` without any rules.
    pub(crate) fn new(
        keys: Option<ApiKeys>,
        rate_limit: Option<RateLimit>,
        reload_interval: Duration,
        cors: Option<Cors>,
        asks_app: bool,
    ) -> Option<Self> {
        let keys = keys.map(|keys| Keyring::new(keys, rate_limit, reload_interval));
        let callers = asks_app.then(|| Callers::new(rate_limit));
        (keys.is_some() || cors.is_some() || asks_app).then_some(Self { keys, cors, callers })
    }

    /// Reloads keys when their file changes. Drop it with the listener.
    pub(crate) fn watch_keys(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.keys.clone().map(Keyring::watch_file)
    }

    /// The owner of the request's key, or a refusal. `is_open` says which requests need no key. A request without a
    /// valid key is one for the app, if it names callers.
    pub(crate) fn admit<B>(
        &self,
        request: &Request<B>,
        is_open: impl Fn(&Request<B>) -> bool,
    ) -> Result<Admitted, ApiError> {
        if (self.keys.is_none() && self.callers.is_none()) || is_open(request) {
            return Ok(Admitted::Known(None));
        }
        let keys = self.keys.as_ref();
        let holder = keys.and_then(|keys| keys_of(request.headers()).find_map(|(_, key)| keys.find(key)));
        match holder {
            None if self.callers.is_some() => Ok(Admitted::Asks),
            None => Err(ApiError::unauthenticated(keys_of(request.headers()).next().is_some())),
            Some(holder) => {
                holder.take(1).map_err(|over| over.error)?;
                Ok(Admitted::Known(Some(holder)))
            }
        }
    }

    /// Takes the headers with keys of the node away, which are not for other code.
    pub(crate) fn hide_keys(&self, headers: &mut HeaderMap) {
        let Some(keys) = &self.keys else { return };
        let shown: Vec<_> =
            keys_of(headers).filter(|(_, key)| keys.find(key).is_some()).map(|(name, _)| name).collect();
        for name in shown {
            headers.remove(name);
        }
    }

    /// The response to a CORS preflight. `routes` are those that pages may call, and `takes_any` says whether
    /// requests to a path may have any header.
    pub(crate) fn preflight<B>(
        &self,
        request: &Request<B>,
        routes: impl Fn() -> Vec<Arc<Route>>,
        takes_any: impl Fn(&str) -> bool,
    ) -> Option<Response> {
        if request.method() != Method::OPTIONS || !cors::is_preflight(request.headers()) {
            return None;
        }
        let cors = self.cors.as_ref()?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        cors.permit(request.headers(), &routes(), takes_any(request.uri().path()), response.headers_mut());
        Some(response)
    }

    /// The origin that may read the response. Read before the request is consumed.
    pub(crate) fn allowed_origin<B>(&self, request: &Request<B>) -> Option<HeaderValue> {
        self.cors.as_ref()?.allowed(request.headers())
    }

    /// Adds the CORS headers. They also tell caches that responses differ by origin.
    pub(crate) fn add_headers(&self, allowed_origin: Option<HeaderValue>, headers: &mut HeaderMap) {
        if let Some(cors) = &self.cors {
            cors.mark(allowed_origin, headers);
        }
    }
}

/// Refuses what a web page asks for, unless the page is the server's own or in this list. CORS hides responses from other
/// pages, but not what a socket brings.
pub(crate) fn check_origin(head: &Parts, cors: Option<&Cors>) -> Result<(), ApiError> {
    let Some(origin) = head.headers.get(ORIGIN) else { return Ok(()) };
    let page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    // HTTP/2 has it in the URI.
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| head.uri.authority().map(|authority| authority.as_str()));
    let is_own = page.zip(host).is_some_and(|((_, page), host)| page.eq_ignore_ascii_case(host));
    if is_own || cors.is_some_and(|cors| cors.allowed(&head.headers).is_some()) {
        return Ok(());
    }
    Err(ApiError::forbidden("only the server's own web pages and those in `http.cors` may ask for this"))
}

/// The same, where a page of another site must not pass by a name of its own that it has pointed at this node (DNS
/// rebinding): the server's own pages are those at an address, at a name without a dot, or at one of these hosts.
pub(crate) fn check_named_origin(head: &Parts, cors: Option<&Cors>, hosts: &Hosts) -> Result<(), ApiError> {
    let Some(origin) = head.headers.get(ORIGIN) else { return Ok(()) };
    let page = origin.to_str().ok().and_then(|origin| NamedHost::of(origin.split_once("://")?.1));
    let is_known = page.is_some_and(|page| page.is_local() || page.name().is_some_and(|name| hosts.allow(name)));
    if is_known || cors.is_some_and(|cors| cors.allowed(&head.headers).is_some()) {
        return check_origin(head, cors);
    }
    Err(ApiError::forbidden("only pages at an address, at a host in `http.hosts` or in `http.cors` may ask for this"))
}

/// Whether this path of the edge needs no key.
pub(crate) fn is_open(path: &str) -> bool {
    path == "/" || OPEN_PATHS.into_iter().any(|open| is_below(path, open))
}

/// Whether a path is this one, or below it.
pub(crate) fn is_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The keys that a request shows, of which one has to be valid: a bearer token, which may be meant for other code, and
/// `x-api-key`.
fn keys_of(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, &[u8])> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(BEARER.len())?;
        scheme.eq_ignore_ascii_case(BEARER).then(|| token.trim_ascii())
    });
    let own = headers.get(X_API_KEY).map(|key| (X_API_KEY, key.as_bytes()));
    bearer.map(|token| (AUTHORIZATION, token)).into_iter().chain(own)
}

const BEARER: &[u8] = b"bearer ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_and_health_need_no_key_but_routes_do() {
        for open in ["/", "/livez", "/docs", "/docs/swagger-ui.css", "/openapi.json"] {
            assert!(is_open(open), "{open}");
        }
        for closed in ["/digits", "/metrics", "/v2/health", "/v1/call/x", "/livezx", "//livez", ""] {
            assert!(!is_open(closed), "{closed}");
        }
    }

    #[test]
    fn a_key_is_a_bearer_token_or_has_its_own_header() {
        let key = |lines: &[(HeaderName, &'static str)]| {
            let headers: HeaderMap =
                lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
            let keys = keys_of(&headers).map(|(_, key)| String::from_utf8(key.to_vec()).unwrap());
            keys.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(key(&[(AUTHORIZATION, "Bearer abc")]), "abc");
        assert_eq!(key(&[(AUTHORIZATION, "bearer  abc ")]), "abc");
        assert_eq!(key(&[(X_API_KEY, "abc")]), "abc");
        assert_eq!(key(&[(AUTHORIZATION, "Basic eA=="), (X_API_KEY, "abc")]), "abc");
        assert_eq!(key(&[(AUTHORIZATION, "Bearer other"), (X_API_KEY, "abc")]), "other abc");
        assert_eq!(key(&[(AUTHORIZATION, "Basic eA==")]), "");
        assert_eq!(key(&[]), "");
    }
}
