//! Callboard and software that we did not write: real clients of other people against the real binary.
//!
//! These tests need more than the toolchain. Each sets up what it needs (`python.rs`: a virtual environment with the pinned
//! packages of `requirements/`, made once under the target directory) and runs a script of `scripts/` against a server of its
//! own. Where a tool is missing a test is skipped with one line, unless `CALLBOARD_REQUIRE` names the tool: then it fails
//! (`tool.rs`). Whatever runs has a limit; what does not end by then is killed, and its test fails with what it said.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod browser;
mod examples;
mod generators;
mod metrics;
mod node;
mod openapi;
mod process;
mod python;
mod quic;
mod refusals;
#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "the other target uses the rest")]
mod support;
mod tool;
mod traces;
mod triton;
mod upload;
