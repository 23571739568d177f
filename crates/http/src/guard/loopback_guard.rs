//! Protects a listener that only this machine can reach, or the unknown listener of a mounted edge, from foreign web
//! pages.
//!
//! A page in a browser on this machine can send requests to loopback: directly, because a form or a text needs no
//! permission, which the `origin` header shows; or by a name of its own that resolves to 127.0.0.1 (DNS rebinding),
//! which the `host` shows and which would let the page read responses. Both are answered with 403. Programs, which use
//! an address and send no origin, never see it.
//!
//! Names without a dot cannot be registered on the internet, and count as local.

use std::fmt;

use axum::http::Request;
use axum::http::header::ORIGIN;
use thiserror::Error;

use super::Cors;
use super::host::{NamedHost, is_name};
use crate::error::ApiError;

/// The names of a listener on loopback or of a mounted edge, besides addresses, `localhost` and names without a dot.
///
/// ```
/// use callboard_http::Hosts;
///
/// let hosts = Hosts::parse(["models.example.org"])?;
/// assert_eq!(hosts.to_string(), "models.example.org");
/// assert!(Hosts::parse(["https://models.example.org"]).is_err());
/// # Ok::<(), callboard_http::HostsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Names);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    Any,
    Listed(Vec<String>),
}

impl Default for Names {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

const ANY: &str = "*";

impl Hosts {
    /// Names without scheme, port or path. `*` alone allows every name.
    ///
    /// # Errors
    ///
    /// The first invalid name.
    pub fn parse<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, HostsError> {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_ascii_lowercase()).collect();
        if names == [ANY] {
            return Ok(Self(Names::Any));
        }
        match names.iter().find(|name| !is_name(name)) {
            Some(name) => Err(HostsError { name: name.clone() }),
            None => Ok(Self(Names::Listed(names))),
        }
    }

    /// Whether no name is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == Names::default()
    }

    pub(super) fn allow(&self, host: &str) -> bool {
        match &self.0 {
            Names::Any => true,
            Names::Listed(names) => names.iter().any(|name| name.eq_ignore_ascii_case(host)),
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Names::Any => f.write_str(ANY),
            Names::Listed(names) => f.write_str(&names.join(", ")),
        }
    }
}

/// The text is not a host name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{name}` is not a host name such as `models.example.org`")]
pub struct HostsError {
    /// The invalid text.
    name: String,
}

/// The rules for listeners on loopback.
#[derive(Debug)]
pub(crate) struct LoopbackGuard {
    hosts: Hosts,
    cors: Option<Cors>,
}

impl LoopbackGuard {
    pub(crate) fn new(hosts: Hosts, cors: Option<Cors>) -> Self {
        Self { hosts, cors }
    }

    /// Admits a request that names this host, or refuses it.
    pub(crate) fn admit<B>(&self, request: &Request<B>, host: NamedHost<'_>) -> Result<(), ApiError> {
        if !host.is_local() && !host.name().is_some_and(|name| self.hosts.allow(name)) {
            return Err(ApiError::forbidden(
                "call a server on loopback, or one mounted in another program, by its address, as localhost, or by a \
                 name in `http.hosts`",
            ));
        }
        // CORS decides which pages may read the pages of the edge.
        if request.method().is_safe() { Ok(()) } else { self.admit_page(request, host) }
    }

    /// Admits a request that runs user code with a safe method. A browser tells the page of most of these by
    /// `sec-fetch-site` only, such as those of a picture.
    pub(crate) fn admit_safe_call<B>(&self, request: &Request<B>, host: NamedHost<'_>) -> Result<(), ApiError> {
        let headers = request.headers();
        let is_of_another = headers.get("sec-fetch-site").is_some_and(|site| *site != "same-origin" && *site != "none");
        if is_of_another && !headers.contains_key(ORIGIN) {
            return Err(Self::foreign_page());
        }
        self.admit_page(request, host)
    }

    fn admit_page<B>(&self, request: &Request<B>, host: NamedHost<'_>) -> Result<(), ApiError> {
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
        let of_page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let is_own = of_page.is_some_and(|(_, page)| Some(page) == host.as_str());
        if is_own || self.cors.as_ref().is_some_and(|cors| cors.allowed(request.headers()).is_some()) {
            return Ok(());
        }
        Err(Self::foreign_page())
    }

    fn foreign_page() -> ApiError {
        ApiError::forbidden(
            "only its own web pages and those in `http.cors` may call a server on loopback, or one mounted in another \
             program",
        )
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::HOST;

    use super::*;

    fn request(host: &str, origin: Option<&str>) -> Request<()> {
        let request = Request::post("/mirror").header(HOST, host);
        origin.into_iter().fold(request, |request, origin| request.header(ORIGIN, origin)).body(()).unwrap()
    }

    fn may(guard: &LoopbackGuard, host: &str, origin: Option<&str>) -> bool {
        let request = request(host, origin);
        let host = NamedHost::from_request(&request).unwrap();
        guard.admit(&request, host).is_ok()
    }

    #[test]
    fn a_page_may_call_if_its_origin_is_own_or_listed() {
        let mut guard = LoopbackGuard::new(Hosts::default(), None);
        let may = |guard: &LoopbackGuard, host, origin| may(guard, host, Some(origin));
        assert!(may(&guard, "localhost:8000", "http://localhost:8000"));
        for other in ["http://localhost:5173", "https://evil.example.org", "null", "http://localhost:8000.evil.org"] {
            assert!(!may(&guard, "localhost:8000", other), "{other}");
        }
        guard.cors = Some(Cors::parse(["http://localhost:5173"]).unwrap());
        assert!(may(&guard, "localhost:8000", "http://localhost:5173"));
        assert!(!may(&guard, "localhost:8000", "https://evil.example.org"));
    }

    #[test]
    fn a_listed_host_name_is_answered() {
        let mut guard = LoopbackGuard::new(Hosts::default(), None);
        let may = |guard: &LoopbackGuard, host| may(guard, host, None);
        assert!(may(&guard, "127.0.0.1:8000") && !may(&guard, "models.example.org"));
        guard.hosts = Hosts::parse(["models.example.org"]).unwrap();
        assert!(may(&guard, "Models.Example.org:80") && !may(&guard, "other.example.org"));
        guard.hosts = Hosts::parse(["*"]).unwrap();
        assert!(may(&guard, "other.example.org"));
        assert!(Hosts::parse(["*", "a.org"]).is_err() && Hosts::parse(["a.org:80"]).is_err());
    }
}
