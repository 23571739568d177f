//! A server: an app with its edges. It starts the node, opens the edges, and shuts down in an order that loses no call
//! (`edges.rs`). Over HTTP it answers from the beginning, while the app still starts (`http.rs`).

#[cfg(feature = "http")]
mod builder;
mod edges;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod mcp;

pub use self::edges::{EdgeServer, EdgeServerError};

#[cfg(feature = "http")]
pub use self::builder::ServerBuilder;
#[cfg(feature = "http")]
pub use self::http::{ServeError, Server, StartingServer, own_protocols, serve};
#[cfg(feature = "http")]
pub use self::mcp::mcp_config;
