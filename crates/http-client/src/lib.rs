//! The other side of the edge: a small client for what speaks our dialect of HTTP, for commands that call and measure.
//!
//! It does one thing: a request on a connection whose owner decides when it is opened, how long anything may take and what
//! follows a failure. There is no pool, no redirect, no retry and no cookie, because each of them would answer something
//! else than was asked. Nothing is collected: an answer's body is handed on piece by piece, and a caller that wants the
//! whole says how much that may be.
//!
//! - [`Origin`] is a parsed URL: where to connect, and the path that routes are under.
//! - [`Call`] is what to send, and makes a [`Prepared`] that can be sent any number of times.
//! - [`Connection`] is one connection, HTTP/1.1 with keep-alive or HTTP/2 (with prior knowledge, over https by ALPN).
//! - [`Trust`] is whose certificates are believed over https: those of named authorities, or of the system's.
//!
//! # Cancellation
//!
//! A future that is dropped ends its request: on HTTP/1.1 with the connection, which is then closed, on HTTP/2 with its
//! stream.

mod call;
mod connection;
mod error;
mod first_byte;
mod origin;
mod trust;

pub use call::{Call, Prepared};
pub use connection::{Answer, Connection, Protocol};
pub use error::{ClientError, OriginError, TrustError};
pub use origin::Origin;
pub use trust::Trust;
