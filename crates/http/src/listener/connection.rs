//! One connection from its first byte to its last: TLS handshake, version, requests, and an orderly end.
//!
//! An **idle** connection of HTTP/1 is taken out of hyper until its next byte: hyper's buffers and future take twenty
//! kilobytes, and ten thousand clients may keep a connection open.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::activity::{Activity, MisuseLimits, WatchOutcome};
use super::head_timer::HeadTimer;
use super::keepalive;
use super::linger::{LingerPool, ReceivedBody};
use super::response_body::{Http1Body, Http2Body};
use super::rest::{self, CLOSE};
use super::stream::{Socket, Stream, StreamLimits, Version};
use super::windows::Http2Windows;
use super::{AcceptMetrics, PeerInfo, Responder};
use crate::config::HttpConfig;
use crate::listener::tls::Tls;
use crate::runtime::repoll::Repolled;
use crate::runtime::shutdown::ShutdownSignal;
use crate::upgrade::AcceptedUpgrade;

/// The settings of all connections of one listener, and the signal that closes them.
#[derive(Debug)]
pub(crate) struct ConnectionSettings {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    windows: Arc<Http2Windows>,
    tls: Option<Tls>,
    is_local: bool,
    /// The longest time between two checks for rest.
    last_rest: Duration,
    stream: Arc<StreamLimits>,
    /// The limits of an HTTP/2 connection.
    misuse: MisuseLimits,
    metrics: AcceptMetrics,
    /// The longest silence of a client's kernel.
    silence: Duration,
    shutdown_linger: Duration,
    pub(crate) closing: ShutdownSignal,
}

/// Drives `work` to its end, and polls it when this shutdown begins.
async fn polled_on<F: Future>(closing: Option<&ShutdownSignal>, work: Pin<&mut F>) -> F::Output {
    match closing {
        Some(closing) => closing.waking(work).await,
        None => work.await,
    }
}

impl ConnectionSettings {
    pub(crate) fn new(
        config: &HttpConfig,
        tls: Option<Tls>,
        is_local: bool,
        metrics: AcceptMetrics,
        windows: Arc<Http2Windows>,
    ) -> Arc<Self> {
        let mut http1 = http1::Builder::new();
        http1
            // Its timer is that of a connection.
            .header_read_timeout(config.header_read_timeout)
            .max_header_size(config.max_header_bytes)
            // Room for a head and for the first bytes after it.
            .max_buf_size(MAX_READ_BUFFER.max(config.max_header_bytes.saturating_add(MAX_READ_BUFFER / 2)));
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(config.max_concurrent_streams)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_LOCAL_RESETS)
            // Finds a client that vanished; on HTTP/1 the idle timer does.
            .keep_alive_interval(config.header_read_timeout)
            .keep_alive_timeout(config.header_read_timeout);
        let turn = config.write_progress_timeout.min(config.idle_timeout);
        Arc::new(Self {
            http1,
            http2,
            windows,
            tls,
            is_local,
            // hyper's header timer also runs while a connection is idle, but not while it rests.
            last_rest: LAST_REST.min(config.header_read_timeout / 4),
            stream: Arc::new(StreamLimits {
                idle_timeout: config.idle_timeout,
                head_timeout: config.header_read_timeout,
                write_timeout: config.write_progress_timeout,
                write_bytes: config.least_bytes_in(config.write_progress_timeout),
                rest_timeout: config.body_timeout,
                lingering: LingerPool::new(config),
            }),
            misuse: MisuseLimits {
                turn,
                least_bytes: config.least_bytes_in(turn),
                idle_timeout: config.idle_timeout,
                max_cancelled: config.max_cancelled_streams.into(),
            },
            metrics,
            // A client that reads slowly answers, but its full window counts as silence.
            silence: config.idle_timeout.max(config.write_progress_timeout),
            shutdown_linger: config.shutdown_linger,
            closing: ShutdownSignal::default(),
        })
    }

    /// Serves until either side ends the connection. Its errors concern one client and go to the debug log.
    pub(crate) async fn serve(self: Arc<Self>, socket: TcpStream, client: IpAddr, responder: impl Responder) {
        // A response is written in one piece: Nagle's algorithm would only add the delayed ACK of the peer.
        let prepared = socket.set_nodelay(true).and_then(|()| keepalive::set_keepalive(&socket, self.silence));
        if let Err(error) = prepared {
            tracing::debug!(%error, "connection lost before it began");
            return;
        }
        match &self.tls {
            None => self.serve_plain(socket, self.peer(client, false), responder).await,
            #[cfg(not(feature = "tls"))]
            Some(tls) => match *tls {},
            // Boxed: keeps a connection without TLS small.
            #[cfg(feature = "tls")]
            Some(tls) => Box::pin(self.serve_secure(tls, socket, client, responder)).await,
        }
    }

    fn peer(&self, address: IpAddr, is_secure: bool) -> PeerInfo {
        PeerInfo { address, is_secure, is_local: self.is_local }
    }

    #[cfg(feature = "tls")]
    async fn serve_secure(&self, tls: &Tls, socket: TcpStream, client: IpAddr, responder: impl Responder) {
        let handshake = tls.acceptor().accept_with(socket, |session| session.set_buffer_limit(Some(MAX_TLS_BUFFER)));
        let handshake = pin!(timeout(tls.handshake_timeout(), handshake));
        match self.unless_lingered(handshake).await {
            Some(Ok(Ok(socket))) => self.serve_plain(socket, self.peer(client, true), responder).await,
            Some(Ok(Err(error))) => tracing::debug!(%error, "handshake failed"),
            Some(Err(_elapsed)) => tracing::debug!("no handshake in time, connection cut"),
            None => tracing::debug!("closed before the handshake"),
        }
    }

    /// Serves HTTP over any transport.
    async fn serve_plain<S: Socket + 'static>(&self, socket: S, peer: PeerInfo, responder: impl Responder) {
        let sniffed = pin!(Stream::sniff(socket, peer.address, Arc::clone(&self.stream)));
        let ended = match self.unless_lingered(sniffed).await {
            Some(Ok((stream, Version::Http1))) => self.serve_http1(stream, peer, responder).await,
            // Boxed: keeps a resting connection smaller than one of HTTP/2.
            Some(Ok((stream, Version::Http2))) => Box::pin(self.serve_http2(stream, peer, responder)).await,
            Some(Err(error)) => {
                return tracing::debug!(%error, "no first request, connection cut");
            }
            None => return tracing::debug!("closed before the first request"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended with an error");
        }
    }

    /// HTTP/1 cannot accept one more request and no other. So shutdown first only adds `Connection: close` to
    /// responses, and closes idle connections after a linger, in which a busy client sends its next request and sees
    /// the header. Closing at once would fail that request.
    async fn serve_http1<S: Socket + 'static>(
        &self,
        stream: Stream<S>,
        peer: PeerInfo,
        responder: impl Responder,
    ) -> hyper::Result<()> {
        let closing = &self.closing;
        let activity = Arc::clone(stream.activity());
        // Set by the response that ends HTTP on this connection.
        let upgrade = Mutex::new(None);
        let respond = |request: Request<Incoming>| {
            let request = request.map(|body| ReceivedBody::alone(body, &activity));
            let serving = activity.serve();
            // An `async` block would hold the future of the response twice.
            responder.clone().respond(request, peer).then(|mut response| {
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    *upgrade.lock() = response.extensions_mut().remove::<AcceptedUpgrade>();
                } else if closing.has_begun() {
                    response.headers_mut().insert(CONNECTION, CLOSE);
                }
                let response = response.map(|body| Http1Body::new(body, serving));
                if activity.rest().is_unread() {
                    Either::Right(rest::settle(Arc::clone(&activity), response))
                } else {
                    Either::Left(ready(Ok(response)))
                }
            })
        };
        let mut stream = stream;
        loop {
            let mut http1 = self.http1.clone();
            http1.timer(HeadTimer::default());
            let mut connection = Box::new(http1.serve_connection(stream, service_fn(respond)));
            let rested = {
                let work = pin!(self.until_rest(Repolled::new(&mut *connection), &activity));
                let work = pin!(polled_on(responder.aborting(), work));
                self.unless_lingered(work).await
            };
            let ended = match rested {
                Some(ended) => ended,
                None => {
                    Pin::new(&mut *connection).graceful_shutdown();
                    activity.rest().abandon();
                    Some(polled_on(responder.aborting(), pin!(Repolled::new(&mut *connection))).await)
                }
            };
            if let Some(ended) = ended {
                ended?;
                let (stream, unread) = into_parts(connection);
                // hyper closes every connection but one whose client asked for an upgrade.
                if !stream.is_closed() {
                    // Boxed: keeps other connections small.
                    Box::pin(self.leave_http(stream, unread, upgrade.into_inner())).await;
                }
                return Ok(());
            }
            let unread;
            (stream, unread) = into_parts(connection);
            if let Some(unread) = unread {
                stream.put_back(unread);
                continue;
            }
            let wake_outcome = {
                let _resting = CountedConnection::new(&self.metrics.resting);
                let wake = pin!(timeout(self.stream.idle_timeout, stream.wake()));
                self.unless_lingered(wake).await
            };
            let Some(Ok(Ok(true))) = wake_outcome else {
                // Silent for too long, closed by the client, or the server ends: no response is due.
                _ = stream.close().await;
                return Ok(());
            };
        }
    }

    /// Serves the protocol of an upgrade that was accepted; else closes the connection as hyper does.
    async fn leave_http<S: Socket + 'static>(
        &self,
        mut stream: Stream<S>,
        unread: Option<Bytes>,
        upgrade: Option<AcceptedUpgrade>,
    ) {
        let Some(upgrade) = upgrade else {
            _ = stream.close().await;
            return;
        };
        stream.put_back(unread.unwrap_or_default());
        let _upgraded = CountedConnection::new(&self.metrics.upgraded);
        upgrade.serve(TokioIo::new(stream)).await;
    }

    /// Drives a connection of HTTP/1 until it ends (`Some`) or rests (`None`).
    ///
    /// The checks become rarer the longer it works: moving a timer with each request would cost each request.
    async fn until_rest<C: Future + Unpin>(&self, mut connection: C, activity: &Activity) -> Option<C::Output> {
        let (mut period, mut before) = (FIRST_REST.min(self.last_rest), None);
        loop {
            if let Ok(ended) = timeout(period, &mut connection).await {
                return Some(ended);
            }
            let now = activity.resting_since();
            if now.is_some() && now == before && !self.closing.has_begun() {
                return None;
            }
            (before, period) = (now, self.last_rest.min(period * 2));
        }
    }

    /// Drives `work` until it ends (`Some`), or until the linger after the start of the shutdown is over (`None`).
    async fn unless_lingered<F: Future>(&self, mut work: Pin<&mut F>) -> Option<F::Output> {
        match self.closing.unless_begun(work.as_mut()).await {
            Some(output) => Some(output),
            None => timeout(self.shutdown_linger, work).await.ok(),
        }
    }

    /// HTTP/2 can: GOAWAY names the last request that is answered. It also goes to an idle client; if such a client
    /// does not read its responses, its connection is cut. A client that floods with cancelled requests is cut at once.
    async fn serve_http2<S: Socket + 'static>(
        &self,
        stream: Stream<S>,
        peer: PeerInfo,
        responder: impl Responder,
    ) -> hyper::Result<()> {
        let activity = Arc::clone(stream.activity());
        let lingering = self.stream.lingering.streams(peer.address);
        let service = service_fn(|request: Request<Incoming>| {
            let active = activity.begin();
            let request = request.map(|body| ReceivedBody::lingering(body, &lingering));
            let answer = if request.headers().len() <= MAX_FIELDS {
                Either::Left(responder.clone().respond(request, peer))
            } else {
                Either::Right(ready(too_many_fields()))
            };
            answer.map(|answer| Ok::<_, Infallible>(answer.map(|body| Http2Body::new(body, active))))
        });
        let windows = self.windows.grant();
        let mut http2 = self.http2.clone();
        http2.initial_stream_window_size(windows.stream_bytes).initial_connection_window_size(windows.connection_bytes);
        let mut connection = pin!(http2.serve_connection(stream, service));
        let watched = {
            let watched = pin!(activity.watch(connection.as_mut(), self.misuse));
            self.closing.unless_begun(watched).await
        };
        // A client may send requests until it reads the GOAWAY, but not forever.
        let ended = match watched {
            Some(WatchOutcome::Ended(ended)) => Some(ended),
            Some(WatchOutcome::Flooded) => None,
            Some(WatchOutcome::Idle) => {
                connection.as_mut().graceful_shutdown();
                let leaving = activity.unless_flooded(connection, self.misuse);
                timeout(self.misuse.turn, leaving).await.unwrap_or(Some(Ok(())))
            }
            None => {
                connection.as_mut().graceful_shutdown();
                activity.unless_flooded(connection, self.misuse).await
            }
        };
        ended.unwrap_or_else(|| {
            self.metrics.flooded.inc();
            tracing::warn!(client = %peer.address, "an HTTP/2 client was cut because it cancelled too many requests");
            Ok(())
        })
    }
}

/// The stream of a connection, and the unread bytes of a next request. Everything else is freed, also an empty rest,
/// which is a view of the whole buffer.
#[expect(clippy::boxed_local, reason = "the box of what was moved out of it would be kept, too")]
fn into_parts<S, R>(connection: Box<http1::Connection<Stream<S>, R>>) -> (Stream<S>, Option<Bytes>)
where
    S: Socket + 'static,
    R: HttpService<Incoming, ResBody = Http1Body>,
{
    let http1::Parts { io, read_buf, .. } = connection.into_parts();
    (io, (!read_buf.is_empty()).then_some(read_buf))
}

/// The same answer as hyper's on HTTP/1.
fn too_many_fields() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// Counts a connection while it is in a state.
struct CountedConnection<'a>(&'a Gauge);

impl<'a> CountedConnection<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The first check for rest, and the longest time between two checks. A connection rests if it is idle at two of them.
const FIRST_REST: Duration = Duration::from_millis(10);
const LAST_REST: Duration = Duration::from_secs(4);

/// HTTP/2 requests that are cancelled before we look at them (RUSTSEC-2023-0034). An honest client cancels later;
/// beyond this the connection gets a GOAWAY.
const MAX_PENDING_RESETS: usize = 20;

/// HTTP/2 streams that we reset because of their content (RUSTSEC-2024-0003). Each is an error of the client.
const MAX_LOCAL_RESETS: usize = 100;

/// The bytes of one response that h2 keeps while the window allows them and the socket does not: four slices of
/// [`Http2Body`].
const MAX_SEND_BUFFER: usize = 64 * 1024;

/// Header fields of an HTTP/2 request, as many as httparse allows on HTTP/1. A repeated field is one byte on the wire
/// and a hundred in a map, so a limit of bytes does not bound it.
const MAX_FIELDS: usize = 100;

/// The most of an HTTP/1 body that hyper reads at once: no call is charged for it until the edge takes it.
const MAX_READ_BUFFER: usize = 128 * 1024;

/// The bytes of a response that TLS buffers. A slow honest client takes them within the default timers.
#[cfg(feature = "tls")]
const MAX_TLS_BUFFER: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::{ApiInfo, HttpEdge};

    /// Ten thousand connections may exist without any activity.
    #[tokio::test]
    async fn a_connection_is_small_compared_with_an_active_one_of_hyper() {
        let edge = HttpEdge::starting(HttpConfig::default(), ApiInfo::default(), vec![]).unwrap();
        let (config, metrics) = (HttpConfig::default(), AcceptMetrics::default());
        let connections = ConnectionSettings::new(&config, None, true, metrics, Http2Windows::new(&config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let bytes = size_of_val(&connections.serve(socket, [127, 0, 0, 1].into(), edge));
        assert!(bytes <= 2_560, "{bytes}");
    }
}
