//! Callboard and external software: real clients against the real binary.
//!
//! These tests need more than the toolchain. Each installs what it needs (`python.rs`: a virtual environment with the
//! pinned packages of `requirements/`, made once under the target directory) and runs a script of `scripts/` against
//! its own server. Without its tool a test is skipped with one line, unless `CALLBOARD_REQUIRE` names the tool: then it
//! fails (`tool.rs`). Each process has a time limit; after it, the process is killed and its test fails with its
//! output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod browser;
mod deploy;
mod examples;
mod generators;
mod grpc;
mod large_arrays;
mod mcp;
mod metrics;
mod migrate;
#[cfg(target_os = "linux")]
mod namespaces;
mod node;
#[cfg(target_os = "linux")]
#[path = "../cli/nodes.rs"]
#[allow(dead_code, reason = "the other target uses the rest")]
mod nodes;
mod onnx;
mod openai;
mod openapi;
mod peers;
mod process;
mod python;
mod python_apps;
mod python_client;
mod python_docs;
mod python_examples;
mod python_terminal;
mod quic;
mod refusals;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "the other target uses the rest")]
mod support;
mod tool;
mod traces;
mod triton;
mod upload;
mod workflows;
