//! The web pages that may read responses (the CORS protocol of the Fetch standard): a list of origins, or all.
//!
//! Without it browsers hide responses from pages of other origins, the safe default. Cookies are never used: a page
//! sets the key in a header, so `access-control-allow-credentials` is not sent.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use callboard_core::edge::Route;
use thiserror::Error;

/// The origins whose pages may read answers.
///
/// ```
/// use callboard_http::Cors;
///
/// let cors = Cors::parse(["https://app.example.org", "http://localhost:5173"])?;
/// assert_eq!(cors.to_string(), "https://app.example.org, http://localhost:5173");
/// assert!(Cors::parse(["app.example.org"]).is_err());
/// # Ok::<(), callboard_http::CorsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors(Origins);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origins {
    Any,
    Listed(Vec<HeaderValue>),
}

const ANY: &str = "*";

impl Cors {
    /// The origins as browsers write them: `https://app.example.org`, with a port if it is not the default of the
    /// scheme. `*` alone allows every page: only for public data, or with API keys.
    ///
    /// # Errors
    ///
    /// The first invalid origin, or an empty list.
    pub fn parse<S: AsRef<str>>(origins: impl IntoIterator<Item = S>) -> Result<Self, CorsError> {
        let origins: Vec<S> = origins.into_iter().collect();
        if let [only] = origins.as_slice()
            && only.as_ref() == ANY
        {
            return Ok(Self(Origins::Any));
        }
        let listed: Result<Vec<HeaderValue>, CorsError> =
            origins.iter().map(|origin| origin_of(origin.as_ref())).collect();
        let listed = listed?;
        if listed.is_empty() { Err(CorsError::None) } else { Ok(Self(Origins::Listed(listed))) }
    }

    /// The value of `access-control-allow-origin` for this page, if it may read.
    pub(super) fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let origin = request.get(ORIGIN)?;
        match &self.0 {
            Origins::Any => Some(HeaderValue::from_static(ANY)),
            Origins::Listed(origins) => origins.iter().find(|allowed| *allowed == origin).cloned(),
        }
    }

    /// Adds the headers of every response.
    pub(super) fn mark(&self, sharing: Option<HeaderValue>, headers: &mut HeaderMap) {
        if self.0 != Origins::Any {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = sharing {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READABLE));
        }
    }

    /// Adds the further headers of the response to a preflight. A page may set the headers that a route reads, and any
    /// header of a request to a mounted app or by a protocol, whose clients add their own.
    pub(super) fn permit(&self, request: &HeaderMap, routes: &[Arc<Route>], takes_any: bool, headers: &mut HeaderMap) {
        if self.allowed(request).is_some() {
            let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|_| takes_any).cloned();
            let read = routes.iter().filter_map(|route| route.request_fields()).flat_map(|fields| &fields.headers);
            let names: BTreeSet<&str> = SETTABLE.split(", ").chain(read.map(|name| &**name)).collect();
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            let settable = HeaderValue::try_from(names).unwrap_or(HeaderValue::from_static(SETTABLE));
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(settable));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        }
    }
}

impl fmt::Display for Cors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origins::Any => f.write_str(ANY),
            Origins::Listed(origins) => {
                let origins: Vec<&str> = origins.iter().filter_map(|origin| origin.to_str().ok()).collect();
                f.write_str(&origins.join(", "))
            }
        }
    }
}

/// A preflight names a method; any other `OPTIONS` is an ordinary request.
pub(super) fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn origin_of(text: &str) -> Result<HeaderValue, CorsError> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_host = host.is_some_and(|host| {
        !host.is_empty()
            && host.chars().all(|c| (c.is_ascii_alphanumeric() && !c.is_ascii_uppercase()) || ".-:[]".contains(c))
    });
    match HeaderValue::from_str(text) {
        Ok(origin) if is_host => Ok(origin),
        _ => Err(CorsError::BadOrigin { origin: text.to_owned() }),
    }
}

/// The methods that a route may declare.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// All request headers that the edge reads.
const SETTABLE: &str = "accept, authorization, content-encoding, content-type, grpc-timeout, \
                        inference-header-content-length, traceparent, tracestate, x-api-key, x-callboard-explain, \
                        x-callboard-method, x-callboard-session, x-request-id, x-request-priority, \
                        x-request-timeout-ms";

/// All response headers of the edge that a page may read, besides those that it may always read.
const READABLE: &str = "anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, \
                        anthropic-ratelimit-requests-reset, cache-status, inference-header-content-length, location, \
                        openai-processing-ms, request-id, retry-after, retry-after-ms, server-timing, traceparent, \
                        www-authenticate, x-callboard-timeline, x-ratelimit-limit-requests, \
                        x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-request-id, x-should-retry";

/// The reason why a list of origins is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CorsError {
    /// Set no CORS instead.
    #[error("no origin is listed")]
    None,
    /// Write it as browsers do: scheme, lowercase host, optional port, no path. `*` stands alone.
    #[error("`{origin}` is not an origin such as `https://app.example.org`")]
    BadOrigin {
        /// The invalid text.
        origin: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_origins_as_browsers_write_them() {
        for refused in ["", "app.example.org", "https://", "https://a/", "https://A", "ftp://a", "*", "null"] {
            assert!(Cors::parse([refused, "https://b"]).is_err(), "{refused}");
        }
        assert_eq!(Cors::parse::<&str>([]), Err(CorsError::None));
        assert_eq!(Cors::parse(["*"]).unwrap().to_string(), "*");
    }
}
