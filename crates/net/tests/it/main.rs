//! The QUIC edge and its client over real sockets on loopback, with real certificates.

#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod calls;
mod common;
mod earned;
mod forms;
mod hostile;
mod identity;
mod incarnations;
mod joining;
mod lab;
mod ledger;
mod lifecycle;
mod limits;
mod members;
mod names;
mod packs;
mod peers;
mod processes;
mod promises;
mod refusals;
mod renewals;
mod routing;
mod spinning;
mod stage_streams;
mod stages;
mod streams;
mod traces;
mod transcripts;
mod windows;
