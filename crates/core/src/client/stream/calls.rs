//! The calls of a stream that run, each in a slot that the next one uses again: beginning a call costs no memory for its future.
//!
//! Bounded by the stream's look-ahead: there are never more slots than calls were outstanding at one moment.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::bells::{Bell, Bells};

pub(super) struct Calls<F> {
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
    /// Slots to be polled in this turn.
    turn: Vec<usize>,
    bells: Bells,
}

struct Slot<F> {
    number: usize,
    call: Pin<Box<Option<F>>>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl<F: Future> Calls<F> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), turn: Vec::new(), bells: Bells::default() }
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
        // Before they are polled: one that asks for another turn at once, as the runtime's budget has it do, gets it.
        self.bells.take(&mut self.turn, cx.waker());
        for index in self.turn.drain(..) {
            let slot = &mut self.slots[index];
            slot.bell.silence();
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
        let bell = self.bells.bell(slot);
        let waker = Waker::from(Arc::clone(&bell));
        self.slots.push(Slot { number: 0, call: Box::pin(None), bell, waker });
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use tokio::sync::oneshot;

    use super::*;

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
