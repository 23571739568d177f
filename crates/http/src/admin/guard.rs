//! Who may use the admin listener.
//!
//! A web page that somebody on this machine visits can send requests to loopback, too: directly, which browsers mark with an
//! `origin`, or by a name of its own that leads to 127.0.0.1 ("DNS rebinding"), which the `host` shows. Neither is answered.

use axum::http::Request;
use axum::http::header::ORIGIN;

use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::guard::{AccessPolicy, NamedHost};

/// The rules of one listener.
#[derive(Debug)]
pub(super) struct AdminGuard {
    /// On loopback nobody has a reason to call us by another name.
    is_local: bool,
    policy: Option<AccessPolicy>,
}

impl AdminGuard {
    pub(super) fn new(is_local: bool, config: &HttpConfig) -> Self {
        Self { is_local, policy: config.access_policy() }
    }

    /// Reads keys again when their file changes. To be dropped with the listener.
    pub(super) fn watch_keys(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.policy.as_ref()?.watch_keys()
    }

    /// Or why the request goes no further.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let host = NamedHost::from_request(request)?;
        if request.headers().contains_key(ORIGIN) {
            return Err(ApiError::forbidden("the admin listener answers no web page"));
        }
        if self.is_local && !host.is_local() {
            return Err(ApiError::forbidden("the admin listener is called by its address, or as localhost"));
        }
        match &self.policy {
            Some(policy) => policy.admit(request).map(|_| ()),
            None => Ok(()),
        }
    }
}
