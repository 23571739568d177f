//! Reads and discards the rest of a request body after an early response.
//!
//! Most clients read the response after they sent everything. If the connection or stream ended before, they would
//! report a broken pipe and lose the response (RFC 9112 §9.6). HTTP/1 lingers when the connection closes
//! ([`Stream`](super::stream::Stream)), unless the [rest](super::rest) of the body is short; HTTP/2 lingers when the
//! [body](ReceivedBody) is dropped, which would otherwise reset its stream right after the response.
//!
//! * **Bounds**: discarded bytes are charged to no account and not kept. Lingering ends after [a time](LingerPool) and
//!   a number of bytes.
//! * **Full**: a share of the connections may linger, and as many streams of HTTP/2, but few of one connection. One
//!   address has a share of both. Further clients get a reset. A stream with a short announced rest needs no permit:
//!   the streams of a connection are bounded.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use super::activity::Activity;
use super::addresses::{AddressLimits, AddressPermit};
use super::rest::{self, SHORT_REST};
use crate::config::HttpConfig;
use crate::runtime::coop;

/// The most bytes discarded of one body: more than the default limit of bodies.
const MAX_DISCARDED_BYTES: usize = 64 * 1024 * 1024;

/// The reads of one body before other tasks run.
const READS_AT_ONCE: usize = 64;

/// One in this many connections of a listener may linger.
const LISTENER_SHARE: usize = 10;

/// One address may have one in this many permits, so that an attacker leaves some to others.
const ADDRESS_SHARE: usize = 4;

/// Lingering streams of one HTTP/2 connection.
const STREAMS_OF_CONNECTION: usize = 4;

/// The lingering clients of one listener.
#[derive(Debug)]
pub(crate) struct LingerPool {
    time: Duration,
    /// The time of a short rest.
    rest_time: Duration,
    connections: LingerPermits,
    streams: LingerPermits,
}

/// The permits of connections, or of streams.
#[derive(Debug)]
struct LingerPermits {
    all: Arc<Semaphore>,
    addresses: Arc<AddressLimits>,
}

/// The lingering streams of one HTTP/2 connection.
#[derive(Clone, Debug)]
pub(crate) struct LingeringStreams {
    all: Arc<LingerPool>,
    connection_permits: Arc<Semaphore>,
    client: IpAddr,
}

impl LingerPermits {
    fn new(count: usize) -> Self {
        let addresses = AddressLimits::new(count.div_ceil(ADDRESS_SHARE));
        Self { all: Arc::new(Semaphore::new(count)), addresses }
    }

    fn take(&self, client: IpAddr) -> Option<(OwnedSemaphorePermit, AddressPermit)> {
        let of_address = self.addresses.enter(client)?;
        Some((Arc::clone(&self.all).try_acquire_owned().ok()?, of_address))
    }
}

impl LingerPool {
    pub(crate) fn new(config: &HttpConfig) -> Arc<Self> {
        let new_permits = || LingerPermits::new(config.max_connections.div_ceil(LISTENER_SHARE));
        Arc::new(Self {
            time: config.close_linger,
            rest_time: config.body_timeout,
            connections: new_permits(),
            streams: new_permits(),
        })
    }

    /// Takes a permit for a connection of this address, if one is free.
    pub(crate) fn begin(&self, client: IpAddr) -> Option<Linger> {
        let permits = self.connections.take(client)?;
        Some(Linger::new(self.time, Some(permits), None))
    }

    /// The permits for the streams of one connection of this address.
    pub(crate) fn streams(self: &Arc<Self>, client: IpAddr) -> LingeringStreams {
        LingeringStreams {
            all: Arc::clone(self),
            connection_permits: Arc::new(Semaphore::new(STREAMS_OF_CONNECTION)),
            client,
        }
    }
}

impl LingeringStreams {
    /// Takes a permit for a stream, if the connection and the listener have one.
    fn begin(&self) -> Option<Linger> {
        let connection_permit = Arc::clone(&self.connection_permits).try_acquire_owned().ok()?;
        let permits = self.all.streams.take(self.client)?;
        Some(Linger::new(self.all.time, Some(permits), Some(connection_permit)))
    }

    /// Reads the rest of a dropped body, if a permit is free or the rest is short.
    fn read(&self, mut body: Incoming) {
        let is_short = body.size_hint().exact().is_some_and(|bytes| bytes <= SHORT_REST);
        let linger = if is_short { Some(Linger::new(self.all.rest_time, None, None)) } else { self.begin() };
        let (Some(mut linger), Ok(runtime)) = (linger, Handle::try_current()) else { return };
        // At least one frame per poll: a frame without data counts as one byte.
        let mut read = move |cx: &mut Context<'_>| {
            Pin::new(&mut body).poll_frame(cx).map(|frame| match frame {
                Some(Ok(frame)) => frame.data_ref().map_or(1, |data| data.len().max(1)),
                Some(Err(_)) | None => 0,
            })
        };
        runtime.spawn(async move { poll_fn(|cx| linger.poll_discard(cx, &mut read)).await });
    }
}

/// One lingering client.
#[derive(Debug)]
pub(crate) struct Linger {
    timer: Pin<Box<Sleep>>,
    left_bytes: usize,
    _permits: Option<(OwnedSemaphorePermit, AddressPermit)>,
    _connection_permit: Option<OwnedSemaphorePermit>,
}

impl Linger {
    fn new(
        time: Duration,
        permits: Option<(OwnedSemaphorePermit, AddressPermit)>,
        connection_permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let timer = Box::pin(tokio::time::sleep(time));
        Self { timer, left_bytes: MAX_DISCARDED_BYTES, _permits: permits, _connection_permit: connection_permit }
    }

    /// Discards the output of `read` (a number of bytes, 0 at the end) until the client ends, or at a bound.
    pub(crate) fn poll_discard(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<usize>,
    ) -> Poll<()> {
        if self.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        for _ in 0..READS_AT_ONCE {
            match read(cx) {
                Poll::Ready(0) => return Poll::Ready(()),
                Poll::Ready(bytes) => {
                    self.left_bytes = self.left_bytes.saturating_sub(bytes);
                    coop::count(cx, bytes);
                }
                Poll::Pending => return Poll::Pending,
            }
            if self.left_bytes == 0 {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The body of a request. If it is dropped before its end, the rest is read and discarded, within limits.
pub(crate) struct ReceivedBody {
    /// `None` after its end, and of a request without a body: such a request pays for no count of references.
    body: Option<(Incoming, Transport)>,
}

/// The part of a connection that the rest of a body belongs to.
enum Transport {
    /// HTTP/1.
    Connection(Arc<Activity>),
    /// HTTP/2.
    Stream(LingeringStreams),
}

impl ReceivedBody {
    /// A body of HTTP/1.
    pub(crate) fn alone(body: Incoming, activity: &Arc<Activity>) -> Self {
        Self::new(body, || Transport::Connection(Arc::clone(activity)))
    }

    /// A body of HTTP/2.
    pub(crate) fn lingering(body: Incoming, lingering: &LingeringStreams) -> Self {
        Self::new(body, || Transport::Stream(lingering.clone()))
    }

    fn new(body: Incoming, transport: impl FnOnce() -> Transport) -> Self {
        Self { body: (!body.is_end_stream()).then(|| (body, transport())) }
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        match self.body.take() {
            Some((body, _)) if body.is_end_stream() => {}
            Some((body, Transport::Connection(activity))) => rest::read(&activity, body),
            Some((body, Transport::Stream(lingering))) => lingering.read(body),
            None => {}
        }
    }
}

impl HttpBody for ReceivedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some((body, _)) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        // A body in chunks does not know its end.
        if matches!(frame, Poll::Ready(None)) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lingering(max_connections: usize) -> Arc<LingerPool> {
        LingerPool::new(&HttpConfig { max_connections, ..HttpConfig::default() })
    }

    fn client(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn lingering_connections_are_bounded_in_total_and_per_address() {
        let lingering = lingering(80);
        let begin = |address: u8| lingering.begin(client(address));
        let first_six = [1, 1, 2, 2, 3, 3].map(begin);
        assert!(first_six.iter().all(Option::is_some) && begin(1).is_none(), "a quarter of eight");
        let last_two = [4, 4].map(begin);
        assert!(last_two.iter().all(Option::is_some) && begin(5).is_none(), "eight in all");
        drop(first_six);
        assert!(begin(1).is_some());
    }

    #[tokio::test]
    async fn lingering_streams_are_bounded_per_connection_and_use_their_own_permits() {
        let lingering = lingering(160);
        let streams = |address| lingering.streams(client(address));
        let (first, second) = (streams(1), streams(2));
        let permits: Vec<_> = (0..STREAMS_OF_CONNECTION).map(|_| first.begin().unwrap()).collect();
        assert!(first.begin().is_none());
        let other_permits: Vec<_> = std::iter::from_fn(|| second.begin()).collect();
        assert_eq!(other_permits.len(), STREAMS_OF_CONNECTION);
        assert!(streams(1).begin().is_none(), "another connection of one address");
        let third_permits = (3..6).flat_map(|address| {
            std::iter::from_fn({
                let streams = streams(address);
                move || streams.begin().map(std::mem::forget)
            })
        });
        assert_eq!(third_permits.count(), 16 - 2 * STREAMS_OF_CONNECTION);
        assert!(lingering.begin(client(1)).is_some(), "connections have their own permits");
        drop(permits);
        assert!(first.begin().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_linger_ends_with_the_client_the_bytes_or_the_time() {
        let lingering = lingering(10);
        let discarded = async |mut read: Box<dyn FnMut() -> Poll<usize>>| {
            let mut linger = lingering.begin(client(1)).unwrap();
            let start = tokio::time::Instant::now();
            poll_fn(|cx| linger.poll_discard(cx, |_| read())).await;
            start.elapsed()
        };
        let mut pieces = vec![0, 5, 7];
        assert_eq!(discarded(Box::new(move || Poll::Ready(pieces.pop().unwrap()))).await, Duration::ZERO);
        assert_eq!(discarded(Box::new(|| Poll::Ready(16 * 1024))).await, Duration::ZERO);
        assert_eq!(discarded(Box::new(|| Poll::Pending)).await, HttpConfig::default().close_linger);
    }
}
