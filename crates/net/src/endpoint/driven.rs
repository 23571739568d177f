//! Work of the endpoint's thread that is done where it comes up.
//!
//! quinn gives each connection a task that packs, encrypts and sends what was written on it, woken by whoever writes. Were that task the
//! thread's alone, every write would wait until the thread has woken up. So whoever writes and is alone does the work itself, at the end
//! of its [turn](Turn), once for all that it has written, or [sooner](send_now) where the turn goes on with what may take its time.
//! Everything else is the thread's: packets that arrive, timers, what is left over after a turn, and a connection whose work somebody
//! else is at. It waits for none of them.

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
    /// What was woken in the turn of this thread, if it is in one.
    static WOKEN: RefCell<Option<Vec<Arc<Driven>>>> = const { RefCell::new(None) };
}

/// What is written until this is dropped is sent then, on this thread. Held by nobody who waits for anything.
#[derive(Debug)]
pub(crate) struct Turn {
    is_outermost: bool,
}

impl Turn {
    pub(crate) fn begin() -> Self {
        let is_outermost = WOKEN.with_borrow_mut(|woken| {
            let is_outermost = woken.is_none();
            woken.get_or_insert_default();
            is_outermost
        });
        Self { is_outermost }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        let woken = Woken(WOKEN.take().unwrap_or_default().into_iter());
        if !std::thread::panicking() {
            woken.work_here();
        }
    }
}

/// Sends what was written in the turn of this thread until now, where it is in one. While it is not sent, nobody else who writes on
/// that connection has it sent either.
pub(crate) fn send_now() {
    if WOKEN.with_borrow(|woken| woken.as_ref().is_none_or(Vec::is_empty)) {
        return;
    }
    // What is woken by the work itself goes home.
    let woken = Woken(WOKEN.take().unwrap_or_default().into_iter());
    woken.work_here();
    WOKEN.set(Some(Vec::new()));
}

/// What was woken in a turn. Dropped, as by a panic, it goes home.
struct Woken(std::vec::IntoIter<Arc<Driven>>);

impl Woken {
    fn work_here(mut self) {
        for driven in self.0.by_ref() {
            driven.work_here();
        }
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        for driven in self.0.by_ref() {
            driven.call_home();
        }
    }
}

/// Every turn of this work sends what it has written, where that is wanted when the turn begins.
pub(crate) async fn sending<T>(is_wanted: impl Fn() -> bool, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let _turn = is_wanted().then(Turn::begin);
        work.as_mut().poll(context)
    })
    .await
}

/// Work that several threads may do, one at a time.
struct Driven {
    /// `None` when it is over.
    work: Mutex<Option<Work>>,
    /// The thread came while another one was at it.
    is_missed: AtomicBool,
    /// Its task on the thread.
    task: AtomicWaker,
    /// Where that is, and whether it was begun.
    home: Handle,
    is_at_home: AtomicBool,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driven")
    }
}

/// Gives the work to a thread, and to all who take [turns](Turn) in which they wake it.
pub(super) fn drive(home: &Handle, work: Work) {
    let driven = Driven::new(home, work, true);
    home.spawn(Home(driven));
}

/// Does the first step of some work here, and gives what is left to a thread: when it is woken, not before.
pub(crate) fn begin_here(home: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let driven = Driven::new(home, Box::pin(work), false);
    // Timers that it begins are those of the thread.
    let _entered = home.enter();
    driven.work_here();
}

impl Driven {
    fn new(home: &Handle, work: Work, is_at_home: bool) -> Arc<Self> {
        Arc::new(Self {
            work: Mutex::new(Some(work)),
            is_missed: AtomicBool::new(false),
            task: AtomicWaker::new(),
            home: home.clone(),
            is_at_home: AtomicBool::new(is_at_home),
        })
    }

    /// Has the thread do the next step.
    fn call_home(self: &Arc<Self>) {
        match self.is_at_home.swap(true, Ordering::AcqRel) {
            // One that has not looked yet looks first.
            true => self.task.wake(),
            false => drop(self.home.spawn(Home(Arc::clone(self)))),
        }
    }

    /// One step, unless somebody else is at it; says whether it is over.
    fn step(self: &Arc<Self>) -> Option<Poll<()>> {
        let mut work = self.work.try_lock()?;
        let Some(doing) = work.as_mut() else { return Some(Poll::Ready(())) };
        let waker = Waker::from(Arc::clone(self));
        let polled = doing.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *work = None;
        }
        Some(polled)
    }

    /// A step by one who has woken it.
    fn work_here(self: &Arc<Self>) {
        let calls_home = match self.step() {
            // Somebody else is at it, who may have looked before there was anything.
            None => true,
            Some(Poll::Pending) => {
                // Pairs with the one in `Home`: either this side sees that it was missed, or that side finds the lock open. Opening it
                // alone, and looking at it alone, would order neither behind what each has said before.
                fence(Ordering::SeqCst);
                let was_missed = self.is_missed.swap(false, Ordering::Relaxed);
                // A task that has used up its budget is told to wait by all that it asks, and is woken by the scheduler of its own
                // thread, when that comes to it: this work is not its own.
                was_missed || !tokio::task::coop::has_budget_remaining()
            }
            // What was never begun there needs no end there.
            Some(Poll::Ready(())) => self.is_at_home.load(Ordering::Acquire),
        };
        if calls_home {
            self.call_home();
        }
    }
}

impl Wake for Driven {
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
            self.call_home();
        }
    }
}

/// The task on the thread. Dropped, it ends the work.
struct Home(Arc<Driven>);

impl Future for Home {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self(driven) = &*self;
        driven.task.register(context.waker());
        if let Some(polled) = driven.step() {
            return polled;
        }
        // Said before the second look: who has left between the two did not see it, and who leaves behind them does.
        driven.is_missed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        driven.step().unwrap_or(Poll::Pending)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What waits for it holds it, and it holds what it waits for.
        let work = self.0.work.lock().take();
        drop(work);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Work that counts its steps, and leaves its waker to be woken by.
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
    async fn what_is_woken_in_a_turn_is_done_at_its_end_and_once() {
        let (steps, waker, work) = counted();
        drive(&Handle::current(), work);
        tokio::task::yield_now().await;
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        let outer = Turn::begin();
        let inner = Turn::begin();
        wake(&waker);
        drop(inner);
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        drop(outer);
        assert_eq!(steps.load(Ordering::SeqCst), 2);
        tokio::task::yield_now().await;
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn what_is_woken_in_a_turn_is_done_at_once_where_that_is_wanted() {
        let (steps, waker, work) = counted();
        drive(&Handle::current(), work);
        tokio::task::yield_now().await;
        send_now();
        let turn = Turn::begin();
        wake(&waker);
        send_now();
        assert_eq!(steps.load(Ordering::SeqCst), 2);
        wake(&waker);
        assert_eq!(steps.load(Ordering::SeqCst), 2, "the turn goes on");
        drop(turn);
        assert_eq!(steps.load(Ordering::SeqCst), 3);
    }

    /// The budget is that of the task which begins it, and the wake-up would be, too.
    #[tokio::test]
    async fn what_is_begun_without_a_budget_is_done_at_home() {
        let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (begun, has_begun) = std::sync::mpsc::channel();
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::poll_proceed(&mut Context::from_waker(Waker::noop()))
                .map(|unit| unit.made_progress())
                .is_ready();
        }
        begin_here(home.handle(), async move {
            tokio::task::coop::consume_budget().await;
            begun.send(()).unwrap();
        });
        // This task does not come to an end before that, and so gets no new budget.
        has_begun.recv_timeout(std::time::Duration::from_secs(20)).expect("it is done by the other runtime");
        home.shutdown_background();
    }

    #[tokio::test]
    async fn what_is_woken_outside_a_turn_is_done_at_home() {
        let (steps, waker, work) = counted();
        drive(&Handle::current(), work);
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
        drive(runtime.handle(), work);
        runtime.block_on(tokio::task::yield_now());
        let held = Arc::downgrade(&steps);
        drop((runtime, steps));
        assert!(held.upgrade().is_none());
        let turn = Turn::begin();
        wake(&waker);
        drop(turn);
    }
}
