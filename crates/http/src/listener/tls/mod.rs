//! TLS on the listener: a certificate and its key from files, read again when they change.
//!
//! A connection keeps the certificate that it began with; those that come after a change get the new one, and nobody is
//! dropped. Files that cannot be used, such as a certificate whose key is still to be written, are told to the log once and
//! leave the old pair in place. rustls decides versions (1.3 and 1.2) and ciphers; there is no knob that weakens them.

mod files;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ServerConfig};

use self::files::Pair;
use crate::runtime::file_watch::keep_fresh;

/// Where certificate and key are, and the timers around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate in PEM, the server's own first, then those that lead to the root.
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
    /// *Threat*: a certificate that was renewed and is not served until it is too late. Files are compared by content, so
    /// links that are exchanged, as Kubernetes does, are seen as well.
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

/// Why a certificate or key cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file is not there, may not be read, or is too long for what it should be.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no PEM, or has nothing of this kind in it.
    #[error("{} has no {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// Certificate and key do not belong together, or are of a kind that rustls does not take.
    #[error("certificate and key cannot be used together")]
    Pair(#[source] rustls::Error),
}

/// A listener's certificate, in the form that handshakes take it; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: TlsConfig,
    server: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(config: TlsConfig) -> Result<Self, TlsError> {
        let pair = Pair::read(&config)?;
        let server = ArcSwap::from_pointee(server_config(&pair)?);
        Ok(Self(Arc::new(Inner { config, server })))
    }

    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.0.config.handshake_timeout
    }

    /// For one handshake, with the certificate of this moment.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.server.load_full())
    }

    /// Looks at the files for ever and takes what is new. To be dropped with the listener.
    pub(crate) async fn keep_fresh(self) {
        let config = self.0.config.clone();
        let read = move || Pair::read(&config);
        let interval = self.0.config.reload_interval;
        keep_fresh(interval, read, files::fingerprint, move |pair| self.take(pair)).await;
    }

    fn take(&self, read: Result<Pair, TlsError>) {
        match read.and_then(|pair| server_config(&pair)) {
            Ok(server) => {
                self.0.server.store(Arc::new(server));
                tracing::info!(certificate = %self.0.config.certificate.display(), "certificate read");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "the new certificate cannot be used, the old one is kept");
            }
        }
    }
}

fn server_config(pair: &Pair) -> Result<ServerConfig, TlsError> {
    let (chain, key) = pair.parse()?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
    let mut server = builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::Pair)?;
    server.alpn_protocols = ["h2", "http/1.1"].map(|name| name.as_bytes().to_vec()).into();
    Ok(server)
}
