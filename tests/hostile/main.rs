//! Attacks on a node, each next to honest callers.
//!
//! Every test sends one kind of hostile traffic to a server in its own process, with default settings and at most 1 GiB
//! of private memory, and 512 MiB for each of its children. [`attack`] checks the same bounds under each of them: the
//! process lives, honest callers get answers, health answers in time, memory stays within a multiple of the budget, the
//! log stays short and each of its lines is the node's own, and the node becomes idle again.
//!
//! | variable | meaning |
//! |---|---|
//! | `CALLBOARD_HOSTILE_BINARY` | the `callboard` binary to attack; without it every attack is skipped with a line |
//! | `CALLBOARD_HOSTILE_SERVER` | the server of Rust types; else `hostile_server` in the directory of the binary |
//! | `CALLBOARD_HOSTILE_PYTHON` | an environment with what the Python package needs and Pillow; without it the attacks on services in Python are skipped with a line |
//! | `CALLBOARD_HOSTILE_SLACK` | the factor on latency bounds; default 1 |
//! | `CALLBOARD_HOSTILE_REPORT` | a file to which each attack appends a row of a table |
//!
//! The time bounds are for a release build, recognized by the path of the binary. A debug build has five times as long
//! for health. Attacks run one after the other, and only against loopback.

#![allow(clippy::print_stdout, reason = "each attack prints its figures")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "attacks and probes are paced by time")]

/// Ends a test without a binary to attack, before it makes its bodies: they take minutes on a busy machine.
macro_rules! needs_binary {
    () => {
        if !crate::attack::is_enabled() {
            return;
        }
    };
}

mod actors;
#[path = "../cli/adder.rs"]
#[allow(dead_code, reason = "the other target uses the rest")]
mod adder;
mod answers;
mod arrow;
mod attack;
#[cfg(target_os = "linux")]
mod children;
mod connections;
mod edges;
mod forms;
mod gaps;
mod gossip;
mod grpc;
mod honest;
mod http1;
mod http2;
mod json;
mod mcp;
mod msgpack;
mod node;
mod npy;
mod npz;
mod oip;
mod openai;
mod payloads;
mod peers;
#[cfg(target_os = "linux")]
mod python;
mod quic;
mod refused;
mod rollouts;
mod send;
mod streams;
mod uploads;
