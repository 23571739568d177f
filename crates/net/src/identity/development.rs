//! An identity without ceremony, for one user on one machine: an authority that is made on first use.
//!
//! It lies in the user's state directory, readable by that user only, or it is refused; whoever can read it is that user. Each process issues itself a
//! certificate with it at start. Beyond loopback it is refused: a key that anybody's process may have proves nothing there.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::error::IdentityError;
use super::{Identity, Inner, SERVER_NAME, fingerprint, unusable};

const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority.key";

impl Identity {
    /// The identity of this user on this machine. Its authority is made when there is none, and announced in the log.
    ///
    /// # Errors
    ///
    /// When there is no state directory, or what lies there cannot be used.
    pub fn development() -> Result<Self, IdentityError> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
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
            make_authority(directory)?;
        }
        check_private(directory)?;
        check_private(&directory.join(KEY))?;
        let (certificate, key) = read_authority(directory)?;
        let mut authorities = RootCertStore::empty();
        authorities.add(certificate.clone()).map_err(unusable)?;
        let secret = key.serialize_der();
        let (chain, key) = issue(key).map_err(unusable)?;
        Ok(Self(Arc::new(Inner {
            cluster: format!("development-{}", fingerprint(&certificate)),
            chain: vec![chain],
            key,
            authorities: Arc::new(authorities),
            secret,
            loopback_only: true,
        })))
    }
}

/// Whoever comes first makes it; the others find it whole, because a directory is renamed at once or not at all.
fn make_authority(directory: &Path) -> Result<(), IdentityError> {
    let key = KeyPair::generate().map_err(unusable)?;
    let certificate = authority().self_signed(&key).map_err(unusable)?;
    let parent = directory.parent().unwrap_or_else(|| Path::new("."));
    let draft = parent.join(format!(".development-{}-{:x}", std::process::id(), fastrand::u64(..)));
    let written = private_directory(&draft)
        .and_then(|()| private_file(&draft.join(KEY), &key.serialize_pem()))
        .and_then(|()| private_file(&draft.join(CERTIFICATE), &certificate.pem()));
    written.map_err(|source| {
        // There may be a key in it.
        let _ = fs::remove_dir_all(&draft);
        IdentityError::File { path: draft.clone(), source }
    })?;
    let renamed = fs::rename(&draft, directory);
    if renamed.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    match renamed {
        Ok(()) => {
            tracing::info!(directory = %directory.display(), "made a development identity, for loopback only");
            Ok(())
        }
        Err(_) if directory.join(CERTIFICATE).exists() => Ok(()),
        Err(source) => Err(IdentityError::File { path: directory.to_owned(), source }),
    }
}

/// The same whenever it is asked for, so that what is issued later names the issuer as it is.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Callboard development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn issue(authority_key: KeyPair) -> Result<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>), rcgen::Error> {
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "Callboard development");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &Issuer::new(authority(), authority_key))?;
    Ok((certificate.into(), PrivatePkcs8KeyDer::from(key.serialize_der())))
}

fn read_authority(directory: &Path) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
    let path = directory.join(CERTIFICATE);
    let text = fs::read(&path).map_err(|source| IdentityError::File { path: path.clone(), source })?;
    let certificate = CertificateDer::from_pem_slice(&text)
        .map_err(|error| IdentityError::Damaged { path, reason: error.to_string() })?;
    let path = directory.join(KEY);
    let text = fs::read_to_string(&path).map_err(|source| IdentityError::File { path: path.clone(), source })?;
    let key = KeyPair::from_pem(&text).map_err(|error| IdentityError::Damaged { path, reason: error.to_string() })?;
    Ok((certificate, key))
}

/// Refuses what others can read, change or have put there: whoever has the key is this user.
#[cfg(unix)]
fn check_private(path: &Path) -> Result<(), IdentityError> {
    use std::os::unix::fs::MetadataExt;
    // Of the link, not of what it names: a link may name something else a moment later.
    let metadata =
        fs::symlink_metadata(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })?;
    let exposed = |reason| Err(IdentityError::Exposed { path: path.to_owned(), reason });
    if metadata.file_type().is_symlink() {
        exposed("it is a symbolic link")
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        exposed("it belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        exposed("others may use it, too")
    } else {
        Ok(())
    }
}

#[cfg(not(unix))]
fn check_private(_path: &Path) -> Result<(), IdentityError> {
    Ok(())
}

#[cfg(unix)]
fn private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(unix)]
fn private_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

#[cfg(not(unix))]
fn private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

#[cfg(not(unix))]
fn private_file(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
}
