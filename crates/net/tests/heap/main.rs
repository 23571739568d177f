//! What is left of the heap, and what is taken from it: both ends are in this process, and every allocation of it is
//! counted.

#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

#[path = "../it/common.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod common;
mod connections;
mod counting;
mod storm;
mod tensors;
