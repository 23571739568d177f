//! TLS on the listener: a certificate and its key from files, reloaded when they change.
//!
//! A connection keeps its certificate; later connections get the new one, and none is dropped. If new files cannot be
//! used, such as a certificate before its key is written, the old pair stays and the log says so once. rustls decides
//! versions (1.3 and 1.2) and ciphers; no option weakens them. Without the feature `tls` no certificate can be used.

#[cfg(feature = "tls")]
mod files;
#[cfg(feature = "tls")]
mod pair;
#[cfg(not(feature = "tls"))]
mod without;

#[cfg(feature = "tls")]
pub(crate) use self::pair::Tls;
#[cfg(not(feature = "tls"))]
pub(crate) use self::without::Tls;

use std::path::PathBuf;

use thiserror::Error;

/// The reason why a certificate or key cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file does not exist, is not readable, or is too long.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not PEM, or has no such entry.
    #[error("{} has no {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// Certificate and key do not match, or rustls does not support their kind.
    #[error("certificate and key cannot be used together")]
    CertificatePair(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Build with the feature `tls`, or leave the certificate to a proxy in front.
    #[error("this program is built without the feature `tls` of callboard, which a certificate needs")]
    NotBuilt,
}
