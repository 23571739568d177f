//! An identity without ceremony, for one user on one machine: an authority that is made on first use.
//!
//! It lies in the user's state directory, readable by that user only, or it is refused; whoever can read it is that user. Each process issues itself a
//! certificate with it at start. Beyond loopback it is refused: a key that anybody's process may have proves nothing there.

use std::env;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::authority::{CERTIFICATE, KEY, is_of_key};
use super::certificate::{Member, Role, Validity};
use super::error::IdentityError;
use super::files::{check_private, make_directory, read, read_private};
use super::{Identity, Origin, Shown, fingerprint, unusable};

impl Identity {
    /// The identity of this user on this machine. Its authority is made when there is none, and announced in the log; whoever serves with
    /// it says where it lies.
    ///
    /// # Errors
    ///
    /// When there is no state directory, or what lies there cannot be used.
    pub fn development() -> Result<Self, IdentityError> {
        // What is not absolute is not valid there, by the specification of these directories.
        let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or(IdentityError::NoStateDirectory)?;
        Self::development_in(&state.join("callboard/development"))
    }

    /// The development identity whose authority lies in this directory, made when it is not there.
    ///
    /// # Errors
    ///
    /// When what lies there cannot be used, or nothing can be put there.
    pub fn development_in(directory: &Path) -> Result<Self, IdentityError> {
        if !directory.join(CERTIFICATE).exists() {
            make_authority(directory).map_err(|error| match error {
                IdentityError::File { path, source } => IdentityError::StateDirectory { path, source },
                error => error,
            })?;
        }
        check_private(directory)?;
        let (certificate, key) = read_authority(directory)?;
        let secret = key.serialize_der();
        let shown = issue(key)?;
        let cluster = format!("development-{}", fingerprint(&certificate));
        Self::new(cluster, shown, &certificate, secret, Origin::Development(directory.to_owned()))
    }
}

/// Whoever comes first makes it; the others find it whole.
fn make_authority(directory: &Path) -> Result<(), IdentityError> {
    let key = KeyPair::generate().map_err(unusable)?;
    let certificate = authority().self_signed(&key).map_err(unusable)?;
    if make_directory(directory, &[(KEY, &key.serialize_pem()), (CERTIFICATE, &certificate.pem())])? {
        tracing::info!(directory = %directory.display(), "made a development identity, for loopback only");
    }
    Ok(())
}

/// The same whenever it is asked for, so that what is issued later names the issuer as it is.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Callboard development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn issue(authority_key: KeyPair) -> Result<Shown, IdentityError> {
    let defaults = CertificateParams::default();
    let validity = Validity { not_before: defaults.not_before.into(), not_after: defaults.not_after.into() };
    let member = Member { role: Role::Node, name: String::new(), id: String::new(), validity };
    let key = KeyPair::generate().map_err(unusable)?;
    let params = member.params(false).map_err(unusable)?;
    let certificate = params.signed_by(&key, &Issuer::new(authority(), authority_key)).map_err(unusable)?;
    Shown::try_new(vec![certificate.into()], &key.serialize_der())
}

fn read_authority(directory: &Path) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
    let path = directory.join(CERTIFICATE);
    let certificate = CertificateDer::from_pem_slice(read(&path)?.as_bytes())
        .map_err(|error| IdentityError::Damaged { path, reason: error.to_string() })?;
    let path = directory.join(KEY);
    let text = read_private(&path)?;
    let damaged = |reason: String| IdentityError::Damaged { path, reason };
    let key = match KeyPair::from_pem(&text) {
        Ok(key) if is_of_key(&certificate, &key.subject_public_key_info()) => key,
        Ok(_) => return Err(damaged(format!("it is not the key of {CERTIFICATE}"))),
        Err(error) => return Err(damaged(error.to_string())),
    };
    Ok((certificate, key))
}
