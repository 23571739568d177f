//! The reasons why the authority denies a certificate.

use crate::error::IdentityError;

/// The reason why a request for a certificate was denied.
#[derive(Debug, thiserror::Error)]
pub enum JoinDenied {
    /// The token was made for another cluster.
    #[error("the token is of another cluster: take one that was made for this one")]
    OtherCluster,
    /// The cluster has no token of this id.
    #[error("this cluster has no such token, or has it no more: make a new one (`callboard cluster token`)")]
    UnknownToken,
    /// The token has expired.
    #[error("the token has expired: make a new one (`callboard cluster token --expires`)")]
    ExpiredToken,
    /// The token was revoked.
    #[error("the token was revoked: ask the operator of the cluster for another one (`callboard cluster token`)")]
    RevokedToken,
    /// Members have joined with all uses of the token.
    #[error("all uses of the token are used up: make a new one (`callboard cluster token --uses`)")]
    UsedUpToken,
    /// The proof was not made for this connection.
    #[error("the proof is not of this connection: it was recorded, passed on or damaged; join with the token itself")]
    ReplayedToken,
    /// The certificate request cannot be read, or its signature is wrong.
    #[error("not a certificate request: {0}")]
    InvalidRequest(String),
    /// The text cannot be the name of a member.
    #[error("{0} is not a name: expected up to 40 of a-z, 0-9 and -")]
    InvalidName(String),
    /// Another member has the name.
    #[error("there is a member `{0}`: take another name, or remove that one first (`callboard cluster remove`)")]
    NameTaken(String),
    /// The member of this name has another role.
    #[error("there is a member `{0}` of another role: take another name, or a token of its role")]
    OtherRole(String),
    /// The member was removed.
    #[error("the member `{0}` was removed: join again with a new token")]
    RemovedMember(String),
    /// A renewal came without the certificate to renew.
    #[error("a renewal needs the certificate that is to be renewed: join with a token")]
    NoCertificate,
    /// The issuer's certificate ends, so that a renewal here would gain nothing.
    #[error("the certificate of this issuer ends, and what it signs ends no later: another issuer renews for longer")]
    EndingIssuer,
    /// The authority's own files failed.
    #[error("the authority failed; its own log says why")]
    Failed(#[from] IdentityError),
}
