//! The outputs of a call that a child takes before it has read earlier ones: by their number, and by their bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::message::MAX_CREDIT;

/// The credit of one call that streams.
#[derive(Debug)]
pub(crate) struct CallCredit {
    outputs: Semaphore,
    /// The bytes that were sent, and that the child has not said it read.
    unread: AtomicU64,
    /// An output is sent while fewer bytes than this are unread: half of what the child takes, so that no output up to
    /// that size exceeds it. `None`: their bytes do not count.
    half: Option<u64>,
    read: Notify,
}

impl CallCredit {
    /// `None` if a child may not ask for this.
    pub(crate) fn try_new(outputs: usize, bytes: Option<u64>) -> Option<Self> {
        let half = bytes.map(|bytes| bytes.div_ceil(2));
        ((1..=MAX_CREDIT).contains(&outputs) && half != Some(0)).then(|| Self {
            outputs: Semaphore::new(outputs),
            unread: AtomicU64::new(0),
            half,
            read: Notify::new(),
        })
    }

    /// Waits until an output may be sent. Drop the permit if there is none to send.
    pub(crate) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        let place = self.outputs.acquire().await.ok();
        while self.half.is_some_and(|half| self.unread.load(Ordering::Acquire) >= half) {
            self.read.notified().await;
        }
        place
    }

    /// An output of this many bytes is sent.
    pub(crate) fn sent(&self, bytes: usize, place: Option<SemaphorePermit<'_>>) {
        place.into_iter().for_each(SemaphorePermit::forget);
        self.unread.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// The child takes this many outputs more, and has read this many bytes. False: it may not ask for so many, or says
    /// that it has read more than was sent.
    pub(crate) fn give(&self, outputs: usize, bytes: u64) -> bool {
        let fits = outputs > 0 && outputs.saturating_add(self.outputs.available_permits()) <= MAX_CREDIT;
        let left = |unread: u64| unread.checked_sub(bytes);
        if !fits || self.unread.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).is_err() {
            return false;
        }
        self.outputs.add_permits(outputs);
        self.read.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn is_ready(credit: &CallCredit) -> bool {
        credit.place().now_or_never().is_some()
    }

    fn send(credit: &CallCredit, bytes: usize) {
        credit.sent(bytes, credit.place().now_or_never().unwrap());
    }

    #[test]
    fn outputs_are_sent_while_fewer_than_half_of_the_bytes_are_unread() {
        let credit = CallCredit::try_new(8, Some(100)).unwrap();
        send(&credit, 49);
        send(&credit, 50);
        assert!(!is_ready(&credit), "99 of 100 are unread");
        assert!(credit.give(1, 49));
        assert!(!is_ready(&credit), "50 are unread");
        assert!(credit.give(1, 1));
        send(&credit, 1000);
        assert!(!is_ready(&credit), "a larger one goes alone");
        assert!(credit.give(1, 1049));
        assert!(is_ready(&credit));
    }

    #[test]
    fn without_bytes_their_number_counts_alone() {
        let credit = CallCredit::try_new(2, None).unwrap();
        send(&credit, 1 << 30);
        send(&credit, 1 << 30);
        assert!(!is_ready(&credit));
        assert!(credit.give(1, 0));
        assert!(is_ready(&credit));
    }

    #[tokio::test]
    async fn what_waits_for_bytes_goes_on_when_they_are_read() {
        let credit = CallCredit::try_new(2, Some(10)).unwrap();
        send(&credit, 7);
        let (place, given) = tokio::join!(credit.place(), async { credit.give(1, 7) });
        assert!(place.is_some() && given);
    }

    #[test]
    fn a_wrong_credit_is_refused() {
        for (outputs, bytes) in [(0, None), (MAX_CREDIT + 1, None), (1, Some(0))] {
            assert!(CallCredit::try_new(outputs, bytes).is_none(), "{outputs} {bytes:?}");
        }
        let credit = CallCredit::try_new(1, Some(100)).unwrap();
        send(&credit, 10);
        assert!(!credit.give(0, 0) && !credit.give(MAX_CREDIT + 1, 0) && !credit.give(1, 11));
        assert!(credit.give(MAX_CREDIT, 10) && !credit.give(1, 0));
    }
}
