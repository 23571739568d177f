//! The identity of one process: its certificate, its key, and the authority that peers are verified against.

mod development;
mod membership;
mod removals;
mod renewal;
#[cfg(feature = "testing")]
mod testing;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use ring::hmac;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;

pub(crate) use self::membership::Membership;
pub use self::membership::{MemberChain, certificate_request, prepare_member, read_chain, save_member};
use self::removals::HeardRemovals;
pub use self::removals::{HeldList, HeldLists, keep_removals};
pub use self::renewal::{IssuerClient, keep_renewed};
use crate::authority::{Authority, RemovedMembers};
use crate::certificate::{IssuerCertificate, Member, Role, Validity};
use crate::clock::Clock;
use crate::error::{IdentityError, unusable};
use crate::tls::{ALPN, JOIN_ALPN, provider};

/// The interval at which a wait for a renewal checks again.
const RENEWAL_POLL: Duration = Duration::from_millis(5);

/// A certificate with its key, and the authority that peers' certificates are verified against. Clones share it, and
/// its renewals.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    cluster: String,
    presented: ArcSwap<PresentedCertificate>,
    authorities: Arc<RootCertStore>,
    /// Derives the keys that must survive a restart.
    secret: Vec<u8>,
    origin: Origin,
    clock: Clock,
    /// The removed members known to this process.
    removed: watch::Sender<Arc<RemovedMembers>>,
    /// What of them is from which source.
    heard: Mutex<HeardRemovals>,
    /// The lists of issuers from which it knows them, to be passed on.
    lists: watch::Sender<HeldLists>,
    /// The certificate of this issuer.
    issuer: ArcSwapOption<IssuerCertificate>,
    /// Held during a renewal.
    renewing: tokio::sync::Mutex<()>,
    renewed: AtomicU64,
    renewals_failed: AtomicU64,
}

/// The source of an identity's certificates.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// Issued at start, without renewal, by the authority in this directory.
    Development(PathBuf),
    /// This process holds the authority.
    Authority(Authority),
    /// A node with the authority issues them.
    Member(Membership),
}

/// The certificate that is presented to peers, until the next renewal.
#[derive(Debug)]
pub(crate) struct PresentedCertificate {
    key: Arc<CertifiedKey>,
    pub(crate) member: Member,
}

impl PresentedCertificate {
    fn try_new(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Self, IdentityError> {
        let member = chain.first().and_then(Member::from_certificate);
        let member = member.ok_or_else(|| IdentityError::Unusable("the certificate names no role".into()))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(unusable)?;
        Ok(Self { key: Arc::new(key), member })
    }
}

impl Identity {
    fn new(
        cluster: String,
        presented: PresentedCertificate,
        authority: &CertificateDer<'static>,
        secret: Vec<u8>,
        origin: Origin,
    ) -> Result<Self, IdentityError> {
        let mut authorities = RootCertStore::empty();
        authorities.add(authority.clone()).map_err(unusable)?;
        Ok(Self::from_parts(cluster, presented, Arc::new(authorities), secret, origin, Clock::default()))
    }

    fn from_parts(
        cluster: String,
        presented: PresentedCertificate,
        authorities: Arc<RootCertStore>,
        secret: Vec<u8>,
        origin: Origin,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(Inner {
            cluster,
            presented: ArcSwap::from_pointee(presented),
            authorities,
            secret,
            origin,
            clock,
            removed: watch::Sender::default(),
            heard: Mutex::default(),
            lists: watch::Sender::default(),
            issuer: ArcSwapOption::empty(),
            renewing: tokio::sync::Mutex::default(),
            renewed: AtomicU64::new(0),
            renewals_failed: AtomicU64::new(0),
        }))
    }

    /// The name of its cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// The rights of its holder.
    #[must_use]
    pub fn role(&self) -> Role {
        self.0.presented.load().member.role
    }

    /// The name of its holder in the cluster; empty under the development identity.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.presented.load().member.name.clone()
    }

    /// Whether it may be used on this machine only.
    #[must_use]
    pub fn is_for_loopback_only(&self) -> bool {
        matches!(self.0.origin, Origin::Development(_))
    }

    /// The time until its certificate expires.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.validity().left(self.clock().now())
    }

    /// The clock that its certificates are checked with.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The renewals in this process: how many succeeded, and how many failed.
    #[must_use]
    pub fn renewal_counts(&self) -> (u64, u64) {
        (self.0.renewed.load(Ordering::Relaxed), self.0.renewals_failed.load(Ordering::Relaxed))
    }

    /// The validity of its certificate.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.0.presented.load().member.validity
    }

    /// The authority, on the node that holds it.
    #[must_use]
    pub fn authority(&self) -> Option<&Authority> {
        match &self.0.origin {
            Origin::Authority(authority) => Some(authority),
            Origin::Development(_) | Origin::Member(_) => None,
        }
    }

    /// The certificate of this issuer: none of a root, or of a member that issues nothing.
    #[must_use]
    pub fn issuer(&self) -> Option<Arc<IssuerCertificate>> {
        self.0.issuer.load_full()
    }

    /// The peers that it accepts, for people.
    #[must_use]
    pub fn audience(&self) -> String {
        match &self.0.origin {
            Origin::Development(directory) => {
                format!("this user on this machine (development identity in {})", directory.display())
            }
            Origin::Authority(_) | Origin::Member(_) => format!("the members of {}", self.cluster()),
        }
    }

    /// Checks that the identity may be used at an address.
    ///
    /// # Errors
    ///
    /// When it is for this machine only, and the address is of another.
    pub fn check_address(&self, address: SocketAddr) -> Result<(), IdentityError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if self.is_for_loopback_only() {
            return Err(IdentityError::LoopbackOnly { address });
        }
        // On such systems the files' permissions are not checked.
        if cfg!(not(unix)) {
            return Err(IdentityError::Unguarded { address });
        }
        Ok(())
    }

    /// Checks that callers will accept this certificate as a node's.
    ///
    /// # Errors
    ///
    /// When its role is not node.
    pub fn check_may_serve(&self) -> Result<(), IdentityError> {
        match self.role() {
            Role::Node => Ok(()),
            role @ (Role::Client | Role::Operator) => Err(IdentityError::Role { role }),
        }
    }

    /// Waits up to `limit` for a renewal that is due. A process that ends before would have to renew at its next start.
    pub async fn wait_for_renewal(&self, limit: Duration) {
        let validity = self.validity();
        let renewed = async {
            while self.validity() == validity {
                tokio::time::sleep(RENEWAL_POLL).await;
            }
        };
        if renewal::is_overdue(&validity, self.clock().now()) && !self.is_for_loopback_only() {
            let _ = tokio::time::timeout(limit, renewed).await;
        }
    }

    /// TLS settings for serving.
    ///
    /// # Errors
    ///
    /// When the identity cannot be used for TLS.
    pub fn server_tls(&self) -> Result<ServerConfig, IdentityError> {
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.0.authorities), provider());
        let issues = self.authority().is_some();
        if issues {
            // A joining process has no certificate yet. Other connections without one are refused after the handshake.
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|error| IdentityError::Unusable(error.into()))?;
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(PresentedResolver(self.clone())));
        // A resumed session would not check the client's certificate again, which may have expired by then.
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![ALPN.to_vec()];
        if issues {
            config.alpn_protocols.push(JOIN_ALPN.to_vec());
        }
        Ok(config)
    }

    /// TLS settings for connecting to nodes, with this ALPN protocol: [`ALPN`] for calls, [`JOIN_ALPN`] for renewals.
    ///
    /// # Errors
    ///
    /// When the identity cannot be used for TLS.
    pub fn client_tls(&self, protocol: &[u8]) -> Result<ClientConfig, IdentityError> {
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(self.clock()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(Arc::clone(&self.0.authorities))
            .with_client_cert_resolver(Arc::new(PresentedResolver(self.clone())));
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    /// A key for one purpose at one address, the same after a restart with this identity. Two processes never share an
    /// address, so they never share a key.
    #[must_use]
    pub fn derived_key(&self, purpose: &str, address: SocketAddr) -> hmac::Key {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.secret);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, format!("{purpose} at {address}").as_bytes()).as_ref())
    }

    #[cfg(test)]
    pub(crate) fn origin(&self) -> &Origin {
        &self.0.origin
    }

    #[cfg(test)]
    pub(crate) fn presented(&self) -> Arc<PresentedCertificate> {
        self.0.presented.load_full()
    }
}

/// Shows the holder, never the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let presented = self.0.presented.load();
        f.debug_struct("Identity")
            .field("cluster", &self.0.cluster)
            .field("name", &presented.member.name)
            .field("role", &presented.member.role)
            .finish_non_exhaustive()
    }
}

/// Gives each handshake the certificate of that moment.
#[derive(Debug)]
struct PresentedResolver(Identity);

impl ResolvesServerCert for PresentedResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.0.presented.load().key))
    }
}

impl ResolvesClientCert for PresentedResolver {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.0.presented.load().key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
