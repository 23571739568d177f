//! A small HTTP client for commands that call and measure. It serves the span exporter as well.
//!
//! It sends one request on one connection. The owner of the connection decides when it is opened, how long a request
//! may take and what follows a failure. There is no pool, no redirect, no retry and no cookie, because each of them
//! would hide an answer. Bodies are streamed; a caller that wants a whole body sets its limit.
//!
//! - [`Origin`] is a parsed URL: the server, and the path that its routes are under.
//! - [`Call`] is a request; it makes a [`Prepared`] request that can be sent any number of times.
//! - [`Connection`] is one connection: HTTP/1.1 with keep-alive, or HTTP/2 (with prior knowledge, over https by ALPN).
//! - [`Trust`] is the set of trusted authorities over https: named ones, or those of the system.
//! - [`without_credentials`] is a text as errors show it.
//!
//! # Cancellation
//!
//! A dropped future ends its request: over HTTP/1.1 the connection is closed, over HTTP/2 the stream is reset.

mod call;
mod connection;
mod credentials;
mod error;
mod first_byte;
mod origin;
mod protocol;
mod trust;

pub use call::{Call, Prepared};
pub use connection::{Answer, Connection};
pub use credentials::without_credentials;
pub use error::{ClientError, OriginError, TrustError};
pub use origin::Origin;
pub use protocol::Protocol;
pub use trust::Trust;
