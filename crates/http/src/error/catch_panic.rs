//! Turns a panic within a future, or within a piece of an answer that has begun, into a value.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use prometheus_client::metrics::counter::Counter;

use crate::error::ApiError;

/// What `work` gives. A panic becomes the error of whoever ran into it, and is counted.
pub(crate) fn caught<T, E: Into<ApiError>>(
    panics: &Counter,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, ApiError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_told_by_the_panic_hook) => {
            panics.inc();
            Err(ApiError::panicked())
        }
    }
}

/// The same for work that takes its time.
pub(crate) async fn caught_within<T>(
    panics: &Counter,
    mut work: Pin<Box<impl Future<Output = Result<T, ApiError>>>>,
) -> Result<T, ApiError> {
    match catch_panic(work.as_mut()).await {
        Ok(outcome) => outcome,
        Err(_told_by_the_panic_hook) => {
            panics.inc();
            Err(ApiError::panicked())
        }
    }
}

/// Drives `work`; a panic becomes the error. The future must not be polled again after one: its state may be broken.
///
/// Takes it pinned, because a future that is an argument of another is part of it twice, and hyper moves the whole.
pub(crate) async fn catch_panic<F: Future>(mut work: Pin<&mut F>) -> Result<F::Output, Box<dyn Any + Send>> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
