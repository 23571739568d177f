//! Wakes the callers whose outcomes arrived at the same moment together.
//!
//! Callers that are woken together call again together, and their next calls share a stream. If each stream woke its
//! own callers, calls that were separated once would stay separated. No outcome waits for another that has not arrived.

use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// The callers of all shared streams of one connection.
#[derive(Debug, Default)]
pub(super) struct WakeBatch(Arc<Mutex<Vec<Waker>>>);

/// The part of one shared stream in the batch.
#[derive(Debug)]
pub(super) struct WakeGuard(Arc<Mutex<Vec<Waker>>>);

impl WakeBatch {
    /// Adds a shared stream.
    pub(super) fn join(&self) -> WakeGuard {
        WakeGuard(Arc::clone(&self.0))
    }
}

impl WakeGuard {
    /// Wakes these callers, together with those of other streams that are read in the same turn of the thread.
    pub(super) async fn wake(&self, callers: &mut Vec<Waker>) {
        if self.is_alone() {
            return callers.drain(..).for_each(Waker::wake);
        }
        self.0.lock().append(callers);
        yield_to_ready_tasks().await;
        self.wake_all();
    }

    /// Whether there is no other shared stream: only the batch and this guard hold the list.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) <= 2
    }

    fn wake_all(&self) {
        // Woken after the lock is released.
        let woken = std::mem::take(&mut *self.0.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for WakeGuard {
    fn drop(&mut self) {
        // The stream may have been dropped while it yielded.
        self.wake_all();
    }
}

/// Lets the tasks run first that are ready on this thread.
pub(super) async fn yield_to_ready_tasks() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        // Goes to the end of the run queue, where another thread may steal it. tokio's `yield_now` would defer it until
        // this thread has nothing else to do.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
