//! The errors of identities: missing, unusable or refused.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::certificate::Role;

/// An error of an identity, or of its intended use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set. Remedy: set one of them.
    #[error("there is no directory for the development identity: set XDG_STATE_HOME or HOME to an absolute path")]
    NoStateDirectory,
    /// The directory of the development identity cannot be written. Remedy: another directory.
    #[error("could not make a development identity in {}: set XDG_STATE_HOME to a directory that can be written", path.display())]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot read or write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file has wrong content. Remedy: restore it, or remove its directory: a development identity is made again, and
    /// a member joins again.
    #[error(
        "{} is damaged: {reason}; restore it, or remove its directory: a development identity is made again, a cluster is \
         joined again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// One of the authority's records of tokens and members is damaged. Remedy: restore it, or remove its member
    /// (`callboard cluster remove`) or revoke its token (`callboard cluster revoke`).
    #[error(
        "{} is damaged: {reason}; restore that file, or remove that one member (`callboard cluster remove`) or token \
         (`callboard cluster revoke`)",
        path.display()
    )]
    DamagedRecord {
        /// The record's file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The authority's key or certificate is damaged. Remedy: a backup; without one, a new cluster.
    #[error(
        "{} is damaged: {reason}; restore it from a backup and remove nothing: a cluster that lost its authority has to be \
         made again",
        path.display()
    )]
    DamagedAuthority {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// Another user could have read or written the key. Remedy: remove that access if nobody can have used it; else make
    /// a new identity: another development identity, joining again, or, for an authority, another cluster.
    #[error(
        "{} is not this user's alone: {reason}; remove that access (`chmod go=`) if nobody can have used it, else do not \
         trust it any more: remove a development identity's directory, join again as a member, make the cluster of an \
         authority again",
        path.display()
    )]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// The cause, with its mode.
        reason: String,
    },
    /// This user may not read the file. Remedy: its owner, or its group.
    #[error(
        "{} cannot be read: it has mode {mode} and belongs to user {owner} and group {group}, and this process is user \
         {user}; give it to this user with mode 0600 (a secret of Kubernetes: set `securityContext.fsGroup`)",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Its user.
        owner: u32,
        /// Its group.
        group: u32,
        /// Its mode, as digits.
        mode: String,
        /// The user of this process.
        user: u32,
    },
    /// The directory has neither an authority nor a member's certificate. Remedy: make a cluster, or join one.
    #[error("{} holds no identity: make a cluster there (`callboard cluster init`) or join one (`callboard cluster join`)", path.display())]
    NoIdentity {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has no authority. Remedy: the directory of the node that has it.
    #[error("{} holds no authority: name the directory that `callboard cluster init` has made", path.display())]
    NoAuthority {
        /// The directory.
        path: PathBuf,
    },
    /// An issuer's directory has a key without a certificate. Remedy: the root signs its request.
    #[error(
        "{} has a key without a certificate: have its request signed where the cluster's root is (`callboard cluster \
         issuer`)",
        path.display()
    )]
    Uncertified {
        /// The directory.
        path: PathBuf,
    },
    /// The issuer's certificate has ended. Remedy: the root signs another one.
    #[error(
        "the issuer's certificate in {} has ended: have another one signed where the cluster's root is (`callboard cluster \
         issuer`)",
        path.display()
    )]
    EndedIssuer {
        /// The directory.
        path: PathBuf,
    },
    /// The issuer's certificate ends so soon that a renewal would gain nothing. Remedy: as of one that has ended.
    #[error(
        "the certificate of the issuer in {} ends, and what it signs no later: have the root sign another one",
        path.display()
    )]
    EndingIssuer {
        /// The directory.
        path: PathBuf,
    },
    /// An issuer does not exclude itself. Remedy: another issuer does.
    #[error("{id} is this issuer itself: remove it at another issuer, with that one's directory")]
    OwnId {
        /// The id or name.
        id: String,
    },
    /// The directory is that of a member. Remedy: another directory for the issuer.
    #[error("{} holds the identity of a member: name another directory for the issuer", path.display())]
    MemberDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Only the root signs the certificates of issuers. Remedy: its directory.
    #[error("{} is of an issuer, and only the root of the cluster signs issuers: name its directory", path.display())]
    NoRoot {
        /// The directory.
        path: PathBuf,
    },
    /// The text is no certificate for this issuer. Remedy: the answer to its own request.
    #[error("not a certificate for this issuer: {reason}")]
    IssuerCertificate {
        /// The cause.
        reason: String,
    },
    /// The path exists and would be overwritten. Remedy: another directory.
    #[error("{} is there already: name a directory that does not exist", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// The directory has a member's identity that is still valid. Remedy: another directory, or remove this one.
    #[error("{} holds the identity of {name} in {cluster}, which is still valid: name another directory, or remove it first", path.display())]
    Joined {
        /// The directory.
        path: PathBuf,
        /// The member.
        name: String,
        /// Its cluster.
        cluster: String,
    },
    /// Another member has joined in the directory of a running process. Remedy: restart the process.
    #[error("the identity in {} is not the one with which this process started: restart the process to use it", path.display())]
    Replaced {
        /// The directory.
        path: PathBuf,
    },
    /// The text cannot be the name of a cluster.
    #[error("`{name}` is not a name: expected up to 40 of a-z, 0-9 and -")]
    Name {
        /// The text.
        name: String,
    },
    /// A number or a time is outside its limits.
    #[error("{what} may be {limit}")]
    Limit {
        /// The setting.
        what: &'static str,
        /// Its limits.
        limit: &'static str,
    },
    /// The certificate has expired and was not renewed in time. Remedy: join again, with a new token.
    #[error("the certificate in {} has expired: join again with a new token (`callboard cluster join`)", path.display())]
    Expired {
        /// The directory.
        path: PathBuf,
    },
    /// The certificate does not allow serving. Remedy: join with a token of role node.
    #[error("this identity is {}'s, which may not serve: join with a token of role node", role.with_article())]
    Role {
        /// Its role.
        role: Role,
    },
    /// The development identity proves nothing beyond this machine. Remedy: an identity of a cluster.
    #[error(
        "{address} is not on this machine, and the development identity is for loopback only: join a cluster (`callboard cluster join`)"
    )]
    LoopbackOnly {
        /// The address.
        address: SocketAddr,
    },
    /// This system cannot check who can read a key, so identities are for loopback only. Remedy: a Unix.
    #[error(
        "{address} is not on this machine, and on this system identities are for loopback only: it does not tell who can \
         read their keys"
    )]
    Unguarded {
        /// The address.
        address: SocketAddr,
    },
    /// A key, a certificate or an authority cannot be used for TLS.
    #[error("the identity cannot be used")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
}

impl IdentityError {
    pub(crate) fn no_random() -> Self {
        Self::Unusable("the system gives no random numbers".into())
    }
}

pub(crate) fn failed(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::File { path: path.to_owned(), source }
}

pub(crate) fn unusable(error: impl Error + Send + Sync + 'static) -> IdentityError {
    IdentityError::Unusable(Box::new(error))
}
