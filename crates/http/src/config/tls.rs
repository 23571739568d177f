//! Where the certificate of a listener is, and the timers around it.

use std::path::PathBuf;
use std::time::Duration;

/// Where certificate and key are, and the timers around them.
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

    /// How often both files are looked at for a change. Default 10 s.
    ///
    /// *Threat*: a certificate that was renewed and is not served until it is too late. Files are compared by content,
    /// so links that are exchanged, as Kubernetes does, are seen as well.
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
