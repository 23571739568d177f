//! Reads the first byte of a plain-text connection: a TLS server answers with an alert.

use std::io::{self, Read as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The type of a TLS alert record (RFC 8446 §5.1): the answer to a first byte that is no handshake.
const ALERT: u8 = 21;

/// A connection without TLS. It forwards all bytes.
#[derive(Debug)]
pub(crate) struct FirstByteWatch {
    stream: TcpStream,
    has_begun: bool,
    speaks_tls: Arc<AtomicBool>,
}

impl FirstByteWatch {
    /// Also returns a flag that is set when the server has answered by TLS.
    pub(crate) fn new(stream: TcpStream) -> (Self, Arc<AtomicBool>) {
        let speaks_tls = Arc::<AtomicBool>::default();
        (Self { stream, has_begun: false, speaks_tls: Arc::clone(&speaks_tls) }, speaks_tls)
    }

    fn record(&mut self, byte: u8) {
        self.has_begun = true;
        self.speaks_tls.store(byte == ALERT, Ordering::Relaxed);
    }

    /// A server that closes the connection behind its alert may make a write fail before the alert is read.
    fn after_write<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut byte = [0];
        if matches!(outcome, Poll::Ready(Err(_)))
            && !self.has_begun
            && (&*SockRef::from(&self.stream)).read(&mut byte).is_ok_and(|count| count == 1)
        {
            self.record(byte[0]);
        }
        outcome
    }
}

impl AsyncRead for FirstByteWatch {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if !self.has_begun
            && let Some(first) = buffer.filled().get(filled)
        {
            let first = *first;
            self.record(first);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FirstByteWatch {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.after_write(outcome)
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
