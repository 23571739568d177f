//! One connection, and the answers that come on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::call::Prepared;
use crate::error::ClientError;
use crate::first_byte::FirstByteWatch;
use crate::origin::Origin;
use crate::protocol::Protocol;
use crate::trust::Trust;

/// An open connection. Its bytes are moved by a task of the runtime it was opened on.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    /// Over plain http: whether the server has answered by TLS, and its authority.
    plain: Option<Plain>,
}

#[derive(Clone, Debug)]
struct Plain {
    speaks_tls: Arc<AtomicBool>,
    authority: String,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// The window of a stream of HTTP/2; the connection has four times that. The default of 64 KiB would make a large body
/// wait for the round trip.
const WINDOW_BYTES: u32 = 1 << 20;

impl Connection {
    /// Opens a connection over plain http.
    ///
    /// # Errors
    ///
    /// The errors of [`open_trusting`](Self::open_trusting); [`ClientError::Untrusted`] for an https origin.
    ///
    /// # Cancellation
    ///
    /// The opened connection is closed.
    pub async fn open(origin: &Origin, protocol: Protocol) -> Result<Self, ClientError> {
        Self::open_trusting(origin, protocol, None).await
    }

    /// Opens a connection, over https with a verified certificate.
    ///
    /// # Errors
    ///
    /// [`ClientError::Connect`] if the connection is refused, [`ClientError::Closed`] or [`ClientError::Protocol`] if
    /// the server does not speak the protocol, [`ClientError::Tls`] if its certificate is not valid for the origin,
    /// [`ClientError::NoTls`] if it does not speak TLS.
    ///
    /// # Cancellation
    ///
    /// A connection that was opened so far is closed.
    pub async fn open_trusting(
        origin: &Origin,
        protocol: Protocol,
        trust: Option<&Trust>,
    ) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { authority: origin.authority().to_owned(), source };
        let stream = TcpStream::connect((origin.host(), origin.port())).await.map_err(failed)?;
        // A request is written at once: Nagle's algorithm would only delay it.
        stream.set_nodelay(true).map_err(failed)?;
        match (origin.is_secure(), trust) {
            (false, _) => {
                let (stream, speaks_tls) = FirstByteWatch::new(stream);
                let plain = Plain { speaks_tls, authority: origin.authority().to_owned() };
                Ok(Self { sender: Sender::over(stream, protocol).await?, plain: Some(plain) })
            }
            (true, Some(trust)) => {
                let stream = trust.connect(origin, protocol, stream).await?;
                Ok(Self { sender: Sender::over(stream, protocol).await?, plain: None })
            }
            (true, None) => Err(ClientError::Untrusted { authority: origin.authority().to_owned() }),
        }
    }

    /// Another handle on the same connection, if the protocol allows several requests at a time.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        match &self.sender {
            Sender::Http1(_) => None,
            Sender::Http2(sender) => Some(Self { sender: Sender::Http2(sender.clone()), plain: self.plain.clone() }),
        }
    }

    /// Whether the connection is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }

    /// Sends a request and waits for the head of its answer. Over HTTP/1.1 the connection ends unless the body of the
    /// answer is read to its end.
    ///
    /// # Errors
    ///
    /// [`ClientError::Closed`] or [`ClientError::Protocol`], and [`ClientError::OnlyTls`] for a server that needs
    /// https; this connection can then not be used again.
    pub async fn send(&mut self, request: &Prepared) -> Result<Answer, ClientError> {
        let sent = self.sender.send(request).await;
        let failed =
            |error| self.plain.as_ref().and_then(Plain::answered_by_tls).unwrap_or_else(|| ClientError::from(error));
        sent.map(Answer).map_err(failed)
    }
}

impl Sender {
    async fn over<T>(stream: T, protocol: Protocol) -> Result<Self, hyper::Error>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(stream);
        // The request gets the error of the connection; the outcome of the task says no more.
        Ok(match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(async { _ = connection.await });
                Self::Http1(sender)
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(4 * WINDOW_BYTES);
                let (sender, connection) = builder.handshake(io).await?;
                tokio::spawn(async { _ = connection.await });
                Self::Http2(sender)
            }
        })
    }

    async fn send(&mut self, request: &Prepared) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request.request()).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request.request()).await
            }
        }
    }
}

impl Plain {
    fn answered_by_tls(&self) -> Option<ClientError> {
        let answered = self.speaks_tls.load(Ordering::Relaxed);
        answered.then(|| ClientError::OnlyTls { authority: self.authority.clone() })
    }
}

/// An answer; its head has arrived.
#[derive(Debug)]
pub struct Answer(Response<Incoming>);

impl Answer {
    /// Its status, such as 200.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// The reason phrase, such as `Not Found`; empty if there is none.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.0.status().canonical_reason().unwrap_or_default()
    }

    /// The first header of this name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers().get(name)?.to_str().ok()
    }

    /// All headers that are text, in the order of arrival.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    ///
    /// [`ClientError::Closed`] or [`ClientError::Protocol`] for a body that ends early.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.0.body_mut().frame().await {
            // Trailers are ignored.
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the body to its end and returns its length.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk).
    pub async fn discard(mut self) -> Result<u64, ClientError> {
        let mut length = 0;
        while let Some(chunk) = self.chunk().await? {
            length += chunk.len() as u64;
        }
        Ok(length)
    }

    /// The whole body, if it has at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk), and [`ClientError::TooLong`].
    pub async fn bytes(mut self, limit: usize) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if chunk.len() > limit - whole.len() {
                return Err(ClientError::TooLong { limit });
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }
}
