//! The UDP socket, waited for where something is to be read, and for room only while there is none.
//!
//! tokio waits for both all the time, and a socket has new room whenever a packet has left it: each one that is sent would wake the
//! thread to tell it so.

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
    /// The last packet found no room.
    is_full: AtomicBool,
    runtime: Handle,
}

/// On a runtime, whose thread waits for it.
pub(super) fn socket(socket: UdpSocket, runtime: &Handle) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let _entered = runtime.enter();
    let state = UdpSocketState::new((&socket).into())?;
    let io = waited_for(socket, Interest::READABLE)?;
    Ok(Arc::new(Socket { io, state, is_full: AtomicBool::new(false), runtime: runtime.clone() }))
}

#[expect(
    deprecated,
    reason = "a UdpSocket keeps its descriptor for as long as it lives; the newer way leaves that to the caller"
)]
fn waited_for(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, awaited: None })
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

/// Who waits for room.
#[derive(Debug)]
struct Room {
    socket: Arc<Socket>,
    awaited: Option<Awaited>,
}

/// What tells that there may be room.
#[derive(Debug)]
enum Awaited {
    /// Another name of the socket, of which nothing else is wanted.
    Socket(AsyncFd<UdpSocket>),
    /// The process has no descriptor left for one: then room is looked for again and again.
    Moment(Pin<Box<Sleep>>),
}

/// How soon: what waits is not much longer under way for it, and the thread is woken a thousand times a second at most.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.socket.is_full.load(Ordering::Acquire) {
            self.awaited = None;
            return Poll::Ready(Ok(()));
        }
        let Self { socket, awaited } = &mut *self;
        match awaited.get_or_insert_with(|| Awaited::begin(socket)) {
            Awaited::Socket(again) => drop(ready!(again.poll_write_ready(context))),
            Awaited::Moment(moment) => ready!(moment.as_mut().poll(context)),
        }
        socket.is_full.store(false, Ordering::Release);
        *awaited = None;
        Poll::Ready(Ok(()))
    }
}

impl Awaited {
    /// An error here would end the connection's work and leave the connection, so there is none.
    fn begin(socket: &Socket) -> Self {
        let _entered = socket.runtime.enter();
        let again = socket.io.get_ref().try_clone().and_then(|again| waited_for(again, Interest::WRITABLE));
        again.map_or_else(|_| Self::moment(), Self::Socket)
    }

    fn moment() -> Self {
        Self::Moment(Box::pin(tokio::time::sleep(LOOK_AGAIN)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn room_is_waited_for_when_there_was_none_and_found_again() {
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket {
            state: UdpSocketState::new((&bound).into()).unwrap(),
            io: waited_for(bound, Interest::READABLE).unwrap(),
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
    async fn room_is_looked_for_without_a_descriptor() {
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Arc::new(Socket {
            state: UdpSocketState::new((&bound).into()).unwrap(),
            io: waited_for(bound, Interest::READABLE).unwrap(),
            is_full: AtomicBool::new(true),
            runtime: Handle::current(),
        });
        let mut room = Box::pin(Room { socket: Arc::clone(&socket), awaited: Some(Awaited::moment()) });
        std::future::poll_fn(|context| room.as_mut().poll_writable(context)).await.unwrap();
        assert!(!socket.is_full.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn what_is_sent_arrives() {
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
