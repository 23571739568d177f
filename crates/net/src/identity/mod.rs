//! Who a process is to its peers: a certificate of the cluster's authority, and the key to it.
//!
//! Both ends of every connection show theirs, and each holds the other's against the authority of its own cluster: who has no
//! certificate of that authority is refused in the handshake, before a byte of ours is read. Certificates are short-lived and
//! renewed while they hold; what one says of its holder's role is looked at connection by connection and call by call.
//!
//! ```text
//!  development.rs   one user on one machine, without ceremony      authority.rs     who may join a cluster
//!  cluster.rs       a member's directory                           register.rs      its tokens, their uses, its members
//!  renewal.rs       when a certificate is renewed, and by whom     token.rs         what a token is, and how it is proven
//!  certificate.rs   what a certificate says                        verify.rs        an authority known by its digest only
//!  clock.rs         by which time that is                          removed.rs      who is refused although it has one
//!  testing.rs       identities that nobody is given
//! ```

mod authority;
mod certificate;
mod clock;
mod cluster;
mod development;
mod error;
mod files;
mod register;
mod removed;
mod renewal;
#[cfg(feature = "testing")]
mod testing;
#[cfg(test)]
mod tests;
mod token;
mod verify;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::{digest, hmac, rand};
use rustls::RootCertStore;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

pub use self::authority::{Authority, DEFAULT_CERTIFICATE_LIFE, DEFAULT_TOKEN_LIFE, MemberInfo, MemberList, TokenSpec};
pub(crate) use self::authority::{Denial, Joining, cluster_of};
pub use self::certificate::Role;
pub(crate) use self::certificate::{ISSUER_NAME, Member, NODE_NAME, Validity};
pub(crate) use self::clock::Clock;
use self::cluster::Membership;
pub(crate) use self::cluster::{keep_member, prepare, read_chain, request};
pub use self::error::IdentityError;
pub(crate) use self::removed::{MAX_LIST_BYTES, Removed, keep_removals};
pub(crate) use self::renewal::keep_renewed;
pub(crate) use self::token::{EXPORTED_BYTES, EXPORTER_LABEL};
pub use self::token::{JoinToken, NotAToken};
pub(crate) use self::verify::joining_config;

/// What both ends say they speak. Another number is another protocol, not a version of this one: versions are settled by hellos.
const ALPN: &[u8] = b"callboard/1";

/// How soon a renewal is noticed by who waits for it.
const SETTLED_AFTER: Duration = Duration::from_millis(5);

/// What those say who want a certificate.
pub(crate) const JOIN_ALPN: &[u8] = b"callboard-join/1";

/// A certificate with its key, and the authority that others' certificates must be of. Cloning shares, renewals as well.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    cluster: String,
    shown: ArcSwap<Shown>,
    authorities: Arc<RootCertStore>,
    /// What keys are derived from that must survive a restart.
    secret: Vec<u8>,
    origin: Origin,
    clock: Clock,
    /// Members that were removed, as far as is known.
    removed: watch::Sender<Arc<Removed>>,
    /// Whoever renews it, one at a time.
    renewing: tokio::sync::Mutex<()>,
    renewed: AtomicU64,
    renewals_failed: AtomicU64,
}

/// Where an identity has its certificates from.
#[derive(Clone, Debug)]
enum Origin {
    /// Made at start, for good, by the authority in this directory.
    Development(PathBuf),
    /// It gives them itself.
    Authority(Authority),
    /// From a node with the authority.
    Member(Membership),
}

/// What is shown to others, until it is renewed.
#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    member: Member,
}

impl Shown {
    fn try_new(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Self, IdentityError> {
        let member = chain.first().and_then(Member::of);
        let member = member.ok_or_else(|| IdentityError::Unusable("the certificate names no role".into()))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(unusable)?;
        Ok(Self { key: Arc::new(key), member })
    }
}

impl Identity {
    fn new(
        cluster: String,
        shown: Shown,
        authority: &CertificateDer<'static>,
        secret: Vec<u8>,
        origin: Origin,
    ) -> Result<Self, IdentityError> {
        let mut authorities = RootCertStore::empty();
        authorities.add(authority.clone()).map_err(unusable)?;
        Ok(Self::of_parts(cluster, shown, Arc::new(authorities), secret, origin, Clock::default()))
    }

    fn of_parts(
        cluster: String,
        shown: Shown,
        authorities: Arc<RootCertStore>,
        secret: Vec<u8>,
        origin: Origin,
        clock: Clock,
    ) -> Self {
        let (shown, renewing) = (ArcSwap::from_pointee(shown), tokio::sync::Mutex::default());
        let (renewed, renewals_failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let removed = watch::Sender::default();
        Self(Arc::new(Inner {
            cluster,
            shown,
            authorities,
            secret,
            origin,
            clock,
            removed,
            renewing,
            renewed,
            renewals_failed,
        }))
    }

    /// The name of the cluster that it belongs to.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// What its holder may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.0.shown.load().member.role
    }

    /// What its holder is called in the cluster; empty under the development identity.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.shown.load().member.name.clone()
    }

    /// Whether it may be used on this machine only.
    #[must_use]
    pub fn is_for_loopback_only(&self) -> bool {
        matches!(self.0.origin, Origin::Development(_))
    }

    /// How long its certificate still holds.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.validity().left(self.clock().now())
    }

    /// What its times are held against.
    pub(crate) fn clock(&self) -> Clock {
        self.0.clock
    }

    /// How often its certificate was renewed in this process, and how often that failed.
    pub(crate) fn renewals(&self) -> (u64, u64) {
        (self.0.renewed.load(Ordering::Relaxed), self.0.renewals_failed.load(Ordering::Relaxed))
    }

    pub(crate) fn validity(&self) -> Validity {
        self.0.shown.load().member.validity
    }

    /// The authority, if this is the node that holds it.
    pub(crate) fn authority(&self) -> Option<&Authority> {
        match &self.0.origin {
            Origin::Authority(authority) => Some(authority),
            Origin::Development(_) | Origin::Member(_) => None,
        }
    }

    /// Who it lets in, for people.
    pub(crate) fn audience(&self) -> String {
        match &self.0.origin {
            Origin::Development(directory) => {
                format!("this user on this machine (development identity in {})", directory.display())
            }
            Origin::Authority(_) | Origin::Member(_) => format!("the members of {}", self.cluster()),
        }
    }

    /// Refuses to show an identity where it proves nothing.
    ///
    /// # Errors
    ///
    /// When it is for this machine only, and the address is another's.
    pub fn check_address(&self, address: SocketAddr) -> Result<(), IdentityError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if self.is_for_loopback_only() {
            return Err(IdentityError::LoopbackOnly { address });
        }
        // Whoever else has the key cannot be told there.
        if cfg!(not(unix)) {
            return Err(IdentityError::Unguarded { address });
        }
        Ok(())
    }

    /// Refuses to serve with a certificate that no caller would take for a node's.
    pub(crate) fn check_role(&self) -> Result<(), IdentityError> {
        match self.role() {
            Role::Node => Ok(()),
            role @ Role::Client => Err(IdentityError::Role { role }),
        }
    }

    /// Waits for a renewal that is due, at most so long: a process that ends before it is done has to do it again the next time.
    pub async fn settle(&self, limit: Duration) {
        let validity = self.validity();
        let renewed = async {
            while self.validity() == validity {
                tokio::time::sleep(SETTLED_AFTER).await;
            }
        };
        if renewal::is_overdue(&validity, self.clock().now()) && !self.is_for_loopback_only() {
            let _ = tokio::time::timeout(limit, renewed).await;
        }
    }

    /// For an endpoint that serves.
    pub(crate) fn server_config(&self) -> Result<QuicServerConfig, IdentityError> {
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.0.authorities), provider());
        let issues = self.authority().is_some();
        if issues {
            // Who wants to join has none yet. What is no join is refused behind the handshake.
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|error| IdentityError::Unusable(error.into()))?;
        let mut config = rustls::ServerConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(Showing(self.clone())));
        // A resumed session would not look at the client's certificate again, which may be over by then.
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![ALPN.to_vec()];
        if issues {
            config.alpn_protocols.push(JOIN_ALPN.to_vec());
        }
        config.try_into().map_err(|error: quinn::crypto::rustls::NoInitialCipherSuite| unusable(error))
    }

    /// For connections to nodes, to speak with them or to have the certificate renewed.
    pub(crate) fn client_config(&self, joining: bool) -> Result<QuicClientConfig, IdentityError> {
        let mut config = rustls::ClientConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&self.0.authorities))
            .with_client_cert_resolver(Arc::new(Showing(self.clone())));
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![if joining { JOIN_ALPN } else { ALPN }.to_vec()];
        config.try_into().map_err(|error: quinn::crypto::rustls::NoInitialCipherSuite| unusable(error))
    }

    /// A key for one purpose at one address, the same whenever a process starts there again with this identity. Two processes are
    /// never at one address, so none has another's.
    pub(crate) fn derived_key(&self, purpose: &str, address: SocketAddr) -> hmac::Key {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.secret);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, format!("{purpose} at {address}").as_bytes()).as_ref())
    }
}

/// Says whose it is, and nothing of the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.shown.load();
        f.debug_struct("Identity")
            .field("cluster", &self.0.cluster)
            .field("name", &shown.member.name)
            .field("role", &shown.member.role)
            .finish_non_exhaustive()
    }
}

/// Gives each handshake what is shown at that time.
#[derive(Debug)]
struct Showing(Identity);

impl ResolvesServerCert for Showing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.0.shown.load().key))
    }
}

impl ResolvesClientCert for Showing {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.0.shown.load().key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// ring, and nothing that needs a C toolchain of its own.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A key that nobody has had before.
pub(crate) fn fresh_key() -> Result<hmac::Key, IdentityError> {
    let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new());
    key.map_err(|_| IdentityError::Unusable("the system gives no random numbers".into()))
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> IdentityError {
    IdentityError::Unusable(Box::new(error))
}

/// The first bytes of a certificate's digest, for people and for names.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex(&pin(certificate)[..8])
}

/// The first bytes of a certificate's digest, enough to know it by: nobody finds another one with the same.
pub(crate) fn pin(certificate: &CertificateDer<'_>) -> [u8; 16] {
    let digest = digest::digest(&digest::SHA256, certificate);
    std::array::from_fn(|at| digest.as_ref()[at])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits.len().is_multiple_of(2).then_some(())?;
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}
