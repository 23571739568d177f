//! Why there is no identity.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What is wrong with an identity, or with where it was to be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is set. Remedy: set one of them.
    #[error("there is no directory for the development identity: set XDG_STATE_HOME or HOME")]
    NoStateDirectory,
    /// A file could not be read or written.
    #[error("could not use {}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be. Remedy: remove the directory; a new identity is made.
    #[error("{} is damaged: {reason}; remove its directory to have a new one made", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else could have read or made it, and would be taken for this user. Remedy: remove the directory; a new identity is
    /// made.
    #[error("{} is not this user's alone: {reason}; remove its directory to have a new one made", path.display())]
    Exposed {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The development identity proves nothing beyond this machine. Remedy: an identity of a cluster.
    #[error("{address} is not on this machine, and the development identity is for loopback only")]
    LoopbackOnly {
        /// Where it was to be used.
        address: SocketAddr,
    },
    /// Key, certificate or authority cannot be used for TLS.
    #[error("the identity cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
