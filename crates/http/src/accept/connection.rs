//! One connection from its first byte to its last: shake hands where there is TLS, tell the version, serve it, and say
//! goodbye when the server closes.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONNECTION, HeaderValue};
use futures_util::FutureExt as _;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::activity::{Misuse, Watched};
use super::answer::Answer;
use super::closing::Closing;
use super::stream::{Socket, Stream, StreamLimits, Version};
use super::{Origin, Respond};
use crate::config::HttpConfig;
use crate::tls::Tls;

/// The settings of every connection of one listener, and the closing that they watch.
#[derive(Debug)]
pub(crate) struct Connections {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    tls: Option<Tls>,
    is_local: bool,
    first_byte_timeout: Duration,
    stream: StreamLimits,
    /// What ends an HTTP/2 connection.
    misuse: Misuse,
    flooded: Counter,
    shutdown_linger: Duration,
    pub(crate) closing: Closing,
}

impl Connections {
    pub(crate) fn new(config: &HttpConfig, tls: Option<Tls>, is_local: bool, flooded: Counter) -> Arc<Self> {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_read_timeout)
            .max_header_size(config.max_header_bytes);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(config.max_concurrent_streams)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_LOCAL_RESETS)
            // The only notice of a client that vanished without a word; HTTP/1 has the header timer for that.
            .keep_alive_interval(config.header_read_timeout)
            .keep_alive_timeout(config.first_byte_timeout);
        Arc::new(Self {
            http1,
            http2,
            tls,
            is_local,
            first_byte_timeout: config.first_byte_timeout,
            stream: StreamLimits {
                write_timeout: config.write_progress_timeout,
                write_bytes: config.least_bytes_in(config.write_progress_timeout),
                linger: config.close_linger,
            },
            misuse: Misuse {
                idle_period: config.header_read_timeout,
                idle_bytes: config.least_bytes_in(config.header_read_timeout),
                most_taken_back: config.max_cancelled_streams.into(),
            },
            flooded,
            shutdown_linger: config.shutdown_linger,
            closing: Closing::default(),
        })
    }

    /// Serves until either side ends it. Errors of a connection concern its client alone and are told to the debug log.
    pub(crate) async fn serve(self: Arc<Self>, socket: TcpStream, client: IpAddr, responder: impl Respond) {
        // A response is written in one piece; waiting for more to send (Nagle) would only add the peer's delayed ACK.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "connection lost before it began");
            return;
        }
        match &self.tls {
            None => self.serve_plain(socket, self.origin(client, false), responder).await,
            // Boxed: a connection without TLS should not be as large as one with it.
            Some(tls) => Box::pin(self.serve_secure(tls, socket, client, responder)).await,
        }
    }

    fn origin(&self, client: IpAddr, is_secure: bool) -> Origin {
        Origin { client, is_secure, is_local: self.is_local }
    }

    async fn serve_secure(&self, tls: &Tls, socket: TcpStream, client: IpAddr, responder: impl Respond) {
        let handshake = tls.acceptor().accept_with(socket, |session| session.set_buffer_limit(Some(MAX_TLS_BUFFER)));
        let shaken = pin!(timeout(tls.handshake_timeout(), handshake));
        match self.unless_lingered(shaken).await {
            Some(Ok(Ok(socket))) => self.serve_plain(socket, self.origin(client, true), responder).await,
            Some(Ok(Err(error))) => tracing::debug!(%error, "no handshake"),
            Some(Err(_elapsed)) => tracing::debug!("no handshake in time, connection cut"),
            None => tracing::debug!("closed before the handshake"),
        }
    }

    /// Serves HTTP on whatever carries it.
    async fn serve_plain<S: Socket + 'static>(&self, socket: S, origin: Origin, responder: impl Respond) {
        let sniffed = pin!(timeout(self.first_byte_timeout, Stream::sniff(socket, self.stream)));
        let ended = match self.unless_lingered(sniffed).await {
            Some(Ok(Ok((stream, Version::Http1)))) => self.serve_http1(stream, origin, responder).await,
            Some(Ok(Ok((stream, Version::Http2)))) => self.serve_http2(stream, origin, responder).await,
            Some(Ok(Err(error))) => {
                return tracing::debug!(%error, "client left before its first request");
            }
            Some(Err(_elapsed)) => {
                return tracing::debug!("no first request in time, connection cut");
            }
            None => return tracing::debug!("closed before the first request"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended with an error");
        }
    }

    /// HTTP/1 has no way to say "this request, but no other" to a client whose next request is on its way. So closing first
    /// only marks responses with `Connection: close`, and closes idle connections after a linger in which a busy client
    /// sends its next request and learns. Closing at once would fail that request.
    async fn serve_http1<S: Socket + 'static>(
        &self,
        stream: Stream<S>,
        origin: Origin,
        responder: impl Respond,
    ) -> hyper::Result<()> {
        let closing = &self.closing;
        let service = service_fn(move |request| {
            // An `async` block around it would keep the answer's future twice.
            responder.clone().respond(request, origin).map(|mut response| {
                if closing.has_begun() {
                    response.headers_mut().insert(CONNECTION, GOODBYE);
                }
                Ok::<_, Infallible>(response)
            })
        });
        let mut connection = pin!(self.http1.serve_connection(stream, service));
        if let Some(ended) = self.unless_lingered(connection.as_mut()).await {
            return ended;
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    }

    /// Drives `work` until it ends (`Some`) or the linger after the begin of closing is over (`None`).
    async fn unless_lingered<F: Future>(&self, mut work: Pin<&mut F>) -> Option<F::Output> {
        match self.closing.unless_begun(work.as_mut()).await {
            Some(output) => Some(output),
            None => timeout(self.shutdown_linger, work).await.ok(),
        }
    }

    /// HTTP/2 can say it: GOAWAY names the last request that is still answered. It also goes to a client that has wanted
    /// nothing for a while; one that then holds on to an answer which it does not read is cut. One that takes back what it
    /// asks for is cut at once.
    async fn serve_http2<S: Socket + 'static>(
        &self,
        stream: Stream<S>,
        origin: Origin,
        responder: impl Respond,
    ) -> hyper::Result<()> {
        let activity = Arc::clone(stream.activity());
        let service = service_fn(|request| {
            let in_hand = activity.begin();
            let answer = responder.clone().respond(request, origin);
            answer.map(|answer| Ok::<_, Infallible>(answer.map(|body| Answer::new(body, in_hand))))
        });
        let mut connection = pin!(self.http2.serve_connection(stream, service));
        let watched = {
            let watched = pin!(activity.watch(connection.as_mut(), self.misuse));
            self.closing.unless_begun(watched).await
        };
        // Whoever was told to go may still ask until it has heard of it, and may not do that for ever either.
        let ended = match watched {
            Some(Watched::Ended(ended)) => Some(ended),
            Some(Watched::Flooded) => None,
            Some(Watched::Idle) => {
                connection.as_mut().graceful_shutdown();
                let leaving = activity.unless_flooded(connection, self.misuse);
                timeout(self.misuse.idle_period, leaving).await.unwrap_or(Some(Ok(())))
            }
            None => {
                connection.as_mut().graceful_shutdown();
                activity.unless_flooded(connection, self.misuse).await
            }
        };
        ended.unwrap_or_else(|| {
            self.flooded.inc();
            tracing::warn!(client = %origin.client, "an HTTP/2 client that takes back its requests was cut");
            Ok(())
        })
    }
}

const GOODBYE: HeaderValue = HeaderValue::from_static("close");

/// HTTP/2 requests that were taken back before we had even looked at them (RUSTSEC-2023-0034). An honest client that
/// changes its mind does so later; beyond this the connection gets a GOAWAY.
const MAX_PENDING_RESETS: usize = 20;

/// HTTP/2 streams that we reset because of what the client sent in them (RUSTSEC-2024-0003). Each is an error of the
/// client's own, so that a hundred tell enough.
const MAX_LOCAL_RESETS: usize = 100;

/// What TLS keeps of an answer before it makes the server wait. As much as an honest client takes within the default
/// timers, however slow its line is.
const MAX_TLS_BUFFER: usize = 16 * 1024;
