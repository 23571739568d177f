//! The identity of a process in a cluster: a certificate of the cluster's authority, and its private key.
//!
//! Both ends of a connection present a certificate, and each end verifies the other's against the authority of its own
//! cluster. A peer without a certificate of that authority is refused during the handshake. Certificates are
//! short-lived and renewed while they are valid; the role in a certificate is checked per connection and per call.
//!
//! ```text
//!  authority/    issues certificates: tokens, members, removals      token.rs        a join token and its proof
//!  identity/     one process's identity: development or member,      certificate.rs  what a certificate says
//!                its renewal, the removed members it knows           tls.rs          TLS settings, pinned authority
//! ```
//!
//! The crate opens no connection: the caller brings an [`IssuerClient`] for renewals.
//!
//! ```
//! use callboard_identity::{Authority, Identity, TokenSpec};
//!
//! # fn main() -> Result<(), callboard_identity::IdentityError> {
//! # let directory = std::env::temp_dir().join(format!("callboard-identity-doctest-{}", std::process::id()));
//! let authority = Authority::init(&directory.join("authority"), "lab")?;
//! let token = authority.token(&TokenSpec::default())?;
//! assert!(token.to_string().starts_with("cbt1-"));
//! let identity = Identity::from_authority(authority)?;
//! assert!(identity.cluster().starts_with("lab-"));
//! # std::fs::remove_dir_all(directory).ok();
//! # Ok(())
//! # }
//! ```

#[cfg(unix)]
mod access;
mod address;
mod authority;
mod certificate;
mod clock;
mod error;
mod files;
mod identity;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod token;

pub use address::{AddressError, InvalidNodeAddress, NodeAddress, QuicUrl};
pub use authority::{
    Authority, InvalidRemovals, JoinDenied, JoinRequest, MAX_LIST_BYTES, MAX_SIGNED_BYTES, MemberInfo, MemberList,
    RemovedMembers, SignedRemovals, TokenSpec,
};
pub use certificate::{
    ISSUER_NAME, IssuerCertificate, Member, NODE_NAME, Role, Validity, cluster_name, is_issuer, pin,
};
pub use clock::Clock;
pub use error::IdentityError;
pub use identity::{
    HeldList, HeldLists, Identity, IssuerClient, MemberChain, certificate_request, keep_removals, keep_renewed,
    prepare_member, read_chain, save_member,
};
pub use text::{quoted, with_sources};
pub use tls::{ALPN, JOIN_ALPN, join_client_tls, random_key};
pub use token::{EXPORTED_BYTES, EXPORTER_LABEL, InvalidToken, JoinToken};
