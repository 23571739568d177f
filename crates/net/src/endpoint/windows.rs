//! The unread bytes that callers may send: few until a call is admitted, more while its body arrives.
//!
//! Unread data in QUIC is in no call's account: a stream whose first byte is missing holds everything after it, and
//! every open stream holds the cost of its gaps. So each connection has [`USUAL_WINDOW_BYTES`] and [`USUAL_STREAMS`];
//! everything beyond is its share of one budget for the whole node ([`NodeWindows`]).
//!
//! * **Bytes.** Granted credit cannot be taken back. So the window is not raised for the duration of a body, but
//!   granted once for the announced length: it is used up as bytes are read, on any stream, and counts until then. A
//!   peer that does not use its grant keeps it, and never gets a second one.
//! * **Calls.** A connection with an admitted call has [`CALLING_WINDOW_BYTES`] from then on, if the budget allows:
//!   with less, a body of a mebibyte waits a round trip, and the heads of calls wait for bodies.
//! * **Streams.** On a connection with an admitted call, the limit of open streams doubles when half of it is used, up
//!   to `max_streams`, until the connection ends. A busy connection gets up to [`BUSY_STREAMS`] earlier: QUIC raises a
//!   peer's limit each time that an eighth of it is used up, and with 16 this costs a packet and its acknowledgement
//!   for every third call.
//! * **Full:** a connection gets at most an eighth of the rest. A connection that gets nothing keeps its present share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use quinn::{Connection, VarInt};
use tokio::time::{Duration, Instant};

use super::tuning::Tuning;

/// The unread bytes of a connection, also before its hello: the longest header and a small body.
pub(super) const USUAL_WINDOW_BYTES: u32 = 128 << 10;

/// The same for a connection with an admitted call.
const CALLING_WINDOW_BYTES: u32 = 1 << 20;

/// The streams of a connection without calls. Each may hold some 150 KiB in gaps, which is quinn's bound.
const USUAL_STREAMS: u32 = 16;

/// The streams of a connection with [`BUSY_CALLS`] calls within [`BUSY_WITHIN`], even if few are open at a time.
const BUSY_STREAMS: u32 = 128;
const BUSY_CALLS: u32 = 64;
const BUSY_WITHIN: Duration = Duration::from_secs(1);

/// The streams of all connections beyond the usual ones. With the usual ones of one member, they are at most half of a
/// node's default limit of calls in flight.
const MORE_STREAMS: u64 = 4096;

/// A connection gets at most this part of the rest: an eighth.
const POOL_SHARE: u64 = 8;

/// The budget of all connections of a node, beyond the usual windows and streams.
#[derive(Debug)]
pub(crate) struct NodeWindows {
    bytes: Mutex<WindowPool>,
    streams: Mutex<WindowPool>,
}

/// A budget of which parts are granted.
#[derive(Debug)]
struct WindowPool {
    total: u64,
    granted: u64,
}

impl WindowPool {
    fn new(total: u64) -> Mutex<Self> {
        Mutex::new(Self { total, granted: 0 })
    }

    /// Grants the request, up to the share of one connection.
    fn grant(&mut self, requested: u64) -> u64 {
        let granted = requested.min(self.total.saturating_sub(self.granted) / POOL_SHARE);
        self.granted += granted;
        granted
    }
}

impl NodeWindows {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        Self { bytes: WindowPool::new(tuning.windows_bytes), streams: WindowPool::new(MORE_STREAMS) }
    }

    /// Lowers the budget of bytes, if the tuning's is higher.
    pub(crate) fn limit_bytes(&self, bytes: u64) {
        let mut pool = self.bytes.lock();
        pool.total = pool.total.min(bytes);
    }

    /// The bytes that are granted.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.bytes.lock().granted
    }
}

/// The window of one connection, and its streams. Dropping it returns its share of the node's budget.
#[derive(Debug)]
pub(crate) struct ConnectionWindow {
    windows: Arc<NodeWindows>,
    connection: Connection,
    /// The largest window.
    max_bytes: u32,
    max_streams: u32,
    /// Granted, and not yet used up by reading.
    granted: AtomicU64,
    /// The window without grants. Locked during the two steps of a grant.
    base: Mutex<u32>,
    /// Whether a call was admitted.
    has_called: AtomicBool,
    open_streams: AtomicUsize,
    streams: Mutex<StreamLimit>,
}

/// The limit of open streams of one connection.
#[derive(Debug)]
struct StreamLimit {
    limit: u32,
    /// The streams opened since the clock was last read.
    opened: u32,
    since: Instant,
}

impl StreamLimit {
    fn new(limit: u32, now: Instant) -> Self {
        Self { limit, opened: 0, since: now }
    }

    /// Counts an opened stream. `true`: streams are opened so fast that a higher limit saves packets.
    fn is_busy(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.limit >= BUSY_STREAMS {
            return false;
        }
        self.opened += 1;
        if self.opened < BUSY_CALLS {
            return false;
        }
        let now = now();
        let is_busy = now - self.since < BUSY_WITHIN;
        (self.opened, self.since) = (0, now);
        is_busy
    }
}

impl ConnectionWindow {
    /// The window of an accepted connection. The stream of its hello stays open in addition to those for calls.
    pub(crate) fn new(windows: &Arc<NodeWindows>, connection: &Connection, tuning: &Tuning) -> Self {
        let (max_bytes, max_streams) = (tuning.connection_window_bytes, tuning.max_streams);
        let (base, streams) = (max_bytes.min(USUAL_WINDOW_BYTES), max_streams.min(USUAL_STREAMS));
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams + 1));
        Self {
            windows: Arc::clone(windows),
            connection: connection.clone(),
            max_bytes,
            max_streams,
            granted: AtomicU64::new(0),
            base: Mutex::new(base),
            has_called: AtomicBool::new(false),
            open_streams: AtomicUsize::new(0),
            streams: Mutex::new(StreamLimit::new(streams, Instant::now())),
        }
    }

    /// Lets the peer send up to this many more bytes. Returns how many.
    pub(crate) fn grant(&self, requested: u64) -> u64 {
        let base = self.base.lock();
        let room = u64::from(self.max_bytes - *base).saturating_sub(self.granted.load(Ordering::Relaxed));
        let granted = self.windows.bytes.lock().grant(requested.min(room));
        let raised = u32::try_from(granted).ok().and_then(|granted| base.checked_add(granted));
        let Some(raised) = raised.filter(|_| granted > 0) else { return 0 };
        self.granted.fetch_add(granted, Ordering::Relaxed);
        self.connection.set_receive_window(VarInt::from_u32(raised));
        // Lowered again: reading gives no new credit until the grant is used up.
        self.connection.set_receive_window(VarInt::from_u32(*base));
        granted
    }

    /// Counts bytes that were read, on any of its streams.
    pub(crate) fn read(&self, bytes: usize) {
        if self.granted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let bytes = bytes as u64;
        let before =
            self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
        let used = before.unwrap_or_default().min(bytes);
        self.windows.bytes.lock().granted -= used;
    }

    /// Raises the window and the streams at the first admitted call.
    pub(crate) fn call_admitted(&self) {
        if !self.has_called.swap(true, Ordering::Relaxed) {
            let mut base = self.base.lock();
            let more = self.max_bytes.min(CALLING_WINDOW_BYTES).saturating_sub(*base);
            // At most `more`, which is a u32.
            *base += self.windows.bytes.lock().grant(more.into()) as u32;
            self.connection.set_receive_window(VarInt::from_u32(*base));
            drop(base);
            self.raise_stream_limit();
        }
    }

    /// Counts an opened stream.
    pub(crate) fn stream_opened(&self) {
        self.open_streams.fetch_add(1, Ordering::Relaxed);
        if self.has_called.load(Ordering::Relaxed) {
            self.raise_stream_limit();
        }
    }

    /// Counts a closed stream.
    pub(crate) fn stream_closed(&self) {
        self.open_streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// Raises the limit of streams, if half of it is used or calls arrive fast.
    fn raise_stream_limit(&self) {
        let open = self.open_streams.load(Ordering::Relaxed);
        let mut streams = self.streams.lock();
        let is_busy = streams.is_busy(Instant::now);
        if streams.limit >= self.max_streams || !(is_busy || open * 2 > streams.limit as usize) {
            return;
        }
        let more = streams.limit.min(self.max_streams - streams.limit);
        // At most `more`, which is a u32.
        streams.limit += self.windows.streams.lock().grant(more.into()) as u32;
        self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams.limit + 1));
    }
}

impl Drop for ConnectionWindow {
    fn drop(&mut self) {
        let more = *self.base.get_mut() - self.max_bytes.min(USUAL_WINDOW_BYTES);
        self.windows.bytes.lock().granted -= *self.granted.get_mut() + u64::from(more);
        let usual = self.max_streams.min(USUAL_STREAMS);
        self.windows.streams.lock().granted -= u64::from(self.streams.get_mut().limit - usual);
    }
}

/// The window that one body needs next: a pure decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyWindow {
    /// The bytes that have not arrived.
    left: u64,
    /// The bytes that were granted and have not arrived.
    granted: u64,
    /// The window of its stream: the most bytes in flight.
    stream_window: u64,
    /// The bytes that arrived since the last request.
    since_request: u64,
}

/// Shorter bodies need no grant.
const GRANT_FROM: u64 = 32 << 10;

impl BodyWindow {
    /// For a body of this length.
    pub(crate) fn new(announced: u64, tuning: &Tuning) -> Self {
        let left = if announced > GRANT_FROM { announced } else { 0 };
        Self { left, granted: 0, stream_window: tuning.stream_window_bytes.into(), since_request: 0 }
    }

    /// The bytes to request now. None while more than half of the possible bytes in flight are granted.
    pub(crate) fn request(&mut self) -> u64 {
        let request = self.left.min(self.stream_window);
        if self.granted > request / 2 || self.left == self.granted {
            return 0;
        }
        self.since_request = 0;
        request - self.granted
    }

    /// Counts granted bytes.
    pub(crate) fn granted(&mut self, bytes: u64) {
        self.granted += bytes;
    }

    /// Counts arrived bytes. `true`: it is time to request more.
    pub(crate) fn received(&mut self, bytes: u64) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.granted = self.granted.saturating_sub(bytes);
        self.since_request += bytes;
        // Without a grant it requests again, but not with every packet.
        self.since_request >= GRANT_FROM * 2 && self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A request gets at most an eighth of the rest, so that something is left for the next.
        #[test]
        fn a_request_gets_at_most_a_part_of_the_rest(
            total in 0_u64..1 << 30, requests in prop::collection::vec(0_u64..1 << 26, 0..200),
        ) {
            let mut pool = WindowPool { total, granted: 0 };
            for requested in requests {
                let left = pool.total - pool.granted;
                let granted = pool.grant(requested);
                prop_assert!(granted <= requested && granted <= left / POOL_SHARE);
                prop_assert!(pool.granted <= pool.total);
            }
        }

        /// However a body arrives: its grants never exceed its missing bytes, nor the window of its stream.
        #[test]
        fn a_body_is_granted_what_it_needs(
            announced in 0_u64..1 << 27,
            steps in prop::collection::vec((1_u64..1 << 20, 0_u64..1 << 24), 0..300),
        ) {
            let mut window = BodyWindow::new(announced, &Tuning::default());
            let (mut left, mut outstanding) = (announced, 0_u64);
            for (piece, has) in steps {
                let request = window.request();
                let granted = request.min(has);
                window.granted(granted);
                outstanding += granted;
                prop_assert!(outstanding <= left.min(8 << 20));
                let piece = piece.min(left);
                left -= piece;
                outstanding = outstanding.saturating_sub(piece);
                window.received(piece);
            }
        }
    }

    #[test]
    fn a_connection_is_busy_when_its_calls_arrive_fast() {
        let started = Instant::now();
        let mut streams = StreamLimit::new(USUAL_STREAMS, started);
        let calls = |streams: &mut StreamLimit, at| (0..BUSY_CALLS).filter(|_| streams.is_busy(|| at)).count();
        assert_eq!(calls(&mut streams, started + BUSY_WITHIN), 0, "the first stream is too old");
        let soon = started + BUSY_WITHIN * 2 - Duration::from_millis(1);
        assert_eq!(calls(&mut streams, soon), 1, "at the last of them");
        streams.limit = BUSY_STREAMS;
        assert_eq!(calls(&mut streams, soon), 0, "the limit is high enough");
    }

    #[test]
    fn a_body_has_its_window_from_the_start_and_no_more_than_it_needs() {
        let mut short = BodyWindow::new(GRANT_FROM, &Tuning::default());
        assert_eq!(short.request(), 0);
        let mut body = BodyWindow::new(1 << 20, &Tuning::default());
        assert_eq!(body.request(), 1 << 20);
        body.granted(1 << 20);
        assert_eq!(body.request(), 0);
        body.received(900 << 10);
        assert_eq!(body.request(), 0, "the rest is granted already");
        let mut long = BodyWindow::new(64 << 20, &Tuning::default());
        assert_eq!(long.request(), 8 << 20);
        long.granted(8 << 20);
        long.received(3 << 20);
        assert_eq!(long.request(), 0);
        long.received(1 << 20);
        assert_eq!(long.request(), 4 << 20);
    }
}
