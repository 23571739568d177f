//! The protocol on a real node behind a real edge, without a socket but for the library in Rust. `tests/external` calls
//! it by other people's clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod edge;
mod handshake;
mod refusals;
mod rust_client;
mod stateless;
mod stdio;
mod streams;
