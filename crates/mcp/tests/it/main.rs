//! The protocol on a real node behind a real edge, without a socket. `tests/external` calls it by other people's clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod edge;
mod handshake;
mod refusals;
mod stateless;
mod stdio;
mod streams;
