//! Panics as errors of the request that caused them.

use std::pin::Pin;

use callboard_core::edge::{contain, contain_future};
use prometheus_client::metrics::counter::Counter;

use super::ApiError;

/// Runs `work`. A panic is counted and becomes an error.
///
/// # Errors
///
/// The error of `work`, or an internal error after a panic.
pub fn caught<T, E: Into<ApiError>>(panics: &Counter, work: impl FnOnce() -> Result<T, E>) -> Result<T, ApiError> {
    let outcome = contain(|| work().map_err(Into::into));
    outcome.unwrap_or_else(|_printed_by_the_panic_hook| Err(panicked(panics)))
}

/// Drives `work`. A panic is counted and becomes an error.
pub(crate) async fn caught_within<T, E: Into<ApiError>>(
    panics: &Counter,
    mut work: Pin<Box<impl Future<Output = Result<T, E>>>>,
) -> Result<T, ApiError> {
    let outcome = contain_future(work.as_mut()).await.map(|done| done.map_err(Into::into));
    outcome.unwrap_or_else(|_printed_by_the_panic_hook| Err(panicked(panics)))
}

fn panicked(panics: &Counter) -> ApiError {
    panics.inc();
    ApiError::panicked()
}
