//! Identities that no authority would issue, for tests of how peers treat them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::{Identity, Origin, PresentedCertificate};
use crate::authority::Authority;
use crate::certificate::Member;
use crate::clock::Clock;
use crate::error::{IdentityError, unusable};
use crate::tls::{ALPN, provider};

impl Identity {
    /// A certificate of this authority for any time, never renewed.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be made.
    pub fn issued(authority: &Authority, member: &Member) -> Result<Self, IdentityError> {
        let (certificate, key) = authority.issue(member, false)?;
        let secret = key.serialize_der();
        let presented = PresentedCertificate::try_new(vec![certificate], &secret)?;
        let (cluster, origin) = (authority.cluster().to_owned(), Origin::Development(PathBuf::new()));
        Self::new(cluster, presented, authority.certificate(), secret, origin)
    }

    /// An identity that trusts the same authority, and presents the certificate of another identity.
    #[must_use]
    pub fn presenting(&self, other: &Self) -> Self {
        self.like_this(other, Origin::Development(PathBuf::new()), Clock::default())
    }

    /// TLS settings of a client that presents no certificate.
    ///
    /// # Errors
    ///
    /// When the settings are rejected by rustls.
    pub fn anonymous_client_tls(&self) -> Result<ClientConfig, IdentityError> {
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&self.0.authorities))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }

    /// The same identity on a machine whose clock is ahead.
    #[must_use]
    pub fn ahead(&self, by: Duration) -> Self {
        self.like_this(self, self.0.origin.clone(), Clock::ahead_by(by))
    }

    fn like_this(&self, other: &Self, origin: Origin, clock: Clock) -> Self {
        let presented = other.0.presented.load();
        let presented = PresentedCertificate { key: Arc::clone(&presented.key), member: presented.member.clone() };
        let (authorities, secret) = (Arc::clone(&self.0.authorities), self.0.secret.clone());
        Self::from_parts(self.0.cluster.clone(), presented, authorities, secret, origin, clock)
    }
}
