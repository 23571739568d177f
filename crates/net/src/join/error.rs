//! The reasons why a process got no certificate.

use std::io;
use std::net::SocketAddr;

use callboard_identity::{AddressError, IdentityError};

use crate::refusal::RefusalReason;

/// The reason why a request to join, or to renew a certificate, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No name has an address, or there is no name.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The directory cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system gives no socket.
    #[error("there is no socket to connect from")]
    Socket(#[source] io::Error),
    /// The node is not of the token's cluster. Nothing was sent to it. Remedy: the right address, or a token of that
    /// cluster.
    #[error(
        "the node at {address} is not of the token's cluster: name a node of that cluster, or take a token of this one"
    )]
    OtherAuthority {
        /// The node.
        address: SocketAddr,
    },
    /// The node is of the cluster, but does not hold its authority. Remedy: a node that does.
    #[error("the node at {address} issues no certificates: name one that serves the directory of an authority")]
    NoIssuer {
        /// The node.
        address: SocketAddr,
    },
    /// The authority denied the request. Remedy: see the reason.
    #[error("the node at {address} refused ({word}): {reason}")]
    Refused {
        /// The node.
        address: SocketAddr,
        /// The reason, in one word.
        word: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// The connection was lost, or could not be made.
    #[error("no certificate from {address}: {reason}")]
    Lost {
        /// The node.
        address: SocketAddr,
        /// The cause.
        reason: String,
    },
    /// No process has the port.
    #[error("nobody listens at {address}: is the node with the authority up, and is this its QUIC port?")]
    Absent {
        /// The address.
        address: SocketAddr,
    },
    /// The address did not answer in time.
    #[error("no answer from {address}: is the node with the authority up, and is this its QUIC port?")]
    Silent {
        /// The address.
        address: SocketAddr,
    },
}

impl JoinError {
    /// Whether another try, or another address, would give the same error.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { word, .. } => !RefusalReason::from_word(word).is_some_and(RefusalReason::is_transient),
            Self::OtherAuthority { .. } | Self::Identity(_) => true,
            _ => false,
        }
    }

    /// Whether an issuer does not know the token.
    pub(super) fn is_unknown_token(&self) -> bool {
        matches!(self, Self::Refused { word, .. } if word == RefusalReason::UnknownToken.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transient_refusal_is_tried_again_and_others_are_not() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let refused = |word: &str| JoinError::Refused { address, word: word.to_owned(), reason: String::new() };
        assert!(["busy", "too_many"].into_iter().all(|word| !refused(word).is_final()));
        assert!(["used_up_token", "name_taken", "replayed_token", ""].into_iter().all(|word| refused(word).is_final()));
        assert!(!JoinError::Silent { address }.is_final() && JoinError::OtherAuthority { address }.is_final());
    }
}
