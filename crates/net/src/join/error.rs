//! Why there is no certificate.

use std::io;
use std::net::SocketAddr;

use crate::client::ConnectError;
use crate::identity::IdentityError;
use crate::refusal::is_passing;

/// What became of a wish to join, or to have a certificate renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No name has an address.
    #[error(transparent)]
    Url(#[from] ConnectError),
    /// The directory cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is no socket.
    #[error("there is no socket to connect from")]
    Socket(#[source] io::Error),
    /// There is nothing to connect to.
    #[error("no address was given")]
    Nowhere,
    /// Whoever is there is not of the token's cluster, or pretends to be somebody. Nothing was sent to it. Remedy: the right address, or a token
    /// of that cluster.
    #[error(
        "the node at {address} is not of the token's cluster: name a node of that cluster, or take a token of this one"
    )]
    OtherAuthority {
        /// Where.
        address: SocketAddr,
    },
    /// A node of the cluster that does not hold the authority. Remedy: the one that does.
    #[error("the node at {address} gives no certificates: name the one that serves the authority's directory")]
    NoIssuer {
        /// Where.
        address: SocketAddr,
    },
    /// The authority says no. Remedy: it says which.
    #[error("the node at {address} refused ({word}): {reason}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Why, in one word.
        word: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The connection was lost, or there was none.
    #[error("no certificate from {address}: {reason}")]
    Lost {
        /// Where.
        address: SocketAddr,
        /// What happened.
        reason: String,
    },
    /// Nobody has the port.
    #[error("nobody listens at {address}: is the node with the authority up, and is this its QUIC port?")]
    Absent {
        /// Where.
        address: SocketAddr,
    },
    /// Nobody answered.
    #[error("no answer from {address}: is the node with the authority up, and is this its QUIC port?")]
    Silent {
        /// Where.
        address: SocketAddr,
    },
}

impl JoinError {
    /// Whether another try, or another address, would say the same.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { word, .. } => !is_passing(word),
            Self::OtherAuthority { .. } | Self::Identity(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_to_come_again_does_and_who_is_refused_does_not() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let refused = |word: &str| JoinError::Refused { address, word: word.to_owned(), reason: String::new() };
        assert!(["busy", "too_many"].into_iter().all(|word| !refused(word).is_final()));
        assert!(["used_up_token", "name_taken", "replayed_token", ""].into_iter().all(|word| refused(word).is_final()));
        assert!(!JoinError::Silent { address }.is_final() && JoinError::OtherAuthority { address }.is_final());
    }
}
