//! Reading and writing users' values: off the runtime's threads when there is much of it, at the expense of who wants it, and what panics in
//! it is that call's error.
//!
//! A value of megabytes takes milliseconds, in which its thread would answer nobody else. Below [`LARGE_BYTES`] handing the work over
//! would take longer than doing it. A node's work for its callers is done by [its threads for that](callboard_core::LocalClient::offload),
//! which own the call until they return; a client's, and what a node does with answers of peers, by as many threads as there are cores,
//! for which further callers wait.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use callboard_codec::{Account, charged_to};
use callboard_core::{CallError, Deadline, ErrorKind, LocalClient};
use futures_util::future::{Either, ready};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// As much as the HTTP edge takes for large.
pub(crate) const LARGE_BYTES: usize = 256 * 1024;

/// The threads for large values that are no caller's of this node. Work that was begun has its thread until it returns.
static FREE: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(2, NonZeroUsize::get);
    Arc::new(Semaphore::new(cores.max(2)))
});

/// Who pays for the work of a call, and when it is late.
#[derive(Clone)]
pub(crate) struct Paying {
    pub(crate) account: Arc<dyn Account>,
    pub(crate) due: Deadline,
}

/// Does the work on so many bytes for a caller of this node, where it disturbs nobody. The thread holds `owner` until it is done.
///
/// # Errors
///
/// The work's own; `internal`, with its words, where it panics; those of [`LocalClient::offload`].
pub(crate) async fn run_for<O: Send + 'static, T: Send + 'static>(
    node: &LocalClient,
    (owner, bytes): (O, usize),
    paying: Paying,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<(O, T), CallError> {
    if bytes < LARGE_BYTES {
        return Ok((owner, contain(|| charged_to(&paying.account, work))?));
    }
    let Paying { account, due } = paying;
    // In a place of its own, so that what is seldom large does not make every call so.
    let (owner, done) = Box::pin(node.offload(owner, account, due, move || contain(work))).await?;
    Ok((owner, done?))
}

/// Does the work on so many bytes where it disturbs nobody, for who is no caller of a node.
///
/// # Errors
///
/// The work's own; `internal`, with its words, where it panics.
pub(crate) fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> impl Future<Output = Result<T, CallError>> + Send {
    // Done before the first poll where it is small, so that what it reads is not moved into a future.
    if bytes < LARGE_BYTES { Either::Left(ready(contain(work))) } else { Either::Right(elsewhere(work)) }
}

fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>> {
    Box::pin(async move {
        let stopping = || CallError::new(ErrorKind::Unavailable, "the node is stopping");
        // In a task of its own: a caller that is not polled would keep the place that it was given from everybody behind it.
        let task = tokio::spawn(async move {
            let free = Arc::clone(&FREE).acquire_owned().await.map_err(|_closed| stopping())?;
            let done = tokio::task::spawn_blocking(move || {
                let done = contain(work);
                drop(free);
                done
            });
            done.await.unwrap_or_else(|_stopped| Err(stopping()))
        });
        let _waiting = AbortOnDrop(task.abort_handle());
        task.await.unwrap_or_else(|_stopped| Err(stopping()))
    })
}

/// Work that waits is not begun for a caller that left.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a panic of a user's code to its call.
pub(crate) fn contain<T>(work: impl FnOnce() -> Result<T, CallError>) -> Result<T, CallError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        // Whatever it panicked with may panic when it is dropped.
        Box::leak(panic);
        let words = words.unwrap_or_else(|| "a panic without a message".to_owned());
        Err(CallError::new(ErrorKind::Internal, format!("a value could not be read or written: {words}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_error_of_its_call_wherever_it_happens() {
        for bytes in [0, LARGE_BYTES] {
            let error = run::<()>(bytes, || panic!("no such number")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.message().ends_with("no such number"), "{error}");
        }
        assert_eq!(run(LARGE_BYTES, || Ok(7)).await.unwrap(), 7);
    }

    /// Work that its caller has left has its thread, and no other has it too.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_is_at_work_at_once_than_there_are_cores() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let cores = FREE.available_permits();
        let begun = (0..cores * 10).map(|_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(run(LARGE_BYTES, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                (0..200).for_each(|_| std::thread::yield_now());
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }))
        });
        for (nth, begun) in begun.collect::<Vec<_>>().into_iter().enumerate() {
            if nth % 2 == 0 {
                begun.abort();
            }
            let _ = begun.await;
        }
        assert!(most.load(Ordering::SeqCst) <= cores);
    }
}
