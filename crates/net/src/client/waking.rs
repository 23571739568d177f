//! Callers whose outcomes are there: those of one moment are woken together.
//!
//! They come back together then, and their next calls share a pack. Were those of each pack woken by themselves, packs that have once
//! come apart would never come together again. Nobody waits for what has not arrived.

use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// The callers of all packs of one link.
#[derive(Debug, Default)]
pub(super) struct Waking {
    unwoken: Mutex<Vec<Waker>>,
}

/// One pack's part in it.
#[derive(Debug)]
pub(super) struct Party(Arc<Waking>);

impl Waking {
    /// For one more pack.
    pub(super) fn join(self: &Arc<Self>) -> Party {
        Party(Arc::clone(self))
    }
}

impl Party {
    /// Wakes these, with those of other packs that are read in the same turn of the thread.
    pub(super) async fn wake(&self, callers: &mut Vec<Waker>) {
        // The link, and this pack.
        if Arc::strong_count(&self.0) <= 2 {
            return callers.drain(..).for_each(Waker::wake);
        }
        self.0.unwoken.lock().append(callers);
        let_others_go().await;
        self.wake_all();
    }

    fn wake_all(&self) {
        // Behind the lock: it is held for no longer than a list takes to be handed over.
        let woken = std::mem::take(&mut *self.0.unwoken.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // It may have been dropped while it let others go.
        self.wake_all();
    }
}

/// Lets those go first who are ready on this thread.
pub(super) async fn let_others_go() {
    let mut has_waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        // At the end of the queue, where another thread may take it; tokio's own way keeps it until this one has nothing else to do.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
