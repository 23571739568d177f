//! Who may use the admin listener.
//!
//! A web page that somebody on this machine visits can send requests to loopback, too: directly, which browsers mark with an
//! `origin`, or by a name of its own that leads to 127.0.0.1 ("DNS rebinding"), which the `host` shows. Neither is answered.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Request, Uri};

use crate::access::Gate;
use crate::config::HttpConfig;
use crate::error::ApiError;

/// The rules of one listener.
#[derive(Debug)]
pub(super) struct Guard {
    /// On loopback nobody has a reason to call us by another name.
    is_local: bool,
    gate: Option<Gate>,
}

impl Guard {
    pub(super) fn new(is_local: bool, config: &HttpConfig) -> Self {
        Self { is_local, gate: Gate::new(config) }
    }

    /// Or why the request goes no further.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        if request.headers().contains_key(ORIGIN) {
            return Err(ApiError::forbidden("the admin listener answers no web page"));
        }
        if self.is_local && !is_local_name(request.uri(), request.headers()) {
            return Err(ApiError::forbidden("the admin listener is called by its address, or as localhost"));
        }
        match &self.gate {
            Some(gate) => gate.admit(request).map(|_| ()),
            None => Ok(()),
        }
    }
}

fn is_local_name(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = uri.authority().map(|authority| authority.as_str());
    let named = named.or_else(|| headers.get(HOST)?.to_str().ok());
    // HTTP/1.0 has no `host`, and no browser speaks it.
    let Some(named) = named else { return true };
    let host = match named.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => named,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_localhost_are_local_and_names_are_not() {
        let is_local =
            |host: &str| is_local_name(&Uri::from_static("/"), &HeaderMap::from_iter([(HOST, host.parse().unwrap())]));
        for local in ["localhost", "LOCALHOST:8001", "127.0.0.1:8001", "[::1]:8001", "[::1]", "10.0.0.1"] {
            assert!(is_local(local), "{local}");
        }
        for other in ["evil.example.org", "evil.example.org:8001", "localhost.evil.org:8001", "", "127.0.0.1.evil.org"]
        {
            assert!(!is_local(other), "{other}");
        }
        assert!(!is_local_name(&Uri::from_static("http://evil.example.org:8001/"), &HeaderMap::new()), "of HTTP/2");
    }
}
