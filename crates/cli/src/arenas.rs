//! How much freed memory the process keeps, where its allocator is that of glibc.
//!
//! glibc has up to eight arenas for each processor, and keeps up to 64 MiB of freed memory in each. Large answers are
//! encoded on many threads, each with an arena: a node that had refused some of them held more free memory than its
//! budget. With one arena for each processor, and at least four, threads still seldom wait for each other.

#![allow(unsafe_code, reason = "the allocator has only a C interface for it, and reads its variables before `main`")]

use std::ffi::c_int;
use std::thread::available_parallelism;

/// Few processors run many threads.
const FEWEST: usize = 4;

/// Limits the number of arenas, unless the operator has set it. Must run before other threads start, because a thread
/// keeps the arena that it has.
pub(crate) fn bound() {
    let has_own = std::env::var_os("MALLOC_ARENA_MAX").is_some()
        || std::env::var("GLIBC_TUNABLES").is_ok_and(|tunables| tunables.contains("arena_max"));
    if !has_own {
        let arenas = available_parallelism().map_or(FEWEST, usize::from).max(FEWEST);
        // SAFETY: it takes two numbers and no pointer; an invalid one is refused.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, c_int::try_from(arenas).unwrap_or(c_int::MAX)) };
    }
}
