//! The codec through its public interface: round trips, files of other software, and hostile input.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "arrow")]
mod docs;
mod envelope;
mod golden;
mod hostile;
mod one_pass;
mod round_trip;
mod typed;
mod uniform;
mod wire;
