//! The places of one stage's queue: taken before an entry is sent, given back when it leaves the queue, however it leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many entries are in the mailbox and the queue, and who waits for one to leave.
///
/// All counts are sequentially consistent with each other and with the workers' slots.
#[derive(Debug)]
pub(crate) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    taken: AtomicUsize,
    /// Callers that wait for a place in the full queue, and how they hear of one.
    waiting: AtomicUsize,
    room: Notify,
}

/// One entry's place. Dropping it gives it back: with the entry, when the actor that kept it dies.
#[derive(Debug)]
pub(crate) struct Place(Arc<Inner>);

impl Places {
    pub(crate) fn new(limit: usize) -> Self {
        let (taken, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Inner { limit, taken, waiting, room: Notify::new() }))
    }

    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::SeqCst)
    }

    /// A place, if there is one. Never looks, not even for a moment, as if it had taken one too many: somebody else who waits
    /// would see a full queue then, and nobody would wake it again.
    pub(crate) fn take(&self) -> Option<Place> {
        let take = |taken| (taken < self.0.limit).then_some(taken + 1);
        let taken = self.0.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        taken.is_ok().then(|| Place(Arc::clone(&self.0)))
    }

    /// A place, although there may be none: for entries that were admitted once and wait again.
    pub(crate) fn take_again(&self) -> Place {
        self.0.taken.fetch_add(1, Ordering::SeqCst);
        Place(Arc::clone(&self.0))
    }

    /// Waits for a place, as long as `check` does not fail. How many wait is bounded by their callers. Entries that refuse to
    /// wait may overtake them.
    pub(crate) async fn wait<E>(&self, check: impl Fn() -> Result<(), E>) -> Result<Place, E> {
        let _waiting = Waiting::new(&self.0);
        loop {
            let mut room = std::pin::pin!(self.0.room.notified());
            // Listening first: a place that is given up between the look and the wait is not missed.
            room.as_mut().enable();
            check()?;
            if let Some(place) = self.take() {
                return Ok(place);
            }
            room.await;
        }
    }

    /// Has all who wait check again.
    pub(crate) fn wake_all(&self) {
        self.0.room.notify_waiters();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        // Who took no place because of this one has counted itself before.
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.room.notify_one();
        }
    }
}

/// Counts a caller that waits for a place.
struct Waiting<'a>(&'a Inner);

impl<'a> Waiting<'a> {
    fn new(places: &'a Inner) -> Self {
        places.waiting.fetch_add(1, Ordering::SeqCst);
        Self(places)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Whoever leaves without the place that it was woken for must not keep the next one asleep.
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.0.room.notify_one();
        }
    }
}
