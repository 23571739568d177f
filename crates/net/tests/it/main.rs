//! The QUIC edge and its client over real sockets on loopback, with real certificates.

#![allow(clippy::unwrap_used, reason = "a failed test panics")]

mod actors;
mod answers;
mod blocked_runtime;
mod body_bytes;
mod calls;
mod common;
mod forms;
mod frozen;
mod generations;
mod gossip;
mod hostile;
mod identity;
mod issuers;
mod joining;
mod keyed;
mod keyed_cluster;
mod keyed_history;
mod keyed_restarts;
mod lab;
mod ledger;
mod lifecycle;
mod limits;
mod links;
mod members;
mod names;
mod orders;
mod origin;
mod peers;
mod processes;
mod promises;
mod refusals;
mod renewals;
mod routing;
mod shared_streams;
mod stage_streams;
mod stages;
mod streams;
mod test_peer;
mod traces;
mod transcripts;
mod upgrade;
mod versions;
mod watched_actors;
mod windows;
