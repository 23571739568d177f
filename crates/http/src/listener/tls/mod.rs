//! TLS on the listener: a certificate and its key from files, reloaded when they change.
//!
//! A connection keeps its certificate; later connections get the new one, and none is dropped. If new files cannot be
//! used, such as a certificate before its key is written, the old pair stays and the log says so once. rustls decides
//! versions (1.3 and 1.2) and ciphers; no option weakens them.

mod files;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ServerConfig};

use self::files::CertificatePair;
use crate::config::TlsConfig;
use crate::runtime::file_watch::watch;

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
    CertificatePair(#[source] rustls::Error),
}

/// The certificate of a listener, for handshakes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<TlsState>);

#[derive(Debug)]
struct TlsState {
    config: TlsConfig,
    server: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(config: TlsConfig) -> Result<Self, TlsError> {
        let pair = CertificatePair::read(&config)?;
        let server = ArcSwap::from_pointee(server_config(&pair)?);
        Ok(Self(Arc::new(TlsState { config, server })))
    }

    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.0.config.handshake_timeout
    }

    /// An acceptor with the current certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.server.load_full())
    }

    /// Watches the files and takes new content. Drop it with the listener.
    pub(crate) async fn watch_files(self) {
        let config = self.0.config.clone();
        let read = move || CertificatePair::read(&config);
        let interval = self.0.config.reload_interval;
        watch(interval, read, files::fingerprint, move |pair| self.take(pair)).await;
    }

    fn take(&self, read: Result<CertificatePair, TlsError>) {
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

fn server_config(pair: &CertificatePair) -> Result<ServerConfig, TlsError> {
    let (chain, key) = pair.parse()?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::CertificatePair)?;
    let mut server = builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::CertificatePair)?;
    server.alpn_protocols = ["h2", "http/1.1"].map(|name| name.as_bytes().to_vec()).into();
    Ok(server)
}
