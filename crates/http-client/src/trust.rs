//! The trusted authorities over https, and the TLS handshake.
//!
//! A caller names the authorities, or takes those of the system. Certificates are fully verified, with names and times;
//! no setting turns that off.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::error::{ClientError, TrustError};
use crate::origin::Origin;
use crate::protocol::Protocol;

/// Trusted authorities, one of which must have issued the certificate of the server. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Trust {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Trust {
    /// The authorities of this PEM. Unusable certificates are skipped if there is a usable one: bundles of systems have
    /// such.
    ///
    /// # Errors
    ///
    /// [`TrustError`], if no authority is left.
    pub fn from_pem(pem: &[u8]) -> Result<Self, TrustError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        Self::from_certificates(certificates.map_err(|_| TrustError::Unreadable)?)
    }

    /// The authorities of the system: of its store, or of the file and directories in `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`. It reads files, so call it where blocking is fine.
    ///
    /// # Errors
    ///
    /// [`TrustError::NoneInSystem`], if there is none, as in a container without the package `ca-certificates`.
    pub fn from_system() -> Result<Self, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let problem = found.errors.first().map_or_else(|| "it has no store of them".to_owned(), ToString::to_string);
        Self::from_certificates(found.certs).map_err(|error| match error {
            TrustError::NoAuthority => TrustError::NoneInSystem { problem },
            error => error,
        })
    }

    fn from_certificates(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certificates);
        if usable == 0 {
            return Err(TrustError::NoAuthority);
        }
        let config = |protocol: &str| {
            let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions()?;
            let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
            Ok::<_, rustls::Error>(Arc::new(config))
        };
        let http1 = config("http/1.1").map_err(TrustError::Unsupported)?;
        Ok(Self { http1, http2: config("h2").map_err(TrustError::Unsupported)? })
    }

    /// Performs the handshake, for this protocol only, and verifies the certificate for the origin.
    pub(crate) async fn connect(
        &self,
        origin: &Origin,
        protocol: Protocol,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ClientError> {
        let failed = |source| ClientError::Tls { authority: origin.authority().to_owned(), source };
        let config = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let name = ServerName::try_from(origin.host().to_owned());
        let name = name.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
        let stream = stream.map_err(|error| {
            if is_plain_text(&error) {
                ClientError::NoTls { authority: origin.authority().to_owned() }
            } else {
                failed(error)
            }
        })?;
        // A server without ALPN speaks HTTP/1.1.
        if protocol == Protocol::Http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(failed(io::Error::other("the server does not speak HTTP/2")));
        }
        Ok(stream)
    }
}

/// Whether the handshake failed because the answer is not TLS.
fn is_plain_text(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_authority_is_refused() {
        assert!(matches!(Trust::from_pem(b""), Err(TrustError::NoAuthority)));
        let no_certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(Trust::from_pem(no_certificate), Err(TrustError::NoAuthority)));
        let malformed = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(Trust::from_pem(malformed), Err(TrustError::Unreadable)));
        let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
        assert!(Trust::from_pem(&[no_certificate, authority.as_bytes()].concat()).is_ok());
    }
}
