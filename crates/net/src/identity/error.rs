//! Why there is no identity.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::certificate::Role;

/// What is wrong with an identity, or with where it was to be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set. Remedy: set one of them.
    #[error("there is no directory for the development identity: set XDG_STATE_HOME or HOME to an absolute path")]
    NoStateDirectory,
    /// Nothing can be kept where the development identity belongs. Remedy: another place for it.
    #[error("could not make a development identity in {}: set XDG_STATE_HOME to a directory that can be written", path.display())]
    StateDirectory {
        /// Where it was to be.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot read or write {}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be. Remedy: restore it, or remove its directory and begin anew.
    #[error(
        "{} is damaged: {reason}; restore it, or remove its directory: a development identity is made anew, a cluster is joined again",
        path.display()
    )]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// One of the authority's records of tokens and members. Remedy: restore it, or end it: `callboard cluster remove` for a member,
    /// `callboard cluster revoke` for a token.
    #[error(
        "{} is damaged: {reason}; restore that one file, or remove that one member (`callboard cluster remove`) or token (`callboard cluster revoke`)",
        path.display()
    )]
    DamagedRecord {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The authority's key or certificate. Remedy: a backup; without one the cluster is made anew.
    #[error(
        "{} is damaged: {reason}; restore it from a backup and remove nothing: a cluster whose authority is lost is made anew",
        path.display()
    )]
    DamagedAuthority {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else could have read or made it, and would be taken for this user. Remedy: if nobody has, take the right from them;
    /// else begin anew: with another development identity, by joining again, or, if it is the authority's, with another cluster.
    #[error(
        "{} is not this user's alone: {reason}; take that right away (`chmod go=`) if nobody can have used it, else trust it no more: a \
         development identity's directory is removed, a member joins again, and a cluster whose authority it is of is made anew",
        path.display()
    )]
    Exposed {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is neither an authority nor a member's certificate. Remedy: make a cluster, or join one.
    #[error("{} holds no identity: make a cluster there (`callboard cluster init`) or join one (`callboard cluster join`)", path.display())]
    NoIdentity {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is no authority. Remedy: the directory of the node that has it.
    #[error("{} holds no authority: name the directory that `callboard cluster init` has made", path.display())]
    NoAuthority {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Something is there that would be lost. Remedy: another directory.
    #[error("{} is there already: name a directory that is not", path.display())]
    Occupied {
        /// What is there.
        path: PathBuf,
    },
    /// A member's identity is there that still holds, and would be lost. Remedy: another directory, or none there.
    #[error("{} holds the identity of {name} in {cluster}, which is still good: name another directory, or remove that one first", path.display())]
    Joined {
        /// Where it is.
        path: PathBuf,
        /// Whose it is.
        name: String,
        /// Of which cluster.
        cluster: String,
    },
    /// Somebody has joined in the directory of a running process. Remedy: start it again, as whoever it is now.
    #[error("the identity in {} is no longer the one with which this process was started: start it again to take that one", path.display())]
    Replaced {
        /// Where it is.
        path: PathBuf,
    },
    /// A name of a cluster that is none.
    #[error("`{name}` is not a name: expected up to 40 of a-z, 0-9 and -")]
    Name {
        /// What was given.
        name: String,
    },
    /// A number or a time beyond its limit.
    #[error("{what} may be {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// What is allowed.
        limit: &'static str,
    },
    /// The certificate is over, and was not renewed in time. Remedy: join again, with a new token.
    #[error("the certificate in {} has expired: join again with a new token (`callboard cluster join`)", path.display())]
    Expired {
        /// Where it is.
        path: PathBuf,
    },
    /// A certificate that is not good for serving. Remedy: join with a token of role node.
    #[error("this identity is a {role}'s, which may not serve: join with a token of role node")]
    Role {
        /// What it may be.
        role: Role,
    },
    /// The development identity proves nothing beyond this machine. Remedy: an identity of a cluster.
    #[error(
        "{address} is not on this machine, and the development identity is for loopback only: join a cluster (`callboard cluster join`)"
    )]
    LoopbackOnly {
        /// Where it was to be used.
        address: SocketAddr,
    },
    /// On this system it cannot be told who can read a key: what is shown beyond this machine may be anybody's. Remedy: a Unix.
    #[error(
        "{address} is not on this machine, and on this system identities are for loopback only: nobody can tell who reads their keys"
    )]
    Unguarded {
        /// Where it was to be used.
        address: SocketAddr,
    },
    /// Key, certificate or authority cannot be used for TLS.
    #[error("the identity cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
