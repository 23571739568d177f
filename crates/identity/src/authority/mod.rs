//! The authority of a cluster, in its own directory: it decides about members, their names, and their validity.
//!
//! A holder of its key can act as any member. It is the root of the cluster, or an issuer below it (`issuer.rs`). A node
//! holds the directory and issues certificates over its QUIC port; the commands `token`, `revoke`, `members`, `remove`
//! and `issuer` work on the same files at the same time. Only the key is kept in memory, so what they write takes effect
//! at once.
//!
//! Several issuers share no state. A token and the name of a new member are checked where the token was made; any issuer
//! renews the certificate of any member, unless it knows that the member was removed, and remembers the member then.

mod denied;
mod issuer;
mod member_store;
mod removed;
mod signed;
#[cfg(feature = "testing")]
mod testing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_codec::hex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use ring::digest;
use rustls::pki_types::CertificateDer;

pub use self::denied::JoinDenied;
use self::issuer::{AuthorityChain, read_key};
use self::member_store::{MAX_USES, MemberRecord, MemberStore, TokenRecord, is_expired, make_claim, role};
pub use self::removed::{MAX_LIST_BYTES, RemovedMembers};
pub use self::signed::{InvalidRemovals, MAX_SIGNED_BYTES, SignedRemovals};
use crate::certificate::{Member, Role, Validity, cluster_name, is_label, pin};
use crate::clock::seconds;
use crate::error::{IdentityError, unusable};
use crate::files::make_directory;
use crate::text::quoted;
use crate::token::{EXPORTED_BYTES, JoinToken, is_proven};

pub(crate) const CERTIFICATE: &str = "authority.pem";
pub(crate) const KEY: &str = "authority.key";

/// The member name of a node that holds the root's key.
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
    /// The time at which it joined; if it has joined at another issuer, at which it was first known here.
    pub joined: SystemTime,
    /// The [id](JoinToken::id) of the token with which it joined; empty if it has joined at another issuer.
    pub token: String,
    /// Its id: that of its certificates, or of an issuer that of its key.
    pub id: String,
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
    root: CertificateDer<'static>,
    key: KeyPair,
    directory: PathBuf,
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
        let key = read_key(directory)?;
        let root = AuthorityChain::read(directory, &key.subject_public_key_info())?.root;
        let no_cluster = || IdentityError::DamagedAuthority {
            path: directory.join(CERTIFICATE),
            reason: "it names no cluster".to_owned(),
        };
        let cluster = cluster_name(&root).ok_or_else(no_cluster)?;
        let (directory, store) = (directory.to_owned(), MemberStore::new(directory));
        Ok(Self(Arc::new(Inner { cluster, root, key, directory, store })))
    }

    /// Its certificates. They are read each time, because an issuer's is renewed while its node runs.
    fn chain(&self) -> Result<AuthorityChain, IdentityError> {
        AuthorityChain::read(&self.0.directory, &self.0.key.subject_public_key_info())
    }

    fn signer(&self, chain: &AuthorityChain) -> Result<Issuer<'static, &KeyPair>, IdentityError> {
        Issuer::from_ca_cert_der(chain.signer(), &self.0.key).map_err(unusable)
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
        let token = JoinToken::generate(pin(&self.0.root))?;
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

    /// The members that are known here and were not removed, and the errors of records that cannot be read.
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
                Ok(role) => members.push(MemberInfo { name, role, joined, token: record.token, id: record.id }),
                Err(error) => damaged.push(error),
            }
        }
        Ok(MemberList { members, damaged })
    }

    /// Removes a member: it gets no further certificate, and its certificate is refused by the node with this directory
    /// within a second, by other nodes a moment later, when they hear of it. Its use of a token stays spent. `false`:
    /// there is no such member. The id of a member without a record here excludes it as well; that of an issuer, all
    /// members whose certificates it has signed. A member whose record cannot be read gets no further certificate here;
    /// its present one is refused only when it expires.
    ///
    /// # Errors
    ///
    /// The own name or id, or a list that cannot be written.
    pub fn remove(&self, name: &str) -> Result<bool, IdentityError> {
        let (own, id) = self.own_name()?;
        if name == own || name == id {
            return Err(IdentityError::OwnId { id: name.to_owned() });
        }
        if is_label(name) { self.0.store.remove_member(name, SystemTime::now()) } else { Ok(false) }
    }

    /// Remembers removals that another issuer has ordered. Returns how many were new.
    pub(crate) fn take_over(&self, removed: &RemovedMembers, now: SystemTime) -> Result<usize, IdentityError> {
        self.0.store.take_over(removed, now)
    }

    /// Remembers a connected member that has joined elsewhere, so that it is in the list and can be removed here.
    /// `is_issuer`: by its certificate, it issues certificates. It is then removed as an issuer.
    ///
    /// # Errors
    ///
    /// A record that cannot be read or written.
    pub fn remember(&self, member: &Member, is_issuer: bool, now: SystemTime) -> Result<(), IdentityError> {
        let (own, _) = self.own_name()?;
        if !is_label(&member.name) || member.name == own || member.name == OWN_NAME {
            return Ok(());
        }
        let mut member = Member { life: member.life.min(MAX_LIFE), ..member.clone() };
        if is_issuer {
            // As long as an issuer's certificate may be valid.
            (member.id, member.life) = (member.issuer.clone(), MAX_LIFE);
        }
        let store = &self.0.store;
        if store.member(&member.name)?.is_none() && !store.is_removed(&member) {
            store.claim_name(&member.name, &MemberRecord::of(&member, now))?;
        }
        Ok(())
    }

    fn own_name(&self) -> Result<(String, String), IdentityError> {
        let chain = self.chain()?;
        let (name, id) = chain.own_name();
        Ok((name.to_owned(), id.to_owned()))
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
        if removed.excludes(member) {
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

    pub(crate) fn root(&self) -> &CertificateDer<'static> {
        &self.0.root
    }

    pub(crate) fn key_bytes(&self) -> Vec<u8> {
        self.0.key.serialize_der()
    }

    /// A certificate for the node that holds the authority, with its key; and the certificates up to the root.
    /// An error if it would end no later than the last one.
    pub(crate) fn issue_own(
        &self,
        life: Duration,
        ends: SystemTime,
    ) -> Result<(Vec<CertificateDer<'static>>, KeyPair), IdentityError> {
        let (chain, now) = (self.chain()?, SystemTime::now());
        let (name, id) = chain.own_name();
        let (name, id, issuer) = (name.to_owned(), id.to_owned(), chain.issuer_id().to_owned());
        let path = || self.0.directory.clone();
        let validity =
            chain.later_validity(now, life, ends).ok_or_else(|| IdentityError::EndingIssuer { path: path() })?;
        if validity.left(now).is_zero() {
            return Err(IdentityError::EndedIssuer { path: path() });
        }
        if let Some((issuer, _)) = chain.issuer.as_ref().filter(|(issuer, _)| issuer.is_due(now)) {
            let left = issuer.validity.left(now);
            tracing::warn!(
                ?left,
                "this issuer's certificate ends: have the root sign another one (callboard cluster issuer)"
            );
        }
        let member = Member { role: Role::Node, name, id, validity, life, issuer, via: Vec::new() };
        let (certificate, key) = self.issue(&member, true)?;
        let issuer = chain.issuer.map(|(_, certificate)| certificate);
        Ok(([certificate].into_iter().chain(issuer).chain([chain.root]).collect(), key))
    }

    /// A certificate with a new key.
    pub(crate) fn issue(
        &self,
        member: &Member,
        is_issuer: bool,
    ) -> Result<(CertificateDer<'static>, KeyPair), IdentityError> {
        let key = KeyPair::generate().map_err(unusable)?;
        let params = member.params(is_issuer).map_err(unusable)?;
        Ok((params.signed_by(&key, &self.signer(&self.chain()?)?).map_err(unusable)?.into(), key))
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
        let (life, chain) = (Duration::from_secs(token.certificate_life), self.chain()?);
        let (validity, issuer) = (chain.validity(now, life), chain.issuer_id().to_owned());
        self.sign(request, &Member { role, name, id, validity, life, issuer, via: Vec::new() }, &chain, now)
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
        let record = MemberRecord {
            id: format!("{:016x}", fastrand::u64(..)),
            role: token.role.clone(),
            joined_with,
            joined: seconds(now),
            token: joining.token.to_owned(),
            certificate_life: token.certificate_life,
        };
        // A full disk mostly fails here, and the token keeps its use. After a later error the same key has it still.
        let claim = if known.is_none() { Some(store.prepare_name(name, &record)?) } else { None };
        if !store.claim_use(joining.token, token, &record.joined_with, name)? {
            return Err(JoinDenied::UsedUpToken);
        }
        // The token may have been revoked meanwhile, or it expired and was removed together with its uses.
        match store.token(joining.token)? {
            Some(token) if token.revoked => return Err(JoinDenied::RevokedToken),
            Some(_) => {}
            None => return Err(JoinDenied::ExpiredToken),
        }
        match (known, claim) {
            // The earlier answer did not arrive.
            (Some(known), _) => Ok(known.id),
            (None, Some(claim)) if make_claim(&claim)? => Ok(record.id),
            (None, _) => Err(JoinDenied::NameTaken(name.to_owned())),
        }
    }

    /// Renews the presented certificate, for the same name, role and life. The member may have joined at another issuer.
    ///
    /// # Errors
    ///
    /// See [`JoinDenied`].
    pub fn renew(&self, member: Option<Member>, request: &[u8], now: SystemTime) -> Result<String, JoinDenied> {
        let member = member.ok_or(JoinDenied::NoCertificate)?;
        if !is_label(&member.name) || self.0.store.is_removed(&member) {
            return Err(JoinDenied::RemovedMember(member.name));
        }
        match self.0.store.member(&member.name)? {
            Some(known) if known.id != member.id => return Err(JoinDenied::NameTaken(member.name)),
            Some(known) if known.role != member.role.as_str() => return Err(JoinDenied::OtherRole(member.name)),
            Some(_) => {}
            None => _ = self.0.store.claim_name(&member.name, &MemberRecord::of(&member, now))?,
        }
        let (chain, life) = (self.chain()?, member.life.min(MAX_LIFE));
        let validity = chain.later_validity(now, life, member.validity.not_after).ok_or(JoinDenied::EndingIssuer)?;
        let (issuer, via) = (chain.issuer_id().to_owned(), member.via_to(chain.issuer_id()));
        self.sign(read_request(request)?, &Member { validity, life, issuer, via, ..member }, &chain, now)
    }

    /// Uses only the key of the request: the authority decides the content of the certificate.
    fn sign(
        &self,
        request: CertificateSigningRequestParams,
        member: &Member,
        chain: &AuthorityChain,
        now: SystemTime,
    ) -> Result<String, JoinDenied> {
        if member.validity.left(now).is_zero() {
            return Err(IdentityError::EndedIssuer { path: self.0.directory.clone() }.into());
        }
        let params = member.params(false).map_err(unusable)?;
        let certificate = params.signed_by(&request.public_key, &self.signer(chain)?).map_err(unusable)?;
        Ok(certificate.pem() + &chain.pem)
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
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let validity = Validity::from_now(now, AUTHORITY_LIFE);
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params
}
