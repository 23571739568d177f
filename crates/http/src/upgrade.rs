//! Upgrades of HTTP/1.1 connections to other protocols (RFC 9110 §7.8), such as WebSocket.
//!
//! A [protocol](crate::protocol::Protocol) [asks](crate::protocol::RequestContext::upgrade) whether a request wants an
//! upgrade that it offers, and answers with [`Upgrade::accept`]. The request has passed the guards of every request.
//! From then on the socket is the protocol's. The timers of heads and of idle connections have ended with HTTP: the
//! protocol itself finds out whether its peer is alive. Only a peer that does not read what was written is still cut
//! ([`write_progress_timeout`](HttpConfig::write_progress_timeout)).
//!
//! * **Full:** half of the [connections](HttpConfig::max_connections), at least one, may be upgraded: requests find the
//!   other half. A further upgrade is refused with 429. Upgraded connections count in the limits of all connections.
//! * **Ending:** [`UpgradedSocket::withdrawn`] tells that the node is about to end. The shutdown waits for the socket
//!   until the end of the grace period, and then cuts it.
//! * **Not offered:** a request for an upgrade that no protocol offers at its path is answered as any other. So is one
//!   over HTTP/2, or to an edge that is mounted in another server: there is no connection to give away.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::Response;
use callboard_core::edge::contain_future;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::runtime::shutdown::ShutdownSignal;

/// How an edge ends, and the permits of its upgraded connections.
#[derive(Debug)]
pub struct EdgeLife {
    /// Begins when running calls are answered with 503, because the node ends.
    pub aborting: ShutdownSignal,
    /// Begins when callers are to use another node.
    pub(crate) withdrawn: ShutdownSignal,
    /// Begins when requests of mounted apps end, before `aborting`: their apps stop within the drain.
    pub(crate) ending: ShutdownSignal,
    permits: Arc<Semaphore>,
    max_upgrades: usize,
}

/// An upgrade that a request asks for, with the permit of its connection.
#[derive(Debug)]
#[must_use = "the connection is upgraded by the response that `accept` makes"]
pub struct Upgrade {
    name: &'static str,
    life: Arc<EdgeLife>,
    permit: OwnedSemaphorePermit,
}

/// The bytes of a connection in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection after its upgrade. Dropping it closes it at once; `shutdown` closes it in order.
pub struct UpgradedSocket {
    io: Box<dyn Duplex>,
    life: Arc<EdgeLife>,
}

type Serve = dyn FnOnce(Box<dyn Duplex>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send;

/// What an accepted upgrade does with its connection. As an extension of its response it gets to the listener.
#[derive(Clone)]
pub(crate) struct AcceptedUpgrade(Arc<Mutex<Option<Box<Serve>>>>);

impl EdgeLife {
    pub(crate) fn new(config: &HttpConfig) -> Self {
        let max_upgrades = (config.max_connections / 2).clamp(1, Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(max_upgrades));
        let [aborting, withdrawn, ending] = std::array::from_fn(|_| ShutdownSignal::default());
        Self { aborting, withdrawn, ending, permits, max_upgrades }
    }

    /// Drives work of a response that has begun, at most until the node ends.
    ///
    /// # Errors
    ///
    /// 503 when calls in progress are aborted.
    pub async fn unless_aborted<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        self.aborting.unless_begun(pin!(work)).await.ok_or_else(ApiError::ending)
    }

    /// Waits for a further call of a request, at most until callers are to use another node.
    ///
    /// # Errors
    ///
    /// 503, of a call that was not started.
    pub async fn unless_withdrawn<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        if self.withdrawn.has_begun() {
            return Err(ApiError::withdrawn());
        }
        self.withdrawn.unless_begun(pin!(work)).await.ok_or_else(ApiError::withdrawn)
    }

    /// Takes the permit of an upgraded connection.
    pub(crate) fn upgrade(self: &Arc<Self>, name: &'static str) -> Result<Upgrade, ApiError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_full| ApiError::too_many_upgrades(self.max_upgrades))?;
        Ok(Upgrade { name, life: Arc::clone(self), permit })
    }
}

/// The upgrades that a request asks for, if its connection can be given away.
pub(crate) fn asked<'r>(headers: &'r HeaderMap, extensions: &Extensions) -> impl Iterator<Item = &'r str> {
    // hyper has noted an `upgrade` of HTTP/1.1, whether or not `connection` names it, as it must. A body would have to
    // be read first.
    let has_body = headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|it| it != "0");
    let is_asked = extensions.get::<OnUpgrade>().is_some()
        && tokens(headers, CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        && !has_body;
    tokens(headers, UPGRADE).filter(move |_| is_asked)
}

/// Takes from a request what shows that its connection can be given away.
pub(crate) fn forget(extensions: &mut Extensions) {
    extensions.remove::<OnUpgrade>();
}

/// The elements of a header that is a list.
pub(crate) fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

impl Upgrade {
    /// The name of the other protocol.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The response that switches to the other protocol (101); headers may be added to it. Then `serve` has the socket
    /// until it returns. It is dropped at the end of the grace period of a shutdown.
    #[must_use]
    pub fn accept<F>(self, serve: impl FnOnce(UpgradedSocket) -> F + Send + 'static) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { name, life, permit } = self;
        let serve = move |io| {
            let socket = UpgradedSocket { io, life: Arc::clone(&life) };
            let serving = async move {
                let _permit = permit;
                let mut serving = Box::pin(async move { serve(socket).await });
                let serving = pin!(contain_future(serving.as_mut()));
                if let Some(Err(_printed_by_the_panic_hook)) = life.aborting.unless_begun(serving).await {
                    tracing::error!(protocol = name, "an upgraded connection ended with a panic");
                }
            };
            Box::pin(serving) as Pin<Box<dyn Future<Output = ()> + Send>>
        };
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static(name));
        response.extensions_mut().insert(AcceptedUpgrade(Arc::new(Mutex::new(Some(Box::new(serve))))));
        response
    }
}

impl AcceptedUpgrade {
    /// Serves the other protocol on this connection, until either side ends it or the node does.
    pub(crate) async fn serve(self, io: impl Duplex + 'static) {
        let serve = self.0.lock().take();
        if let Some(serve) = serve {
            serve(Box::new(io)).await;
        }
    }
}

impl UpgradedSocket {
    /// Completes when the node is about to end: the peer should be told, and call another node. At the end of the grace
    /// period that follows, the socket is cut.
    pub fn withdrawn(&self) -> impl Future<Output = ()> + Send + use<> {
        let life = Arc::clone(&self.life);
        async move { _ = life.withdrawn.unless_begun(pin!(std::future::pending::<()>())).await }
    }
}

impl fmt::Debug for UpgradedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedSocket").finish_non_exhaustive()
    }
}

impl AsyncRead for UpgradedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for UpgradedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
