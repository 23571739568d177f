//! The identity of a member, in its own directory; and the identity of the node with the authority.
//!
//! ```text
//!  identity.pem    its key, its certificate, that of its issuer if the root did not sign it, and the root's, in one
//!                  file: they change together
//!  secret          derives the keys that must survive a restart and a renewal
//!  issuers         the nodes that issue certificates
//! ```
//!
//! An expired certificate is an error: nothing is served or called with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use callboard_codec::hex;
use rcgen::KeyPair;
use ring::rand::{self, SecureRandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::{Identity, Origin, PresentedCertificate};
use crate::address::QuicUrl;
use crate::authority::{Authority, KEY, TokenSpec};
use crate::certificate::{Member, cluster_name, pin};
use crate::error::{IdentityError, unusable};
use crate::files::{IDENTITY, check_directory, check_writable, read, read_private, replace_private_file};
use crate::text::with_sources;

const SECRET: &str = "secret";
const ISSUERS: &str = "issuers";

/// A member's directory, and the nodes that issue its certificates.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    directory: PathBuf,
    /// As they were at the start.
    issuers: QuicUrl,
    /// The pin of its authority's certificate.
    authority: [u8; 16],
    unsaved: Arc<Mutex<Option<Unsaved>>>,
}

/// The line of the log when the disk has room again.
pub(super) const SAVED_AT_LAST: &str = "the certificate is saved, after one that could not be saved";

/// A certificate with its key that could not be written, such as on a full disk.
struct Unsaved {
    text: String,
    member: Member,
}

/// Without the key.
impl fmt::Debug for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsaved").field("member", &self.member).finish_non_exhaustive()
    }
}

impl Identity {
    /// The identity in this directory, of a member that has joined or of the authority.
    ///
    /// # Errors
    ///
    /// When the directory has none, or it has expired, is damaged, or can be used by other users.
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        if directory.join(KEY).exists() {
            return Self::from_authority(Authority::open(directory)?);
        }
        if !directory.join(IDENTITY).exists() {
            return Err(IdentityError::NoIdentity { path: directory.to_owned() });
        }
        check_directory(directory)?;
        let secret = read_private(&directory.join(SECRET))?.into_bytes();
        let issuers = read_issuers(directory)?;
        let (presented, authority) = read_presented(directory)?;
        let no_cluster = || damaged(directory.join(IDENTITY), "its authority names no cluster");
        let cluster = cluster_name(&authority).ok_or_else(no_cluster)?;
        if presented.member.validity.left(SystemTime::now()).is_zero() {
            return Err(IdentityError::Expired { path: directory.to_owned() });
        }
        let (directory, authority_pin) = (directory.to_owned(), pin(&authority));
        let membership = Membership { directory, issuers, authority: authority_pin, unsaved: Arc::default() };
        Self::new(cluster, presented, &authority, secret, Origin::Member(membership))
    }

    /// The identity of the node that holds the authority.
    ///
    /// # Errors
    ///
    /// When its certificate cannot be made.
    pub fn from_authority(authority: Authority) -> Result<Self, IdentityError> {
        let presented = issue_own(&authority)?;
        let (certificate, cluster) = (authority.root().clone(), authority.cluster().to_owned());
        let (secret, issuer) = (authority.key_bytes(), authority.issuer()?);
        let identity = Self::new(cluster, presented, &certificate, secret, Origin::Authority(authority))?;
        identity.0.issuer.store(issuer.map(Arc::new));
        Ok(identity)
    }
}

fn read_issuers(directory: &Path) -> Result<QuicUrl, IdentityError> {
    let path = directory.join(ISSUERS);
    QuicUrl::from_str(read(&path)?.trim()).map_err(|error| damaged(path, error))
}

fn damaged(path: PathBuf, reason: impl ToString) -> IdentityError {
    IdentityError::Damaged { path, reason: reason.to_string() }
}

/// Issues the own certificate. The chain includes the root's, because joining processes know only its pin.
pub(super) fn issue_own(authority: &Authority) -> Result<PresentedCertificate, IdentityError> {
    issue_own_after(authority, SystemTime::UNIX_EPOCH)
}

/// Renews the own certificate, of which the last one ends then.
pub(super) fn issue_own_after(authority: &Authority, ends: SystemTime) -> Result<PresentedCertificate, IdentityError> {
    let (chain, key) = authority.issue_own(TokenSpec::DEFAULT_CERTIFICATE_LIFE, ends)?;
    PresentedCertificate::try_new(chain, &key.serialize_der())
}

/// A new key, and a certificate request for it, in PEM.
///
/// # Errors
///
/// When the key cannot be made.
pub fn certificate_request() -> Result<(KeyPair, String), IdentityError> {
    let key = KeyPair::generate().map_err(unusable)?;
    let request = rcgen::CertificateParams::default().serialize_request(&key).map_err(unusable)?;
    let request = request.pem().map_err(unusable)?;
    Ok((key, request))
}

/// The answer of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChain {
    /// The member's certificate, and that of its issuer if the root did not sign it: what the member presents.
    pub presented: Vec<CertificateDer<'static>>,
    /// The root's certificate.
    pub root: CertificateDer<'static>,
}

/// Reads the answer of an issuer, in PEM: a certificate followed by the root's, or by the issuer's and the root's.
///
/// # Errors
///
/// When the text is not a chain of two or three certificates.
pub fn read_chain(text: &[u8]) -> Result<MemberChain, IdentityError> {
    let mut chain: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(unusable)?;
    match (chain.len(), chain.pop()) {
        (2 | 3, Some(root)) => Ok(MemberChain { presented: chain, root }),
        _ => Err(IdentityError::Unusable("expected a certificate, maybe its issuer's, and the root's".into())),
    }
}

/// Checks that a member can be saved in this directory, before a token is used; creates the directory if it is missing.
/// A valid identity in it is not replaced.
///
/// # Errors
///
/// When the directory cannot be written, or has an authority or a valid identity.
pub fn prepare_member(directory: &Path) -> Result<(), IdentityError> {
    if directory.join(KEY).exists() {
        return Err(IdentityError::Occupied { path: directory.to_owned() });
    }
    check_writable(directory)?;
    if !directory.join(IDENTITY).exists() {
        return Ok(());
    }
    let (presented, authority) = read_presented(directory)?;
    if presented.member.validity.left(SystemTime::now()).is_zero() {
        return Ok(());
    }
    let cluster = cluster_name(&authority).unwrap_or_default();
    Err(IdentityError::Joined { path: directory.to_owned(), name: presented.member.name, cluster })
}

/// Saves a new member in its [prepared](prepare_member) directory. An expired identity is replaced.
///
/// # Errors
///
/// When a file cannot be written.
pub fn save_member(directory: &Path, issuers: &QuicUrl, key: &KeyPair, chain: &str) -> Result<(), IdentityError> {
    let mut secret = [0; 32];
    rand::SystemRandom::new().fill(&mut secret).map_err(|_| IdentityError::no_random())?;
    replace_private_file(&directory.join(SECRET), &hex::encode(&secret))?;
    replace_private_file(&directory.join(ISSUERS), &format!("{issuers}\n"))?;
    // Last: this file makes the directory an identity.
    replace_private_file(&directory.join(IDENTITY), &identity_text(key, chain))
}

impl Membership {
    /// The nodes that issue certificates. The file is read each time, because an operator edits it when the authority
    /// moves. If it cannot be read, those of the start are asked.
    pub(super) fn issuers(&self) -> QuicUrl {
        read_issuers(&self.directory).unwrap_or_else(|error| {
            tracing::warn!(issuers = %self.issuers, "the issuers of the start are asked: {}", with_sources(&error));
            self.issuers.clone()
        })
    }

    /// Reads the certificate from the directory: another process of this member may have renewed it.
    pub(crate) fn read(&self, member: &Member) -> Result<PresentedCertificate, IdentityError> {
        let (presented, authority) = read_presented(&self.directory)?;
        if self.is_same_member(member, &presented, &authority) {
            return Ok(presented);
        }
        Err(IdentityError::Replaced { path: self.directory.clone() })
    }

    /// Checks a new certificate of this member, and saves it in the directory. One that cannot be written is used all
    /// the same: without it, the member would leave its cluster for want of a disk.
    pub(super) fn save(
        &self,
        member: &Member,
        key: &KeyPair,
        chain: &str,
    ) -> Result<PresentedCertificate, IdentityError> {
        let MemberChain { presented, root } = read_chain(chain.as_bytes())?;
        let presented = PresentedCertificate::try_new(presented, &key.serialize_der())?;
        if !self.is_same_member(member, &presented, &root) {
            return Err(IdentityError::Unusable("the new certificate is of another member".into()));
        }
        let was_unsaved = self.is_unsaved();
        *self.unsaved() = Some(Unsaved { text: identity_text(key, chain), member: presented.member.clone() });
        match self.save_again() {
            Ok(()) if was_unsaved => tracing::info!("{SAVED_AT_LAST}"),
            Ok(()) => {}
            Err(error) => tracing::error!(
                "the new certificate is used, and cannot be saved: it is tried again, and a process that starts before \
                 that has the earlier one, or has to join again: {}",
                with_sources(&error)
            ),
        }
        Ok(presented)
    }

    /// Whether a certificate is used that is not saved.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved().is_some()
    }

    /// Saves the certificate that is not saved, if there is one, and if the directory does not have a later one or that
    /// of another member by now.
    pub(super) fn save_again(&self) -> Result<(), IdentityError> {
        let mut kept = self.unsaved();
        let Some(unsaved) = &*kept else { return Ok(()) };
        let (stored, root) = read_presented(&self.directory)?;
        let is_earlier = stored.member.validity.not_after < unsaved.member.validity.not_after;
        if is_earlier && self.is_same_member(&unsaved.member, &stored, &root) {
            replace_private_file(&self.directory.join(IDENTITY), &unsaved.text)?;
        }
        *kept = None;
        Ok(())
    }

    fn unsaved(&self) -> MutexGuard<'_, Option<Unsaved>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a certificate is of the same member of the same cluster: a running process does not change its member.
    fn is_same_member(
        &self,
        member: &Member,
        presented: &PresentedCertificate,
        authority: &CertificateDer<'_>,
    ) -> bool {
        let Member { role, name, id, .. } = &presented.member;
        pin(authority) == self.authority && (role, name, id) == (&member.role, &member.name, &member.id)
    }
}

fn identity_text(key: &KeyPair, chain: &str) -> String {
    format!("{}{chain}", key.serialize_pem())
}

/// Reads the presented certificate, and the authority's.
fn read_presented(directory: &Path) -> Result<(PresentedCertificate, CertificateDer<'static>), IdentityError> {
    let path = directory.join(IDENTITY);
    let text = read_private(&path)?;
    let damaged = |reason: String| IdentityError::Damaged { path: path.clone(), reason };
    let key = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|error| damaged(error.to_string()))?;
    let MemberChain { presented, root } = read_chain(text.as_bytes()).map_err(|error| damaged(error.to_string()))?;
    let presented = PresentedCertificate::try_new(presented, key.secret_pkcs8_der());
    Ok((presented.map_err(|error| damaged(error.to_string()))?, root))
}
