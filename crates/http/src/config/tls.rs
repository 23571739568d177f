//! The certificate files of a listener, and their timers.

use std::path::PathBuf;
use std::time::Duration;

/// The certificate and key of a listener, and their timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate chain in PEM, the server's own certificate first.
    pub certificate: PathBuf,

    /// Its private key in PEM: PKCS #8, PKCS #1 or SEC 1, without a passphrase.
    pub key: PathBuf,

    /// From accept until the handshake is complete. Default 10 s; then the connection is cut.
    ///
    /// *Threat*: clients that begin a handshake and go silent hold a place in
    /// [`max_connections`](crate::HttpConfig::max_connections).
    pub handshake_timeout: Duration,

    /// The interval at which both files are checked for changes. Default 10 s.
    ///
    /// *Threat*: a renewed certificate that is served too late. Files are compared by content, so exchanged links, as
    /// Kubernetes uses, are seen as well.
    pub reload_interval: Duration,
}

impl TlsConfig {
    /// TLS with the pair in these files and the default timers.
    #[must_use]
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
            handshake_timeout: Duration::from_secs(10),
            reload_interval: Duration::from_secs(10),
        }
    }
}
