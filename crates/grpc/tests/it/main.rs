//! The services on a real node behind a real listener, by a client of HTTP/2 that frames its own messages.
//! `tests/external` calls them by other people's clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod framing;
mod health;
mod infer;
mod messages;
mod reflection;
mod refusals;
mod relay;
mod routes;
mod streamed;
