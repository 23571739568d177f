//! One connection from its first byte to its last: tell the version, serve it, and say goodbye when the server closes.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Respond;
use super::closing::Closing;
use super::stream::{Stream, StreamLimits, Version};
use crate::config::HttpConfig;

/// The settings of every connection of one listener, and the closing that they watch.
#[derive(Debug)]
pub(crate) struct Connections {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    first_byte_timeout: Duration,
    stream: StreamLimits,
    /// How long an HTTP/2 connection may do nothing, and how much of an answer is not nothing.
    idle_timeout: Duration,
    idle_bytes: u64,
    shutdown_linger: Duration,
    pub(crate) closing: Closing,
}

impl Connections {
    pub(crate) fn new(config: &HttpConfig) -> Arc<Self> {
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
            // The only notice of a client that vanished without a word; HTTP/1 has the header timer for that.
            .keep_alive_interval(config.header_read_timeout)
            .keep_alive_timeout(config.first_byte_timeout);
        Arc::new(Self {
            http1,
            http2,
            first_byte_timeout: config.first_byte_timeout,
            stream: StreamLimits {
                write_timeout: config.write_progress_timeout,
                write_bytes: config.least_bytes_in(config.write_progress_timeout),
                linger: config.close_linger,
            },
            idle_timeout: config.header_read_timeout,
            idle_bytes: config.least_bytes_in(config.header_read_timeout),
            shutdown_linger: config.shutdown_linger,
            closing: Closing::default(),
        })
    }

    /// Serves until either side ends it. Errors of a connection concern its client alone and are told to the debug log.
    pub(crate) async fn serve(self: Arc<Self>, socket: TcpStream, responder: impl Respond) {
        // A response is written in one piece; waiting for more to send (Nagle) would only add the peer's delayed ACK.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "connection lost before it began");
            return;
        }
        let sniffed = pin!(timeout(self.first_byte_timeout, Stream::sniff(socket, self.stream)));
        let ended = match self.unless_lingered(sniffed).await {
            Some(Ok(Ok((stream, Version::Http1)))) => self.serve_http1(stream, responder).await,
            Some(Ok(Ok((stream, Version::Http2)))) => self.serve_http2(stream, responder).await,
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
    async fn serve_http1(&self, stream: Stream, responder: impl Respond) -> hyper::Result<()> {
        let closing = &self.closing;
        let service = service_fn(move |request| {
            let answer = responder.clone().respond(request);
            async move {
                let mut response = answer.await;
                if closing.has_begun() {
                    response.headers_mut().insert(CONNECTION, GOODBYE);
                }
                Ok::<_, Infallible>(response)
            }
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
    /// nothing for a while; one that then holds on to an answer which it does not read is cut.
    async fn serve_http2(&self, stream: Stream, responder: impl Respond) -> hyper::Result<()> {
        let activity = Arc::clone(stream.activity());
        let service = service_fn(|request| {
            let activity = Arc::clone(&activity);
            let answer = responder.clone().respond(request);
            async move {
                let _in_hand = activity.begin();
                Ok::<_, Infallible>(answer.await)
            }
        });
        let mut connection = pin!(self.http2.serve_connection(stream, service));
        let watched = {
            let watched = pin!(activity.until_idle(connection.as_mut(), self.idle_timeout, self.idle_bytes));
            self.closing.unless_begun(watched).await
        };
        match watched {
            Some(Some(ended)) => ended,
            Some(None) => {
                connection.as_mut().graceful_shutdown();
                timeout(self.idle_timeout, connection).await.unwrap_or(Ok(()))
            }
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }
}

const GOODBYE: HeaderValue = HeaderValue::from_static("close");
