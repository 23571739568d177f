//! Whether anything happens on a connection: counted by those who do it, compared now and then by one who watches.
//!
//! HTTP/1 needs no watch, since its header timer runs whenever no request is in hand. HTTP/2 has no such timer: pings tell
//! that a client lives, not that it wants anything.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// The counts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    written_bytes: AtomicU64,
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

    /// Drives `work` until it ends (`Some`), or until for a whole `period` no request was in hand and the client took less
    /// than `least_bytes` of earlier answers (`None`); `work` may be driven on afterwards.
    pub(crate) async fn until_idle<F: Future>(
        &self,
        mut work: Pin<&mut F>,
        period: Duration,
        least_bytes: u64,
    ) -> Option<F::Output> {
        let mut before = self.seen();
        loop {
            if let Ok(output) = timeout(period, work.as_mut()).await {
                return Some(output);
            }
            let now = self.seen();
            if is_idle(before, now, least_bytes) {
                return None;
            }
            before = now;
        }
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
}
