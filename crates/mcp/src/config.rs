//! What a node says of itself to agents, and which of its routes are tools.

use thiserror::Error;

/// The settings of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpConfig {
    /// Whether all routes are tools that can be: those that `POST` calls, without parameters in their paths. Default no:
    /// only those that [say so](callboard_core::RouteSpec::tool). With it each of them needs a description.
    pub all_routes: bool,
    /// The name of the server. Default `callboard`.
    pub name: String,
    /// Its version. Default that of this crate.
    pub version: String,
    /// What a model should know of all tools together. Default nothing.
    pub instructions: String,
    /// Where clients get tokens. Default nowhere: they are given keys.
    pub authorization: Option<Authorization>,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            all_routes: false,
            name: "callboard".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instructions: String::new(),
            authorization: None,
        }
    }
}

/// The servers that give tokens for this one (RFC 9728). The app checks them: see
/// [`AUTH_ROUTE`](callboard_http::AUTH_ROUTE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    resource: String,
    servers: Vec<String>,
}

impl Authorization {
    /// `resource` is the URL of this server as clients see it, such as `https://tools.example.org/mcp`; `servers` are
    /// the URLs of authorization servers.
    ///
    /// # Errors
    ///
    /// A URL that is not `https`, or `http` on this machine, or no server at all.
    pub fn try_new<S: Into<String>>(
        resource: impl Into<String>,
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, AuthorizationError> {
        let (resource, servers): (String, Vec<String>) =
            (resource.into(), servers.into_iter().map(Into::into).collect());
        if servers.is_empty() {
            return Err(AuthorizationError::NoServer);
        }
        if let Some(url) = servers.iter().chain([&resource]).find(|url| !is_url(url)) {
            return Err(AuthorizationError::Url { url: url.clone() });
        }
        Ok(Self { resource, servers })
    }

    pub(crate) fn resource(&self) -> &str {
        &self.resource
    }

    pub(crate) fn servers(&self) -> &[String] {
        &self.servers
    }

    /// The URL of the document about this resource: its path lies behind the well-known one (RFC 9728 §3.1).
    pub(crate) fn metadata_url(&self) -> String {
        let (scheme, rest) = self.resource.split_once("://").unwrap_or_default();
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = if path.is_empty() { String::new() } else { format!("/{}", path.trim_end_matches('/')) };
        format!("{scheme}://{host}{}{path}", crate::metadata::WELL_KNOWN)
    }
}

/// Visible characters that need no escape in a header or in JSON.
fn is_url(url: &str) -> bool {
    let is_local = ["http://localhost", "http://127.0.0.1", "http://[::1]"]
        .iter()
        .any(|local| url.strip_prefix(local).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/'])));
    let has_host = url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    (has_host || is_local) && url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\<>#?".contains(&byte))
}

/// A wrong [`Authorization`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuthorizationError {
    /// Name the server that gives tokens.
    #[error("there is no authorization server")]
    NoServer,
    /// Tokens are sent there, so it has to be encrypted.
    #[error("`{url}` is not a URL such as `https://tools.example.org/mcp`")]
    Url {
        /// The wrong one.
        url: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_encrypted_or_on_this_machine() {
        let resource = |url: &str| Authorization::try_new(url, ["https://auth.example.org"]);
        for url in ["https://tools.example.org/mcp", "http://127.0.0.1:8000/mcp", "http://localhost"] {
            assert!(resource(url).is_ok(), "{url}");
        }
        for url in [
            "http://tools.example.org/mcp",
            "http://localhost.evil.org",
            "https:///mcp",
            "https://a b",
            "https://a\"",
            "",
        ] {
            assert_eq!(resource(url), Err(AuthorizationError::Url { url: url.to_owned() }));
        }
        let none: [&str; 0] = [];
        assert_eq!(Authorization::try_new("https://a", none), Err(AuthorizationError::NoServer));
        let url = |resource: &str| Authorization::try_new(resource, ["https://b"]).unwrap().metadata_url();
        assert_eq!(url("https://a:1/mcp"), "https://a:1/.well-known/oauth-protected-resource/mcp");
        assert_eq!(url("https://a"), "https://a/.well-known/oauth-protected-resource");
    }
}
