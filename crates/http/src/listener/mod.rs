//! The accept loop: accepts connections while there is room, serves each in a task, and shuts down in order.
//!
//! * **Full**: at `max_connections` the loop stops accepting. New clients wait in the kernel's backlog until a
//!   connection ends; no connection is dropped. Timers free the permits of idle clients (header timer) and of clients
//!   that do not read (write timer).
//! * **Full for one address**: its new connections are closed at once and counted; the others continue.
//! * **Out of descriptors**: `accept` is retried after a growing pause ([`AcceptBackoff`]), with one log line per
//!   episode.
//! * **Gone**: TCP keep-alive ends the connection of a client whose machine or network is gone ([`keepalive`]).
//! * **Shutdown**: clients in the backlog are accepted, then the socket is closed and every connection is notified.
//!   After the grace period the remaining requests are [aborted](Responder::abort); a moment later their connections
//!   are cut.

mod activity;
mod addresses;
mod backoff;
mod connection;
mod head_timer;
mod keepalive;
mod linger;
mod response_body;
mod rest;
mod stream;
pub(crate) mod tls;
mod windows;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONNECTION;
use axum::response::Response;
use callboard_core::families;
use futures_util::FutureExt as _;
use hyper::Request;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;
use tower::Service;

use self::addresses::{AddressLimits, AddressPermit};
use self::backoff::AcceptBackoff;
use self::connection::ConnectionSettings;
pub(crate) use self::linger::ReceivedBody;
pub(crate) use self::rest::{CLOSE, UnreadBody};
pub(crate) use self::windows::Http2Windows;
use crate::config::HttpConfig;
use crate::guard::TrustedProxies;
use crate::listener::tls::Tls;
use crate::runtime::shutdown::ShutdownSignal;

/// Answers requests: cheap to clone, always ready, infallible. Unlike [`tower::Service`] its future needs no box.
pub(crate) trait Responder: Clone + Send + Sync + 'static {
    /// Answers one request.
    fn respond(self, request: Request<ReceivedBody>, peer: PeerInfo)
    -> impl Future<Output = Response> + Send + 'static;

    /// Answers all running requests now, because their time is over.
    fn abort(&self) {}

    /// The signal of [abort](Self::abort), if futures check it when they are polled: connections of HTTP/1 poll them
    /// then.
    fn aborting(&self) -> Option<&ShutdownSignal> {
        None
    }
}

/// The peer of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerInfo {
    /// The address of the peer: the client, or the last proxy.
    pub(crate) address: IpAddr,
    /// Whether the connection is encrypted.
    pub(crate) is_secure: bool,
    /// Whether only this machine can reach the listener.
    pub(crate) is_local: bool,
}

impl Responder for Router {
    fn respond(
        mut self,
        mut request: Request<ReceivedBody>,
        peer: PeerInfo,
    ) -> impl Future<Output = Response> + Send + 'static {
        // For an edge mounted in the router.
        request.extensions_mut().insert(peer);
        let (unread, version) = (UnreadBody::new(request.headers(), request.body(), true), request.version());
        let answer = self.call(request);
        async move {
            let Ok(mut response) = answer.await;
            if unread.ends_connection(version)
                && (response.status().is_client_error() || response.status().is_server_error())
            {
                response.headers_mut().insert(CONNECTION, CLOSE);
            }
            response
        }
    }
}

families! {
    /// The counters of the loop. Clones share them.
    pub(crate) struct AcceptMetrics {
        pub(crate) open: Gauge = "connections_open", "Connections being served";
        pub(crate) resting: Gauge = "connections_resting", "Open connections that are idle and keep no buffers";
        pub(crate) upgraded: Gauge =
            "connections_upgraded", "Open connections that serve another protocol after an upgrade";
        pub(crate) accepted: Counter = "connections_accepted", "Connections accepted since the start";
        pub(crate) accept_errors: Counter = "accept_errors", "Failed accepts, such as without free descriptors";
        pub(crate) refused: Counter =
            "connections_refused", "Connections closed at once because their address was at its limit";
        pub(crate) flooded: Counter =
            "connections_flooded", "HTTP/2 connections cut because their client cancelled too many requests";
        pub(crate) cut_at_shutdown: Counter =
            "connections_cut", "Connections cut at the end of the grace period";
    }
}

/// Serves connections of `listener` until `shutdown` completes, then shuts down in order within the grace period that
/// it returns.
pub(crate) async fn run(
    listener: TcpListener,
    responder: impl Responder,
    config: &HttpConfig,
    tls: Option<Tls>,
    metrics: AcceptMetrics,
    windows: Arc<Http2Windows>,
    shutdown: impl Future<Output = Duration>,
) {
    lengthen_backlog(&listener);
    // Ends with this function.
    let mut watchers = JoinSet::new();
    if let Some(tls) = tls.clone() {
        watchers.spawn(tls.watch_files());
    }
    let mut accepting = AcceptLoop {
        permits: Arc::new(Semaphore::new(config.max_connections)),
        addresses: AddressLimits::new(config.max_connections_per_address),
        proxies: config.trusted_proxies.clone(),
        connections: ConnectionSettings::new(config, tls, is_local(&listener), metrics.clone(), windows),
        tasks: JoinSet::new(),
        metrics,
        listener,
        responder,
    };
    let grace = tokio::select! {
        biased;
        () = accepting.accept_forever() => config.shutdown_grace,
        grace = shutdown => grace,
    };
    accepting.close(grace).await;
}

/// Clients in the kernel's backlog. The kernel lowers it to its own limit (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// The time after the grace period in which the last responses are written and aborted calls are answered.
pub const ABORT_GRACE: Duration = Duration::from_millis(250);

/// Lengthens the backlog from the 128 of a bound socket: a client beyond it gets no answer, and retries after a second.
fn lengthen_backlog(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).listen(BACKLOG) {
        tracing::debug!(%error, "the backlog is unchanged");
    }
}

/// Whether only this machine can reach the listener. An unknown address counts as local, the stricter rule.
pub(crate) fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().map_or(true, |address| address.ip().to_canonical().is_loopback())
}

struct AcceptLoop<R> {
    listener: TcpListener,
    responder: R,
    permits: Arc<Semaphore>,
    addresses: Arc<AddressLimits>,
    proxies: TrustedProxies,
    connections: Arc<ConnectionSettings>,
    tasks: JoinSet<()>,
    metrics: AcceptMetrics,
}

impl<R: Responder> AcceptLoop<R> {
    async fn accept_forever(&mut self) {
        let mut backoff = AcceptBackoff::default();
        while let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
            match self.listener.accept().await {
                Ok((socket, peer)) => {
                    backoff.on_success();
                    self.spawn(socket, peer.ip(), permit);
                }
                Err(error) => {
                    self.metrics.accept_errors.inc();
                    if let Some(pause) = backoff.on_error(&error) {
                        tracing::error!(%error, ?pause, "cannot accept connections, will try again");
                        tokio::time::sleep(pause).await;
                    }
                }
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn spawn(&mut self, socket: TcpStream, client: IpAddr, permit: OwnedSemaphorePermit) {
        // All clients behind a proxy have its address.
        let is_proxy = self.proxies.contains(client);
        let of_client = if is_proxy { None } else { self.addresses.enter(client) };
        if of_client.is_none() && !is_proxy {
            self.metrics.refused.inc();
            return tracing::debug!(%client, "connection refused, this address is at its limit");
        }
        self.metrics.accepted.inc();
        let open = OpenConnection::new(self.metrics.open.clone(), permit, of_client);
        // Not `async move { serving.await }`: that would hold the future twice, three kilobytes for each connection.
        let serving = Arc::clone(&self.connections).serve(socket, client, self.responder.clone());
        self.tasks.spawn(serving.map(|()| drop(open)));
    }

    /// Stops accepting, tells all connections, waits, and cuts the rest.
    async fn close(mut self, grace: Duration) {
        self.take_backlog().await;
        let Self { listener, connections, responder, mut tasks, metrics, .. } = self;
        drop(listener);
        connections.closing.begin();
        if all_end_within(grace, &mut tasks).await {
            return;
        }
        responder.abort();
        if !all_end_within(ABORT_GRACE, &mut tasks).await {
            let aborted = tasks.len();
            metrics.cut_at_shutdown.inc_by(aborted as u64);
            tracing::warn!(connections = aborted, ?grace, "connections cut at the end of the grace period");
            tasks.shutdown().await;
        }
    }

    /// A client in the backlog counts as connected and may have sent its request.
    async fn take_backlog(&mut self) {
        while let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            let waiting = poll_fn(|cx| match self.listener.poll_accept(cx) {
                Poll::Ready(accepted) => Poll::Ready(accepted.ok()),
                Poll::Pending => Poll::Ready(None),
            });
            // With a budget, a hundred of them would exhaust it, and `Pending` would not mean an empty backlog.
            match unconstrained(waiting).await {
                Some((socket, peer)) => self.spawn(socket, peer.ip(), permit),
                None => return,
            }
        }
    }
}

async fn all_end_within(limit: Duration, tasks: &mut JoinSet<()>) -> bool {
    let all_ended = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(limit, all_ended).await.is_ok()
}

/// Counts a connection while it lives, and holds its permits.
struct OpenConnection {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
    _of_client: Option<AddressPermit>,
}

impl OpenConnection {
    fn new(open: Gauge, permit: OwnedSemaphorePermit, of_client: Option<AddressPermit>) -> Self {
        open.inc();
        Self { open, _permit: permit, _of_client: of_client }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
    }
}
