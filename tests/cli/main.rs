//! The binary as its user meets it: what it prints, what it answers, how it ends. Every test runs the real thing, on a port
//! that the system chooses and in a directory of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod admin;
mod bench;
mod bench_quic;
mod call;
mod check;
mod cluster;
mod digits;
mod examples;
mod graph;
mod https;
mod logs;
mod mistakes;
mod models;
mod openapi;
mod quic;
mod remote;
mod repository;
mod rolling;
mod safety;
mod serve;
mod shutdown;
mod support;
mod terminal;
mod words;
