//! Guards the admin listener.
//!
//! A page in a browser on this machine can send requests to loopback: directly, which the `origin` header shows, or by
//! a name of its own that resolves to 127.0.0.1 (DNS rebinding), which the `host` shows. Both are refused. A browser
//! also says in `sec-fetch-site` that a request is another site's. The listener's own page ([`live`]) only reads.

use axum::http::Request;
use axum::http::header::ORIGIN;

use super::live;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::guard::{AccessPolicy, NamedHost};
use crate::protocol::Protocols;

/// The rules of one listener.
#[derive(Debug)]
pub(super) struct AdminGuard {
    /// Whether the listener is on loopback, where clients need no other name.
    is_local: bool,
    policy: Option<AccessPolicy>,
    protocols: Protocols,
}

impl AdminGuard {
    pub(super) fn new(is_local: bool, config: &HttpConfig, protocols: Protocols) -> Self {
        Self { is_local, policy: config.access_policy(), protocols }
    }

    /// Reloads keys when their file changes. Drop it with the listener.
    pub(super) fn watch_keys(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.policy.as_ref()?.watch_keys()
    }

    /// Admits the request, or refuses it.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let host = NamedHost::from_request(request)?;
        let site = request.headers().get("sec-fetch-site");
        let is_foreign = site.is_some_and(|site| *site != "same-origin" && *site != "none");
        if request.headers().contains_key(ORIGIN) || (is_foreign && !request.method().is_safe()) {
            return Err(ApiError::forbidden("the admin listener answers no web page"));
        }
        if self.is_local && !host.is_local() {
            return Err(ApiError::forbidden("call the admin listener by its address, or as localhost"));
        }
        match &self.policy {
            // It has no secret, and asks its user for the key.
            _ if request.method().is_safe() && live::is_page(request.uri().path()) => Ok(()),
            Some(policy) => policy.admit(request, |request| self.protocols.admits_all(request)).map(|_| ()),
            None => Ok(()),
        }
    }
}
