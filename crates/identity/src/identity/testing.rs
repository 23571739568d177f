//! Identities that no authority would issue, for tests of how peers treat them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::KeyPair;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::{HeldList, Identity, Origin, PresentedCertificate};
use crate::authority::{Authority, RemovedMembers, SignedRemovals};
use crate::certificate::Member;
use crate::clock::Clock;
use crate::error::{IdentityError, unusable};
use crate::tls::{ALPN, provider};

impl HeldList {
    /// A list that nobody has signed.
    #[must_use]
    pub fn unverified(version: u64, bytes: &[u8]) -> Self {
        Self { version, bytes: bytes.into(), ends: SystemTime::UNIX_EPOCH }
    }
}

impl Identity {
    /// A list of these ids, signed with the key of this identity, whatever it may sign.
    ///
    /// # Errors
    ///
    /// When it cannot be signed.
    pub fn signed_list(&self, version: u64, ids: &[&str]) -> Result<Vec<u8>, IdentityError> {
        let removed = RemovedMembers::new(ids.iter().map(|id| ((*id).to_owned(), u64::MAX)));
        SignedRemovals::sign(version, &removed, &self.0.presented.load().key)
    }

    /// A certificate of this authority for any time, never renewed.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be made.
    pub fn issued(authority: &Authority, member: &Member) -> Result<Self, IdentityError> {
        let (chain, key) = authority.issue_unchecked(member)?;
        Self::untrue(authority, chain, &key)
    }

    /// A certificate of an issuer that this authority has made itself: without the right to issue, or below another
    /// issuer.
    ///
    /// # Errors
    ///
    /// When the certificates cannot be made.
    pub fn issued_below(authority: &Authority, member: &Member, is_authority: bool) -> Result<Self, IdentityError> {
        let (chain, key) = authority.issue_below(member, is_authority)?;
        Self::untrue(authority, chain, &key)
    }

    fn untrue(
        authority: &Authority,
        chain: Vec<CertificateDer<'static>>,
        key: &KeyPair,
    ) -> Result<Self, IdentityError> {
        let secret = key.serialize_der();
        let presented = PresentedCertificate::try_new(chain, &secret)?;
        let (cluster, origin) = (authority.cluster().to_owned(), Origin::Development(PathBuf::new()));
        Self::new(cluster, presented, authority.root(), secret, origin)
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
        let (ahead, set) = self.with_own_clock();
        set(i64::try_from(by.as_secs()).unwrap_or(i64::MAX));
        ahead
    }

    /// The same identity on a machine of its own, and what sets its clock: the seconds by which it is ahead of the
    /// system's.
    pub fn with_own_clock(&self) -> (Self, impl Fn(i64) + Send + Sync + 'static) {
        let (clock, set) = Clock::settable();
        (self.like_this(self, self.0.origin.clone(), clock), move |ahead| set.set(ahead))
    }

    fn like_this(&self, other: &Self, origin: Origin, clock: Clock) -> Self {
        let presented = other.0.presented.load();
        let presented = PresentedCertificate { key: Arc::clone(&presented.key), member: presented.member.clone() };
        let (authorities, secret) = (Arc::clone(&self.0.authorities), self.0.secret.clone());
        Self::from_parts(self.0.cluster.clone(), presented, authorities, secret, origin, clock)
    }
}
