//! The current certificate of a listener, and its reloads.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ServerConfig};

use super::TlsError;
use super::files::{self, CertificatePair};
use crate::config::TlsConfig;
use crate::runtime::file_watch::watch;

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
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let mut server = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
    server.alpn_protocols = ["h2", "http/1.1"].map(|name| name.as_bytes().to_vec()).into();
    Ok(server)
}

fn unusable(error: rustls::Error) -> TlsError {
    TlsError::CertificatePair(error.into())
}
