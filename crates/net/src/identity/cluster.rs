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
use super::error::IdentityError;
use super::files::{check_private, failed, private_directory, read, read_private, replace_private_file};
use super::{Identity, Origin, Shown, hex, unusable};
use crate::client::QuicUrl;

const IDENTITY: &str = "identity.pem";
const SECRET: &str = "secret";
const ISSUERS: &str = "issuers";

/// A member's directory, and where it has its certificates from.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    directory: PathBuf,
    pub(crate) issuers: QuicUrl,
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
        let membership = Membership { directory: directory.to_owned(), issuers };
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

/// Refuses a directory in which nobody should join.
pub(crate) fn check_free(directory: &Path) -> Result<(), IdentityError> {
    match directory.join(KEY).exists() {
        true => Err(IdentityError::Occupied { path: directory.to_owned() }),
        false => Ok(()),
    }
}

/// Puts what a new member has into its directory. What was there before, and has expired or was removed, is replaced.
pub(crate) fn keep_member(
    directory: &Path,
    issuers: &QuicUrl,
    key: &KeyPair,
    chain: &str,
) -> Result<(), IdentityError> {
    private_directory(directory).map_err(|source| failed(directory, source))?;
    check_private(directory)?;
    let mut secret = [0; 32];
    let filled = rand::SystemRandom::new().fill(&mut secret);
    filled.map_err(|_| IdentityError::Unusable("the system gives no random numbers".into()))?;
    replace_private_file(&directory.join(SECRET), &hex(&secret))?;
    replace_private_file(&directory.join(ISSUERS), &format!("{issuers}\n"))?;
    // Last: it is what makes a directory an identity.
    keep_shown(directory, key, chain)
}

impl Membership {
    /// What is in the directory now: another process may have had it renewed.
    pub(super) fn read(&self) -> Result<Shown, IdentityError> {
        read_shown(&self.directory).map(|(shown, _)| shown)
    }

    /// Takes a new certificate: into the directory first, so that it is not lost.
    pub(super) fn keep(&self, key: &KeyPair, chain: &str) -> Result<Shown, IdentityError> {
        let [certificate, _] = read_chain(chain.as_bytes())?;
        let shown = Shown::try_new(vec![certificate], &key.serialize_der())?;
        keep_shown(&self.directory, key, chain)?;
        Ok(shown)
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
