//! The QUIC edge of Callboard, its network client, and remote stages.
//!
//! A node serves its routes on a UDP port ([`QuicEdge`]). A [`Client`] calls them with the same methods, errors and
//! cancellation as in process: both implement [`Caller`](callboard_core::Caller). Both ends present certificates of the
//! same authority ([`Identity`]); the one for a single user on one machine is made on first use.
//!
//! ```text
//!  Client ── hello, welcome ──►  QuicEdge       certificates, cluster, version: refused before anything is read
//!    │    ── call, body ──────►  permit ► body ► Gateway … Worker     small calls share a stream; reset = cancel
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
//! // `Identity::development()` is the identity of this user on this machine.
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
//! Nodes that gossip ([`NetConfig::membership`]) learn of all members of their cluster from one that they name
//! ([`QuicEdge::view`]).
//!
//! [`callboard_codec::wire`] has the frames, and `docs/wire.md` their layout. QUIC runs on a thread of its own, so a
//! node still answers when workers use all cores.

mod client;
mod cluster;
mod counter;
mod endpoint;
mod join;
mod link;
mod membership;
mod metrics;
mod offers;
mod offload;
mod own_address;
mod refusal;
mod server;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod view;
mod wire;

pub use callboard_identity::{
    AddressError, Authority, Identity, IdentityError, InvalidNodeAddress, InvalidToken, IssuerCertificate, JoinToken,
    MemberInfo, MemberList, NodeAddress, QuicUrl, Role, TokenSpec,
};
pub use client::{CallFailure, Client, ClientBuilder, ConnectError, EncodedCall, Prepared, Response, ResponseStream};
pub use cluster::Cluster;
pub use endpoint::{BindError, Tuning, TuningError};
pub use join::{JoinError, join};
pub use membership::MembershipProfile;
pub use offers::{InvalidMemberRules, MemberRules};
pub use server::{ClusterState, NetConfig, QuicEdge};
pub use view::{ClusterView, MAX_PEERS, SingleNode, StaticView, TooManyPeers, View};
