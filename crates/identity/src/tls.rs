//! TLS settings for each use of an identity, and the verifier of a process that has only a join token.

use std::sync::Arc;

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
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
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
