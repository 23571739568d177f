//! Identities that nobody is given: for tests of what is made of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;

use super::certificate::Member;
use super::clock::Clock;
use super::{ALPN, Authority, Identity, IdentityError, Origin, Shown, provider, unusable};

impl Identity {
    /// A certificate of this authority for any time, never renewed.
    pub(crate) fn issued(authority: &Authority, member: &Member) -> Result<Self, IdentityError> {
        let (certificate, key) = authority.issue(member, false)?;
        let secret = key.serialize_der();
        let shown = Shown::try_new(vec![certificate], &secret)?;
        Self::new(
            authority.cluster().to_owned(),
            shown,
            authority.certificate(),
            secret,
            Origin::Development(PathBuf::new()),
        )
    }

    /// One that trusts whom this one trusts, and shows another's certificate.
    pub(crate) fn showing(&self, shown: &Self) -> Self {
        self.like_this(shown, Origin::Development(PathBuf::new()), Clock::default())
    }

    /// For connections of somebody who knows whom to trust and shows nothing.
    pub(crate) fn nameless_config(&self) -> Result<QuicClientConfig, IdentityError> {
        let mut config = rustls::ClientConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&self.0.authorities))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.try_into().map_err(|error: quinn::crypto::rustls::NoInitialCipherSuite| unusable(error))
    }

    /// The same on a machine whose clock is so far ahead.
    pub(crate) fn ahead(&self, by: Duration) -> Self {
        self.like_this(self, self.0.origin.clone(), Clock::ahead_by(by))
    }

    fn like_this(&self, shown: &Self, origin: Origin, clock: Clock) -> Self {
        let shown = shown.0.shown.load();
        let shown = Shown { key: Arc::clone(&shown.key), member: shown.member.clone() };
        let (authorities, secret) = (Arc::clone(&self.0.authorities), self.0.secret.clone());
        Self::of_parts(self.0.cluster.clone(), shown, authorities, secret, origin, clock)
    }
}
