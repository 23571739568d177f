//! Serves the edge, or any axum router, on a socket with the same accept loop.

use std::time::Duration;

use axum::Router;
use callboard_core::LocalClient;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::asgi::AsgiError;
use crate::config::{HttpConfig, HttpConfigError};
use crate::describe::openapi::ApiInfo;
use crate::dispatch::HttpEdge;
use crate::listener::tls::{Tls, TlsError};
use crate::listener::{self, AcceptMetrics, Http2Windows, Responder};
use crate::protocol::{ProtocolError, ReservedRoute};

/// Serves a node's routes and the edge's pages on `listener` until `shutdown` completes, then finishes the requests in
/// progress.
///
/// Shutdown is orderly: clients in the backlog are accepted, later ones are not, each connection closes with its next
/// response, and requests beyond [`HttpConfig::shutdown_grace`] are answered with 503 and cut; those of mounted apps
/// earlier, by the time in which the stage of the app stops, and at most by half of the grace. The node itself
/// continues: call `Node::withdraw` first, so that `/readyz` tells load balancers while requests are still answered,
/// and drain it afterwards.
///
/// # Errors
///
/// [`HttpServeError`] before anything is accepted. Errors of single connections end those connections only.
///
/// # Cancellation
///
/// Dropping the future cuts every connection; complete `shutdown` instead.
pub async fn serve(
    listener: TcpListener,
    client: LocalClient,
    config: HttpConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HttpServeError> {
    let grace = config.shutdown_grace;
    let shutdown = async {
        shutdown.await;
        grace
    };
    serve_edge(listener, HttpEdge::try_new(client, config, ApiInfo::default(), Vec::new())?, shutdown).await;
    Ok(())
}

/// Serves an existing [`HttpEdge`], as [`serve`] does. `shutdown` completes with the time that remaining requests have,
/// in place of [`HttpConfig::shutdown_grace`].
///
/// # Cancellation
///
/// As [`serve`].
pub async fn serve_edge(listener: TcpListener, edge: HttpEdge, shutdown: impl Future<Output = Duration>) {
    serve_for(listener, edge.clone(), edge, shutdown).await;
}

/// Serves a router in which `edge` is mounted, as [`serve_edge`] serves the edge alone: with the edge's limits,
/// certificate and keys.
///
/// # Cancellation
///
/// As [`serve`].
pub async fn serve_mounted(
    listener: TcpListener,
    edge: HttpEdge,
    router: Router,
    shutdown: impl Future<Output = Duration>,
) {
    serve_for(listener, router, edge, shutdown).await;
}

async fn serve_for(
    listener: TcpListener,
    responder: impl Responder,
    edge: HttpEdge,
    shutdown: impl Future<Output = Duration>,
) {
    let metrics = edge.accept_metrics();
    let (config, tls) = (edge.config().clone(), edge.tls());
    // Ends with this function.
    let mut watchers = JoinSet::new();
    edge.watch_keys().map(|fresh| watchers.spawn(fresh));
    let shutdown = async {
        let grace = shutdown.await;
        edge.withdraw();
        watchers.spawn(edge.end_apps_within(grace));
        grace
    };
    listener::run(listener, responder, &config, tls, metrics, edge.windows(), shutdown).await;
}

/// Serves any axum router with this crate's accept loop: its timers, limits and orderly shutdown, and nothing else of
/// the edge.
///
/// For your own services next to Callboard, and for the baseline of its benchmark.
///
/// # Errors
///
/// [`HttpServeError::Config`] and [`HttpServeError::Tls`] before anything is accepted. Errors of single connections end
/// those connections only.
///
/// # Cancellation
///
/// As [`serve`].
pub async fn serve_router(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HttpServeError> {
    config.validate()?;
    let tls = config.tls.clone().map(Tls::load).transpose()?;
    let grace = config.shutdown_grace;
    let shutdown = async {
        shutdown.await;
        grace
    };
    let (metrics, windows) = (AcceptMetrics::default(), Http2Windows::new(&config));
    listener::run(listener, router, &config, tls, metrics, windows, shutdown).await;
    Ok(())
}

/// The reason why serving did not begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HttpServeError {
    /// Correct the limit that it names.
    #[error("the http limits are invalid")]
    Config(#[from] HttpConfigError),
    /// Give it a certificate and the key that belongs to it, both in PEM.
    #[error("the certificate cannot be used")]
    Tls(#[from] TlsError),
    /// Rename the route.
    #[error(transparent)]
    ReservedRoute(#[from] ReservedRoute),
    /// Give the app another path, or its pipeline a stream.
    #[error(transparent)]
    Asgi(#[from] AsgiError),
    /// Serve protocols that claim different requests.
    #[error(transparent)]
    Protocols(#[from] ProtocolError),
    /// Change the route that it names.
    #[error("{protocol}: {reason}")]
    Refused {
        /// The name of the protocol that cannot serve the routes.
        protocol: String,
        /// Why not.
        reason: String,
    },
    /// Make an edge for each node: this edge has its node already.
    #[error("the http edge already serves a node")]
    AlreadyOpen,
    /// Set [`HttpConfig::auth`] to what the app has.
    #[error(
        "the setting `auth` of the http edge is {}, and the app has {} route `@auth`",
        !has_auth, if *has_auth { "the" } else { "no" }
    )]
    Auth {
        /// Whether the app has the route.
        has_auth: bool,
    },
}
