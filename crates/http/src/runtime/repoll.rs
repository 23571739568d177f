//! Polls a connection again at once when it has woken itself.
//!
//! hyper wakes its own task up to twice during each request with a body: the reader of the body asks the connection for
//! more, and the connection tells the reader that there is more. Each such wake-up is a trip through the runtime's
//! queue, which also wakes an idle thread to look for work. Here it is one more poll within the same turn.
//!
//! * **Full**: after [`MAX_POLLS_PER_TURN`] the next poll is a turn of its own, so that other tasks run. The task's
//!   [budget](super::coop) counts all polls of a turn together.
//! * **Cancelled**: a wake-up after the drop wakes the task once in vain.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A request with a body needs three: its head, its body, and a last look.
const MAX_POLLS_PER_TURN: usize = 4;

/// Not being polled: a wake-up wakes the task.
const IDLE: u8 = 0;
/// Being polled.
const POLLED: u8 = 1;
/// Being polled, and woken since.
const WOKEN: u8 = 2;

/// A future that is polled again at once when it has woken itself.
pub(crate) struct Repolled<F> {
    work: F,
    state: Arc<RepollState>,
    /// The same state, as what `work` wakes.
    waker: Waker,
    /// The waker that the state has.
    task: Option<Waker>,
}

struct RepollState {
    poll: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl<F: Future + Unpin> Repolled<F> {
    pub(crate) fn new(work: F) -> Self {
        let state = Arc::new(RepollState { poll: AtomicU8::new(IDLE), task: Mutex::default() });
        Self { work, waker: Waker::from(Arc::clone(&state)), state, task: None }
    }

    fn register(&mut self, waker: &Waker) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            self.task = Some(waker.clone());
            *self.state.task.lock() = Some(waker.clone());
        }
    }
}

impl<F: Future + Unpin> Future for Repolled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.register(cx.waker());
        for _ in 0..MAX_POLLS_PER_TURN {
            this.state.poll.store(POLLED, Ordering::Release);
            if let Poll::Ready(output) = Pin::new(&mut this.work).poll(&mut Context::from_waker(&this.waker)) {
                return Poll::Ready(output);
            }
            if this.state.poll.compare_exchange(POLLED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        this.state.poll.store(IDLE, Ordering::Release);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for RepollState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken = self.poll.compare_exchange(POLLED, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if woken == Err(IDLE)
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls work once that wakes itself in its first polls. Returns its polls, and the wake-ups of its task.
    fn polls_and_wakes(wakes_itself: usize) -> (usize, usize) {
        let (wakes, mut polls) = (Arc::new(Wakes::default()), 0);
        let mut work = Repolled::new(poll_fn(|cx| {
            polls += 1;
            if polls <= wakes_itself {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }));
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(work);
        (polls, wakes.0.load(Ordering::Relaxed))
    }

    #[test]
    fn work_that_wakes_itself_is_polled_again_in_the_same_turn() {
        assert_eq!(polls_and_wakes(0), (1, 0));
        assert_eq!(polls_and_wakes(2), (3, 0));
        assert_eq!(polls_and_wakes(MAX_POLLS_PER_TURN - 1), (MAX_POLLS_PER_TURN, 0));
    }

    #[test]
    fn work_that_keeps_waking_itself_lets_others_run() {
        assert_eq!(polls_and_wakes(usize::MAX), (MAX_POLLS_PER_TURN, 1));
    }

    #[test]
    fn a_wake_up_between_two_polls_wakes_the_task() {
        let (wakes, inner) = (Arc::new(Wakes::default()), RefCell::new(None));
        let mut work = Repolled::new(poll_fn(|cx| {
            *inner.borrow_mut() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let waker = Waker::from(Arc::clone(&wakes));
        for turn in 1..=2 {
            assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&waker)).is_pending());
            inner.borrow().as_ref().expect("a waker").wake_by_ref();
            assert_eq!(wakes.0.load(Ordering::Relaxed), turn);
        }
    }

    /// Another thread wakes it at any moment: no wake-up is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_from_another_thread_is_lost() {
        const TURNS: usize = 20_000;
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let sending = tokio::spawn(async move {
            for n in 0..TURNS {
                sender.send(n).await.expect("a reader");
            }
        });
        let mut next = 0;
        let work = poll_fn(|cx| {
            while let Poll::Ready(received) = receiver.poll_recv(cx) {
                let Some(n) = received else { return Poll::Ready(()) };
                assert_eq!(n, next);
                next += 1;
            }
            Poll::Pending
        });
        Repolled::new(Box::pin(work)).await;
        sending.await.expect("all sent");
        assert_eq!(next, TURNS);
    }
}
