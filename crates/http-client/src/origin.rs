//! The URL of a server: where to connect, the authority, and the base path.

use std::fmt;
use std::str::FromStr;

use hyper::http::uri::{Authority, Scheme, Uri};

use crate::credentials::without_credentials;
use crate::error::OriginError;

/// `http://host:port` or `https://host:port`, with a path if a proxy puts the edge under one.
///
/// ```
/// use callboard_http_client::Origin;
///
/// let origin: Origin = "localhost:8000/models/".parse()?;
/// assert_eq!(origin.to_string(), "http://localhost:8000/models");
/// assert_eq!(origin.path_of("/digits"), "/models/digits");
/// # Ok::<(), callboard_http_client::OriginError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    authority: Authority,
    is_secure: bool,
    base: String,
}

impl Origin {
    /// The host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// The port; by default 80, or 443 over https.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.is_secure { 443 } else { 80 })
    }

    /// Whether the scheme is https.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The host and port, as in the URL.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The path of a route under the base path. A missing slash is added.
    #[must_use]
    pub fn path_of(&self, route: &str) -> String {
        let slash = if route.starts_with('/') { "" } else { "/" };
        format!("{}{slash}{route}", self.base)
    }

    /// The whole URL of a route.
    #[must_use]
    pub fn url_of(&self, route: &str) -> String {
        format!("{}://{}{}", self.scheme(), self.authority, self.path_of(route))
    }

    fn scheme(&self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    /// Parses `http://host:port/path` or `https://…`; the default scheme is http.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        let shown = || without_credentials(text).into_owned();
        let unreadable = |problem: &str| OriginError::Unreadable { url: shown(), problem: problem.to_owned() };
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|error: hyper::http::uri::InvalidUri| unreadable(&error.to_string()))?;
        let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
        if let Some(scheme) = uri.scheme().filter(|scheme| **scheme != Scheme::HTTP && !is_secure) {
            return Err(OriginError::Scheme { url: shown(), scheme: scheme.to_string() });
        }
        let authority = uri.authority().ok_or_else(|| unreadable("it names no host"))?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(unreadable("it names no host, or a user"));
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !port.is_empty() && authority.port_u16().is_none() {
            return Err(unreadable("its port is not a number up to 65535"));
        }
        if uri.query().is_some() {
            return Err(unreadable("a query belongs to the route"));
        }
        Ok(Self { authority: authority.clone(), is_secure, base: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_common_spellings() {
        for (typed, shown, host, port) in [
            ("http://localhost:8000", "http://localhost:8000", "localhost", 8000),
            ("localhost", "http://localhost", "localhost", 80),
            ("https://localhost", "https://localhost", "localhost", 443),
            ("https://localhost:8443/a/", "https://localhost:8443/a", "localhost", 8443),
            ("http://[::1]:9/", "http://[::1]:9", "::1", 9),
            ("http://127.0.0.1:80/a/b/", "http://127.0.0.1:80/a/b", "127.0.0.1", 80),
        ] {
            let origin: Origin = typed.parse().unwrap();
            assert_eq!((origin.to_string().as_str(), origin.host(), origin.port()), (shown, host, port), "{typed}");
        }
    }

    #[test]
    fn refuses_invalid_urls() {
        for typed in ["", "http://", "http://user@host", "http://host:99999", "http://host:", "http://host/?x=1", "a b"]
        {
            assert!(matches!(typed.parse::<Origin>(), Err(OriginError::Unreadable { .. })), "{typed}");
        }
        assert!(matches!("ftp://host".parse::<Origin>(), Err(OriginError::Scheme { .. })));
        for (typed, shown) in [("http://me:word@host/x", "`http://…@host/x`"), ("me:word@host", "`…@host`")] {
            let error = typed.parse::<Origin>().unwrap_err().to_string();
            assert!(error.starts_with(shown), "{error}");
        }
    }

    #[test]
    fn a_route_is_below_the_base() {
        let origin: Origin = "http://host/base".parse().unwrap();
        assert_eq!(origin.path_of("/x?y=1"), "/base/x?y=1");
        assert_eq!(origin.path_of("x"), "/base/x");
    }
}
