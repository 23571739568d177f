//! A signal that begins once: connections learn that the server closes, calls that their time is over. Checking it
//! takes no lock.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// The accept loop begins it; connections and calls watch it.
#[derive(Debug, Default)]
pub struct ShutdownSignal {
    begun: AtomicBool,
    begin_notice: Notify,
}

impl ShutdownSignal {
    /// Begins it for all watchers. Idempotent.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.begin_notice.notify_waiters();
    }

    /// Whether the shutdown began. Connections then close with their next response.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Drives `work` to its end, and polls it once more when the shutdown begins: for work whose parts check
    /// [`has_begun`](Self::has_begun) on each poll, which costs less than waiting for it.
    pub(crate) async fn waking<F: Future>(&self, mut work: Pin<&mut F>) -> F::Output {
        match self.unless_begun(work.as_mut()).await {
            Some(output) => output,
            None => work.await,
        }
    }

    /// Drives `work` until it ends (`Some`) or the shutdown begins (`None`). The caller may drive `work` further.
    ///
    /// All connections share one [`Notify`], and polling a wait on it takes its lock. A connection is polled twice or
    /// more per request, so the wait is polled only for a new waker: in practice once.
    pub(crate) async fn unless_begun<F: Future>(&self, mut work: Pin<&mut F>) -> Option<F::Output> {
        let mut notified = pin!(self.begin_notice.notified());
        let mut registered: Option<Waker> = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let is_registered = registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if !is_registered {
                registered = Some(cx.waker().clone());
                if notified.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
            }
            // After the registration, so that no `begin` between the two is missed.
            if self.has_begun() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_signal_ends_a_pending_wait() {
        let closing = Arc::new(ShutdownSignal::default());
        let other = Arc::clone(&closing);
        let waiting = tokio::spawn(async move { other.unless_begun(pin!(std::future::pending::<()>())).await });
        tokio::task::yield_now().await;
        closing.begin();
        assert_eq!(waiting.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_late_watcher_sees_the_signal() {
        let closing = ShutdownSignal::default();
        closing.begin();
        assert_eq!(closing.unless_begun(pin!(std::future::pending::<()>())).await, None);
        assert_eq!(closing.unless_begun(pin!(async { 7 })).await, Some(7));
    }
}
