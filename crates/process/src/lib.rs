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
//! A program in Rust is such a child by [`serve_worker`]. A stage of the node's own program is run in one by
//! [`Isolate::isolate`].

mod batch;
mod calls;
mod child;
mod child_side;
mod config;
mod connection;
mod credit;
mod details;
mod devices;
mod environment;
mod exit;
mod fork_server;
mod frame;
mod guard;
mod helper;
mod isolate;
mod log_limit;
mod lost;
mod memory;
mod message;
mod open;
mod program;
mod python;
mod reader;
mod ready;
mod room;
mod running;
mod samples;
mod shared_memory;
mod socket;
mod spare;
mod stage;
mod start_watch;
#[cfg(test)]
mod testing;
mod usage;
mod worker;
mod writer;

pub use child_side::{ServeWorkerError, serve_worker};
pub use config::{FilesConfig, ProcessConfig, ProcessMethod};
pub use devices::{
    DEVICE_VARIABLES, Device, DeviceOfChild, Driver, device_metrics, device_of_child, devices, devices_for, driver,
};
pub use environment::{child_command, withhold_variables};
pub use guard::guard_if_asked;
pub use helper::{HelperConfig, StopSignal, helper};
pub use isolate::{Isolate, isolated_stage};
pub use log_limit::OUTPUT_TARGET;
pub use memory::{MemoryLimit, default_memory_limit};
pub use program::processors::check as check_cores;
pub use python::{
    HOOKS_READY, PythonApp, PythonConfig, PythonDependency, PythonError, PythonKeyed, PythonRawBody, PythonReplicas,
    PythonRequestArgument, PythonRequestPlace, PythonService, is_module_in, python_files,
};
pub use ready::{HttpUrl, Readiness};
pub use stage::{ForkServers, stage, stream_stage};
