//! Who a process is to its peers: a certificate of the cluster's authority, and the key to it.
//!
//! Both ends of every connection show theirs, and each holds the other's against the authority of its own cluster: who has no
//! certificate of that authority is refused in the handshake, before a byte of ours is read.

mod development;
mod error;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::{digest, hmac};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;

pub use error::IdentityError;

/// What both ends say they speak. Another number is another protocol, not a version of this one: versions are settled by hellos.
const ALPN: &[u8] = b"callboard/1";

/// The name in every node's certificate. Which node it is stands in the hello; that it is of the cluster is what this proves.
pub(crate) const SERVER_NAME: &str = "node.callboard";

/// A certificate with its key, and the authority that others' certificates must be of. Cloning shares.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    cluster: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
    authorities: Arc<RootCertStore>,
    /// What keys are derived from that must survive a restart.
    secret: Vec<u8>,
    loopback_only: bool,
}

impl Identity {
    /// The name of the cluster that it belongs to.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// Whether it may be used on this machine only.
    #[must_use]
    pub fn is_for_loopback_only(&self) -> bool {
        self.0.loopback_only
    }

    /// Refuses to show an identity where it proves nothing.
    ///
    /// # Errors
    ///
    /// When it is for this machine only, and the address is another's.
    pub(crate) fn check_address(&self, address: SocketAddr) -> Result<(), IdentityError> {
        match self.0.loopback_only && !address.ip().is_loopback() {
            true => Err(IdentityError::LoopbackOnly { address }),
            false => Ok(()),
        }
    }

    pub(crate) fn server_config(&self) -> Result<QuicServerConfig, IdentityError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.0.authorities), provider())
            .build()
            .map_err(|error| IdentityError::Unusable(error.into()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.0.chain.clone(), self.key())
            .map_err(unusable)?;
        // A resumed session would not look at the client's certificate again, which may be over by then.
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.try_into().map_err(|error: quinn::crypto::rustls::NoInitialCipherSuite| unusable(error))
    }

    pub(crate) fn client_config(&self) -> Result<QuicClientConfig, IdentityError> {
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&self.0.authorities))
            .with_client_auth_cert(self.0.chain.clone(), self.key())
            .map_err(unusable)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.try_into().map_err(|error: quinn::crypto::rustls::NoInitialCipherSuite| unusable(error))
    }

    /// A key for one purpose, the same whenever the process starts again with this identity.
    pub(crate) fn derived_key(&self, purpose: &str) -> hmac::Key {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.secret);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, purpose.as_bytes()).as_ref())
    }

    /// A number for one purpose, as [`derived_key`](Self::derived_key).
    pub(crate) fn derived_number(&self, purpose: &str) -> u64 {
        let tag = hmac::sign(&self.derived_key(purpose), b"number");
        tag.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// One that trusts whom this one trusts, and shows another's certificate: for tests of what a node says to that.
    pub(crate) fn showing(&self, shown: &Self) -> Self {
        Self(Arc::new(Inner {
            cluster: self.0.cluster.clone(),
            chain: shown.0.chain.clone(),
            key: shown.0.key.clone_key(),
            authorities: Arc::clone(&self.0.authorities),
            secret: self.0.secret.clone(),
            loopback_only: true,
        }))
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        self.0.key.clone_key().into()
    }
}

/// Says whose it is, and nothing of the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("cluster", &self.0.cluster)
            .field("loopback_only", &self.0.loopback_only)
            .finish_non_exhaustive()
    }
}

/// ring, and nothing that needs a C toolchain of its own.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> IdentityError {
    IdentityError::Unusable(Box::new(error))
}

/// The first bytes of a certificate's digest, for people and for names.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let digest = digest::digest(&digest::SHA256, certificate);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
