//! The binary from outside: its output, its answers, its end. Every test runs the real binary on a free port and in its
//! own directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actors;
mod adder;
mod admin;
mod bench;
mod bench_quic;
mod call;
mod check;
mod cluster;
mod digits;
mod directory;
mod edited;
mod examples;
mod graph;
#[cfg(target_os = "linux")]
mod helpers;
mod https;
mod issuers;
mod logs;
mod mcp;
mod members;
mod mistakes;
mod models;
#[cfg(target_os = "linux")]
mod mounted;
mod nodes;
mod openapi;
mod operators;
mod quic;
mod remote;
mod repository;
mod rolling;
mod safety;
mod serve;
mod shutdown;
mod support;
mod terminal;
#[cfg(unix)]
mod top;
mod trouble;
mod words;
