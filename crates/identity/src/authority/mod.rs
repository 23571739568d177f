//! The authority of a cluster, in its own directory: it decides about members, their names, and their validity.
//!
//! A holder of its key can act as any member. One node holds the directory and issues certificates over its QUIC port;
//! the commands `token`, `revoke`, `members` and `remove` work on the same files at the same time. Only the key is kept
//! in memory, so what they write takes effect at once.

mod denied;
mod member_store;
mod removed;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_codec::hex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

pub use self::denied::JoinDenied;
use self::member_store::{MAX_USES, MemberRecord, MemberStore, TokenRecord, is_expired, role};
pub use self::removed::{MAX_LIST_BYTES, RemovedMembers};
use crate::certificate::{Member, Role, Validity, cluster_name, has_public_key, is_label, pin};
use crate::clock::seconds;
use crate::error::{IdentityError, unusable};
use crate::files::{check_directory, make_directory, read, read_private};
use crate::text::quoted;
use crate::token::{EXPORTED_BYTES, JoinToken, is_proven};

pub(crate) const CERTIFICATE: &str = "authority.pem";
pub(crate) const KEY: &str = "authority.key";

/// The member name of the node that holds the authority.
const OWN_NAME: &str = "authority";

/// The authority's own certificate outlives every member's. A cluster that runs longer needs a new authority.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Limits of the life of certificates and tokens.
const MIN_LIFE: Duration = Duration::from_secs(1);
const MAX_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);

/// The settings of a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    /// The role of members that join with it. Default: a node.
    pub role: Role,
    /// How many members may join with it, at most 1,000. Default 1. Threat: a token that leaks.
    pub uses: u32,
    /// How long it may be used. Default an hour, at most 90 days.
    pub expires_in: Duration,
    /// The life of the certificates issued for it, and of their renewals. Default a day, at most 90 days. A removed
    /// member can use its certificate that long at nodes that do not hear of the removal.
    pub certificate_life: Duration,
}

impl TokenSpec {
    /// The default life of a token.
    pub const DEFAULT_LIFE: Duration = Duration::from_secs(3600);

    /// The default life of certificates.
    pub const DEFAULT_CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);
}

impl Default for TokenSpec {
    fn default() -> Self {
        let (expires_in, certificate_life) = (Self::DEFAULT_LIFE, Self::DEFAULT_CERTIFICATE_LIFE);
        Self { role: Role::Node, uses: 1, expires_in, certificate_life }
    }
}

/// A member in the authority's list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Its name.
    pub name: String,
    /// Its rights.
    pub role: Role,
    /// The time at which it joined.
    pub joined: SystemTime,
    /// The [id](JoinToken::id) of the token with which it joined.
    pub token: String,
}

/// The members of a cluster.
#[derive(Debug)]
#[non_exhaustive]
pub struct MemberList {
    /// The members, sorted by name.
    pub members: Vec<MemberInfo>,
    /// The errors of records that could not be read.
    pub damaged: Vec<IdentityError>,
}

/// A request to join, as it was received.
#[derive(Debug)]
pub struct JoinRequest<'a> {
    /// The cluster to join.
    pub cluster: &'a str,
    /// The id of the token.
    pub token: &'a str,
    /// The name that the member asks for; empty for any.
    pub name: &'a str,
    /// The token's proof for this connection.
    pub proof: &'a str,
    /// The exported secret of the connection.
    pub exported: &'a [u8; EXPORTED_BYTES],
    /// The certificate request, in PEM.
    pub request: &'a [u8],
}

/// A cluster's authority. Cloning shares it.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

struct Inner {
    cluster: String,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    store: MemberStore,
}

impl Authority {
    /// Creates the authority of a new cluster, in a directory that must not exist.
    ///
    /// # Errors
    ///
    /// An invalid name, or a directory that exists or cannot be created.
    pub fn init(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        if !is_label(name) {
            return Err(IdentityError::Name { name: name.to_owned() });
        }
        if directory.exists() {
            return Err(IdentityError::Occupied { path: directory.to_owned() });
        }
        let key = KeyPair::generate().map_err(unusable)?;
        let certificate = params(name, SystemTime::now()).self_signed(&key).map_err(unusable)?;
        let files = [(CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        if !make_directory(directory, &files)? {
            return Err(IdentityError::Occupied { path: directory.to_owned() });
        }
        tracing::info!(directory = %directory.display(), cluster = name, "made a cluster's authority");
        Self::open(directory)
    }

    /// The authority in this directory.
    ///
    /// # Errors
    ///
    /// When the directory has none, other users can read its key, or its files are damaged.
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        if !directory.join(KEY).exists() {
            return Err(IdentityError::NoAuthority { path: directory.to_owned() });
        }
        check_directory(directory)?;
        let path = directory.join(KEY);
        let damaged = |path: &Path, reason: String| IdentityError::DamagedAuthority { path: path.to_owned(), reason };
        let key = KeyPair::from_pem(&read_private(&path)?).map_err(|error| damaged(&path, error.to_string()))?;
        let own_key = key.subject_public_key_info();
        let path = directory.join(CERTIFICATE);
        let certificate_pem = read(&path)?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes());
        let certificate = certificate.map_err(|error| damaged(&path, error.to_string()))?;
        let cluster = cluster_name(&certificate).ok_or_else(|| damaged(&path, "it names no cluster".to_owned()))?;
        // Half of a backup: no member would accept signatures of this key.
        if !has_public_key(&certificate, &own_key) {
            return Err(damaged(&path, format!("it is not the certificate of the key in {KEY}")));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|error| damaged(&path, error.to_string()))?;
        let store = MemberStore::new(directory);
        Ok(Self(Arc::new(Inner { cluster, certificate, certificate_pem, issuer, store })))
    }

    /// The cluster's name, with the beginning of its authority's digest.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// Makes a token. Its secret is not written anywhere.
    ///
    /// # Errors
    ///
    /// A number or a time outside its limits, or a directory that cannot be written.
    pub fn token(&self, spec: &TokenSpec) -> Result<JoinToken, IdentityError> {
        let limit = |what: &'static str, limit: &'static str| Err(IdentityError::Limit { what, limit });
        if !(1..=MAX_USES).contains(&spec.uses) {
            return limit("the uses of a token", "from 1 to 1000");
        }
        if !(MIN_LIFE..=MAX_LIFE).contains(&spec.expires_in) {
            return limit("the time in which a token may be used", "from a second to 90 days");
        }
        if !(MIN_LIFE..=MAX_LIFE).contains(&spec.certificate_life) {
            return limit("the life of a certificate", "from a second to 90 days");
        }
        let token = JoinToken::generate(pin(&self.0.certificate))?;
        let now = SystemTime::now();
        let record = TokenRecord {
            role: spec.role.to_string(),
            uses: spec.uses,
            expires: seconds(now + spec.expires_in),
            certificate_life: spec.certificate_life.as_secs(),
            public_key: token.public_key(),
            revoked: false,
        };
        self.0.store.add_token(&token.id(), &record, now)?;
        Ok(token)
    }

    /// The members that joined and were not removed, and the errors of records that cannot be read.
    ///
    /// # Errors
    ///
    /// A list that cannot be read.
    pub fn members(&self) -> Result<MemberList, IdentityError> {
        let (records, mut damaged) = self.0.store.members()?;
        let mut members = Vec::new();
        for (name, record) in records {
            let joined = SystemTime::UNIX_EPOCH + Duration::from_secs(record.joined);
            match role(&record.role, &self.0.store.member_path(&name)) {
                Ok(role) => members.push(MemberInfo { name, role, joined, token: record.token }),
                Err(error) => damaged.push(error),
            }
        }
        Ok(MemberList { members, damaged })
    }

    /// Removes a member: it gets no further certificate, and its certificate is refused by the node with this directory
    /// within a second, by other nodes when they next ask for the list. Its use of a token stays spent. `false`: there
    /// is no such member. A member whose record cannot be read is refused only when its certificate expires.
    ///
    /// # Errors
    ///
    /// A list that cannot be written.
    pub fn remove(&self, name: &str) -> Result<bool, IdentityError> {
        if is_label(name) { self.0.store.remove_member(name, SystemTime::now()) } else { Ok(false) }
    }

    /// The removed members whose certificates are still valid.
    pub(crate) fn removed(&self, now: SystemTime) -> Result<RemovedMembers, IdentityError> {
        self.0.store.removed(now)
    }

    /// The list of removed members, for a member that asks for it.
    ///
    /// # Errors
    ///
    /// No certificate, or that of a removed member; a list that cannot be read.
    pub fn removed_list(&self, member: Option<&Member>, now: SystemTime) -> Result<String, JoinDenied> {
        let member = member.ok_or(JoinDenied::NoCertificate)?;
        let removed = self.removed(now)?;
        if removed.contains(&member.id) {
            return Err(JoinDenied::RemovedMember(member.name.clone()));
        }
        Ok(removed.to_text())
    }

    /// Revokes a token, by its [id](JoinToken::id): it admits no further member. Members that joined with it stay; see
    /// [`remove`](Self::remove). `false`: there is no such token.
    ///
    /// # Errors
    ///
    /// A record that cannot be written.
    pub fn revoke(&self, id: &str) -> Result<bool, IdentityError> {
        self.0.store.revoke(id)
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.0.certificate
    }

    pub(crate) fn key_bytes(&self) -> Vec<u8> {
        self.0.issuer.key().serialize_der()
    }

    /// A certificate for the node that holds the authority, with its key.
    pub(crate) fn issue_own(&self, life: Duration) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
        let validity = Validity::from_now(SystemTime::now(), life);
        let member = Member { role: Role::Node, name: OWN_NAME.to_owned(), id: OWN_NAME.to_owned(), validity };
        self.issue(&member, true)
    }

    /// A certificate with a new key.
    pub(crate) fn issue(
        &self,
        member: &Member,
        is_issuer: bool,
    ) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
        let key = KeyPair::generate().map_err(unusable)?;
        let params = member.params(is_issuer).map_err(unusable)?;
        Ok((params.signed_by(&key, &self.0.issuer).map_err(unusable)?.into(), key))
    }

    /// Admits a new member. Returns its certificate and the authority's, in PEM.
    ///
    /// # Errors
    ///
    /// See [`JoinDenied`].
    pub fn admit(&self, joining: &JoinRequest<'_>, now: SystemTime) -> Result<String, JoinDenied> {
        let token = self.check_token(joining, now)?;
        let request = read_request(joining.request)?;
        let joined_with = hex::encode(digest::digest(&digest::SHA256, request.public_key.der_bytes()).as_ref());
        let name = member_name(joining, &token, &joined_with)?;
        let role = role(&token.role, &self.0.store.token_path(joining.token))?;
        let id = self.claim(joining, &token, &name, joined_with, now)?;
        let validity = Validity::from_now(now, Duration::from_secs(token.certificate_life));
        self.sign(request, &Member { role, name, id, validity })
    }

    /// The token of the request: of this cluster, proven, and usable now.
    fn check_token(&self, joining: &JoinRequest<'_>, now: SystemTime) -> Result<TokenRecord, JoinDenied> {
        if joining.cluster != self.0.cluster {
            return Err(JoinDenied::OtherCluster);
        }
        let token = self.0.store.token(joining.token)?.ok_or(JoinDenied::UnknownToken)?;
        if !is_proven(&token.public_key, joining.proof, joining.exported, joining.name, joining.request) {
            return Err(JoinDenied::ReplayedToken);
        }
        if token.revoked {
            return Err(JoinDenied::RevokedToken);
        }
        if is_expired(&token, now) {
            return Err(JoinDenied::ExpiredToken);
        }
        Ok(token)
    }

    /// Claims the name, and a use of the token for it. The same key gets the same name and use again. Returns the
    /// member's id.
    fn claim(
        &self,
        joining: &JoinRequest<'_>,
        token: &TokenRecord,
        name: &str,
        joined_with: String,
        now: SystemTime,
    ) -> Result<String, JoinDenied> {
        let store = &self.0.store;
        let known = store.member(name)?;
        if known.as_ref().is_some_and(|known| known.joined_with != joined_with) {
            return Err(JoinDenied::NameTaken(name.to_owned()));
        }
        // A certificate has the role in the member's record.
        if known.as_ref().is_some_and(|known| known.role != token.role) {
            return Err(JoinDenied::OtherRole(name.to_owned()));
        }
        if !store.claim_use(joining.token, token, &joined_with, name)? {
            return Err(JoinDenied::UsedUpToken);
        }
        // The token may have been revoked meanwhile, or it expired and was removed together with its uses.
        match store.token(joining.token)? {
            Some(token) if token.revoked => return Err(JoinDenied::RevokedToken),
            Some(_) => {}
            None => return Err(JoinDenied::ExpiredToken),
        }
        // The earlier answer did not arrive.
        if let Some(known) = known {
            return Ok(known.id);
        }
        let record = MemberRecord {
            id: format!("{:016x}", fastrand::u64(..)),
            role: token.role.clone(),
            joined_with,
            joined: seconds(now),
            token: joining.token.to_owned(),
            certificate_life: token.certificate_life,
        };
        if store.claim_name(name, &record)? { Ok(record.id) } else { Err(JoinDenied::NameTaken(name.to_owned())) }
    }

    /// Renews the presented certificate, for the same name, role and life.
    ///
    /// # Errors
    ///
    /// See [`JoinDenied`].
    pub fn renew(&self, member: Option<Member>, request: &[u8], now: SystemTime) -> Result<String, JoinDenied> {
        let member = member.ok_or(JoinDenied::NoCertificate)?;
        let known = if is_label(&member.name) { self.0.store.member(&member.name)? } else { None };
        let Some(known) = known.filter(|known| known.id == member.id) else {
            return Err(JoinDenied::RemovedMember(member.name));
        };
        if known.role != member.role.as_str() {
            return Err(JoinDenied::OtherRole(member.name));
        }
        let validity = Validity::from_now(now, member.validity.life());
        self.sign(read_request(request)?, &Member { validity, ..member })
    }

    /// Uses only the key of the request: the authority decides the content of the certificate.
    fn sign(&self, request: CertificateSigningRequestParams, member: &Member) -> Result<String, JoinDenied> {
        let params = member.params(false).map_err(unusable)?;
        let certificate = params.signed_by(&request.public_key, &self.0.issuer).map_err(unusable)?;
        Ok(certificate.pem() + &self.0.certificate_pem)
    }
}

/// Shows the cluster, never the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.0.cluster).finish_non_exhaustive()
    }
}

/// The name of a new member: the one it asks for, or one made from its key, so that the same key gets the same name.
fn member_name(joining: &JoinRequest<'_>, token: &TokenRecord, joined_with: &str) -> Result<String, JoinDenied> {
    let name = match joining.name {
        "" => format!("{}-{}", token.role, &joined_with[..12]),
        name => name.to_owned(),
    };
    if !is_label(&name) || name == OWN_NAME {
        return Err(JoinDenied::InvalidName(quoted(&name)));
    }
    Ok(name)
}

/// Reads the request and checks its signature, which proves that the requester has the key.
fn read_request(request: &[u8]) -> Result<CertificateSigningRequestParams, JoinDenied> {
    let text = std::str::from_utf8(request).map_err(|error| JoinDenied::InvalidRequest(error.to_string()))?;
    CertificateSigningRequestParams::from_pem(text).map_err(|error| JoinDenied::InvalidRequest(error.to_string()))
}

fn params(name: &str, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let validity = Validity::from_now(now, AUTHORITY_LIFE);
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params
}
