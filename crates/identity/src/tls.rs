//! TLS settings for each use of an identity, and the verifier of a process that has only a join token.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::{hmac, rand};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::certificate::pin;
use crate::error::{IdentityError, unusable};

/// The protocol of calls. Another number is another protocol, not a version of this one: hellos settle versions.
pub const ALPN: &[u8] = b"callboard/1";

/// The protocol of requests for certificates.
pub const JOIN_ALPN: &[u8] = b"callboard-join/1";

/// ring, without another C toolchain.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A new random key.
///
/// # Errors
///
/// When the system gives no random numbers.
pub fn random_key() -> Result<hmac::Key, IdentityError> {
    hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).map_err(|_| IdentityError::no_random())
}

/// TLS for joining: accepts only the authority whose certificate has this pin.
///
/// # Errors
///
/// When the settings are rejected by rustls.
pub fn join_client_tls(pin: [u8; 16]) -> Result<ClientConfig, IdentityError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedAuthority { pin, provider: provider() }))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![JOIN_ALPN.to_vec()];
    Ok(config)
}

/// Verifies a chain of certificates, as that of a server with this name in a handshake.
pub(crate) fn verify_node(
    roots: Arc<RootCertStore>,
    chain: &[CertificateDer<'_>],
    name: &'static str,
    now: SystemTime,
) -> Result<(), Error> {
    let (end_entity, between) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
    let name = ServerName::try_from(name).map_err(|error| Error::General(error.to_string()))?;
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    server_verifier(roots)?.verify_server_cert(end_entity, between, &name, &[], now).map(drop)
}

fn server_verifier(roots: Arc<RootCertStore>) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    verifier.map_err(|error| Error::General(error.to_string()))
}

/// Finds the authority by its pin in the presented chain, and verifies the server against it as usual.
#[derive(Debug)]
struct PinnedAuthority {
    pin: [u8; 16],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates.iter().find(|certificate| pin(certificate) == self.pin);
        let authority = authority.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut authorities = RootCertStore::empty();
        authorities.add(authority.clone().into_owned())?;
        // Of an issuer, its own certificate is between.
        server_verifier(authorities.into())?.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has no TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
