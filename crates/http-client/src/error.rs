//! What may go wrong between here and an answer. What an answer says is no error: it has a status.

use std::io;

/// A text that is no URL of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// It cannot be read as a URL.
    #[error("`{url}` is not a URL such as http://127.0.0.1:8000: {problem}")]
    Unreadable {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It has a scheme that is not spoken here.
    #[error("`{url}` has the scheme `{scheme}`; http and https are spoken here")]
    Scheme {
        /// What was given.
        url: String,
        /// Its scheme.
        scheme: String,
    },
}

/// Why a text names nobody whose certificates could be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// It begins as PEM does, and is none.
    #[error("not a PEM file")]
    Unreadable,
    /// There is no certificate in it, or none that could be an authority's.
    #[error("there is no certificate of an authority in it")]
    Nobody,
    /// The system has no certificates of authorities: name some, or install the system's.
    #[error("this system believes no authority: {problem}")]
    NobodyHere {
        /// What was in the way.
        problem: String,
    },
    /// rustls cannot be set up.
    #[error("TLS cannot be spoken")]
    Unsupported(#[source] tokio_rustls::rustls::Error),
}

/// Why there is no answer, or none to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens there, or the name is not known.
    #[error("could not connect to {authority}")]
    Connect {
        /// Where to.
        authority: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is served over https, and nobody was named whose certificates are believed: [`Trust`](crate::Trust).
    #[error("{authority} is served over https, and no authority is trusted")]
    Untrusted {
        /// Where to.
        authority: String,
    },
    /// The handshake failed: the certificate is not believed or of another name, or there is no such protocol.
    #[error("no TLS with {authority}")]
    Tls {
        /// Where to.
        authority: String,
        /// What rustls said.
        #[source]
        source: io::Error,
    },
    /// It was asked over https, and answers in plain text: ask over http.
    #[error("{authority} does not speak TLS: its URL is http://{authority}")]
    NoTls {
        /// Where to.
        authority: String,
    },
    /// It was asked over http, and answers by TLS: ask over https.
    #[error("{authority} speaks TLS only: its URL is https://{authority}")]
    OnlyTls {
        /// Where to.
        authority: String,
    },
    /// The connection ended before the answer did. The request may have been carried out.
    #[error("the connection was closed before the answer was complete")]
    Closed(#[source] hyper::Error),
    /// What came is not the HTTP that was asked for.
    #[error("what came back is not HTTP as it was asked for")]
    Protocol(#[source] hyper::Error),
    /// What was to be sent cannot be written as HTTP: a header or path with characters that have no place there.
    #[error("this cannot be sent")]
    Unsendable(#[source] hyper::http::Error),
    /// The answer is longer than its reader wants.
    #[error("the answer has more than {limit} bytes")]
    TooLong {
        /// In bytes.
        limit: usize,
    },
}

impl ClientError {
    /// One word for tables: `connect`, `untrusted`, `tls`, `closed`, `protocol`, `unsendable`, `too_long`.
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
