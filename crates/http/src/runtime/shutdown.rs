//! The word that something is over: to all connections that the server is closing, to all calls in hand that their time
//! is. Set once, and seen by each connection without a lock on the request's way.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// Shared by the accept loop, which sets it, and every connection or call, which watches it.
#[derive(Debug, Default)]
pub struct ShutdownSignal {
    begun: AtomicBool,
    told: Notify,
}

impl ShutdownSignal {
    /// Tells all that watch it. Idempotent.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    /// Whether connections should say goodbye with their next response.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Drives `work` to its end, and looks at it once more when closing begins: for work whose parts ask
    /// [`has_begun`](Self::has_begun) each time that they are polled, which costs them less than to wait for it
    /// themselves.
    pub(crate) async fn waking<F: Future>(&self, mut work: Pin<&mut F>) -> F::Output {
        match self.unless_begun(work.as_mut()).await {
            Some(output) => output,
            None => work.await,
        }
    }

    /// Drives `work` until it ends (`Some`) or closing begins (`None`); `work` may be driven on afterwards.
    ///
    /// All connections share one [`Notify`], and polling a wait on it takes its lock. A connection is polled twice or more
    /// per request, so the wait is polled only when the task's waker is a new one: in practice once.
    pub(crate) async fn unless_begun<F: Future>(&self, mut work: Pin<&mut F>) -> Option<F::Output> {
        let mut told = pin!(self.told.notified());
        let mut registered: Option<Waker> = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let is_registered = registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if !is_registered {
                registered = Some(cx.waker().clone());
                if told.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
            }
            // After the registration, so that a `begin` between the two is not missed.
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
    async fn ends_the_wait_of_work_that_is_pending() {
        let closing = Arc::new(ShutdownSignal::default());
        let other = Arc::clone(&closing);
        let waiting = tokio::spawn(async move { other.unless_begun(pin!(std::future::pending::<()>())).await });
        tokio::task::yield_now().await;
        closing.begin();
        assert_eq!(waiting.await.unwrap(), None);
    }

    #[tokio::test]
    async fn is_seen_by_those_who_come_late() {
        let closing = ShutdownSignal::default();
        closing.begin();
        assert_eq!(closing.unless_begun(pin!(std::future::pending::<()>())).await, None);
        assert_eq!(closing.unless_begun(pin!(async { 7 })).await, Some(7));
    }
}
