//! What a run takes of the heap. A binary of its own, because its allocator counts for the whole process; its tests
//! take turns.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod copies;
#[path = "../../../codec/tests/common/heap.rs"]
mod heap;
#[path = "../support/mod.rs"]
mod support;
