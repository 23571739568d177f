//! The end of the interpreter: a thread that would come back to it then is stopped here, for good.
//!
//! Before Python 3.14 the interpreter ends such a thread by unwinding its stack, which must not go through Rust. So the
//! extension counts the threads that are inside it and may run Python. When the interpreter begins to end, it waits for
//! them to leave, and lets no other thread in but its own. Threads that wait for the network are not counted; they stay
//! outside.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The thread that ends the interpreter, once it does.
static LAST: OnceLock<ThreadId> = OnceLock::new();
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// A thread leaves within microseconds. A count that was inherited by a fork never falls.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// A thread that is inside of the extension and may run Python.
pub(crate) struct Inside(());

impl Inside {
    /// Comes in. Does not return at the end of the interpreter.
    pub(crate) fn enter(py: Python<'_>) -> Self {
        let inside = Self::counted();
        if must_stop() { inside.away(py, || ()).0 } else { inside }
    }

    /// Works detached from the interpreter, and does not come back at its end.
    pub(crate) fn away<T: Send>(self, py: Python<'_>, work: impl FnOnce() -> T + Send) -> (Self, T) {
        drop(self);
        py.detach(|| {
            let done = work();
            let inside = Self::counted();
            if must_stop() {
                drop(inside);
                stop();
            }
            (inside, done)
        })
    }

    fn counted() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        // With the fence of `end`: this thread sees that it must stop, or the ending thread sees that it is inside.
        fence(Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// For `atexit`: waits until other threads are outside.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    let _ = LAST.set(thread::current().id());
    fence(Ordering::SeqCst);
    py.detach(|| {
        let until = Instant::now() + LEAVE_WITHIN;
        while INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::park_timeout(Duration::from_millis(1));
        }
    });
}

fn must_stop() -> bool {
    LAST.get().is_some_and(|last| *last != thread::current().id())
}

fn stop() -> ! {
    loop {
        thread::park();
    }
}
