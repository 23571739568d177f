//! What callers may send that nobody has read yet: little until a call of theirs is admitted, more while its body is on its way.
//!
//! What waits unread in QUIC is in no call's account: a stream whose first byte is missing holds all that came behind it, and every open
//! stream holds what its gaps cost. So each connection has [`USUAL_WINDOW_BYTES`] and [`USUAL_STREAMS`], and what it has beyond that is
//! its share of one sum for the whole node ([`Windows`]).
//!
//! * **Bytes.** A credit that a peer has been told of cannot be taken back. So the window of a body is not raised for as long as the body
//!   takes, but given once, for what is announced: it is used up as bytes are read, on whichever stream, and counts until then. A peer
//!   that was given a window and does not use it keeps it, and less is left for others; it never has a second one.
//! * **Calls.** A connection on which a call was admitted has [`CALLING_WINDOW_BYTES`] from then on, if there is that much: with less, a
//!   body of a mebibyte waits a round trip, and the heads of calls wait behind bodies.
//! * **Streams.** A connection on which a call was admitted has twice as many when half of them are open, up to `max_streams`, until it
//!   ends. A busy one has up to [`BUSY_STREAMS`] before that: QUIC lets a peer open more each time that an eighth of its streams is used
//!   up, and with 16 this is a packet and its acknowledgement for every third call.
//! * **Full:** nobody gets more than an eighth of what is left. A connection that gets nothing goes on with what it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use quinn::{Connection, VarInt};
use tokio::time::{Duration, Instant};

use super::tuning::Tuning;

/// What a connection may have sent that was not read: the same as before its hello, the longest header and a small body. It is a packet of
/// 64 KiB on its way while another one is read.
pub(super) const USUAL_WINDOW_BYTES: u32 = 128 << 10;

/// The same on a connection whose calls are admitted.
const CALLING_WINDOW_BYTES: u32 = 1 << 20;

/// Streams of a connection without calls. Each may hold some 150 KiB in gaps, which is how quinn bounds them.
const USUAL_STREAMS: u32 = 16;

/// Streams of a connection on which [`BUSY_CALLS`] come within [`BUSY_WITHIN`], however few are open at a time.
const BUSY_STREAMS: u32 = 128;
const BUSY_CALLS: u32 = 64;
const BUSY_WITHIN: Duration = Duration::from_secs(1);

/// Streams of all connections together beyond the usual ones. With the usual ones of one member they are no more than half of the calls
/// that a node has in flight by default.
const MORE_STREAMS: u64 = 4096;

/// The part of what is left that one connection gets at once.
const SHARE: u64 = 8;

/// What all connections of a node have beyond the usual windows and streams.
#[derive(Debug)]
pub(crate) struct Windows {
    bytes: Mutex<Share>,
    streams: Mutex<Share>,
}

/// A sum of which parts are given.
#[derive(Debug)]
struct Share {
    all: u64,
    given: u64,
}

impl Share {
    fn new(all: u64) -> Mutex<Self> {
        Mutex::new(Self { all, given: 0 })
    }

    /// Gives as much of what is asked as there is for one.
    fn give(&mut self, asked: u64) -> u64 {
        let gives = asked.min(self.all.saturating_sub(self.given) / SHARE);
        self.given += gives;
        gives
    }
}

impl Windows {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        Self { bytes: Share::new(tuning.windows_bytes), streams: Share::new(MORE_STREAMS) }
    }

    /// Takes no more than so many bytes for windows, whatever the tuning says.
    pub(crate) fn bound(&self, bytes: u64) {
        let mut share = self.bytes.lock();
        share.all = share.all.min(bytes);
    }

    /// What is given of it.
    pub(crate) fn given_bytes(&self) -> u64 {
        self.bytes.lock().given
    }
}

/// The window of one connection, and its streams. Dropped, it gives back what it has of the node's.
#[derive(Debug)]
pub(crate) struct Window {
    windows: Arc<Windows>,
    connection: Connection,
    /// With all that may be given.
    most: u32,
    max_streams: u32,
    /// Given, and not used up by what was read since.
    given: AtomicU64,
    /// The window without what was given, which is given in two steps.
    usual: Mutex<u32>,
    /// A call was admitted on it.
    has_called: AtomicBool,
    open: AtomicUsize,
    streams: Mutex<Streams>,
}

/// The streams that one connection may have open.
#[derive(Debug)]
struct Streams {
    most: u32,
    /// Opened since the last look at the clock.
    opened: u32,
    looked: Instant,
}

impl Streams {
    fn new(most: u32, now: Instant) -> Self {
        Self { most, opened: 0, looked: now }
    }

    /// Counts a stream that was opened; says whether they come so fast that more of them save packets.
    fn is_busy(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.most >= BUSY_STREAMS {
            return false;
        }
        self.opened += 1;
        if self.opened < BUSY_CALLS {
            return false;
        }
        let now = now();
        let is_busy = now - self.looked < BUSY_WITHIN;
        (self.opened, self.looked) = (0, now);
        is_busy
    }
}

impl Window {
    /// Of a connection that was let in. The stream of its hello stays open beside those for calls.
    pub(crate) fn new(windows: &Arc<Windows>, connection: &Connection, tuning: &Tuning) -> Self {
        let (most, max_streams) = (tuning.connection_window_bytes, tuning.max_streams);
        let (usual, streams) = (most.min(USUAL_WINDOW_BYTES), max_streams.min(USUAL_STREAMS));
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams + 1));
        Self {
            windows: Arc::clone(windows),
            connection: connection.clone(),
            most,
            max_streams,
            given: AtomicU64::new(0),
            usual: Mutex::new(usual),
            has_called: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            streams: Mutex::new(Streams::new(streams, Instant::now())),
        }
    }

    /// Lets the peer send so many bytes more, or less; says how many.
    pub(crate) fn give(&self, asked: u64) -> u64 {
        let usual = self.usual.lock();
        let room = u64::from(self.most - *usual).saturating_sub(self.given.load(Ordering::Relaxed));
        let gives = self.windows.bytes.lock().give(asked.min(room));
        let raised = u32::try_from(gives).ok().and_then(|gives| usual.checked_add(gives));
        let Some(raised) = raised.filter(|_| gives > 0) else { return 0 };
        self.given.fetch_add(gives, Ordering::Relaxed);
        self.connection.set_receive_window(VarInt::from_u32(raised));
        // What is read from now on is no new credit, until as much is read as was given.
        self.connection.set_receive_window(VarInt::from_u32(*usual));
        gives
    }

    /// So many bytes were read, on any of its streams.
    pub(crate) fn read(&self, bytes: usize) {
        if self.given.load(Ordering::Relaxed) == 0 {
            return;
        }
        let bytes = bytes as u64;
        let before =
            self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| Some(given.saturating_sub(bytes)));
        let used = before.unwrap_or_default().min(bytes);
        self.windows.bytes.lock().given -= used;
    }

    /// A call was admitted.
    pub(crate) fn called(&self) {
        if !self.has_called.swap(true, Ordering::Relaxed) {
            let mut usual = self.usual.lock();
            let more = self.most.min(CALLING_WINDOW_BYTES).saturating_sub(*usual);
            // No more than was asked for.
            *usual += self.windows.bytes.lock().give(more.into()) as u32;
            self.connection.set_receive_window(VarInt::from_u32(*usual));
            drop(usual);
            self.need_streams();
        }
    }

    /// A stream was opened.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        if self.has_called.load(Ordering::Relaxed) {
            self.need_streams();
        }
    }

    /// One of them is over.
    pub(crate) fn ended(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets more streams be open, if half of them are or calls come fast.
    fn need_streams(&self) {
        let open = self.open.load(Ordering::Relaxed);
        let mut streams = self.streams.lock();
        let is_busy = streams.is_busy(Instant::now);
        if streams.most >= self.max_streams || !(is_busy || open * 2 > streams.most as usize) {
            return;
        }
        let more = streams.most.min(self.max_streams - streams.most);
        // No more than was asked for.
        streams.most += self.windows.streams.lock().give(more.into()) as u32;
        self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams.most + 1));
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let more = *self.usual.get_mut() - self.most.min(USUAL_WINDOW_BYTES);
        self.windows.bytes.lock().given -= *self.given.get_mut() + u64::from(more);
        let usual = self.max_streams.min(USUAL_STREAMS);
        self.windows.streams.lock().given -= u64::from(self.streams.get_mut().most - usual);
    }
}

/// How far ahead of what is read the window of one body is: a pure decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// What has not come of the body.
    left: u64,
    /// What was given for it and has not come.
    given: u64,
    /// The window of its stream: more is never on its way.
    most: u64,
    /// What has come since more was last asked for.
    since: u64,
}

/// A body no longer than this needs no window of its own.
const GIVE_FROM: u64 = 32 << 10;

impl Ahead {
    /// For a body of this length.
    pub(crate) fn new(announced: u64, tuning: &Tuning) -> Self {
        let left = if announced > GIVE_FROM { announced } else { 0 };
        Self { left, given: 0, most: tuning.stream_window_bytes.into(), since: 0 }
    }

    /// What to ask for now. Half of what may be on its way is enough until it has come.
    pub(crate) fn wanted(&mut self) -> u64 {
        let wanted = self.left.min(self.most);
        if self.given > wanted / 2 || self.left == self.given {
            return 0;
        }
        self.since = 0;
        wanted - self.given
    }

    /// So many bytes were given.
    pub(crate) fn given(&mut self, bytes: u64) {
        self.given += bytes;
    }

    /// So many bytes of the body have come; says whether it is time to ask for more.
    pub(crate) fn came(&mut self, bytes: u64) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.given = self.given.saturating_sub(bytes);
        self.since += bytes;
        // Who was given nothing asks again, not with every packet.
        self.since >= GIVE_FROM * 2 && self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is asked: an eighth of what is left at most, so that there is always something for the next.
        #[test]
        fn nobody_gets_more_than_a_part_of_what_is_left(all in 0_u64..1 << 30, asked in prop::collection::vec(0_u64..1 << 26, 0..200)) {
            let mut share = Share { all, given: 0 };
            for asked in asked {
                let left = share.all - share.given;
                let gives = share.give(asked);
                prop_assert!(gives <= asked && gives <= left / SHARE);
                prop_assert!(share.given <= share.all);
            }
        }

        /// However a body comes and whatever is given: what is ahead is never more than what is left of it, nor than its stream takes.
        #[test]
        fn what_is_given_is_what_a_body_needs(
            announced in 0_u64..1 << 27,
            steps in prop::collection::vec((1_u64..1 << 20, 0_u64..1 << 24), 0..300),
        ) {
            let mut ahead = Ahead::new(announced, &Tuning::default());
            let (mut left, mut outstanding) = (announced, 0_u64);
            for (piece, has) in steps {
                let wanted = ahead.wanted();
                let gives = wanted.min(has);
                ahead.given(gives);
                outstanding += gives;
                prop_assert!(outstanding <= left.min(8 << 20));
                let piece = piece.min(left);
                left -= piece;
                outstanding = outstanding.saturating_sub(piece);
                ahead.came(piece);
            }
        }
    }

    #[test]
    fn streams_are_busy_when_their_calls_come_within_the_time() {
        let begun = Instant::now();
        let mut streams = Streams::new(USUAL_STREAMS, begun);
        let calls = |streams: &mut Streams, at| (0..BUSY_CALLS).filter(|_| streams.is_busy(|| at)).count();
        assert_eq!(calls(&mut streams, begun + BUSY_WITHIN), 0, "one a while ago");
        let soon = begun + BUSY_WITHIN * 2 - Duration::from_millis(1);
        assert_eq!(calls(&mut streams, soon), 1, "the last of them says so");
        streams.most = BUSY_STREAMS;
        assert_eq!(calls(&mut streams, soon), 0, "they are enough");
    }

    #[test]
    fn a_body_has_its_window_from_the_start_and_no_more_of_it_than_it_needs() {
        let mut short = Ahead::new(GIVE_FROM, &Tuning::default());
        assert_eq!(short.wanted(), 0);
        let mut body = Ahead::new(1 << 20, &Tuning::default());
        assert_eq!(body.wanted(), 1 << 20);
        body.given(1 << 20);
        assert_eq!(body.wanted(), 0);
        body.came(900 << 10);
        assert_eq!(body.wanted(), 0, "all that is left was given");
        let mut long = Ahead::new(64 << 20, &Tuning::default());
        assert_eq!(long.wanted(), 8 << 20);
        long.given(8 << 20);
        long.came(3 << 20);
        assert_eq!(long.wanted(), 0);
        long.came(1 << 20);
        assert_eq!(long.wanted(), 4 << 20);
    }
}
