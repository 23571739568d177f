//! The identity of a member of a cluster, in a directory of its own; and that of the node with the authority, which issues its own.
//!
//! ```text
//!  identity.pem    its key, its certificate and its authority's, in one file: they change together
//!  secret          what keys are derived from that must survive a restart and a renewal
//!  issuers         where certificates are given
//! ```
//!
//! A certificate that is over is no identity any more: the error says so, and nothing is served or called with it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use rcgen::KeyPair;
use ring::rand::{self, SecureRandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::authority::{Authority, DEFAULT_CERTIFICATE_LIFE, KEY, cluster_of};
use super::certificate::Member;
use super::error::IdentityError;
use super::files::{check_private, check_writable, read, read_private, replace_private_file};
use super::{Identity, Origin, Shown, hex, pin, unusable};
use crate::client::QuicUrl;

const IDENTITY: &str = "identity.pem";
const SECRET: &str = "secret";
const ISSUERS: &str = "issuers";

/// A member's directory, and where it has its certificates from.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    directory: PathBuf,
    pub(crate) issuers: QuicUrl,
    /// The authority that it is a member of, by its digest.
    authority: [u8; 16],
}

impl Identity {
    /// The identity in this directory: of a member that has joined, or of the authority itself.
    ///
    /// # Errors
    ///
    /// When there is none, it has expired, is not this user's alone, or is damaged.
    pub fn of_cluster(directory: &Path) -> Result<Self, IdentityError> {
        if directory.join(KEY).exists() {
            return Self::of_authority(Authority::open(directory)?);
        }
        if !directory.join(IDENTITY).exists() {
            return Err(IdentityError::NoIdentity { path: directory.to_owned() });
        }
        check_private(directory)?;
        let damaged = |path: PathBuf, reason: String| IdentityError::Damaged { path, reason };
        let secret = read_private(&directory.join(SECRET))?.into_bytes();
        let path = directory.join(ISSUERS);
        let issuers = QuicUrl::from_str(read(&path)?.trim()).map_err(|error| damaged(path, error.to_string()))?;
        let (shown, authority) = read_shown(directory)?;
        let no_cluster = || damaged(directory.join(IDENTITY), "its authority names no cluster".to_owned());
        let cluster = cluster_of(&authority).ok_or_else(no_cluster)?;
        if shown.member.validity.left(SystemTime::now()).is_zero() {
            return Err(IdentityError::Expired { path: directory.to_owned() });
        }
        let membership = Membership { directory: directory.to_owned(), issuers, authority: pin(&authority) };
        Self::new(cluster, shown, &authority, secret, Origin::Member(membership))
    }

    /// The identity of the node that holds the authority.
    ///
    /// # Errors
    ///
    /// When a certificate cannot be made.
    pub fn of_authority(authority: Authority) -> Result<Self, IdentityError> {
        let shown = issue_own(&authority)?;
        let (certificate, cluster) = (authority.certificate().clone(), authority.cluster().to_owned());
        let secret = authority.key_bytes();
        Self::new(cluster, shown, &certificate, secret, Origin::Authority(authority))
    }
}

/// Whoever joins does not know the authority's certificate yet, only its digest: it is shown along.
pub(super) fn issue_own(authority: &Authority) -> Result<Shown, IdentityError> {
    let (certificate, key) = authority.issue_own(DEFAULT_CERTIFICATE_LIFE)?;
    Shown::try_new(vec![certificate, authority.certificate().clone()], &key.serialize_der())
}

/// A key of its own, and the request for a certificate of it, in PEM.
pub(crate) fn request() -> Result<(KeyPair, String), IdentityError> {
    let key = KeyPair::generate().map_err(unusable)?;
    let request = rcgen::CertificateParams::default().serialize_request(&key).map_err(unusable)?;
    let request = request.pem().map_err(unusable)?;
    Ok((key, request))
}

/// What an issuer answers: a certificate, and the authority's behind it, in PEM.
pub(crate) fn read_chain(text: &[u8]) -> Result<[CertificateDer<'static>; 2], IdentityError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(unusable)?;
    chain.try_into().map_err(|_| IdentityError::Unusable("expected a certificate and its authority's".into()))
}

/// Sees to it that a member can be kept in this directory, which is made where there is none, before a token is used for it. Who is there
/// already, and still holds, is not replaced.
pub(crate) fn prepare(directory: &Path) -> Result<(), IdentityError> {
    if directory.join(KEY).exists() {
        return Err(IdentityError::Occupied { path: directory.to_owned() });
    }
    check_writable(directory)?;
    if !directory.join(IDENTITY).exists() {
        return Ok(());
    }
    let (shown, authority) = read_shown(directory)?;
    if shown.member.validity.left(SystemTime::now()).is_zero() {
        return Ok(());
    }
    let cluster = cluster_of(&authority).unwrap_or_default();
    Err(IdentityError::Joined { path: directory.to_owned(), name: shown.member.name, cluster })
}

/// Puts what a new member has into its directory, which is [prepared](prepare). What has expired there is replaced.
pub(crate) fn keep_member(
    directory: &Path,
    issuers: &QuicUrl,
    key: &KeyPair,
    chain: &str,
) -> Result<(), IdentityError> {
    let mut secret = [0; 32];
    let filled = rand::SystemRandom::new().fill(&mut secret);
    filled.map_err(|_| IdentityError::Unusable("the system gives no random numbers".into()))?;
    replace_private_file(&directory.join(SECRET), &hex(&secret))?;
    replace_private_file(&directory.join(ISSUERS), &format!("{issuers}\n"))?;
    // Last: it is what makes a directory an identity.
    keep_shown(directory, key, chain)
}

impl Membership {
    /// What is in the directory now: another process of this member may have had it renewed.
    pub(super) fn read(&self, member: &Member) -> Result<Shown, IdentityError> {
        let (shown, authority) = read_shown(&self.directory)?;
        if self.is_of(member, &shown, &authority) {
            return Ok(shown);
        }
        Err(IdentityError::Replaced { path: self.directory.clone() })
    }

    /// Takes a new certificate of this member: into the directory first, so that it is not lost.
    pub(super) fn keep(&self, member: &Member, key: &KeyPair, chain: &str) -> Result<Shown, IdentityError> {
        let [certificate, authority] = read_chain(chain.as_bytes())?;
        let shown = Shown::try_new(vec![certificate], &key.serialize_der())?;
        if !self.is_of(member, &shown, &authority) {
            return Err(IdentityError::Unusable("the new certificate is somebody else's".into()));
        }
        keep_shown(&self.directory, key, chain)?;
        Ok(shown)
    }

    /// Whether a certificate is the same member's, in the same cluster: a running process does not become somebody else.
    fn is_of(&self, member: &Member, shown: &Shown, authority: &CertificateDer<'_>) -> bool {
        let Member { role, name, id, .. } = &shown.member;
        pin(authority) == self.authority && (role, name, id) == (&member.role, &member.name, &member.id)
    }
}

fn keep_shown(directory: &Path, key: &KeyPair, chain: &str) -> Result<(), IdentityError> {
    replace_private_file(&directory.join(IDENTITY), &format!("{}{chain}", key.serialize_pem()))
}

/// What is shown, and the authority's certificate.
fn read_shown(directory: &Path) -> Result<(Shown, CertificateDer<'static>), IdentityError> {
    let path = directory.join(IDENTITY);
    let text = read_private(&path)?;
    let damaged = |reason: String| IdentityError::Damaged { path: path.clone(), reason };
    let key = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|error| damaged(error.to_string()))?;
    let [certificate, authority] = read_chain(text.as_bytes()).map_err(|error| damaged(error.to_string()))?;
    let shown = Shown::try_new(vec![certificate], key.secret_pkcs8_der());
    Ok((shown.map_err(|error| damaged(error.to_string()))?, authority))
}
