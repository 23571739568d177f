//! A counting allocator for tests that compare decoding with its bounds.
//!
//! It counts for the whole binary, so each measurement takes a [`turn`].

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator that counts and calls the system's; `realloc` counts as both")]
// SAFETY: each call forwards to the system allocator with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

fn count(size: usize) {
    let live = LIVE.fetch_add(size, Relaxed) + size;
    PEAK.fetch_max(live, Relaxed);
    TOTAL.fetch_add(size, Relaxed);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this binary measures.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` and returns its peak and its total of allocated bytes.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (before, total) = (LIVE.load(Relaxed), TOTAL.load(Relaxed));
    PEAK.store(before, Relaxed);
    let made = work();
    (made, PEAK.load(Relaxed) - before, TOTAL.load(Relaxed) - total)
}

/// Bytes allocated now.
#[allow(dead_code, reason = "not every binary uses it")]
pub(crate) fn live() -> usize {
    LIVE.load(Relaxed)
}
