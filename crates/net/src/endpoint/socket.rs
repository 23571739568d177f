//! A UDP socket that is polled for reading always, and for writing only while its buffer is full.
//!
//! tokio's own socket is polled for both all the time. A socket becomes writable whenever a packet has left it, so each
//! sent packet would wake the thread.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::time::Sleep;

#[derive(Debug)]
struct Socket {
    io: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// Whether the last packet found no room.
    is_full: AtomicBool,
    runtime: Handle,
}

/// A socket that this runtime polls.
pub(super) fn socket(socket: UdpSocket, runtime: &Handle) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let _entered = runtime.enter();
    let state = UdpSocketState::new((&socket).into())?;
    let io = polled(socket, Interest::READABLE)?;
    Ok(Arc::new(Socket { io, state, is_full: AtomicBool::new(false), runtime: runtime.clone() }))
}

#[expect(
    deprecated,
    reason = "a UdpSocket keeps its descriptor for as long as it lives; the newer way leaves that to the caller"
)]
fn polled(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritablePoller { socket: self, wait: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.io.get_ref().into(), transmit);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.is_full.store(true, Ordering::Release);
        }
        sent
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.io.poll_read_ready(context))?;
            if let Ok(received) = ready.try_io(|io| self.state.recv(io.get_ref().into(), buffers, meta)) {
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Waits until the socket has room.
#[derive(Debug)]
struct WritablePoller {
    socket: Arc<Socket>,
    wait: Option<WritableWait>,
}

/// The way of waiting for room.
#[derive(Debug)]
enum WritableWait {
    /// A duplicate of the socket, polled for writing only.
    Socket(AsyncFd<UdpSocket>),
    /// The process has no file descriptor left for a duplicate: the socket is tried again after a pause.
    Timer(Pin<Box<Sleep>>),
}

/// The pause before the socket is tried again: short for the packet, and at most a thousand wake-ups a second.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

impl UdpPoller for WritablePoller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.socket.is_full.load(Ordering::Acquire) {
            self.wait = None;
            return Poll::Ready(Ok(()));
        }
        let Self { socket, wait } = &mut *self;
        match wait.get_or_insert_with(|| WritableWait::begin(socket)) {
            WritableWait::Socket(duplicate) => drop(ready!(duplicate.poll_write_ready(context))),
            WritableWait::Timer(timer) => ready!(timer.as_mut().poll(context)),
        }
        socket.is_full.store(false, Ordering::Release);
        *wait = None;
        Poll::Ready(Ok(()))
    }
}

impl WritableWait {
    /// Never fails: an error here would end the connection's driver and leave the connection hanging.
    fn begin(socket: &Socket) -> Self {
        let _entered = socket.runtime.enter();
        let duplicate = socket.io.get_ref().try_clone().and_then(|socket| polled(socket, Interest::WRITABLE));
        duplicate.map_or_else(|_| Self::timer(), Self::Socket)
    }

    fn timer() -> Self {
        Self::Timer(Box::pin(tokio::time::sleep(RETRY_PAUSE)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_full_socket_is_waited_for_and_becomes_writable() {
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket {
            state: UdpSocketState::new((&bound).into()).unwrap(),
            io: polled(bound, Interest::READABLE).unwrap(),
            is_full: AtomicBool::new(false),
            runtime: Handle::current(),
        };
        let socket = Arc::new(socket);
        let mut room = Arc::clone(&socket).create_io_poller();
        std::future::poll_fn(|context| room.as_mut().poll_writable(context)).await.unwrap();
        socket.is_full.store(true, Ordering::Release);
        std::future::poll_fn(|context| room.as_mut().poll_writable(context)).await.unwrap();
        assert!(!socket.is_full.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn a_full_socket_is_tried_again_without_a_descriptor() {
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Arc::new(Socket {
            state: UdpSocketState::new((&bound).into()).unwrap(),
            io: polled(bound, Interest::READABLE).unwrap(),
            is_full: AtomicBool::new(true),
            runtime: Handle::current(),
        });
        let mut room = Box::pin(WritablePoller { socket: Arc::clone(&socket), wait: Some(WritableWait::timer()) });
        std::future::poll_fn(|context| room.as_mut().poll_writable(context)).await.unwrap();
        assert!(!socket.is_full.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn sent_datagrams_arrive() {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (from, to) = (socket(bind(), &Handle::current()).unwrap(), socket(bind(), &Handle::current()).unwrap());
        let transmit = Transmit {
            destination: to.local_addr().unwrap(),
            ecn: None,
            contents: b"word",
            segment_size: None,
            src_ip: None,
        };
        from.try_send(&transmit).unwrap();
        let (mut bytes, mut meta) = ([0; 64], [RecvMeta::default()]);
        let received =
            std::future::poll_fn(|context| to.poll_recv(context, &mut [IoSliceMut::new(&mut bytes)], &mut meta));
        assert_eq!(received.await.unwrap(), 1);
        assert_eq!(meta[0].len, 4);
        assert_eq!(&bytes[..4], b"word");
    }
}
