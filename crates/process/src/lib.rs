//! Stages whose replicas are child processes, in any language.
//!
//! ```text
//!  batch ──► frame ──► Unix socket ──► child        one child for each replica
//!                                        │
//!  one outcome per item ◄── frame ◄──────┘          its end is a crash of the replica, with the reason
//! ```
//!
//! A child that is killed, hangs or breaks the protocol costs its replica and nothing else: the stage's contract says
//! what happens to its batch, as for a worker that panics. The protocol is `docs/worker-protocol.md`.
//!
//! A program in Rust is such a child by [`serve_worker`].

mod calls;
mod child;
mod concurrent;
mod config;
mod exit;
mod fork_server;
mod frame;
mod message;
mod program;
mod python;
mod serve;
mod shared_memory;
mod socket;
mod stage;
mod worker;

pub use config::ProcessConfig;
pub use python::{PythonApp, PythonConfig, PythonDependency, PythonError, PythonRawBody, PythonService, python_files};
pub use serve::{ServeWorkerError, serve_worker};
pub use stage::{stage, stream_stage};
