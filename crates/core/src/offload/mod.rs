//! Moves large pieces of decoding and encoding away from the runtime's threads: for a node by its [`CodecBudget`]s, for
//! a client by [`run_without_node`].
//!
//! The limit of running pieces of a node is one below the count of cores: the runtime keeps a core for other calls. All
//! clients of a process together have one piece per core. Work that borrows from its task, such as a copy for a child
//! process, is done there, and [the other tasks move](off_the_runtime).
//!
//! * **Full:** further work waits within its call's deadline. Of a node at most [`MAX_WAITING`] pieces wait; beyond
//!   that the call is refused with `Overloaded`. Work without a node is bounded by the calls in flight alone.
//! * **Late, cancelled:** the call's deadline, or dropping the future, stops the work at its next charge, at the latest
//!   after 64 KiB of allocations. Until the work returns it owns its call's [`Admission`](crate::edge::Admission): an
//!   abandoned call is in flight while it costs something.

mod budget;

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use callboard_codec::{Account, ChargeError, charged_to};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, block_in_place, spawn_blocking};

pub use self::budget::CodecBudget;
use crate::clock;
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind, RETRY_AFTER};

/// From this size on, decoding and encoding run on another thread: about a millisecond of JSON. Below it, handing the
/// work over would take longer than doing it.
pub const LARGE_BYTES: usize = 256 * 1024;

/// The maximum count of pieces that wait for a thread. Their memory is already charged to their calls.
const MAX_WAITING: usize = 1024;

/// The threads for the work of clients.
static WITHOUT_NODE: LazyLock<Offload> =
    LazyLock::new(|| Offload { max_waiting: usize::MAX, ..Offload::new(None, cores().max(2)) });

fn cores() -> usize {
    available_parallelism().map_or(2, NonZeroUsize::get)
}

/// Runs `work` off the runtime's threads, for a client: its calls in flight bound how much of it waits.
///
/// # Errors
///
/// `Unavailable` when the runtime stops; `DeadlineExceeded` when no thread was free within the longest timeout of a
/// call.
///
/// # Panics
///
/// As `work` does.
///
/// # Cancellation
///
/// Dropping the future stops the work at its next charge.
pub async fn run_without_node<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CallError> {
    let done = WITHOUT_NODE.run((), Arc::new(Unmetered), Deadline::from(Deadline::MAX_TIMEOUT), work).await;
    done.map(|((), done)| done)
}

/// Does work on this many bytes that cannot leave its task, because it borrows: a copy for another process, or an item
/// of a batch. If it is long, the runtime moves the other tasks of the thread to another thread.
pub fn off_the_runtime<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_others = || Handle::try_current().is_ok_and(|own| own.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE_BYTES && has_others() { block_in_place(work) } else { work() }
}

/// The threads for decoding and encoding.
#[derive(Debug)]
pub(crate) struct Offload {
    /// `None`: that of the caller.
    runtime: Option<Handle>,
    free: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
}

impl Offload {
    /// The threads of a node on this runtime.
    pub(crate) fn of_node(runtime: Handle) -> Self {
        Self::new(Some(runtime), cores().saturating_sub(1).max(1))
    }

    /// Whether this thread runs tasks of the node's runtime, or has entered it.
    pub(crate) fn is_entered(&self) -> bool {
        let own = self.runtime.as_ref().map(Handle::id);
        own.is_some() && Handle::try_current().ok().map(|current| current.id()) == own
    }

    fn new(runtime: Option<Handle>, threads: usize) -> Self {
        Self { runtime, free: Arc::new(Semaphore::new(threads)), waiting: Arc::default(), max_waiting: MAX_WAITING }
    }

    /// Runs `work` on a separate thread and charges `account`. The thread holds `owner`, such as the call's admission,
    /// until the work returns, and gives it back with the result.
    ///
    /// A panic of `work` continues in the caller.
    pub(crate) async fn run<O: Send + 'static, T: Send + 'static>(
        &self,
        owner: O,
        account: Arc<dyn Account>,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(O, T), CallError> {
        let (waiting, free) = (self.wait()?, Arc::clone(&self.free));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let account: Arc<dyn Account> = Arc::new(StoppableAccount { account, stop: Arc::clone(&stop), deadline });
        // A separate task, which the runtime polls: a caller that is not polled, such as a stream whose reader pauses,
        // would keep its place in the queue and block the work after it.
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        let task = runtime.spawn(async move {
            let free = match tokio::time::timeout_at(deadline.instant(), free.acquire_owned()).await {
                Ok(Ok(free)) => free,
                Ok(Err(_closed)) => return Err(stopping()),
                Err(_late) => {
                    return Err(CallError::deadline_exceeded("before there was a thread to read or write it"));
                }
            };
            drop(waiting);
            let work = move || {
                let done = charged_to(&account, work);
                // An unwanted result is dropped before its bytes, its permit and its place are free again.
                let done = (!stopped.load(Ordering::Relaxed)).then_some(done).map(|done| (done, owner));
                drop(free);
                done
            };
            match spawn_blocking(work).await {
                Ok(Some((done, owner))) => Ok((owner, done)),
                Ok(None) => Err(stopping()),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_stopped) => Err(stopping()),
                },
            }
        });
        let _stop = StopOnDrop { stop, task: task.abort_handle() };
        match task.await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_stopped) => Err(stopping()),
            },
        }
    }

    fn wait(&self) -> Result<WaitingJob, CallError> {
        let waiting = WaitingJob(Arc::clone(&self.waiting));
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.max_waiting {
            Ok(waiting)
        } else {
            let message = format!("{} large payloads wait to be read or written", self.max_waiting);
            Err(CallError::overloaded(message, RETRY_AFTER))
        }
    }
}

fn stopping() -> CallError {
    CallError::new(ErrorKind::Unavailable, "the node is stopping")
}

/// One piece of work that waits.
struct WaitingJob(Arc<AtomicUsize>);

impl Drop for WaitingJob {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stops the work of a dropped future: waiting work does not start, running work ends at its next charge.
struct StopOnDrop {
    stop: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

/// A call's account that refuses every charge after the call was stopped or its deadline passed.
struct StoppableAccount {
    account: Arc<dyn Account>,
    stop: Arc<AtomicBool>,
    deadline: Deadline,
}

impl Account for StoppableAccount {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        if self.stop.load(Ordering::Relaxed) || self.deadline.is_expired(clock::now()) {
            Err(ChargeError::Stopped)
        } else {
            self.account.charge(bytes)
        }
    }

    fn refund(&self, bytes: usize) {
        self.account.refund(bytes);
    }
}

/// The account of a client: its memory is its own.
struct Unmetered;

impl Account for Unmetered {
    fn charge(&self, _: usize) -> Result<(), ChargeError> {
        Ok(())
    }

    fn refund(&self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::clock::Instant;

    fn within_a_minute() -> Deadline {
        Deadline::after(Instant::now(), Duration::from_secs(60))
    }

    #[tokio::test]
    async fn an_unpolled_caller_occupies_no_thread() {
        let offload = Offload::new(None, 1);
        let (release, released) = channel::<()>();
        let busy = offload.run((), Arc::new(Unmetered), within_a_minute(), move || released.recv().is_ok());
        let paused = offload.run((), Arc::new(Unmetered), within_a_minute(), || ());
        let (mut busy, mut paused) = (Box::pin(busy), Box::pin(paused));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(busy.as_mut().poll(&mut context), Poll::Pending));
        assert!(matches!(paused.as_mut().poll(&mut context), Poll::Pending));
        release.send(()).unwrap();
        let next = offload.run(7, Arc::new(Unmetered), within_a_minute(), || 8);
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), next).await.expect("it is polled").unwrap(), (7, 8));
        assert_eq!(busy.await.unwrap(), ((), true));
        assert_eq!(paused.await.unwrap(), ((), ()));
    }

    #[tokio::test]
    async fn work_of_a_cancelled_caller_fails_at_its_next_charge() {
        let offload = Offload::new(None, 1);
        let (done_sender, done_receiver) = channel();
        let work = move || {
            while callboard_codec::Value::from_serialize(&vec![0_u8; 100_000]).is_ok() {}
            done_sender.send(()).unwrap();
        };
        let left = offload.run((), Arc::new(Unmetered), within_a_minute(), work);
        let left = tokio::time::timeout(Duration::from_millis(50), left).await;
        assert!(left.is_err(), "the work continues while its caller waits");
        done_receiver.recv_timeout(Duration::from_secs(30)).expect("the work has ended");
    }

    /// Work whose caller has left keeps its thread.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_threads_work_for_clients_than_there_are_cores() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let cores = WITHOUT_NODE.free.available_permits();
        let started = (0..cores * 10).map(|_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(run_without_node(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                (0..200).for_each(|_| std::thread::yield_now());
                now.fetch_sub(1, Ordering::SeqCst);
            }))
        });
        for (nth, started) in started.collect::<Vec<_>>().into_iter().enumerate() {
            if nth % 2 == 0 {
                started.abort();
            }
            let _ = started.await;
        }
        assert!(most.load(Ordering::SeqCst) <= cores);
    }
}
