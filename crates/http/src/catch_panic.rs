//! Turns a panic within a future into a value.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Drives `work`; a panic becomes the error. The future is not polled again after one, so nothing sees its broken state.
pub(crate) async fn catch_panic<F: Future>(work: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
