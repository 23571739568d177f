//! The timer of hyper's header limit, for one connection of HTTP/1.
//!
//! hyper asks for a new timer before each head, and drops it with the head. A timer of the runtime is a lock to arm and
//! a lock to drop. So the connection has one, which stays armed: if it fires before the end of the current wait, it is
//! armed again for the rest. Under load that is once in each
//! [`header_read_timeout`](crate::HttpConfig::header_read_timeout).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use parking_lot::Mutex;

/// The runtime's timer, from the first wait on.
type SharedSleep = Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>;

/// The timer of a connection. hyper keeps it as long as the connection.
#[derive(Default)]
pub(super) struct HeadTimer(SharedSleep);

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, end: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadWait { timer: Arc::clone(&self.0), end: end.into() })
    }

    /// The runtime's clock, which tests may pause.
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

/// The wait for one head.
struct HeadWait {
    timer: SharedSleep,
    end: tokio::time::Instant,
}

impl Sleep for HeadWait {}

impl Future for HeadWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.lock();
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.end)));
        if timer.deadline() > self.end {
            timer.as_mut().reset(self.end);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() == self.end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_end() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        // Heads that come in time, at intervals that are no part of the limit.
        for _ in 0..10 {
            let wait = timer.sleep(LIMIT);
            let head = tokio::time::sleep(Duration::from_secs(7));
            tokio::select! {
                () = wait => panic!("the head is in time"),
                () = head => {}
            }
        }
        assert_eq!(start.elapsed(), Duration::from_secs(70));
        timer.sleep(LIMIT).await;
        assert_eq!(start.elapsed(), Duration::from_secs(70) + LIMIT);
        timer.sleep(LIMIT).await;
        assert_eq!(start.elapsed(), Duration::from_secs(70) + 2 * LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_wait_ends_before_the_timer_that_is_armed() {
        let (timer, start) = (HeadTimer::default(), tokio::time::Instant::now());
        let mut long = timer.sleep(LIMIT);
        assert!(futures_util::poll!(&mut long).is_pending());
        timer.sleep(Duration::from_secs(1)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        long.await;
        assert_eq!(start.elapsed(), LIMIT);
    }
}
