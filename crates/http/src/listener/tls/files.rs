//! The two files of a certificate: read with a limit, compared by content, parsed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use callboard_codec::edited_text;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;
use crate::config::TlsConfig;
use crate::runtime::file_watch::read_bounded;

/// A chain of a dozen certificates has some 30 KiB; a larger file is a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The content of both files.
pub(super) struct CertificatePair {
    certificate: (PathBuf, Vec<u8>),
    key: (PathBuf, Vec<u8>),
}

impl CertificatePair {
    pub(super) fn read(config: &TlsConfig) -> Result<Self, TlsError> {
        let read = |path: &Path| match read_bounded(path, MAX_FILE_BYTES) {
            Ok(content) => Ok((path.to_owned(), content)),
            Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
        };
        Ok(Self { certificate: read(&config.certificate)?, key: read(&config.key)? })
    }

    pub(super) fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let (path, content) = &self.certificate;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&edited(content)).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or_else(|| TlsError::Pem { path: path.clone(), what: "certificate" })?;
        let (path, content) = &self.key;
        let key = PrivateKeyDer::from_pem_slice(&edited(content));
        Ok((chain, key.map_err(|_| TlsError::Pem { path: path.clone(), what: "private key" })?))
    }
}

/// The PEM as the editor meant it. A comment may be in any encoding; the rest is ASCII.
fn edited(content: &[u8]) -> Vec<u8> {
    edited_text(&String::from_utf8_lossy(content)).into_owned().into_bytes()
}

/// Identifies a reading, also a failed one, so that the same error is logged once.
pub(super) fn fingerprint(read: &Result<CertificatePair, TlsError>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match read {
        Ok(pair) => (&pair.certificate.1, &pair.key.1).hash(&mut hasher),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    hasher.finish()
}
