//! Panics as errors of the request that caused them.

use std::pin::Pin;

use callboard_core::edge::contain_future;
use prometheus_client::metrics::counter::Counter;

use super::ApiError;

/// Drives `work`. A panic is counted and becomes an error.
///
/// # Errors
///
/// The error of `work`, or an internal error after a panic.
pub async fn caught_within<T, E: Into<ApiError>>(
    panics: &Counter,
    mut work: Pin<Box<impl Future<Output = Result<T, E>>>>,
) -> Result<T, ApiError> {
    let outcome = contain_future(work.as_mut()).await.map(|done| done.map_err(Into::into));
    outcome.unwrap_or_else(|_printed_by_the_panic_hook| {
        panics.inc();
        Err(ApiError::panicked())
    })
}
