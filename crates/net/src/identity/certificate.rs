//! What a certificate of a cluster says: whose it is, what they may do, and for how long.
//!
//! All of it stands in names (RFC 5280, 4.2.1.6): `node.callboard` or `client.callboard` is the role, `issuer.callboard` marks a node that
//! has the authority's key, `NAME.name.callboard` and `ID.member.callboard` are whose it is. A client's is not good for a server, in
//! the words that TLS itself looks at.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use quinn::Connection;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// The name in every node's certificate. Which node it is stands beside it; that it is one of the cluster is what this proves.
pub(crate) const NODE_NAME: &str = "node.callboard";
const CLIENT_NAME: &str = "client.callboard";
/// The name of those who may give certificates.
pub(crate) const ISSUER_NAME: &str = "issuer.callboard";
const MEMBER_NAME: &str = ".name.callboard";
const MEMBER_ID: &str = ".member.callboard";

/// Clocks of two machines are so far apart at most; what is further apart is told as what it is, not yet valid.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// What the holder of a certificate may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Serve, call routes, and run and call stages as a peer.
    Node,
    /// Call routes.
    Client,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 2] = [Self::Node, Self::Client];

    /// The one word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Client => "client",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Node => NODE_NAME,
            Self::Client => CLIENT_NAME,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or("expected `node` or `client`")
    }
}

/// From when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl Validity {
    /// From now on, for so long; a little before now, too, for those whose clocks are behind.
    pub(crate) fn from_now(now: SystemTime, life: Duration) -> Self {
        Self { not_before: now - CLOCK_SKEW, not_after: now + life }
    }

    /// For how long it was given.
    pub(crate) fn life(&self) -> Duration {
        let whole = self.not_after.duration_since(self.not_before).unwrap_or_default();
        whole.saturating_sub(CLOCK_SKEW)
    }

    pub(crate) fn left(&self, now: SystemTime) -> Duration {
        self.not_after.duration_since(now).unwrap_or_default()
    }
}

/// Who a certificate is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) role: Role,
    /// What it is called; empty under the development identity.
    pub(crate) name: String,
    /// Which of those that ever had the name.
    pub(crate) id: String,
    pub(crate) validity: Validity,
}

impl Member {
    /// What a certificate says, which was verified before. `None` where it is none of ours.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten()?;
        let names: Vec<&str> = names.value.general_names.iter().filter_map(dns_name).collect();
        let role = Role::ALL.into_iter().find(|role| names.contains(&role.name()))?;
        let part =
            |suffix: &str| names.iter().find_map(|name| name.strip_suffix(suffix)).unwrap_or_default().to_owned();
        let moment = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity = parsed.validity();
        let validity = Validity {
            not_before: moment(validity.not_before.timestamp()),
            not_after: moment(validity.not_after.timestamp()),
        };
        Some(Self { role, name: part(MEMBER_NAME), id: part(MEMBER_ID), validity })
    }

    /// Who is at the other end of a connection, by the certificate that it has shown.
    pub(crate) fn of_peer(connection: &Connection) -> Option<Self> {
        let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        Self::of(chain.first()?)
    }

    /// The certificate to be signed.
    pub(super) fn params(&self, is_issuer: bool) -> Result<CertificateParams, rcgen::Error> {
        let mut names = vec![self.role.name().to_owned()];
        if is_issuer {
            names.push(ISSUER_NAME.to_owned());
        }
        if !self.name.is_empty() {
            names.push(format!("{}{MEMBER_NAME}", self.name));
            names.push(format!("{}{MEMBER_ID}", self.id));
        }
        let mut params = CertificateParams::new(names)?;
        let called = if self.name.is_empty() { "Callboard" } else { &self.name };
        params.distinguished_name.push(DnType::CommonName, called);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.role {
            Role::Node => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Role::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
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

/// A name of a cluster or of a member: one label of a host's name.
pub(super) fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_again_what_it_was_made_of() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for role in Role::ALL {
            let validity = Validity::from_now(now, Duration::from_secs(7200));
            let member = Member { role, name: "left".to_owned(), id: "0a1b".to_owned(), validity };
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = member.params(false).unwrap().self_signed(&key).unwrap();
            assert_eq!(Member::of(certificate.der()), Some(member));
            assert_eq!(validity.life(), Duration::from_secs(7200));
        }
    }

    #[test]
    fn a_certificate_without_a_role_is_nobodys() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        assert_eq!(Member::of(params.self_signed(&key).unwrap().der()), None);
        assert_eq!(Member::of(&CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])), None);
    }

    #[test]
    fn names_are_labels() {
        assert!(["a", "left-2", "0"].into_iter().all(is_label));
        assert!(!["", "-a", "a-", "A", "a.b", "a b", "ä", &"a".repeat(41)].into_iter().any(is_label));
    }
}
