//! The API on a real node behind a real edge, without a socket. `tests/external` calls it by other people's clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chat;
mod edge;
#[path = "../common/fuzz.rs"]
mod fuzz;
mod items;
mod media;
mod messages;
mod refusals;
mod responses;
mod seeds;
