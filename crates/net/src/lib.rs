//! The QUIC edge of Callboard, and the client that calls it.
//!
//! A node serves its routes on a UDP port ([`QuicEdge`]); a [`Client`] calls them with the same methods, errors and
//! cancellation as in process (both are a [`Caller`](callboard_core::Caller)). Both ends show certificates of the same
//! authority ([`Identity`]); for one user on one machine it is made on first use.
//!
//! ```text
//!  Client ── hello, welcome ──►  QuicEdge       certificates, cluster, version: refused before anything is read
//!    │    ── call, body ──────►  permit ► body ► Gateway … Worker     a stream per pack of calls; reset = cancel
//!    ◄────── done | fail ──────┘                                      items with credit, where the route streams
//! ```
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use callboard_core::{App, Caller, Stage};
//! use callboard_net::{Client, QuicEdge, Identity, NetConfig};
//!
//! # let directory = std::env::temp_dir().join(format!("callboard-doctest-{}", std::process::id())).join("development");
//! # let identity = Identity::development_in(&directory)?;
//! // `Identity::development()` is that of this user on this machine.
//! let edge = QuicEdge::bind("127.0.0.1:0".parse()?, identity.clone(), NetConfig::default())?;
//! let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
//! let node = App::new().route("/shout", shout).start().await?;
//! edge.open(node.client());
//!
//! let client = Client::builder().identity(identity).connect(&format!("quic://{}", edge.address())).await?;
//! let loud: String = client.call("/shout", "ada".to_owned()).await?;
//! assert_eq!(loud, "ADA");
//! # std::fs::remove_dir_all(directory.parent().unwrap())?;
//! # Ok(())
//! # }
//! ```
//!
//! The frames are those of [`callboard_codec::wire`]; `docs/wire.md` draws them. QUIC runs on a thread of its own, so
//! that a node still answers when workers take all cores.

mod client;
mod cluster;
mod contained;
mod convert;
mod edge;
mod endpoint;
mod identity;
mod join;
mod refusal;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;

pub use client::{
    Client, ClientBuilder, ConnectError, NodeAddress, NotANodeAddress, Prepared, QuicUrl, Returned, ReturnedStream,
    Trouble,
};
pub use cluster::{Cluster, ClusterView, MAX_PEERS, NotOfferRules, OfferRules, SingleNode, Static, TooManyPeers, View};
pub use edge::{NetConfig, QuicEdge};
pub use endpoint::{BindError, Tuning, TuningError};
pub use identity::{
    Authority, DEFAULT_CERTIFICATE_LIFE, DEFAULT_TOKEN_LIFE, Identity, IdentityError, JoinToken, MemberInfo,
    MemberList, NotAToken, Role, TokenSpec,
};
pub use join::{JoinError, join};
