//! The accept loop: takes connections while there is room, serves each in a task of its own, and closes in order.
//!
//! * **Full**: at `max_connections` the loop stops accepting. New clients wait in the kernel's backlog until a connection
//!   ends; nobody who is connected is dropped. Places that idle or slow clients hold come back by time: the header timer
//!   frees those of clients that ask nothing, the write timer those of clients that do not read.
//! * **Full for one address**: its new connections are closed at once and counted; what it has goes on.
//! * **Out of descriptors**: `accept` is tried again after a growing pause ([`AcceptBackoff`]), with one log line per episode.
//! * **Closing**: whoever waits in the backlog is still taken, then the socket is closed, every connection is told, and
//!   after the grace what is still in hand is [to be answered](Respond::abort); a moment later connections are cut.

mod activity;
mod addresses;
mod backoff;
mod connection;
mod linger;
mod response_body;
mod stream;
pub(crate) mod tls;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
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
use crate::config::HttpConfig;
use crate::listener::tls::Tls;
use crate::runtime::shutdown::ShutdownSignal;

/// Whoever answers requests: cheap to clone, never busy, never failing. What [`tower::Service`] leaves open is decided here,
/// so that an answer's future needs no box.
pub(crate) trait Responder: Clone + Send + Sync + 'static {
    /// The answer to one request.
    fn respond(self, request: Request<ReceivedBody>, peer: PeerInfo)
    -> impl Future<Output = Response> + Send + 'static;

    /// The time of the requests in hand is over: they are to be answered now.
    fn abort(&self) {}

    /// What an [abort](Self::abort) begins, if requests ask for that when they are polled: connections of HTTP/1 poll
    /// theirs then.
    fn aborting(&self) -> Option<&ShutdownSignal> {
        None
    }
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerInfo {
    /// The peer of the socket: the client, or the last proxy.
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
        // For an edge that is mounted in it.
        request.extensions_mut().insert(peer);
        let answer = self.call(request);
        async {
            let Ok(response) = answer.await;
            response
        }
    }
}

/// What the loop counts. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptMetrics {
    pub(crate) accepted: Counter,
    pub(crate) open: Gauge,
    pub(crate) resting: Gauge,
    pub(crate) accept_errors: Counter,
    pub(crate) refused: Counter,
    pub(crate) flooded: Counter,
    pub(crate) cut_at_shutdown: Counter,
}

/// Serves connections of `listener` until `shutdown` completes, then closes in order within the grace that it gives.
pub(crate) async fn run(
    listener: TcpListener,
    responder: impl Responder,
    config: &HttpConfig,
    tls: Option<Tls>,
    metrics: AcceptMetrics,
    shutdown: impl Future<Output = Duration>,
) {
    lengthen_backlog(&listener);
    // Ends with this function, however that ends.
    let mut watchers = JoinSet::new();
    if let Some(tls) = tls.clone() {
        watchers.spawn(tls.watch());
    }
    let mut accepting = AcceptLoop {
        places: Arc::new(Semaphore::new(config.max_connections)),
        addresses: AddressLimits::new(config.max_connections_per_address),
        connections: ConnectionSettings::new(config, tls, is_local(&listener), metrics.clone()),
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

/// New clients that the kernel keeps until they are accepted. It takes less where its own limit is lower
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// After the grace: time in which the last answers are written, and calls that were cut are told so.
pub const ABORT_GRACE: Duration = Duration::from_millis(250);

/// Makes the backlog longer than the 128 that sockets are bound with: a client for which there is no place in it is not
/// told so, and tries again after a second.
fn lengthen_backlog(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).listen(BACKLOG) {
        tracing::debug!(%error, "the backlog stays as it is");
    }
}

/// Whether only this machine can reach it. Who cannot tell takes the stricter rule.
pub(crate) fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().map_or(true, |address| address.ip().to_canonical().is_loopback())
}

struct AcceptLoop<R> {
    listener: TcpListener,
    responder: R,
    places: Arc<Semaphore>,
    addresses: Arc<AddressLimits>,
    connections: Arc<ConnectionSettings>,
    tasks: JoinSet<()>,
    metrics: AcceptMetrics,
}

impl<R: Responder> AcceptLoop<R> {
    async fn accept_forever(&mut self) {
        let mut backoff = AcceptBackoff::default();
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            match self.listener.accept().await {
                Ok((socket, peer)) => {
                    backoff.on_success();
                    self.spawn(socket, peer.ip(), place);
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

    fn spawn(&mut self, socket: TcpStream, client: IpAddr, place: OwnedSemaphorePermit) {
        let Some(of_client) = self.addresses.enter(client) else {
            self.metrics.refused.inc();
            return tracing::debug!(%client, "connection refused, this address has as many as it may");
        };
        self.metrics.accepted.inc();
        let open = OpenConnection::new(self.metrics.open.clone(), place, of_client);
        // Not `async move { serving.await }`: that would keep the future twice, three kilobytes for each connection.
        let serving = Arc::clone(&self.connections).serve(socket, client, self.responder.clone());
        self.tasks.spawn(serving.map(|()| drop(open)));
    }

    /// Stop taking, tell, wait, give up.
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
            let cut = tasks.len();
            metrics.cut_at_shutdown.inc_by(cut as u64);
            tracing::warn!(connections = cut, ?grace, "connections cut at the end of the grace period");
            tasks.shutdown().await;
        }
    }

    /// A client in the backlog believes that it is connected and may have sent its request already.
    async fn take_backlog(&mut self) {
        while let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            let waiting = poll_fn(|cx| match self.listener.poll_accept(cx) {
                Poll::Ready(accepted) => Poll::Ready(accepted.ok()),
                Poll::Pending => Poll::Ready(None),
            });
            // With a budget, "not now" would be the answer after a hundred of them, too.
            match unconstrained(waiting).await {
                Some((socket, peer)) => self.spawn(socket, peer.ip(), place),
                None => return,
            }
        }
    }
}

async fn all_end_within(limit: Duration, tasks: &mut JoinSet<()>) -> bool {
    let all_ended = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(limit, all_ended).await.is_ok()
}

/// Counts a connection for as long as it lives, however it ends, and holds its places.
struct OpenConnection {
    open: Gauge,
    _place: OwnedSemaphorePermit,
    _of_client: AddressPermit,
}

impl OpenConnection {
    fn new(open: Gauge, place: OwnedSemaphorePermit, of_client: AddressPermit) -> Self {
        open.inc();
        Self { open, _place: place, _of_client: of_client }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
    }
}
