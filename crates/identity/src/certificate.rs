//! The content of a cluster's certificate: the member, its role, and the validity.
//!
//! All of it is in subject alternative names (RFC 5280, 4.2.1.6): `node.callboard`, `client.callboard` or
//! `operator.callboard` is the role, `issuer.callboard` marks a node that has the authority's key,
//! `NAME.name.callboard` and `ID.member.callboard` identify the member. The extended key usage keeps clients and
//! operators from serving. `SECONDS.life.callboard` is the life of the member's certificates, in one that ends earlier
//! because its issuer's does. `ID.via.callboard` is an issuer that has signed an earlier certificate of the member: a
//! removal of that issuer excludes this one as well, because its holder may have made that one up.
//!
//! An issuer's own certificate is of a certification authority that may sign members and no further authority. Its
//! subject has the issuer's name and its id, which each certificate that it signs names as its issuer: verification
//! compares the two, so the id can be read from the member's certificate alone.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use callboard_codec::hex;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose};
use ring::digest;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::x509::X509Name;

/// The name in every node's certificate: it proves a node of the cluster. Other names tell which node.
pub const NODE_NAME: &str = "node.callboard";
const CLIENT_NAME: &str = "client.callboard";
const OPERATOR_NAME: &str = "operator.callboard";
/// The name in certificates of nodes that issue certificates.
pub const ISSUER_NAME: &str = "issuer.callboard";
const MEMBER_NAME: &str = ".name.callboard";
const MEMBER_ID: &str = ".member.callboard";
const LIFE: &str = ".life.callboard";
const VIA: &str = ".via.callboard";

/// The most earlier issuers in a certificate: of more, those that have signed longest ago are left out.
const MAX_VIA: usize = 16;

/// The tolerated difference of two machines' clocks. Beyond it a certificate is refused as not yet valid.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

callboard_codec::words! {
    /// The rights of a certificate's holder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Role {
        /// Serve, call routes, and run and call stages as a peer.
        Node => "node",
        /// Call routes.
        Client => "client",
        /// Call routes, ask nodes for the state of the cluster, and drain them.
        Operator => "operator",
    }
}

impl Role {
    const fn dns_name(self) -> &'static str {
        match self {
            Self::Node => NODE_NAME,
            Self::Client => CLIENT_NAME,
            Self::Operator => OPERATOR_NAME,
        }
    }

    /// The word for a holder, for people: "a node", "an operator".
    #[must_use]
    pub const fn with_article(self) -> &'static str {
        match self {
            Self::Node => "a node",
            Self::Client => "a client",
            Self::Operator => "an operator",
        }
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or("expected `node`, `client` or `operator`")
    }
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its beginning.
    pub not_before: SystemTime,
    /// Its end.
    pub not_after: SystemTime,
}

impl Validity {
    /// Valid for `life` from now on; it begins earlier by the tolerated difference of clocks.
    pub(crate) fn from_now(now: SystemTime, life: Duration) -> Self {
        Self { not_before: now - CLOCK_SKEW, not_after: now + life }
    }

    /// The life that was asked for.
    #[must_use]
    pub fn life(&self) -> Duration {
        let whole = self.not_after.duration_since(self.not_before).unwrap_or_default();
        whole.saturating_sub(CLOCK_SKEW)
    }

    /// The time that is left; zero once it has expired.
    #[must_use]
    pub fn left(&self, now: SystemTime) -> Duration {
        self.not_after.duration_since(now).unwrap_or_default()
    }
}

/// Whether a verified certificate is of a node that issues certificates.
#[must_use]
pub fn is_issuer(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let names = parsed.subject_alternative_name().ok().flatten();
    names.is_some_and(|names| names.value.general_names.iter().filter_map(dns_name).any(|name| name == ISSUER_NAME))
}

/// The member that a certificate names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rights.
    pub role: Role,
    /// Its name; empty under the development identity.
    pub name: String,
    /// Tells it from other members that had the name at other times.
    pub id: String,
    /// The time in which the certificate is valid.
    pub validity: Validity,
    /// The life of its certificates. This one may end earlier, with that of its issuer.
    pub life: Duration,
    /// The id of the issuer that signed the certificate; empty if the root did.
    pub issuer: String,
    /// The ids of other issuers that have signed earlier certificates of this member, the last one at the end.
    pub via: Vec<String>,
}

/// The certificate of an issuer: an authority below the root of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerCertificate {
    /// The name of the issuer, which its node has as a member.
    pub name: String,
    /// Tells its key from that of other issuers.
    pub id: String,
    /// The time in which it is valid. What it signs ends no later.
    pub validity: Validity,
}

impl IssuerCertificate {
    /// Reads it. `None`: it names no issuer.
    pub(crate) fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let id = issuer_id(parsed.subject())?;
        Some(Self { name, id, validity: validity(&parsed) })
    }

    /// The certificate to be signed by the root.
    pub(crate) fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(vec![ISSUER_NAME.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, &self.name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, &self.id);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = self.validity.not_before.into();
        params.not_after = self.validity.not_after.into();
        Ok(params)
    }

    /// Whether a third of its life is left, or less: the root has to sign another one.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.validity.left(now) <= self.validity.life() / 3
    }
}

fn issuer_id(name: &X509Name<'_>) -> Option<String> {
    Some(name.iter_organizational_unit().next()?.as_str().ok()?.to_owned())
}

fn validity(parsed: &X509Certificate<'_>) -> Validity {
    let moment = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = parsed.validity();
    Validity { not_before: moment(validity.not_before.timestamp()), not_after: moment(validity.not_after.timestamp()) }
}

impl Member {
    /// Reads a verified certificate. `None`: it names no role.
    #[must_use]
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten()?;
        let names: Vec<&str> = names.value.general_names.iter().filter_map(dns_name).collect();
        let role = Role::ALL.into_iter().find(|role| names.contains(&role.dns_name()))?;
        let part =
            |suffix: &str| names.iter().find_map(|name| name.strip_suffix(suffix)).unwrap_or_default().to_owned();
        let validity = validity(&parsed);
        let life = part(LIFE).parse().map_or_else(|_| validity.life(), Duration::from_secs);
        let issuer = issuer_id(parsed.issuer()).unwrap_or_default();
        let via = names
            .iter()
            .filter_map(|name| name.strip_suffix(VIA))
            .filter(|id| id.len() == 16)
            .take(MAX_VIA)
            .map(str::to_owned)
            .collect();
        Some(Self { role, name: part(MEMBER_NAME), id: part(MEMBER_ID), validity, life, issuer, via })
    }

    /// The issuers through which this certificate came: a removal of one of them excludes it.
    pub(crate) fn issuers(&self) -> impl Iterator<Item = &String> {
        [&self.issuer].into_iter().chain(&self.via).filter(|id| !id.is_empty())
    }

    /// The earlier issuers of a certificate that renews this one, signed by another issuer. What this one says may be
    /// made up by its issuer, so that is the last to be left out.
    pub(crate) fn via_to(&self, issuer: &str) -> Vec<String> {
        let is_other = |id: &&String| !id.is_empty() && **id != issuer;
        let earlier = self.via.iter().filter(|id| **id != self.issuer).chain([&self.issuer]).filter(is_other);
        let mut via: Vec<_> = earlier.cloned().collect();
        via.drain(..via.len().saturating_sub(MAX_VIA));
        via
    }

    /// The certificate to be signed.
    pub(crate) fn params(&self, is_issuer: bool) -> Result<CertificateParams, rcgen::Error> {
        let mut names = vec![self.role.dns_name().to_owned()];
        if is_issuer {
            names.push(ISSUER_NAME.to_owned());
        }
        if !self.name.is_empty() {
            names.push(format!("{}{MEMBER_NAME}", self.name));
            names.push(format!("{}{MEMBER_ID}", self.id));
        }
        if self.life.as_secs() != self.validity.life().as_secs() {
            names.push(format!("{}{LIFE}", self.life.as_secs()));
        }
        names.extend(self.via.iter().map(|id| format!("{id}{VIA}")));
        let mut params = CertificateParams::new(names)?;
        let called = if self.name.is_empty() { "Callboard" } else { &self.name };
        params.distinguished_name.push(DnType::CommonName, called);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.role {
            Role::Node => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Role::Client | Role::Operator => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.not_before = self.validity.not_before.into();
        params.not_after = self.validity.not_after.into();
        Ok(params)
    }
}

fn dns_name<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    match name {
        GeneralName::DNSName(name) => Some(name),
        _ => None,
    }
}

/// The name of a cluster, in the certificate of its authority.
#[must_use]
pub fn cluster_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    is_label(name).then(|| format!("{name}-{}", fingerprint(certificate)))
}

/// Whether a certificate has this public key.
pub(crate) fn has_public_key(certificate: &CertificateDer<'_>, key: &[u8]) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| parsed.public_key().raw == key)
}

/// The first 8 bytes of a certificate's digest, in hexadecimal digits: for people and for names.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex::encode(&pin(certificate)[..8])
}

/// The first 16 bytes of a certificate's digest: no other certificate with them can be made.
#[must_use]
pub fn pin(certificate: &CertificateDer<'_>) -> [u8; 16] {
    let digest = digest::digest(&digest::SHA256, certificate);
    std::array::from_fn(|at| digest.as_ref()[at])
}

/// Whether the text can be the name of a cluster or a member: one label of a host name.
pub(crate) fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_round_trips() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for role in Role::ALL {
            let validity = Validity::from_now(now, Duration::from_secs(7200));
            for life in [7200, 86_400].map(Duration::from_secs) {
                let (name, id, issuer) = ("left".to_owned(), "0a1b".to_owned(), String::new());
                let member =
                    Member { role, name, id, validity, life, issuer, via: vec!["0123456789abcdef".to_owned()] };
                let key = rcgen::KeyPair::generate().unwrap();
                let certificate = member.params(false).unwrap().self_signed(&key).unwrap();
                assert_eq!(Member::from_certificate(certificate.der()), Some(member));
                assert_eq!(validity.life(), Duration::from_secs(7200));
            }
        }
    }

    #[test]
    fn a_certificate_without_a_role_names_no_member() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        assert_eq!(Member::from_certificate(params.self_signed(&key).unwrap().der()), None);
        assert_eq!(Member::from_certificate(&CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])), None);
    }

    #[test]
    fn names_are_labels() {
        assert!(["a", "left-2", "0"].into_iter().all(is_label));
        assert!(!["", "-a", "a-", "A", "a.b", "a b", "ä", &"a".repeat(41)].into_iter().any(is_label));
    }
}
