//! Leaks and allocations of the heap: both ends are in this process, and every allocation is counted.

#![allow(clippy::unwrap_used, reason = "a failed test panics")]

#[path = "../it/common.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod common;
mod connections;
mod counting;
mod picks;
mod storm;
mod tensors;
