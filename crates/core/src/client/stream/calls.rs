//! The calls of a stream that run, each in a slot that the next one uses again: beginning a call costs no memory for its future.
//!
//! Bounded by the stream's look-ahead: there are never more slots than calls were outstanding at one moment.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

pub(super) struct Calls<F> {
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
    /// Slots to be polled in this turn.
    turn: Vec<usize>,
    woken: Arc<Woken>,
}

struct Slot<F> {
    number: usize,
    call: Pin<Box<Option<F>>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// What wakes one slot.
struct Bell {
    slot: usize,
    /// The slot stands in the list already.
    rung: AtomicBool,
    woken: Arc<Woken>,
}

/// Slots that were woken since the last turn, and the task that is to poll them.
#[derive(Default)]
struct Woken(Mutex<(Vec<usize>, Option<Waker>)>);

impl<F: Future> Calls<F> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), turn: Vec::new(), woken: Arc::default() }
    }

    /// Takes a call in; the next [`poll`](Self::poll) begins it.
    pub(super) fn begin(&mut self, number: usize, call: F) {
        let free = self.free.pop().unwrap_or_else(|| self.add_slot());
        let slot = &mut self.slots[free];
        slot.number = number;
        slot.call.set(Some(call));
        self.turn.push(free);
    }

    /// Drops a call, if it is not over.
    pub(super) fn give_up(&mut self, number: usize) {
        // Seldom, so it may look through all.
        let slots = self.slots.iter_mut().enumerate();
        if let Some((free, slot)) = slots.into_iter().find(|(_, slot)| slot.number == number && slot.call.is_some()) {
            slot.call.set(None);
            self.free.push(free);
        }
    }

    /// Polls what was begun or woken, once; hands over what came to its end.
    pub(super) fn poll(&mut self, cx: &Context<'_>, mut over: impl FnMut(usize, F::Output)) {
        {
            let mut woken = self.woken.0.lock();
            let (slots, task) = &mut *woken;
            if self.turn.is_empty() {
                mem::swap(&mut self.turn, slots);
            } else {
                self.turn.append(slots);
            }
            // Before they are polled: one that asks for another turn at once, as the runtime's budget has it do, gets it.
            if !task.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        for index in self.turn.drain(..) {
            let slot = &mut self.slots[index];
            // A swap and no store: it sees what was done before the bell was rung, and a ring that it does not see comes after it.
            slot.bell.rung.swap(false, Ordering::AcqRel);
            // Woken for a call that has given its slot to another, it finds that one not ready, or nothing.
            let Some(call) = slot.call.as_mut().as_pin_mut() else { continue };
            if let Poll::Ready(output) = call.poll(&mut Context::from_waker(&slot.waker)) {
                slot.call.set(None);
                self.free.push(index);
                over(slot.number, output);
            }
        }
    }

    fn add_slot(&mut self) -> usize {
        let slot = self.slots.len();
        let bell = Arc::new(Bell { slot, rung: AtomicBool::new(false), woken: Arc::clone(&self.woken) });
        let waker = Waker::from(Arc::clone(&bell));
        self.slots.push(Slot { number: 0, call: Box::pin(None), bell, waker });
        slot
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::sync::oneshot;

    fn over<F: Future>(calls: &mut Calls<F>) -> Vec<(usize, F::Output)> {
        let mut over = Vec::new();
        calls.poll(&Context::from_waker(Waker::noop()), |number, output| over.push((number, output)));
        over
    }

    #[test]
    fn calls_end_in_any_order_and_their_slots_are_used_again() {
        let mut calls = Calls::new();
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        for (number, receiver) in receivers.into_iter().enumerate() {
            calls.begin(number, receiver);
        }
        assert_eq!(over(&mut calls), []);

        senders.pop().unwrap().send("last").unwrap();
        assert_eq!(over(&mut calls), [(2, Ok("last"))]);
        assert_eq!(over(&mut calls), []);

        let (sender, receiver) = oneshot::channel();
        calls.begin(3, receiver);
        sender.send("next").unwrap();
        assert_eq!(over(&mut calls), [(3, Ok("next"))]);
        assert_eq!(calls.slots.len(), 3);
    }

    #[test]
    fn a_call_that_is_given_up_is_dropped_and_its_slot_is_free() {
        let mut calls = Calls::new();
        let (sender, receiver) = oneshot::channel::<()>();
        calls.begin(0, receiver);
        assert_eq!(over(&mut calls), []);

        calls.give_up(0);
        assert!(sender.is_closed());
        calls.give_up(0);
        assert_eq!(calls.free.len(), 1);
        // What it would have been woken for is nobody's any more.
        drop(sender);
        assert_eq!(over(&mut calls), []);
    }

    #[test]
    fn a_call_that_asks_for_another_turn_gets_it() {
        struct Counted(AtomicBool);
        impl Wake for Counted {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Release);
            }
        }
        let task = Arc::new(Counted(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&task));
        let mut calls = Calls::new();
        calls.begin(0, async {
            tokio::task::yield_now().await;
            "over"
        });

        // Outside a runtime, `yield_now` wakes at once.
        let mut ended = Vec::new();
        calls.poll(&Context::from_waker(&waker), |number, output| ended.push((number, output)));
        assert!(ended.is_empty());
        assert!(task.0.load(Ordering::Acquire));
        calls.poll(&Context::from_waker(&waker), |number, output| ended.push((number, output)));
        assert_eq!(ended, [(0, "over")]);
    }
}
