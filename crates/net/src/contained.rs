//! Reading and writing users' values: off the runtime's threads when there is much of it, and what panics in it is that call's error.
//!
//! A value of megabytes takes milliseconds, in which its thread would answer nobody else. Below [`LARGE_BYTES`] handing the work over
//! would take longer than doing it. Work that was begun elsewhere goes on there when its caller leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use callboard_codec::{Envelope, Payload};
use callboard_core::{CallError, ErrorKind};

/// As much as the HTTP edge takes for large.
pub(crate) const LARGE_BYTES: usize = 256 * 1024;

/// Does the work on so many bytes where it disturbs nobody.
///
/// # Errors
///
/// The work's own; `internal`, with its words, where it panics.
pub(crate) async fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    if bytes < LARGE_BYTES {
        return contain(work);
    }
    elsewhere(work).await
}

/// In a place of its own, so that what is seldom large does not make every call so.
fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>> {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(move || contain(work)).await;
        done.unwrap_or_else(|_stopped| Err(CallError::new(ErrorKind::Unavailable, "the node is stopping")))
    })
}

/// A value as it is sent. What it is made of is dropped where it was written.
pub(crate) async fn encode(payload: Payload) -> Result<Envelope, CallError> {
    run(payload.size_hint(), move || Ok(payload.to_envelope()?)).await
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
}
