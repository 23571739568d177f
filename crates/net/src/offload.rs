//! Decoding and encoding of users' values: large ones off the runtime's threads. A panic is the error of its call.
//!
//! A value of megabytes takes milliseconds, during which its thread would serve no other call. Below [`LARGE_BYTES`],
//! handing the work over would take longer than doing it. For callers of a node, [its own
//! threads](callboard_core::edge::EdgeHandle::offload) do the work and own the call until they return. For clients, and
//! for answers of peers, blocking threads do it: one for each core, and further work waits.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use callboard_codec::{Account, EncodeError, Envelope, Payload, charged_to, charged_up_to};
pub(crate) use callboard_core::edge::LARGE_BYTES;
use callboard_core::{CallError, Deadline, ErrorKind, LocalClient, edge};
use futures_util::future::{Either, ready};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// The threads for work that has no node. Work keeps its thread until it returns.
static FREE_THREADS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(2, NonZeroUsize::get);
    Arc::new(Semaphore::new(cores.max(2)))
});

/// The account that pays for the work of a call, and the call's deadline.
#[derive(Clone)]
pub(crate) struct CallBudget {
    pub(crate) account: Arc<dyn Account>,
    pub(crate) deadline: Deadline,
}

/// Does work on this number of bytes for a call of this node. The thread holds `owner` until the work is done.
///
/// # Errors
///
/// The work's own; `internal`, with the message, if it panics; those of
/// [`EdgeHandle::offload`](edge::EdgeHandle::offload).
pub(crate) async fn run_for<O: Send + 'static, T: Send + 'static>(
    node: &LocalClient,
    (owner, bytes): (O, usize),
    budget: CallBudget,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<(O, T), CallError> {
    if bytes < LARGE_BYTES {
        return Ok((owner, contain(|| charged_to(&budget.account, work))?));
    }
    let CallBudget { account, deadline } = budget;
    // Boxed, so that the rare large future does not enlarge the future of every call.
    let (owner, done) = Box::pin(node.edge().offload(owner, account, deadline, move || contain(work))).await?;
    Ok((owner, done?))
}

/// Encodes a payload for a peer at the expense of its call; on another thread if that turns out to be much.
///
/// # Errors
///
/// `internal`, with the message, if the user's `Serialize` panics; the inner error if it fails, or if there is no room.
pub(crate) async fn encode(
    payload: &Payload,
    account: Option<Arc<dyn Account>>,
) -> Result<Result<Envelope, EncodeError>, CallError> {
    let shared = payload.clone();
    let Some(account) = account else {
        return run(payload.size_up_to(LARGE_BYTES), move || Ok(shared.to_envelope())).await;
    };
    match contain(|| Ok(charged_up_to(LARGE_BYTES, &account, || payload.to_envelope())))? {
        Some(encoded) => Ok(encoded),
        None => run(LARGE_BYTES, move || Ok(charged_to(&account, || shared.to_envelope()))).await,
    }
}

/// Does work on this number of bytes without a node.
///
/// # Errors
///
/// The work's own; `internal`, with the message, if it panics.
pub(crate) fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> impl Future<Output = Result<T, CallError>> + Send {
    // Small work is done before the first poll, so that its input is not moved into a future.
    if bytes < LARGE_BYTES { Either::Left(ready(contain(work))) } else { Either::Right(run_blocking(work)) }
}

fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>> {
    Box::pin(async move {
        let stopping = || CallError::new(ErrorKind::Unavailable, "the node is stopping");
        // In a separate task: a caller that is not polled would keep its permit from the callers after it.
        let task = tokio::spawn(async move {
            let thread = Arc::clone(&FREE_THREADS).acquire_owned().await.map_err(|_closed| stopping())?;
            let done = tokio::task::spawn_blocking(move || {
                let done = contain(work);
                drop(thread);
                done
            });
            done.await.unwrap_or_else(|_stopped| Err(stopping()))
        });
        let _abort = AbortOnDrop(task.abort_handle());
        task.await.unwrap_or_else(|_stopped| Err(stopping()))
    })
}

/// Aborts waiting work when its caller leaves.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Turns a panic of user code into the error of its call.
pub(crate) fn contain<T>(work: impl FnOnce() -> Result<T, CallError>) -> Result<T, CallError> {
    edge::contain(work).unwrap_or_else(|panic| {
        Err(CallError::new(ErrorKind::Internal, format!("a value could not be read or written: {panic}")))
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

    /// Work whose caller has left keeps its thread.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_threads_work_at_once_than_there_are_cores() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let cores = FREE_THREADS.available_permits();
        let started = (0..cores * 10).map(|_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(run(LARGE_BYTES, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                (0..200).for_each(|_| std::thread::yield_now());
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
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
