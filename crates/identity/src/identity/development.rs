//! The development identity, for one user on one machine: its authority is made on first use.
//!
//! The authority is in the user's state directory, and refused if other users can read it. Each process issues itself a
//! certificate at start. The identity is refused beyond loopback, where the key of a user proves nothing.

use std::env;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{Identity, Origin, PresentedCertificate};
use crate::authority::{CERTIFICATE, KEY};
use crate::certificate::{Member, Role, Validity, fingerprint, has_public_key};
use crate::error::{IdentityError, unusable};
use crate::files::{check_directory, make_directory, read, read_private};

impl Identity {
    /// The identity of this user on this machine. Its authority is made, and logged, if it does not exist.
    ///
    /// # Errors
    ///
    /// When there is no state directory, or the identity in it cannot be used.
    pub fn development() -> Result<Self, IdentityError> {
        // The XDG specification ignores relative paths.
        let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or(IdentityError::NoStateDirectory)?;
        Self::development_in(&state.join("callboard/development"))
    }

    /// The development identity whose authority is in this directory, made if it does not exist.
    ///
    /// # Errors
    ///
    /// When the directory cannot be written, or the identity in it cannot be used.
    pub fn development_in(directory: &Path) -> Result<Self, IdentityError> {
        if !directory.join(CERTIFICATE).exists() {
            make_authority(directory).map_err(|error| match error {
                IdentityError::File { path, source } => IdentityError::StateDirectory { path, source },
                error => error,
            })?;
        }
        check_directory(directory)?;
        let (certificate, key) = read_authority(directory)?;
        let secret = key.serialize_der();
        let presented = issue(key)?;
        let cluster = format!("development-{}", fingerprint(&certificate));
        Self::new(cluster, presented, &certificate, secret, Origin::Development(directory.to_owned()))
    }
}

/// Makes the authority. The first of several processes makes it; the others find it complete.
fn make_authority(directory: &Path) -> Result<(), IdentityError> {
    let key = KeyPair::generate().map_err(unusable)?;
    let certificate = authority().self_signed(&key).map_err(unusable)?;
    if make_directory(directory, &[(KEY, &key.serialize_pem()), (CERTIFICATE, &certificate.pem())])? {
        tracing::info!(directory = %directory.display(), "made a development identity, for loopback only");
    }
    Ok(())
}

/// Always the same, so that certificates issued later name the same issuer.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Callboard development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn issue(authority_key: KeyPair) -> Result<PresentedCertificate, IdentityError> {
    let defaults = CertificateParams::default();
    let validity = Validity { not_before: defaults.not_before.into(), not_after: defaults.not_after.into() };
    let (name, id, issuer) = (String::new(), String::new(), String::new());
    let member = Member { role: Role::Node, name, id, validity, life: validity.life(), issuer, via: Vec::new() };
    let key = KeyPair::generate().map_err(unusable)?;
    let params = member.params(false).map_err(unusable)?;
    let certificate = params.signed_by(&key, &Issuer::new(authority(), authority_key)).map_err(unusable)?;
    PresentedCertificate::try_new(vec![certificate.into()], &key.serialize_der())
}

fn read_authority(directory: &Path) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
    let path = directory.join(CERTIFICATE);
    let certificate = CertificateDer::from_pem_slice(read(&path)?.as_bytes())
        .map_err(|error| IdentityError::Damaged { path, reason: error.to_string() })?;
    let path = directory.join(KEY);
    let text = read_private(&path)?;
    let damaged = |reason: String| IdentityError::Damaged { path, reason };
    let key = match KeyPair::from_pem(&text) {
        Ok(key) if has_public_key(&certificate, &key.subject_public_key_info()) => key,
        Ok(_) => return Err(damaged(format!("it is not the key of {CERTIFICATE}"))),
        Err(error) => return Err(damaged(error.to_string())),
    };
    Ok((certificate, key))
}
