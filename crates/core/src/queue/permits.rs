//! The permits of one stage's queue: an entry takes one before it is sent, and gives it back when it leaves the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the entries in the mailbox and the queue, and the callers that wait for a permit.
///
/// All counts are sequentially consistent with each other and with the workers' slots.
#[derive(Debug)]
pub(crate) struct QueuePermits(Arc<PermitCount>);

#[derive(Debug)]
struct PermitCount {
    limit: usize,
    taken: AtomicUsize,
    /// Callers that wait because the queue is full; `room` wakes them.
    waiting: AtomicUsize,
    room: Notify,
}

/// The permit of one entry. Dropping it gives it back, also when the entry dies with its actor.
#[derive(Debug)]
pub(crate) struct QueuePermit(Arc<PermitCount>);

impl QueuePermits {
    pub(crate) fn new(limit: usize) -> Self {
        let (taken, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(PermitCount { limit, taken, waiting, room: Notify::new() }))
    }

    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::SeqCst)
    }

    /// A permit, if one is free. The count never exceeds the limit, not even for a moment: a waiting caller would see a
    /// full queue then, and would not be woken again.
    pub(crate) fn take(&self) -> Option<QueuePermit> {
        let take = |taken| (taken < self.0.limit).then_some(taken + 1);
        let taken = self.0.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        taken.is_ok().then(|| QueuePermit(Arc::clone(&self.0)))
    }

    /// A permit even if none is free: for entries that were admitted before and wait again.
    pub(crate) fn take_again(&self) -> QueuePermit {
        self.0.taken.fetch_add(1, Ordering::SeqCst);
        QueuePermit(Arc::clone(&self.0))
    }

    /// Waits for a permit while `check` succeeds. The callers bound the number that waits. Entries that do not wait may
    /// overtake them.
    pub(crate) async fn wait<E>(&self, check: impl Fn() -> Result<(), E>) -> Result<QueuePermit, E> {
        let _waiting = WaitingCaller::new(&self.0);
        loop {
            let mut room = std::pin::pin!(self.0.room.notified());
            // Listens first, so that a permit freed between the check and the wait is not missed.
            room.as_mut().enable();
            check()?;
            if let Some(permit) = self.take() {
                return Ok(permit);
            }
            room.await;
        }
    }

    /// Wakes all waiting callers, which check again.
    pub(crate) fn wake_all(&self) {
        self.0.room.notify_waiters();
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        // A caller that found no permit because of this one is counted already.
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.room.notify_one();
        }
    }
}

/// Counts a caller that waits for a permit.
struct WaitingCaller<'a>(&'a PermitCount);

impl<'a> WaitingCaller<'a> {
    fn new(permits: &'a PermitCount) -> Self {
        permits.waiting.fetch_add(1, Ordering::SeqCst);
        Self(permits)
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        // A caller that was woken and leaves without a permit passes the wake-up on.
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.0.room.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn always() -> Result<(), ()> {
        Ok(())
    }

    #[test]
    fn permits_are_bounded_except_for_entries_that_wait_again() {
        let permits = QueuePermits::new(2);
        let held: Vec<_> = (0..3).map_while(|_| permits.take()).collect();
        assert_eq!((held.len(), permits.taken()), (2, 2));
        let again = permits.take_again();
        assert_eq!(permits.taken(), 3);
        drop(held);
        assert_eq!(permits.taken(), 1);
        drop(again);
        assert_eq!(permits.taken(), 0);
    }

    #[test]
    fn a_freed_permit_wakes_one_waiting_caller() {
        let permits = QueuePermits::new(1);
        let held = permits.take();
        let (mut first, mut second) = (pin!(permits.wait(always)), pin!(permits.wait(always)));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(held);
        let held = first.as_mut().now_or_never().expect("there is room");
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_caller_that_is_woken_and_leaves_wakes_the_next_one() {
        let (permits, stays) = (QueuePermits::new(1), Cell::new(true));
        let held = permits.take();
        let mut first = pin!(permits.wait(|| stays.get().then_some(()).ok_or(())));
        let mut second = pin!(permits.wait(always));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        stays.set(false);
        drop(held);
        assert!(second.as_mut().now_or_never().is_none(), "the first was woken");
        assert!(first.as_mut().now_or_never().is_some_and(|permit| permit.is_err()));
        assert!(second.as_mut().now_or_never().is_some_and(|permit| permit.is_ok()));
    }

    #[test]
    fn all_waiting_callers_check_again() {
        let (permits, open) = (QueuePermits::new(1), Cell::new(true));
        let _held = permits.take();
        let check = || open.get().then_some(()).ok_or(());
        let (mut first, mut second) = (pin!(permits.wait(check)), pin!(permits.wait(check)));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        open.set(false);
        permits.wake_all();
        assert!(first.as_mut().now_or_never().is_some_and(|permit| permit.is_err()));
        assert!(second.as_mut().now_or_never().is_some_and(|permit| permit.is_err()));
    }
}
