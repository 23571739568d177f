//! Models as stages: files that are built in the tests, loaded, and called through a node.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod batching;
mod load;
mod on_demand;
mod onnxruntime;
mod padding;
mod rten_unsupported;
mod stage;
#[path = "../support/mod.rs"]
mod support;
