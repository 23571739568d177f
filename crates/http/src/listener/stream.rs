//! The socket as hyper sees it, over TCP and over TLS: first the bytes that told HTTP/1 from HTTP/2, then the rest; a
//! time limit for clients that do not read; and a lingering close, so that a client that still sends does not lose the
//! response.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, timeout};

use super::activity::Activity;
use super::linger::{Linger, LingerPool};
use crate::runtime::coop;

/// The first bytes of HTTP/2 with prior knowledge (RFC 9113 §3.4).
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes of a request that are read before hyper exists.
const FIRST_BYTES: usize = 64;

/// The version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A connection whose first bytes are known.
#[derive(Debug)]
pub(crate) struct Stream<S> {
    socket: TokioIo<S>,
    /// Read and not yet handed to hyper.
    unread: Bytes,
    client: IpAddr,
    limits: Arc<StreamLimits>,
    activity: Arc<Activity>,
    /// Set while the client reads too little.
    blocked: Option<WriteStall>,
    /// Set while a flush waits, which only TLS does: the client must take its buffer within one timeout.
    flushing: Option<Pin<Box<Sleep>>>,
    /// Whether our side is closed.
    is_closed: bool,
    /// Set once our side is closed.
    lingering: Option<Linger>,
}

/// The limits of a client.
#[derive(Clone, Debug)]
pub(crate) struct StreamLimits {
    /// The time without a request.
    pub(crate) idle_timeout: Duration,
    /// The time from the first byte of the HTTP/2 preface to its last.
    pub(crate) head_timeout: Duration,
    /// The time in which a client has to read.
    pub(crate) write_timeout: Duration,
    /// The bytes that the client must read in that time, unless there are fewer.
    pub(crate) write_bytes: u64,
    /// The longest time to read the rest of a body after the response.
    pub(crate) rest_timeout: Duration,
    /// The limits of reading a closed connection.
    pub(crate) lingering: Arc<LingerPool>,
}

/// Bytes wait for a client that does not read.
#[derive(Debug)]
struct WriteStall {
    timer: Pin<Box<Sleep>>,
    taken_bytes: u64,
}

/// TCP, or TLS over it.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

impl<S: Socket> Stream<S> {
    /// Reads until the first byte that differs from the HTTP/2 preface, or the whole preface.
    ///
    /// Before the first byte the connection is idle: balancers open connections in advance. Ends with `UnexpectedEof`
    /// if the client leaves before, and with `TimedOut` if it is silent or slow.
    pub(crate) async fn sniff(mut socket: S, client: IpAddr, limits: Arc<StreamLimits>) -> io::Result<(Self, Version)> {
        let mut head = [0; H2_PREFACE.len()];
        let mut filled = timeout(limits.idle_timeout, read_some(&mut socket, &mut head)).await??;
        let version = async {
            loop {
                if head[..filled] != H2_PREFACE[..filled] {
                    break Ok::<_, io::Error>(Version::Http1);
                }
                if filled == H2_PREFACE.len() {
                    break Ok(Version::Http2);
                }
                filled += read_some(&mut socket, &mut head[filled..]).await?;
            }
        };
        let version = timeout(limits.head_timeout, version).await??;
        let activity = Arc::new(Activity::new(limits.rest_timeout));
        activity.bytes_arrived();
        let stream = Self {
            socket: TokioIo::new(socket),
            unread: Bytes::copy_from_slice(&head[..filled]),
            client,
            limits,
            activity,
            blocked: None,
            flushing: None,
            is_closed: false,
            lingering: None,
        };
        Ok((stream, version))
    }

    /// The counts of this connection.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Waits for the first bytes of the next request, without hyper. `false` if the client left.
    pub(crate) async fn wake(&mut self) -> io::Result<bool> {
        let mut head = [0; FIRST_BYTES];
        let filled = self.socket.inner_mut().read(&mut head).await?;
        self.put_back(Bytes::copy_from_slice(&head[..filled]));
        Ok(filled > 0)
    }

    /// Reads these bytes again first.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        self.activity.bytes_arrived();
        self.unread = bytes;
    }

    /// Whether our side is closed, or is being closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes as hyper does.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await
    }

    /// Passes on the result of a write of `offered` bytes, unless the client read too little for too long.
    ///
    /// The window opens when the socket's buffer is full, and closes when the client has read enough or everything: a
    /// connection without output is not timed.
    fn timed(
        &mut self,
        cx: &mut Context<'_>,
        offered: usize,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Ready(Ok(count)) => {
                self.activity.bytes_written(count as u64);
                coop::count(cx, count);
                let has_enough = self.blocked.as_mut().is_some_and(|blocked| {
                    blocked.taken_bytes += count as u64;
                    blocked.taken_bytes >= self.limits.write_bytes
                });
                if has_enough || count >= offered {
                    self.blocked = None;
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let timeout = self.limits.write_timeout;
                let blocked = self
                    .blocked
                    .get_or_insert_with(|| WriteStall { timer: Box::pin(tokio::time::sleep(timeout)), taken_bytes: 0 });
                ready!(blocked.timer.as_mut().poll(cx));
                Poll::Ready(Err(does_not_read()))
            }
        }
    }
}

async fn read_some(socket: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> io::Result<usize> {
    match socket.read(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => Ok(read),
    }
}

fn does_not_read() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answers")
}

impl<S: Socket> Read for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread.split_to(count));
            if self.unread.is_empty() {
                self.unread = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if read.is_ready() {
            self.activity.bytes_arrived();
        }
        read
    }
}

impl<S: Socket> Write for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.activity.flushed(false);
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.timed(cx, buf.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.activity.flushed(false);
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.timed(cx, bufs.iter().map(|buf| buf.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.socket).poll_flush(cx) {
            Poll::Ready(flushed) => {
                self.activity.flushed(true);
                self.flushing = None;
                Poll::Ready(flushed)
            }
            Poll::Pending => {
                let timeout = self.limits.write_timeout;
                let timer = self.flushing.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Err(does_not_read()))
            }
        }
    }

    /// Closes our side, then lingers.
    ///
    /// The kernel resets a socket that is closed with unread bytes, and the reset may overtake the response. A client
    /// that sends a refused gigabyte should still read the reason (RFC 9112 §9.6).
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bytes after this are no request, and the connection does not rest.
        self.activity.bytes_arrived();
        self.is_closed = true;
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            self.lingering = self.limits.lingering.begin(self.client);
        }
        let Self { socket, lingering, .. } = &mut *self;
        let Some(linger) = lingering else { return Poll::Ready(Ok(())) };
        let mut scratch = [0; 8 * 1024];
        let discarded = linger.poll_discard(cx, |cx| {
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = Pin::new(socket.inner_mut()).poll_read(cx, &mut buffer);
            read.map(|read| read.map_or(0, |()| buffer.filled().len()))
        });
        discarded.map(Ok)
    }
}
