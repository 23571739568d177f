//! A list of removed members that an issuer has signed, so that any node can pass it on.
//!
//! ```text
//! list   form u8 (1), version u64, count u16, that many entries, count u8 (1 or 2), that many certificates,
//!        length u16, signature
//! entry  id u64, the second since 1970 until which it counts u64
//! certificate  length u16, DER: that of the issuer's node, then the issuer's own unless it is the root
//! ```
//!
//! Numbers are big-endian. The signature (ECDSA, P-256, SHA-256) is of `callboard removed 1` and all bytes before its
//! length, by the key of the first certificate. Of two lists of an issuer the higher version counts; the lists of
//! several issuers count side by side.

use std::sync::Arc;
use std::time::SystemTime;

use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::RootCertStore;
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::RemovedMembers;
use crate::certificate::{ISSUER_NAME, Member};
use crate::error::{IdentityError, unusable};
use crate::tls::verify_node;

/// The longest signed list.
pub const MAX_SIGNED_BYTES: usize = 32 << 10;

/// The most entries. Of more removed members, those whose certificates expire first are left out; nodes that ask for the
/// whole list learn of them.
pub(crate) const MAX_ENTRIES: usize = 1_500;

/// The longest certificate.
const MAX_CERTIFICATE_BYTES: usize = 2 << 10;

const FORM: u8 = 1;
const CONTEXT: &[u8] = b"callboard removed 1";

/// The reason why a signed list is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRemovals {
    /// It does not have its form.
    #[error("{field} is invalid: {limit}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it may be.
        limit: &'static str,
    },
    /// The signer is no issuer of this cluster, or was removed, or has ended.
    #[error("it is not of an issuer of this cluster: {0}")]
    Signer(String),
    /// The signature is of another list or key.
    #[error("its signature is wrong")]
    Signature,
}

const fn field(field: &'static str, limit: &'static str) -> InvalidRemovals {
    InvalidRemovals::Field { field, limit }
}

/// A list with its signature, which is verified separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRemovals {
    /// Of two lists of an issuer, the higher one counts.
    pub version: u64,
    /// The removed members.
    pub removed: RemovedMembers,
    chain: Vec<CertificateDer<'static>>,
    /// The signed bytes, with their context.
    content: Vec<u8>,
    signature: Vec<u8>,
}

impl SignedRemovals {
    /// Signs a list with the key of an issuer's node. Entries that have no room are left out.
    pub(crate) fn sign(version: u64, removed: &RemovedMembers, key: &CertifiedKey) -> Result<Vec<u8>, IdentityError> {
        let chain: Vec<_> = key.cert.iter().take(key.cert.len().saturating_sub(1)).collect();
        let mut bytes = vec![FORM];
        bytes.extend(version.to_be_bytes());
        let entries = removed.latest(MAX_ENTRIES);
        // At most `MAX_ENTRIES`.
        bytes.extend((entries.len() as u16).to_be_bytes());
        for (id, until) in entries {
            bytes.extend(id.to_be_bytes());
            bytes.extend(until.to_be_bytes());
        }
        bytes.push(chain.len() as u8);
        for certificate in chain {
            put(&mut bytes, certificate)?;
        }
        let signer = key.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]);
        let signer = signer.ok_or_else(|| IdentityError::Unusable("its key is not of P-256".into()))?;
        let signature = signer.sign(&[CONTEXT, &bytes].concat()).map_err(unusable)?;
        put(&mut bytes, &signature)?;
        Ok(bytes)
    }

    /// Reads a list. Nothing in it is true before its signature is verified.
    ///
    /// # Errors
    ///
    /// Bytes without its form.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidRemovals> {
        if bytes.len() > MAX_SIGNED_BYTES {
            return Err(field("the length of the list", "at most 32768 bytes"));
        }
        let mut rest = bytes;
        if take::<1>(&mut rest, "the form")? != [FORM] {
            return Err(field("the form", "1"));
        }
        let version = u64::from_be_bytes(take(&mut rest, "the version")?);
        let count = u16::from_be_bytes(take(&mut rest, "the count of entries")?);
        if usize::from(count) > MAX_ENTRIES {
            return Err(field("the count of entries", "at most 1500"));
        }
        let mut removed = Vec::new();
        for _ in 0..count {
            let id = u64::from_be_bytes(take(&mut rest, "an id")?);
            removed.push((format!("{id:016x}"), u64::from_be_bytes(take(&mut rest, "the end of an entry")?)));
        }
        let mut chain = Vec::new();
        let [certificates] = take(&mut rest, "the count of certificates")?;
        if !(1..=2).contains(&certificates) {
            return Err(field("the count of certificates", "1 or 2"));
        }
        for _ in 0..certificates {
            chain.push(CertificateDer::from(take_bytes(&mut rest, "a certificate")?.to_vec()));
        }
        let content = [CONTEXT, &bytes[..bytes.len() - rest.len()]].concat();
        let signature = take_bytes(&mut rest, "the signature")?.to_vec();
        if !rest.is_empty() {
            return Err(field("the end", "no bytes after the signature"));
        }
        Ok(Self { version, removed: RemovedMembers::new(removed), chain, content, signature })
    }

    /// The node that claims to have signed it.
    ///
    /// # Errors
    ///
    /// A certificate of no member.
    pub(crate) fn signer(&self) -> Result<Member, InvalidRemovals> {
        let signer = self.chain.first().and_then(Member::from_certificate);
        signer.ok_or_else(|| InvalidRemovals::Signer("its certificate names no member".to_owned()))
    }

    /// Checks that an issuer of the cluster with these roots has signed it.
    ///
    /// # Errors
    ///
    /// A list of any other, or one that was changed.
    pub(crate) fn verify(&self, roots: Arc<RootCertStore>, now: SystemTime) -> Result<(), InvalidRemovals> {
        let verified = verify_node(roots, &self.chain, ISSUER_NAME, now);
        verified.map_err(|error| InvalidRemovals::Signer(error.to_string()))?;
        let (_, signer) =
            x509_parser::parse_x509_certificate(&self.chain[0]).map_err(|_| InvalidRemovals::Signature)?;
        let key = &signer.public_key().subject_public_key.data;
        let verified = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(&self.content, &self.signature);
        verified.map_err(|_| InvalidRemovals::Signature)
    }
}

/// Writes bytes after their length.
fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), IdentityError> {
    if bytes.len() > MAX_CERTIFICATE_BYTES {
        return Err(IdentityError::Unusable("a certificate of more than 2048 bytes".into()));
    }
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
    Ok(())
}

fn take<const N: usize>(rest: &mut &[u8], name: &'static str) -> Result<[u8; N], InvalidRemovals> {
    let (taken, after) = rest.split_first_chunk().ok_or_else(|| field(name, "the list ends before it"))?;
    *rest = after;
    Ok(*taken)
}

fn take_bytes<'a>(rest: &mut &'a [u8], name: &'static str) -> Result<&'a [u8], InvalidRemovals> {
    let length = usize::from(u16::from_be_bytes(take(rest, name)?));
    if length > MAX_CERTIFICATE_BYTES {
        return Err(field(name, "at most 2048 bytes"));
    }
    let (taken, after) = rest.split_at_checked(length).ok_or_else(|| field(name, "the list ends before it"))?;
    *rest = after;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A list with a certificate of anything.
    fn list(entries: &[(u64, u64)], certificates: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![FORM];
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend((entries.len() as u16).to_be_bytes());
        entries.iter().for_each(|(id, until)| bytes.extend([id.to_be_bytes(), until.to_be_bytes()].concat()));
        bytes.push(certificates.len() as u8);
        certificates.iter().chain([&vec![9; 70]]).for_each(|part| {
            bytes.extend((part.len() as u16).to_be_bytes());
            bytes.extend(part);
        });
        bytes
    }

    proptest! {
        #[test]
        fn any_list_is_read_as_it_was_written(
            entries in prop::collection::btree_map(any::<u64>(), any::<u64>(), 0..50),
            certificates in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..3),
        ) {
            let entries: Vec<_> = entries.into_iter().collect();
            let bytes = list(&entries, &certificates);
            let read = SignedRemovals::read(&bytes).unwrap();
            prop_assert_eq!((read.version, read.removed.latest(MAX_ENTRIES).len()), (7, entries.len()));
            let is_read = |(id, _): &(u64, u64)| read.removed.contains(&format!("{id:016x}"));
            prop_assert!(entries.iter().all(is_read));
            prop_assert_eq!(read.chain.len(), certificates.len());
            prop_assert_eq!(read.signature, vec![9; 70]);
            // Each part counts: no beginning is a list.
            for end in 0..bytes.len() {
                prop_assert!(SignedRemovals::read(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn no_bytes_panic_and_no_stranger_is_believed(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let mut changed = list(&[(1, 2), (3, 4)], std::slice::from_ref(&bytes));
            let at = at.index(changed.len());
            changed[at] = to;
            for bytes in [bytes, changed] {
                if let Ok(read) = SignedRemovals::read(&bytes) {
                    prop_assert!(read.signer().is_err());
                    prop_assert!(read.verify(Arc::new(RootCertStore::empty()), SystemTime::now()).is_err());
                }
            }
        }
    }

    #[test]
    fn each_limit_is_named() {
        let certificate = vec![vec![0; 10]];
        let error = |bytes: &[u8]| SignedRemovals::read(bytes).unwrap_err().to_string();
        let most = vec![(1, 1); MAX_ENTRIES];
        assert!(SignedRemovals::read(&list(&most, &certificate)).is_ok());
        let more = vec![(1, 1); MAX_ENTRIES + 1];
        assert_eq!(error(&list(&more, &certificate)), "the count of entries is invalid: at most 1500");
        assert_eq!(error(&[0; MAX_SIGNED_BYTES + 1]), "the length of the list is invalid: at most 32768 bytes");
        for count in [0, 3] {
            let certificates = vec![vec![0; 10]; count];
            assert_eq!(error(&list(&[], &certificates)), "the count of certificates is invalid: 1 or 2");
        }
        let long = vec![vec![0; MAX_CERTIFICATE_BYTES + 1]];
        assert_eq!(error(&list(&[], &long)), "a certificate is invalid: at most 2048 bytes");
        assert_eq!(
            error(&[list(&[], &certificate), vec![0]].concat()),
            "the end is invalid: no bytes after the signature"
        );
        assert_eq!(error(&[2]), "the form is invalid: 1");
    }
}
