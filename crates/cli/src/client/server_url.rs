//! The URL of a server, over HTTP or QUIC.

use std::fmt;
use std::str::FromStr;

use callboard_http_client::{Origin, without_credentials};
use callboard_net::QuicUrl;

/// The URL of a server; its scheme is the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerUrl {
    /// `http://host:port`, also without its scheme, or `https://host:port`.
    Http(Origin),
    /// `quic://host:port`.
    Quic(QuicUrl),
}

impl ServerUrl {
    /// Whether the server is called over QUIC.
    pub(crate) fn is_quic(&self) -> bool {
        matches!(self, Self::Quic(_))
    }

    /// The origin of an HTTP server.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Http(origin) => Some(origin),
            Self::Quic(_) => None,
        }
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("quic://") {
            return text.parse().map(Self::Quic).map_err(|error: callboard_net::AddressError| error.to_string());
        }
        check_scheme(text)?;
        text.parse().map(Self::Http).map_err(|error: callboard_http_client::OriginError| error.to_string())
    }
}

/// Refuses an unknown scheme and names the known ones.
fn check_scheme(text: &str) -> Result<(), String> {
    match text.split_once("://") {
        Some((scheme, _)) if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) => {
            Err(format!("`{}` has another scheme; http, https and quic are spoken here", without_credentials(text)))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(origin) => origin.fmt(f),
            Self::Quic(url) => url.fmt(f),
        }
    }
}
