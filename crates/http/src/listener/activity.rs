//! Counts the events of a connection, to find idle connections and floods.
//!
//! HTTP/1 needs no watch, because its header timer runs between requests; there the counts show when a connection
//! [rests](Activity::resting_since). HTTP/2 has no such timer: a ping shows that a client is alive, not that it has
//! requests. A client may also begin a request and cancel it with the next frame, which costs us a call and the client
//! nothing: a client that mostly does so is cut. A client that blocks responses by a closed window gets a GOAWAY as
//! well, because the blocked responses could fill our memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use callboard_core::Instant;
use tokio::time::timeout;

use super::rest::UnreadRest;

/// The counts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    started: AtomicU64,
    ended: AtomicU64,
    /// The ended requests whose response the client read to its end, or waited for.
    answered: AtomicU64,
    written_bytes: AtomicU64,
    /// On HTTP/1: bytes have arrived, but no complete request.
    is_arriving: AtomicBool,
    /// On HTTP/1: written bytes may not be sent yet.
    unsent: AtomicBool,
    /// The number of the current period.
    turn: AtomicU64,
    /// Responses that wait for their client, by the parity of the period in which the wait began.
    pending_writes: [AtomicU64; 2],
    /// On HTTP/1.
    rest: UnreadRest,
}

/// The reason why the watch of a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchOutcome<T> {
    /// The connection ended.
    Ended(T),
    /// Nothing was requested or read for the idle time, or too little was read while responses waited.
    Idle,
    /// The client cancels its requests.
    Flooded,
}

/// The limits beyond which a connection is misused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MisuseLimits {
    /// The time between two looks.
    pub(crate) turn: Duration,
    /// The bytes of a response that count as activity in that time.
    pub(crate) least_bytes: u64,
    /// The longest time without activity.
    pub(crate) idle_timeout: Duration,
    /// The limit of cancelled requests beyond the answered ones.
    pub(crate) max_cancelled: u64,
}

/// The counts at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ActivityCounts {
    started: u64,
    ended: u64,
    written_bytes: u64,
}

impl Activity {
    /// The rest of a body may take at most this time.
    pub(crate) fn new(rest_limit: Duration) -> Self {
        Self { rest: UnreadRest::new(rest_limit), ..Self::default() }
    }

    /// The unread rest of the current request's body.
    pub(crate) fn rest(&self) -> &UnreadRest {
        &self.rest
    }

    /// A request began; it is active until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveStream {
        self.started.fetch_add(1, Ordering::Relaxed);
        ActiveStream { activity: Arc::clone(self), started: Instant::now(), is_over: false }
    }

    /// The same on HTTP/1, where only the whole connection can be cancelled or blocked.
    pub(crate) fn serve(self: &Arc<Self>) -> ActiveRequest {
        self.started.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    pub(crate) fn bytes_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes_arrived(&self) {
        self.is_arriving.store(true, Ordering::Relaxed);
    }

    /// The bytes so far were a body. Further bytes are in hyper's buffer and are found there.
    pub(crate) fn body_ended(&self) {
        self.is_arriving.store(false, Ordering::Relaxed);
    }

    /// Whether all written bytes are sent.
    pub(crate) fn flushed(&self, is_all: bool) {
        self.unsent.store(!is_all, Ordering::Relaxed);
    }

    /// The number of requests so far, if none is active or arriving and the last response is sent.
    pub(crate) fn resting_since(&self) -> Option<u64> {
        let ActivityCounts { started, ended, .. } = self.counts();
        let is_at_work = self.is_arriving.load(Ordering::Relaxed) || self.unsent.load(Ordering::Relaxed);
        (started == ended && !is_at_work && !self.rest.is_unread()).then_some(started)
    }

    /// Drives `work` until it ends or is [misused](WatchOutcome). The caller may drive `work` further.
    pub(crate) async fn watch<F: Future>(
        &self,
        mut work: Pin<&mut F>,
        misuse: MisuseLimits,
    ) -> WatchOutcome<F::Output> {
        let (mut before, mut idle) = (self.counts(), Duration::ZERO);
        loop {
            match timeout(misuse.turn, self.unless_flooded(work.as_mut(), misuse)).await {
                Ok(Some(output)) => return WatchOutcome::Ended(output),
                Ok(None) => return WatchOutcome::Flooded,
                Err(_elapsed) => {}
            }
            let now = self.counts();
            idle = if is_idle(before, now, misuse.least_bytes) { idle + misuse.turn } else { Duration::ZERO };
            if idle >= misuse.idle_timeout || is_blocked_by_client(before, now, self.end_of_turn(), misuse.least_bytes)
            {
                return WatchOutcome::Idle;
            }
            before = now;
        }
    }

    /// Drives `work` until it ends (`Some`) or the client floods it with cancelled requests (`None`).
    pub(crate) async fn unless_flooded<F: Future>(
        &self,
        mut work: Pin<&mut F>,
        misuse: MisuseLimits,
    ) -> Option<F::Output> {
        poll_fn(|cx| {
            // Before the work: each poll of it may begin a few hundred requests.
            if self.is_flooded(misuse.max_cancelled) {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }

    pub(super) fn is_flooded(&self, max_cancelled: u64) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        let cancelled = self.ended.load(Ordering::Relaxed).saturating_sub(answered);
        cancelled > answered.saturating_add(max_cancelled)
    }

    /// Begins the next period. Returns the count of responses that waited for the whole previous period.
    ///
    /// Two counts are enough: one for the current period, one for those before it. A wait that is still there after two
    /// periods is found after three.
    fn end_of_turn(&self) -> u64 {
        let ended = self.turn.fetch_add(1, Ordering::Relaxed);
        self.pending_writes[parity(ended + 1)].load(Ordering::Relaxed)
    }

    fn counts(&self) -> ActivityCounts {
        ActivityCounts {
            started: self.started.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

fn is_idle(before: ActivityCounts, now: ActivityCounts, least_bytes: u64) -> bool {
    now.started == before.started && now.started == now.ended && now.written_bytes - before.written_bytes < least_bytes
}

/// Each waiting response has to be read at the least rate, so all together at a multiple of it.
fn is_blocked_by_client(before: ActivityCounts, now: ActivityCounts, waiting: u64, least_bytes: u64) -> bool {
    waiting > 0 && now.written_bytes - before.written_bytes < least_bytes.saturating_mul(waiting)
}

fn parity(turn: u64) -> usize {
    usize::from(turn % 2 == 1)
}

/// A request whose response has not ended.
#[derive(Debug)]
pub(crate) struct ActiveStream {
    activity: Arc<Activity>,
    started: Instant,
    is_over: bool,
}

/// A cancel after this time counts as a change of mind. A flood of such requests would need thousands at a time.
const KEPT_FOR: Duration = Duration::from_secs(1);

impl ActiveStream {
    /// The response has ended.
    pub(crate) fn answered(&mut self) {
        self.is_over = true;
    }

    /// A piece of the response waits for the client until the guard is dropped.
    pub(crate) fn begin_write(&self) -> PendingWrite {
        let parity = parity(self.activity.turn.load(Ordering::Relaxed));
        self.activity.pending_writes[parity].fetch_add(1, Ordering::Relaxed);
        PendingWrite { activity: Arc::clone(&self.activity), parity }
    }
}

/// A request of HTTP/1 until its response is written.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.body_ended();
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A piece of a response that waits for its client.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    activity: Arc<Activity>,
    parity: usize,
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.activity.pending_writes[self.parity].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        if self.is_over || self.started.elapsed() >= KEPT_FOR {
            self.activity.answered.fetch_add(1, Ordering::Relaxed);
        }
        self.activity.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_requests_and_with_few_bytes_is_idle() {
        let before = ActivityCounts { started: 3, ended: 3, written_bytes: 500 };
        assert!(is_idle(before, ActivityCounts { written_bytes: 517, ..before }, 100), "a ping is no activity");
        assert!(!is_idle(before, ActivityCounts { written_bytes: 600, ..before }, 100), "an answer is being read");
        assert!(!is_idle(before, ActivityCounts { started: 4, ended: 4, ..before }, 100), "a request was answered");
        let active = ActivityCounts { started: 4, ..before };
        assert!(!is_idle(active, active, 100), "a request is running");
    }

    #[test]
    fn an_answer_that_waits_for_a_whole_period_is_blocked() {
        let activity = Arc::new(Activity::default());
        let answer = activity.begin();
        assert_eq!(activity.end_of_turn(), 0);
        let pending_writes = answer.begin_write();
        assert_eq!(activity.end_of_turn(), 0, "its wait began within the period");
        let second = answer.begin_write();
        assert_eq!(activity.end_of_turn(), 1);
        drop(pending_writes);
        assert_eq!(activity.end_of_turn(), 1, "the second answer");
        drop(second);
        assert_eq!((activity.end_of_turn(), activity.end_of_turn()), (0, 0));
    }

    #[test]
    fn waiting_answers_are_blocked_when_the_client_reads_too_little() {
        let before = ActivityCounts { started: 3, ended: 1, written_bytes: 500 };
        let read = |bytes: u64| ActivityCounts { started: 9, written_bytes: 500 + bytes, ..before };
        assert!(!is_blocked_by_client(before, read(0), 0, 100), "no answer waits");
        assert!(is_blocked_by_client(before, read(199), 2, 100), "other requests do not count");
        assert!(!is_blocked_by_client(before, read(200), 2, 100));
    }

    #[test]
    fn a_connection_rests_between_a_sent_answer_and_the_next_request() {
        let activity = Arc::new(Activity::default());
        activity.bytes_arrived();
        assert_eq!(activity.resting_since(), None, "a request is arriving");
        let (serving, next) = (activity.serve(), activity.serve());
        drop(next);
        assert_eq!(activity.resting_since(), None, "a request is active");
        activity.flushed(false);
        drop(serving);
        assert_eq!(activity.resting_since(), None, "its answer is not sent");
        activity.flushed(true);
        assert_eq!(activity.resting_since(), Some(2));
    }

    #[test]
    fn a_flood_has_more_cancelled_than_answered_requests() {
        let activity = Arc::new(Activity::default());
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
        assert!(!activity.is_flooded(5), "a client that reads answers is not a flood");
    }
}
