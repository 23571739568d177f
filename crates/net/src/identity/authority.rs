//! The authority of a cluster, in a directory of its own: who may join, under which name, and for how long.
//!
//! Its key is all there is to the cluster: who has it is anybody in it. One node holds the directory and gives certificates over its
//! QUIC port; the commands `token`, `revoke`, `members` and `remove` work on the same files beside it, at any time. Nothing is held in memory
//! but the key, so that what they write is true at once.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::{Member, Role, Validity, is_label};
use super::error::IdentityError;
use super::files::{check_private, make_directory, read, read_private};
use super::register::{Entry, MAX_USES, Register, Token, is_over, role, seconds};
use super::removed::Removed;
use super::token::{EXPORTED_BYTES, JoinToken, is_proven};
use super::{fingerprint, hex, pin, unusable};
use crate::refusal::quoted;

pub(super) const CERTIFICATE: &str = "authority.pem";
pub(super) const KEY: &str = "authority.key";

/// What the holder of the authority is called among its members.
const OWN_NAME: &str = "authority";

/// The authority's own certificate outlives every member's; whoever runs a cluster for longer makes another one.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// For how long certificates hold, and tokens may be used.
const MIN_LIFE: Duration = Duration::from_secs(1);
pub(super) const MAX_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);

/// How long certificates hold of those who do not say.
pub const DEFAULT_CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long a token may be used of those who do not say.
pub const DEFAULT_TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// What a new token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    /// What its holder may be. Default: a node.
    pub role: Role,
    /// How many members may join with it, at most 1,000. Default 1. Threat: a token that leaks.
    pub uses: u32,
    /// How long it may be used. Default an hour, at most 90 days.
    pub expires_in: Duration,
    /// How long the certificates hold that it gives, and those that are given in their place. Default a day, at most 90 days: a member
    /// that was removed has as long to go at nodes that do not hear of it.
    pub certificate_life: Duration,
}

impl Default for TokenSpec {
    fn default() -> Self {
        let (expires_in, certificate_life) = (DEFAULT_TOKEN_LIFE, DEFAULT_CERTIFICATE_LIFE);
        Self { role: Role::Node, uses: 1, expires_in, certificate_life }
    }
}

/// A member, as the authority's list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// What it is called.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When it has joined.
    pub joined: SystemTime,
    /// The [id](JoinToken::id) of the token with which it has joined.
    pub token: String,
}

/// The members of a cluster.
#[derive(Debug)]
#[non_exhaustive]
pub struct MemberList {
    /// In the order of their names.
    pub members: Vec<MemberInfo>,
    /// What is wrong with each entry that was passed over.
    pub damaged: Vec<IdentityError>,
}

/// Why somebody has no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denial {
    #[error("the token is of another cluster: take one that was made for this one")]
    OtherCluster,
    #[error("this cluster has no such token, or has it no more: make a new one (`callboard cluster token`)")]
    UnknownToken,
    #[error("the token has expired: make a new one (`callboard cluster token --expires`)")]
    ExpiredToken,
    #[error("the token was revoked: ask whoever runs the cluster for another one (`callboard cluster token`)")]
    RevokedToken,
    #[error("all uses of the token are used up: make a new one (`callboard cluster token --uses`)")]
    UsedUpToken,
    #[error("the proof is not of this connection: it was recorded, passed on or damaged; join with the token itself")]
    ReplayedToken,
    #[error("not a certificate request: {0}")]
    Request(String),
    #[error("{0} is not a name: expected up to 40 of a-z, 0-9 and -")]
    Name(String),
    #[error("there is a member `{0}`: take another name, or remove that one first (`callboard cluster remove`)")]
    NameTaken(String),
    #[error("there is a member `{0}` of another role: take another name, or a token of its role")]
    OtherRole(String),
    #[error("there is no member `{0}` any more: join again with a new token")]
    Removed(String),
    #[error("a renewal needs the certificate that is to be renewed: join with a token")]
    NoCertificate,
    #[error("the authority could not do it; its own log says why")]
    Failed(#[from] IdentityError),
}

impl Denial {
    /// The one word, for metrics and programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::OtherCluster => "other_cluster",
            Self::UnknownToken => "unknown_token",
            Self::ExpiredToken => "expired_token",
            Self::RevokedToken => "revoked_token",
            Self::UsedUpToken => "used_up_token",
            Self::ReplayedToken => "replayed_token",
            Self::Request(_) => "bad_request",
            Self::Name(_) => "bad_name",
            Self::NameTaken(_) => "name_taken",
            Self::OtherRole(_) => "other_role",
            Self::Removed(_) => "removed_member",
            Self::NoCertificate => "no_certificate",
            Self::Failed(_) => "authority_failed",
        }
    }
}

/// A wish to join, as it came.
#[derive(Debug)]
pub(crate) struct Joining<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) token: &'a str,
    pub(crate) name: &'a str,
    pub(crate) proof: &'a str,
    pub(crate) exported: &'a [u8; EXPORTED_BYTES],
    /// A request for a certificate, in PEM.
    pub(crate) request: &'a [u8],
}

/// A cluster's authority. Cloning shares it.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

struct Inner {
    cluster: String,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    register: Register,
}

impl Authority {
    /// Makes a cluster of this name: its authority, in a directory that is not there yet.
    ///
    /// # Errors
    ///
    /// A name that is none, a directory that is there, or cannot be made.
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
    /// When there is none, or its key is not this user's alone, or is damaged.
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        if !directory.join(KEY).exists() {
            return Err(IdentityError::NoAuthority { path: directory.to_owned() });
        }
        check_private(directory)?;
        let path = directory.join(KEY);
        let damaged = |path: &Path, reason: String| IdentityError::DamagedAuthority { path: path.to_owned(), reason };
        let key = KeyPair::from_pem(&read_private(&path)?).map_err(|error| damaged(&path, error.to_string()))?;
        let own_key = key.subject_public_key_info();
        let path = directory.join(CERTIFICATE);
        let certificate_pem = read(&path)?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes());
        let certificate = certificate.map_err(|error| damaged(&path, error.to_string()))?;
        let cluster = cluster_of(&certificate).ok_or_else(|| damaged(&path, "it names no cluster".to_owned()))?;
        // Half a backup: what is signed so would be taken by nobody.
        if !is_of_key(&certificate, &own_key) {
            return Err(damaged(&path, format!("it is not the certificate of the key in {KEY}")));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|error| damaged(&path, error.to_string()))?;
        let register = Register::new(directory);
        Ok(Self(Arc::new(Inner { cluster, certificate, certificate_pem, issuer, register })))
    }

    /// What the cluster is called: its name, and the beginning of its authority's digest.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// Makes a token. It is not written anywhere.
    ///
    /// # Errors
    ///
    /// A number or a time beyond its limit, or a directory that cannot be written.
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
        let kept = Token {
            role: spec.role.to_string(),
            uses: spec.uses,
            expires: seconds(now + spec.expires_in),
            certificate_life: spec.certificate_life.as_secs(),
            public_key: token.public_key(),
            revoked: false,
        };
        self.0.register.add_token(&token.id(), &kept, now)?;
        Ok(token)
    }

    /// Who has joined and was not removed. Entries that cannot be read are told apart.
    ///
    /// # Errors
    ///
    /// A list that cannot be read.
    pub fn members(&self) -> Result<MemberList, IdentityError> {
        let (entries, mut damaged) = self.0.register.members()?;
        let mut members = Vec::new();
        for (name, entry) in entries {
            let joined = SystemTime::UNIX_EPOCH + Duration::from_secs(entry.joined);
            match role(&entry.role, &self.0.register.member_path(&name)) {
                Ok(role) => members.push(MemberInfo { name, role, joined, token: entry.token }),
                Err(error) => damaged.push(error),
            }
        }
        Ok(MemberList { members, damaged })
    }

    /// Gives a member no further certificate, and has the one that it has refused: by the node with this directory within a second, by
    /// others when they next [ask](crate::NetConfig::removals_every). The use of a token that it has had stays spent. Says whether there was
    /// one of this name. One whose entry cannot be read is not refused before its certificate is over.
    ///
    /// # Errors
    ///
    /// A list that cannot be written.
    pub fn remove(&self, name: &str) -> Result<bool, IdentityError> {
        if is_label(name) { self.0.register.remove_member(name, SystemTime::now()) } else { Ok(false) }
    }

    /// Those who were removed and whose certificates still hold.
    pub(crate) fn removed(&self, now: SystemTime) -> Result<Removed, IdentityError> {
        self.0.register.removed(now)
    }

    /// The same, for a member that asks.
    pub(crate) fn tell_removed(&self, member: Option<&Member>, now: SystemTime) -> Result<String, Denial> {
        let member = member.ok_or(Denial::NoCertificate)?;
        let removed = self.removed(now)?;
        if removed.contains(&member.id) {
            return Err(Denial::Removed(member.name.clone()));
        }
        Ok(removed.to_text())
    }

    /// Takes a token back, by its [id](JoinToken::id): nobody joins with it any more. Who has joined with it is a member all the same;
    /// see [`remove`](Self::remove). Says whether there was one of this id.
    ///
    /// # Errors
    ///
    /// A record that cannot be written.
    pub fn revoke(&self, id: &str) -> Result<bool, IdentityError> {
        self.0.register.revoke(id)
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.0.certificate
    }

    pub(super) fn key_bytes(&self) -> Vec<u8> {
        self.0.issuer.key().serialize_der()
    }

    /// A certificate for the holder of the authority itself, with its key.
    pub(super) fn issue_own(&self, life: Duration) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
        let validity = Validity::from_now(SystemTime::now(), life);
        let member = Member { role: Role::Node, name: OWN_NAME.to_owned(), id: OWN_NAME.to_owned(), validity };
        self.issue(&member, true)
    }

    /// A certificate with a key of its own.
    pub(super) fn issue(
        &self,
        member: &Member,
        is_issuer: bool,
    ) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
        let key = KeyPair::generate().map_err(unusable)?;
        let params = member.params(is_issuer).map_err(unusable)?;
        Ok((params.signed_by(&key, &self.0.issuer).map_err(unusable)?.into(), key))
    }

    /// Lets somebody join, or says why not. The answer is its certificate and the authority's, in PEM.
    pub(crate) fn admit(&self, joining: &Joining<'_>, now: SystemTime) -> Result<String, Denial> {
        let token = self.check_token(joining, now)?;
        let request = read_request(joining.request)?;
        let joined_with = hex(digest::digest(&digest::SHA256, request.public_key.der_bytes()).as_ref());
        let name = name_of(joining, &token, &joined_with)?;
        let role = role(&token.role, &self.0.register.token_path(joining.token))?;
        let id = self.claim(joining, &token, &name, joined_with, now)?;
        let validity = Validity::from_now(now, Duration::from_secs(token.certificate_life));
        self.sign(request, &Member { role, name, id, validity })
    }

    /// The token that is shown: one of this cluster that its holder knows, and that may be used now.
    fn check_token(&self, joining: &Joining<'_>, now: SystemTime) -> Result<Token, Denial> {
        if joining.cluster != self.0.cluster {
            return Err(Denial::OtherCluster);
        }
        let token = self.0.register.token(joining.token)?.ok_or(Denial::UnknownToken)?;
        if !is_proven(&token.public_key, joining.proof, joining.exported, joining.name, joining.request) {
            return Err(Denial::ReplayedToken);
        }
        if token.revoked {
            return Err(Denial::RevokedToken);
        }
        if is_over(&token, now) {
            return Err(Denial::ExpiredToken);
        }
        Ok(token)
    }

    /// Takes the name, and a use of the token for it: whoever had it with the same key has it again. Gives the member's id.
    fn claim(
        &self,
        joining: &Joining<'_>,
        token: &Token,
        name: &str,
        joined_with: String,
        now: SystemTime,
    ) -> Result<String, Denial> {
        let register = &self.0.register;
        let known = register.member(name)?;
        if known.as_ref().is_some_and(|known| known.joined_with != joined_with) {
            return Err(Denial::NameTaken(name.to_owned()));
        }
        // A certificate says what the list says.
        if known.as_ref().is_some_and(|known| known.role != token.role) {
            return Err(Denial::OtherRole(name.to_owned()));
        }
        if !register.claim_use(joining.token, token, &joined_with, name)? {
            return Err(Denial::UsedUpToken);
        }
        // It may have been taken back while one was taken; or it was over, and swept away with the uses that others have had.
        match register.token(joining.token)? {
            Some(token) if token.revoked => return Err(Denial::RevokedToken),
            Some(_) => {}
            None => return Err(Denial::ExpiredToken),
        }
        // No answer came to it before.
        if let Some(known) = known {
            return Ok(known.id);
        }
        let entry = Entry {
            id: format!("{:016x}", fastrand::u64(..)),
            role: token.role.clone(),
            joined_with,
            joined: seconds(now),
            token: joining.token.to_owned(),
            certificate_life: token.certificate_life,
        };
        match register.claim_name(name, &entry)? {
            true => Ok(entry.id),
            false => Err(Denial::NameTaken(name.to_owned())),
        }
    }

    /// Gives a member a certificate in the place of the one that it has shown, for the same name, role and time.
    pub(crate) fn renew(&self, member: Option<Member>, request: &[u8], now: SystemTime) -> Result<String, Denial> {
        let member = member.ok_or(Denial::NoCertificate)?;
        let known = if is_label(&member.name) { self.0.register.member(&member.name)? } else { None };
        let Some(known) = known.filter(|known| known.id == member.id) else {
            return Err(Denial::Removed(member.name));
        };
        if known.role != member.role.as_str() {
            return Err(Denial::OtherRole(member.name));
        }
        let validity = Validity::from_now(now, member.validity.life());
        self.sign(read_request(request)?, &Member { validity, ..member })
    }

    /// Of the request only the key is taken: what the certificate says is ours to say.
    fn sign(&self, request: CertificateSigningRequestParams, member: &Member) -> Result<String, Denial> {
        let params = member.params(false).map_err(unusable)?;
        let certificate = params.signed_by(&request.public_key, &self.0.issuer).map_err(unusable)?;
        Ok(certificate.pem() + &self.0.certificate_pem)
    }
}

/// Says whose it is, and nothing of the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.0.cluster).finish_non_exhaustive()
    }
}

/// What somebody is called who joins: as it says, or by its key, so that everybody has a name of its own and who asks again has the same.
fn name_of(joining: &Joining<'_>, token: &Token, joined_with: &str) -> Result<String, Denial> {
    let name = match joining.name {
        "" => format!("{}-{}", token.role, &joined_with[..12]),
        name => name.to_owned(),
    };
    if !is_label(&name) || name == OWN_NAME {
        return Err(Denial::Name(quoted(&name)));
    }
    Ok(name)
}

/// Its signature is checked: who asks has the key.
fn read_request(request: &[u8]) -> Result<CertificateSigningRequestParams, Denial> {
    let text = std::str::from_utf8(request).map_err(|error| Denial::Request(error.to_string()))?;
    CertificateSigningRequestParams::from_pem(text).map_err(|error| Denial::Request(error.to_string()))
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

/// Whether a certificate has this public key.
pub(super) fn is_of_key(certificate: &CertificateDer<'_>, key: &[u8]) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| parsed.public_key().raw == key)
}

/// What the cluster of an authority is called.
pub(crate) fn cluster_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    is_label(name).then(|| format!("{name}-{}", fingerprint(certificate)))
}
