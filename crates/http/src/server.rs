//! Serving on a socket: the edge, or any axum router, behind the same accept loop.

use axum::Router;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::accept::{self, AcceptMetrics};
use crate::config::{ConfigError, HttpConfig};

/// Serves any axum router with this crate's accept loop: its timers, caps and orderly end, and nothing else of the edge.
///
/// For services of one's own beside Callboard, and the base line of its benchmark.
///
/// # Errors
///
/// [`ServeError::Config`] before anything is accepted. Errors of single connections end those connections only.
///
/// # Cancellation
///
/// Dropping the future cuts every connection; complete `shutdown` instead.
pub async fn serve_router(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    config.validate()?;
    accept::run(
        listener,
        router,
        &config,
        AcceptMetrics::default(),
        shutdown,
    )
    .await;
    Ok(())
}

/// Why serving did not begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Correct the limit that it names.
    #[error("the http limits cannot work")]
    Config(#[from] ConfigError),
}
