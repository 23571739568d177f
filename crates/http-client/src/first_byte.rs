//! Looks at the first byte that a server says in plain text: TLS has one of its own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The type of a TLS record with an alert (RFC 8446 §5.1): the answer to whoever does not begin with a handshake.
const ALERT: u8 = 21;

/// A connection without TLS. It hands everything on.
#[derive(Debug)]
pub(crate) struct Watched {
    stream: TcpStream,
    has_begun: bool,
    speaks_tls: Arc<AtomicBool>,
}

impl Watched {
    /// With the flag that is set once the server has answered by TLS.
    pub(crate) fn new(stream: TcpStream) -> (Self, Arc<AtomicBool>) {
        let speaks_tls = Arc::<AtomicBool>::default();
        (Self { stream, has_begun: false, speaks_tls: Arc::clone(&speaks_tls) }, speaks_tls)
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let begun = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if !self.has_begun
            && let Some(first) = into.filled().get(begun)
        {
            self.has_begun = true;
            self.speaks_tls.store(*first == ALERT, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
