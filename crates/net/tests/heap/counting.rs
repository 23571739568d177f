//! The allocator of this binary. Tests that read it run one at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// The size of a tensor, above that of any packet.
const LARGE_BYTES: usize = 256 << 10;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// All bytes ever allocated by this thread.
    static TAKEN_HERE: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn took(bytes: usize) {
    LIVE.fetch_add(bytes as isize, Ordering::Relaxed);
    TAKEN.fetch_add(bytes, Ordering::Relaxed);
    // Fails at the end of a thread.
    let _ = TAKEN_HERE.try_with(|taken| taken.set(taken.get() + bytes));
    if bytes >= LARGE_BYTES {
        LARGE.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every request goes to the system's allocator as it is.
#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        took(bytes);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// No other test allocates while this guard is held.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

/// Bytes in use.
pub(crate) fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// All bytes ever allocated, and the part of them in large pieces.
pub(crate) fn taken() -> (usize, usize) {
    (TAKEN.load(Ordering::Relaxed), LARGE.load(Ordering::Relaxed))
}

/// All bytes ever allocated by this thread.
pub(crate) fn taken_here() -> usize {
    TAKEN_HERE.get()
}
