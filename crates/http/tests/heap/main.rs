//! What requests take of the heap. A binary of its own, because its allocator counts for the whole process; its tests
//! take turns.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so by panicking")]

mod budget;
#[path = "../../../codec/tests/common/heap.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod heap;
mod memory;
#[path = "../../../codec/tests/common/mutate.rs"]
mod mutate;
