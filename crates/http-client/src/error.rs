//! The errors of the client. A status is no error.

use std::io;

/// An invalid URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// The text is no URL.
    #[error("`{url}` is not a URL such as http://127.0.0.1:8000: {problem}")]
    Unreadable {
        /// The given text.
        url: String,
        /// The reason.
        problem: String,
    },
    /// The scheme is unknown.
    #[error("`{url}` has the scheme `{scheme}`; http and https are spoken here")]
    Scheme {
        /// The given text.
        url: String,
        /// Its scheme.
        scheme: String,
    },
}

/// Why there is no trusted authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The file is not valid PEM.
    #[error("not a PEM file")]
    Unreadable,
    /// The file has no certificate of an authority.
    #[error("it has no certificate of an authority")]
    NoAuthority,
    /// The system has no CA certificates: name some, or install them.
    #[error("this system has no trusted authority: {problem}")]
    NoneInSystem {
        /// The reason.
        problem: String,
    },
    /// rustls cannot be configured.
    #[error("TLS cannot be spoken")]
    Unsupported(#[source] tokio_rustls::rustls::Error),
}

/// Why there is no complete answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection was refused, or the name is unknown.
    #[error("could not connect to {authority}")]
    Connect {
        /// The host and port of the server.
        authority: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The server needs https, and no authority is trusted: [`Trust`](crate::Trust).
    #[error("{authority} is served over https, and no authority is trusted")]
    Untrusted {
        /// The host and port of the server.
        authority: String,
    },
    /// The TLS handshake failed: the certificate is not trusted or for another name, or the protocol is not supported.
    #[error("TLS handshake with {authority} failed")]
    Tls {
        /// The host and port of the server.
        authority: String,
        /// The error of rustls.
        #[source]
        source: io::Error,
    },
    /// The server does not speak TLS: use http.
    #[error("{authority} does not speak TLS: its URL is http://{authority}")]
    NoTls {
        /// The host and port of the server.
        authority: String,
    },
    /// The server speaks TLS only: use https.
    #[error("{authority} speaks TLS only: its URL is https://{authority}")]
    OnlyTls {
        /// The host and port of the server.
        authority: String,
    },
    /// The connection ended before the answer did. The request may have been carried out.
    #[error("the connection was closed before the answer was complete")]
    Closed(#[source] hyper::Error),
    /// The answer is not HTTP of the requested version.
    #[error("the answer is not HTTP of the requested version")]
    Protocol(#[source] hyper::Error),
    /// HTTP cannot express the request: a header or path has invalid characters.
    #[error("the request cannot be sent")]
    Unsendable(#[source] hyper::http::Error),
    /// The answer is longer than the limit.
    #[error("the answer has more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
}

impl ClientError {
    /// The error in one word: `connect`, `untrusted`, `tls`, `closed`, `protocol`, `unsendable`, `too_long`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Untrusted { .. } => "untrusted",
            Self::Tls { .. } | Self::NoTls { .. } | Self::OnlyTls { .. } => "tls",
            Self::Closed(_) => "closed",
            Self::Protocol(_) => "protocol",
            Self::Unsendable(_) => "unsendable",
            Self::TooLong { .. } => "too_long",
        }
    }
}

impl From<hyper::Error> for ClientError {
    fn from(error: hyper::Error) -> Self {
        if error.is_parse() || error.is_user() { Self::Protocol(error) } else { Self::Closed(error) }
    }
}
