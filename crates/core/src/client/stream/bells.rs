//! Which slots of a stream were woken, and whom to wake for them: a bell for each slot, and one list for all.
//!
//! No ring is lost. One that finds its bell rung already is heard by the turn that silences it, because to silence is to swap, which sees
//! what was done before the ring; one that comes after stands in the list again. `tests/interleavings.rs` plays this file with loom's
//! locks and atomics, in every order with at most two interruptions. The list is no longer than there are slots.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::sync::{AtomicBool, Mutex, Ordering};

/// The list.
#[derive(Default)]
pub(super) struct Bells(Arc<Woken>);

/// Slots that were woken since the last turn, and the task that is to poll them.
#[derive(Default)]
struct Woken(Mutex<(Vec<usize>, Option<Waker>)>);

/// What wakes one slot.
pub(super) struct Bell {
    slot: usize,
    /// The slot stands in the list already.
    rung: AtomicBool,
    woken: Arc<Woken>,
}

impl Bells {
    /// The bell of one more slot.
    pub(super) fn bell(&self, slot: usize) -> Arc<Bell> {
        Arc::new(Bell { slot, rung: AtomicBool::new(false), woken: Arc::clone(&self.0) })
    }

    /// Adds those that were woken to `turn`. Whoever is woken after that wakes `task`.
    pub(super) fn take(&self, turn: &mut Vec<usize>, task: &Waker) {
        let mut woken = self.0.0.lock();
        let (slots, waiting) = &mut *woken;
        if turn.is_empty() {
            std::mem::swap(turn, slots);
        } else {
            turn.append(slots);
        }
        if !waiting.as_ref().is_some_and(|waker| waker.will_wake(task)) {
            *waiting = Some(task.clone());
        }
    }
}

impl Bell {
    /// Before its slot is polled: what rings from now on is heard in another turn.
    pub(super) fn silence(&self) {
        // A swap and no store: it sees what was done before the bell was rung, and a ring that it does not see comes after it.
        self.rung.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut woken = self.woken.0.lock();
            woken.0.push(self.slot);
            // The first of a turn wakes the task; it leaves its waker again when it looks.
            woken.1.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}
