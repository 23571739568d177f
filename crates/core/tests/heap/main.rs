//! What calls and models take of the heap. A binary of its own, because its allocator counts for the whole process; its
//! tests take turns.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test prints its figures, and panics if it cannot continue"
)]

#[path = "../../../codec/tests/common/heap.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod heap;
mod keys;
mod memory;
mod unload;

/// Runs a test on one thread, so that it can hold its turn until the runtime has ended.
fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}
