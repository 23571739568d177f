//! Whether anything of use happens on a connection: counted by those who do it, compared now and then by one who watches.
//!
//! HTTP/1 needs no watch, since its header timer runs whenever no request is in hand. HTTP/2 has no such timer: pings tell
//! that a client lives, not that it wants anything. And it lets a client begin a request and take it back with the next
//! frame, which costs it nothing and us a call: whoever does little else is cut.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

/// The counts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Of those that ended, how many got their answer.
    answered: AtomicU64,
    written_bytes: AtomicU64,
}

/// How the driving of a connection came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Watched<T> {
    /// By itself.
    Ended(T),
    /// Nothing was asked or read for a while.
    Idle,
    /// The client takes back what it asks for.
    Flooded,
}

/// What is no use of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Misuse {
    /// How long it may do nothing.
    pub(crate) idle_period: Duration,
    /// How much of an answer, taken within that time, is not nothing.
    pub(crate) idle_bytes: u64,
    /// How many more requests may be taken back than were answered.
    pub(crate) most_taken_back: u64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    begun: u64,
    ended: u64,
    written_bytes: u64,
}

impl Activity {
    /// A request came; it is in hand until the guard is dropped.
    pub(crate) fn begin(&self) -> InHand<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InHand(self)
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Drives `work` until it ends or is [misused](Watched); `work` may be driven on afterwards.
    pub(crate) async fn watch<F: Future>(&self, mut work: Pin<&mut F>, misuse: Misuse) -> Watched<F::Output> {
        let mut before = self.seen();
        loop {
            let unless_flooded = poll_fn(|cx| {
                // Before the work: each turn of it may begin another few hundred requests.
                if self.is_flooded(misuse.most_taken_back) {
                    return Poll::Ready(None);
                }
                work.as_mut().poll(cx).map(Some)
            });
            match timeout(misuse.idle_period, unless_flooded).await {
                Ok(Some(output)) => return Watched::Ended(output),
                Ok(None) => return Watched::Flooded,
                Err(_elapsed) => {}
            }
            let now = self.seen();
            if is_idle(before, now, misuse.idle_bytes) {
                return Watched::Idle;
            }
            before = now;
        }
    }

    fn is_flooded(&self, most_taken_back: u64) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        let taken_back = self.ended.load(Ordering::Relaxed).saturating_sub(answered);
        taken_back > answered.saturating_add(most_taken_back)
    }

    fn seen(&self) -> Seen {
        Seen {
            begun: self.begun.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

fn is_idle(before: Seen, now: Seen, least_bytes: u64) -> bool {
    now.begun == before.begun && now.begun == now.ended && now.written_bytes - before.written_bytes < least_bytes
}

/// A request without an answer yet.
#[derive(Debug)]
pub(crate) struct InHand<'a>(&'a Activity);

impl InHand<'_> {
    /// It has its answer.
    pub(crate) fn answered(self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_no_request_and_hardly_a_byte() {
        let before = Seen { begun: 3, ended: 3, written_bytes: 500 };
        assert!(is_idle(before, Seen { written_bytes: 517, ..before }, 100), "a ping is no sign of interest");
        assert!(!is_idle(before, Seen { written_bytes: 600, ..before }, 100), "an answer is being read");
        assert!(!is_idle(before, Seen { begun: 4, ended: 4, ..before }, 100), "a request came and went");
        let in_hand = Seen { begun: 4, ..before };
        assert!(!is_idle(in_hand, in_hand, 100), "a request is in hand");
    }
    #[test]
    fn a_flood_is_more_taken_back_than_answered_and_some() {
        let activity = Activity::default();
        for _ in 0..10 {
            activity.begin().answered();
        }
        for _ in 0..15 {
            drop(activity.begin());
        }
        assert!(!activity.is_flooded(5));
        drop(activity.begin());
        assert!(activity.is_flooded(5));
        activity.begin().answered();
        assert!(!activity.is_flooded(5), "whoever goes on reading answers is no flood");
    }
}
