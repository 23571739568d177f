//! Panics as errors of the request that caused them.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::FutureExt as _;
use prometheus_client::metrics::counter::Counter;

use super::ApiError;

/// Runs `work`. A panic is counted and becomes an error.
///
/// # Errors
///
/// The error of `work`, or an internal error after a panic.
pub fn caught<T, E: Into<ApiError>>(panics: &Counter, work: impl FnOnce() -> Result<T, E>) -> Result<T, ApiError> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| work().map_err(Into::into)));
    outcome.unwrap_or_else(|_printed_by_the_panic_hook| Err(panicked(panics)))
}

/// Drives `work`. A panic is counted and becomes an error.
pub(crate) async fn caught_within<T>(
    panics: &Counter,
    mut work: Pin<Box<impl Future<Output = Result<T, ApiError>>>>,
) -> Result<T, ApiError> {
    catch_panic(work.as_mut()).await.unwrap_or_else(|_printed_by_the_panic_hook| Err(panicked(panics)))
}

fn panicked(panics: &Counter) -> ApiError {
    panics.inc();
    ApiError::panicked()
}

/// Drives `work`; a panic becomes the error. The future must not be polled after a panic: its state may be broken.
///
/// It is pinned by the caller: a future that is an argument of another is a part of it twice, and hyper moves both.
pub(crate) async fn catch_panic<F: Future + ?Sized>(work: Pin<&mut F>) -> Result<F::Output, Box<dyn Any + Send>> {
    AssertUnwindSafe(work).catch_unwind().await
}
