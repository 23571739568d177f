//! What decoding and encoding take of the heap. A binary of its own, because its allocator counts for the whole
//! process; its tests take turns.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[cfg(feature = "arrow-compression")]
mod charges;
#[cfg(feature = "arrow")]
mod corpus;
#[cfg(feature = "arrow")]
#[path = "../common/fuzz.rs"]
mod fuzz;
#[path = "../common/heap.rs"]
mod heap;
#[cfg(feature = "arrow")]
#[path = "../common/ledger.rs"]
mod ledger;
mod memory;
#[cfg(feature = "arrow")]
#[path = "../common/mutate.rs"]
mod mutate;
