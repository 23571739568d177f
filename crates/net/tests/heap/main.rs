//! Leaks and allocations of the heap: both ends are in this process, and every allocation is counted.

#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

#[path = "../it/common.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod common;
mod connections;
mod counting;
mod storm;
mod tensors;
