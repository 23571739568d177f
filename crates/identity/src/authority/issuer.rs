//! Issuers: authorities below the root, whose key can then stay where no node runs.
//!
//! ```text
//!  the issuer's machine       the root's machine            the directory of an issuer
//!  1 request ────────────────► 2 certify                    authority.key   made here, and never moved
//!  3 install ◄────────────────┘                             authority.pem   its certificate, then the root's
//! ```
//!
//! The same three steps with the same key renew the certificate, also while a node serves the directory.

use std::path::Path;
use std::time::{Duration, SystemTime};

use callboard_codec::hex;
use rcgen::{CertificateSigningRequestParams, KeyPair, PublicKeyData};
use ring::digest;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{Authority, CERTIFICATE, KEY, MAX_LIFE, MIN_LIFE, OWN_NAME};
use crate::certificate::{ISSUER_NAME, IssuerCertificate, Member, Role, Validity, has_public_key, is_label, pin};
use crate::error::{IdentityError, unusable};
use crate::files::{
    IDENTITY, check_directory, check_writable, claim_private_file, make_directory, read, read_private,
    replace_private_file,
};
use crate::tls::verify_node;

/// The certificates of an authority: that of the root, and before it the issuer's own, unless this is the root.
pub(super) struct AuthorityChain {
    pub(super) issuer: Option<(IssuerCertificate, CertificateDer<'static>)>,
    pub(super) root: CertificateDer<'static>,
    pub(super) pem: String,
}

impl AuthorityChain {
    /// Reads it from the authority's directory.
    pub(super) fn read(directory: &Path, own_key: &[u8]) -> Result<Self, IdentityError> {
        let path = directory.join(CERTIFICATE);
        if !path.exists() {
            return Err(IdentityError::Uncertified { path: directory.to_owned() });
        }
        Self::parse(read(&path)?, own_key).map_err(|reason| IdentityError::DamagedAuthority { path, reason })
    }

    fn parse(pem: String, own_key: &[u8]) -> Result<Self, String> {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let mut chain = chain.map_err(|error| error.to_string())?;
        let root = chain.pop().ok_or("it has no certificate")?;
        // Half of a backup: no member would accept signatures of this key.
        if !has_public_key(chain.first().unwrap_or(&root), own_key) {
            return Err(format!("it is not the certificate of the key in {KEY}"));
        }
        let issuer = match <[_; 1]>::try_from(chain) {
            Ok([own]) => {
                Some((IssuerCertificate::from_certificate(&own).ok_or("its first certificate names no issuer")?, own))
            }
            Err(chain) if chain.is_empty() => None,
            Err(_) => return Err("it has more than an issuer's certificate and the root's".to_owned()),
        };
        Ok(Self { issuer, root, pem })
    }

    /// The certificate of the key that signs.
    pub(super) fn signer(&self) -> &CertificateDer<'static> {
        self.issuer.as_ref().map_or(&self.root, |(_, certificate)| certificate)
    }

    /// The name and the id of the node that has the key.
    pub(super) fn own_name(&self) -> (&str, &str) {
        self.issuer.as_ref().map_or((OWN_NAME, OWN_NAME), |(issuer, _)| (&issuer.name, &issuer.id))
    }

    /// The id that its members' certificates have of their issuer.
    pub(super) fn issuer_id(&self) -> &str {
        self.issuer.as_ref().map_or("", |(issuer, _)| &issuer.id)
    }

    /// A validity of this life from now on, or as long as that of the issuer.
    pub(super) fn validity(&self, now: SystemTime, life: Duration) -> Validity {
        let mut validity = Validity::from_now(now, life);
        if let Some((issuer, _)) = &self.issuer {
            validity.not_after = validity.not_after.min(issuer.validity.not_after);
        }
        validity
    }

    /// A validity for the renewal of a certificate that ends then. `None`: because the issuer's certificate ends, the
    /// new one would end no later, while another issuer may give more.
    pub(super) fn later_validity(&self, now: SystemTime, life: Duration, ends: SystemTime) -> Option<Validity> {
        let validity = self.validity(now, life);
        let is_cut = self.issuer.is_some() && validity.not_after < now + life;
        (!is_cut || validity.not_after > ends).then_some(validity)
    }
}

impl Authority {
    /// The request for an issuer's certificate, in PEM, of the key in this directory. Makes the directory and the key
    /// where they are missing.
    ///
    /// # Errors
    ///
    /// A directory with the key of a cluster's root or a member's identity, or that cannot be used.
    pub fn request_issuer(directory: &Path) -> Result<String, IdentityError> {
        let path = directory.join(KEY);
        // A key would make the directory of a member that of an authority.
        if directory.join(IDENTITY).exists() {
            return Err(IdentityError::MemberDirectory { path: directory.to_owned() });
        }
        if path.exists() {
            let key = read_key(directory)?;
            refuse_root(directory, &key)?;
            return request(&key);
        }
        let key = KeyPair::generate().map_err(unusable)?;
        if !directory.exists() && make_directory(directory, &[(KEY, &key.serialize_pem())])? {
            return request(&key);
        }
        check_writable(directory)?;
        let claimed = claim_private_file(&path, &key.serialize_pem());
        claimed.map_err(|source| IdentityError::File { path, source })?;
        request(&key)
    }

    /// Signs an issuer's certificate, with the key of the cluster's root. Returns it and the root's, in PEM.
    ///
    /// # Errors
    ///
    /// A directory of an issuer, an invalid name or request, or a life outside its limits.
    pub fn certify_issuer(
        &self,
        request: &str,
        name: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<(IssuerCertificate, String), IdentityError> {
        let chain = self.chain()?;
        if chain.issuer.is_some() {
            return Err(IdentityError::NoRoot { path: self.0.directory.clone() });
        }
        if !is_label(name) || name == OWN_NAME {
            return Err(IdentityError::Name { name: name.to_owned() });
        }
        if !(MIN_LIFE..=MAX_LIFE).contains(&life) {
            let (what, limit) = ("the life of an issuer's certificate", "from a second to 90 days");
            return Err(IdentityError::Limit { what, limit });
        }
        // Checks its signature, which proves that the issuer has the key.
        let request = CertificateSigningRequestParams::from_pem(request).map_err(unusable)?;
        let digest = digest::digest(&digest::SHA256, request.public_key.der_bytes());
        let (name, id) = (name.to_owned(), hex::encode(&digest.as_ref()[..8]));
        let issuer = IssuerCertificate { name, id, validity: Validity::from_now(now, life) };
        let params = issuer.params().map_err(unusable)?;
        let signed = params.signed_by(&request.public_key, &self.signer(&chain)?).map_err(unusable)?;
        Ok((issuer, signed.pem() + &chain.pem))
    }

    /// Stores the certificate of the issuer in this directory, in place of an earlier one of the same cluster. A node
    /// that serves the directory signs with it from then on.
    ///
    /// # Errors
    ///
    /// A certificate of another key or cluster, or one that members would refuse.
    pub fn install_issuer(
        directory: &Path,
        chain: &str,
        now: SystemTime,
    ) -> Result<(IssuerCertificate, Self), IdentityError> {
        let key = read_key(directory)?;
        refuse_root(directory, &key)?;
        let invalid = |reason: String| IdentityError::IssuerCertificate { reason };
        let parsed = AuthorityChain::parse(chain.to_owned(), &key.subject_public_key_info()).map_err(invalid)?;
        let Some((issuer, _)) = parsed.issuer.clone() else {
            return Err(invalid("it is that of a root".to_owned()));
        };
        if let Ok(before) = AuthorityChain::read(directory, &key.subject_public_key_info())
            && (pin(&before.root) != pin(&parsed.root) || before.own_name() != parsed.own_name())
        {
            let reason = "it is of another cluster, or has another name, than the one that is there".to_owned();
            return Err(invalid(reason));
        }
        // As members verify it: with a certificate that this issuer has signed.
        let member = Member {
            role: Role::Node,
            name: issuer.name.clone(),
            id: issuer.id.clone(),
            validity: parsed.validity(now, MIN_LIFE),
            life: MIN_LIFE,
            issuer: issuer.id.clone(),
            via: Vec::new(),
        };
        let signed = member.params(true).map_err(unusable)?;
        let signer = rcgen::Issuer::from_ca_cert_der(parsed.signer(), &key).map_err(unusable)?;
        let signed = signed.signed_by(&key, &signer).map_err(unusable)?;
        let mut roots = RootCertStore::empty();
        roots.add(parsed.root.clone()).map_err(unusable)?;
        let verified = verify_node(roots.into(), &[signed.into(), parsed.signer().clone()], ISSUER_NAME, now);
        verified.map_err(|error| invalid(error.to_string()))?;
        replace_private_file(&directory.join(CERTIFICATE), chain)?;
        Ok((issuer, Self::open(directory)?))
    }

    /// The certificate of this issuer; none of a root.
    ///
    /// # Errors
    ///
    /// Files that cannot be read.
    pub fn issuer(&self) -> Result<Option<IssuerCertificate>, IdentityError> {
        Ok(self.chain()?.issuer.map(|(issuer, _)| issuer))
    }
}

fn request(key: &KeyPair) -> Result<String, IdentityError> {
    let request = rcgen::CertificateParams::default().serialize_request(key).map_err(unusable)?;
    request.pem().map_err(unusable)
}

/// The key of the authority in this directory.
pub(super) fn read_key(directory: &Path) -> Result<KeyPair, IdentityError> {
    if !directory.join(KEY).exists() {
        return Err(IdentityError::NoAuthority { path: directory.to_owned() });
    }
    check_directory(directory)?;
    let path = directory.join(KEY);
    KeyPair::from_pem(&read_private(&path)?)
        .map_err(|error| IdentityError::DamagedAuthority { path, reason: error.to_string() })
}

/// Another certificate of the root's key would make a cluster of its own useless.
fn refuse_root(directory: &Path, key: &KeyPair) -> Result<(), IdentityError> {
    match AuthorityChain::read(directory, &key.subject_public_key_info()) {
        Ok(chain) if chain.issuer.is_none() => Err(IdentityError::Occupied { path: directory.to_owned() }),
        Ok(_) | Err(IdentityError::Uncertified { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
