//! Lets a writer run its connection's driver task inline, instead of waking the endpoint's thread.
//!
//! quinn gives each connection a driver task that packs, encrypts and sends written data. Every write wakes it. If only
//! the endpoint's thread ran it, each write would wait until that thread wakes up. So a writer that is alone polls the
//! driver itself: at the end of its [`FlushScope`], once for all its writes, or earlier by [`flush_now`].
//!
//! The thread does the rest: arriving packets, timers, work that remains after a flush, and drivers that another thread
//! is polling. No thread waits for a driver's lock.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The drivers that were woken in this thread's flush scope. `None` outside of a scope.
    static WOKEN: RefCell<Option<Vec<Arc<InlineDriver>>>> = const { RefCell::new(None) };
}

/// Dropping it sends, on this thread, everything that was written since it began. Never hold it across a wait.
#[derive(Debug)]
pub(crate) struct FlushScope {
    is_outermost: bool,
}

impl FlushScope {
    pub(crate) fn begin() -> Self {
        let is_outermost = WOKEN.with_borrow_mut(|woken| {
            let is_outermost = woken.is_none();
            woken.get_or_insert_default();
            is_outermost
        });
        Self { is_outermost }
    }
}

impl Drop for FlushScope {
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        let woken = WokenTasks(WOKEN.take().unwrap_or_default().into_iter());
        if !std::thread::panicking() {
            woken.run_inline();
        }
    }
}

/// Sends what was written in this thread's flush scope so far. Until then, other writers of the connection do not get
/// it sent either.
pub(crate) fn flush_now() {
    if WOKEN.with_borrow(|woken| woken.as_ref().is_none_or(Vec::is_empty)) {
        return;
    }
    // Outside of the scope: a driver that wakes itself now is scheduled on the endpoint's thread.
    let woken = WokenTasks(WOKEN.take().unwrap_or_default().into_iter());
    woken.run_inline();
    WOKEN.set(Some(Vec::new()));
}

/// Drivers that were woken in a scope. The drop schedules the rest on the thread, as after a panic.
struct WokenTasks(std::vec::IntoIter<Arc<InlineDriver>>);

impl WokenTasks {
    fn run_inline(mut self) {
        for driver in self.0.by_ref() {
            driver.run_inline();
        }
    }
}

impl Drop for WokenTasks {
    fn drop(&mut self) {
        for driver in self.0.by_ref() {
            driver.schedule();
        }
    }
}

/// Runs `work` and sends what each poll of it has written, if `is_wanted` when the poll begins.
pub(crate) async fn flush_each_poll<T>(is_wanted: impl Fn() -> bool, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let _scope = is_wanted().then(FlushScope::begin);
        work.as_mut().poll(context)
    })
    .await
}

/// A driver task that several threads may poll, one at a time.
struct InlineDriver {
    /// `None` once it has completed.
    work: Mutex<Option<Work>>,
    /// Whether the endpoint's thread found the driver locked.
    is_missed: AtomicBool,
    /// Wakes its task on the endpoint's thread.
    task: AtomicWaker,
    /// The runtime of that thread.
    runtime: Handle,
    /// Whether the task was spawned.
    has_task: AtomicBool,
}

impl std::fmt::Debug for InlineDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InlineDriver")
    }
}

/// Spawns a driver on the endpoint's thread. Threads that wake it within a [`FlushScope`] poll it inline.
pub(super) fn spawn_inline(runtime: &Handle, work: Work) {
    let driver = InlineDriver::new(runtime, work, true);
    runtime.spawn(EndpointTask(driver));
}

/// Polls `work` once on this thread. The endpoint's thread continues it when it is woken.
pub(crate) fn start_inline(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let driver = InlineDriver::new(runtime, Box::pin(work), false);
    // Its timers belong to the endpoint's runtime.
    let _entered = runtime.enter();
    driver.run_inline();
}

impl InlineDriver {
    fn new(runtime: &Handle, work: Work, has_task: bool) -> Arc<Self> {
        Arc::new(Self {
            work: Mutex::new(Some(work)),
            is_missed: AtomicBool::new(false),
            task: AtomicWaker::new(),
            runtime: runtime.clone(),
            has_task: AtomicBool::new(has_task),
        })
    }

    /// Lets the endpoint's thread poll the driver.
    fn schedule(self: &Arc<Self>) {
        if self.has_task.swap(true, Ordering::AcqRel) {
            // A task that was spawned and not polled yet polls the driver anyway.
            self.task.wake();
        } else {
            self.runtime.spawn(EndpointTask(Arc::clone(self)));
        }
    }

    /// Polls the driver, unless another thread does.
    fn try_poll(self: &Arc<Self>) -> Option<Poll<()>> {
        let mut work = self.work.try_lock()?;
        let Some(future) = work.as_mut() else { return Some(Poll::Ready(())) };
        let waker = Waker::from(Arc::clone(self));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *work = None;
        }
        Some(polled)
    }

    /// Polls the driver on the thread that woke it.
    fn run_inline(self: &Arc<Self>) {
        let is_left_over = match self.try_poll() {
            // Another thread polls it, which may have started before the wake-up.
            None => true,
            Some(Poll::Pending) => {
                // Pairs with the fence in `EndpointTask::poll`: either this thread sees `is_missed`, or that thread
                // finds the lock free. The lock alone does not order its release before the load here.
                fence(Ordering::SeqCst);
                let was_missed = self.is_missed.swap(false, Ordering::Relaxed);
                // Without coop budget, every resource returned pending and wakes the task of this thread, not the
                // driver's.
                was_missed || !tokio::task::coop::has_budget_remaining()
            }
            // A task of the endpoint's thread has to end as well.
            Some(Poll::Ready(())) => self.has_task.load(Ordering::Acquire),
        };
        if is_left_over {
            self.schedule();
        }
    }
}

impl Wake for InlineDriver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = WOKEN.try_with(|woken| match woken.try_borrow_mut().ok()?.as_mut() {
            Some(woken) => {
                woken.push(Arc::clone(self));
                Some(())
            }
            None => None,
        });
        if noted.ok().flatten().is_none() {
            self.schedule();
        }
    }
}

/// The driver's task on the endpoint's thread. Dropping it drops the driver.
struct EndpointTask(Arc<InlineDriver>);

impl Future for EndpointTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self(driver) = &*self;
        driver.task.register(context.waker());
        if let Some(polled) = driver.try_poll() {
            return polled;
        }
        // Set before the second try: a thread that unlocked between the two tries has not seen it, a later one does.
        driver.is_missed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        driver.try_poll().unwrap_or(Poll::Pending)
    }
}

impl Drop for EndpointTask {
    fn drop(&mut self) {
        // Breaks a cycle: wakers hold the driver, and the driver holds the objects that it waits for.
        let work = self.0.work.lock().take();
        drop(work);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Work that counts its polls, and hands out its waker.
    fn counted() -> (Arc<AtomicUsize>, Arc<Mutex<Option<Waker>>>, Work) {
        let (steps, waker) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Option<Waker>>>::default());
        let (counting, leaving) = (Arc::clone(&steps), Arc::clone(&waker));
        let work = std::future::poll_fn(move |context| {
            counting.fetch_add(1, Ordering::SeqCst);
            *leaving.lock() = Some(context.waker().clone());
            Poll::Pending
        });
        (steps, waker, Box::pin(work))
    }

    fn wake(waker: &Mutex<Option<Waker>>) {
        let waker = waker.lock().take().unwrap();
        waker.wake();
    }

    #[tokio::test]
    async fn a_driver_woken_in_a_scope_is_polled_once_at_its_end() {
        let (steps, waker, work) = counted();
        spawn_inline(&Handle::current(), work);
        tokio::task::yield_now().await;
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        let outer = FlushScope::begin();
        let inner = FlushScope::begin();
        wake(&waker);
        drop(inner);
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        drop(outer);
        assert_eq!(steps.load(Ordering::SeqCst), 2);
        tokio::task::yield_now().await;
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn flush_now_polls_a_woken_driver_within_the_scope() {
        let (steps, waker, work) = counted();
        spawn_inline(&Handle::current(), work);
        tokio::task::yield_now().await;
        flush_now();
        let scope = FlushScope::begin();
        wake(&waker);
        flush_now();
        assert_eq!(steps.load(Ordering::SeqCst), 2);
        wake(&waker);
        assert_eq!(steps.load(Ordering::SeqCst), 2, "the scope continues");
        drop(scope);
        assert_eq!(steps.load(Ordering::SeqCst), 3);
    }

    /// The coop budget belongs to the task that starts the work, and so would the wake-up.
    #[tokio::test]
    async fn work_started_without_a_budget_continues_on_the_endpoint_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (started, has_begun) = std::sync::mpsc::channel();
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::poll_proceed(&mut Context::from_waker(Waker::noop()))
                .map(|unit| unit.made_progress())
                .is_ready();
        }
        start_inline(runtime.handle(), async move {
            tokio::task::coop::consume_budget().await;
            started.send(()).unwrap();
        });
        // This task does not yield before that, so it gets no new budget.
        has_begun.recv_timeout(std::time::Duration::from_secs(20)).expect("the other runtime polls it");
        runtime.shutdown_background();
    }

    #[tokio::test]
    async fn a_driver_woken_outside_a_scope_is_polled_on_the_endpoint_thread() {
        let (steps, waker, work) = counted();
        spawn_inline(&Handle::current(), work);
        tokio::task::yield_now().await;
        wake(&waker);
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        tokio::task::yield_now().await;
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn the_end_of_the_thread_is_the_end_of_its_work() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (steps, waker, work) = counted();
        spawn_inline(runtime.handle(), work);
        runtime.block_on(tokio::task::yield_now());
        let held = Arc::downgrade(&steps);
        drop((runtime, steps));
        assert!(held.upgrade().is_none());
        let scope = FlushScope::begin();
        wake(&waker);
        drop(scope);
    }
}
