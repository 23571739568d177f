//! Which calls go together: those that are waiting for one node at the same moment.
//!
//! Callers leave their calls in a bounded queue. Where hardly anybody else is under way, a caller sends what is there itself. Else it lets
//! those go first who are ready on its thread, because their calls belong into the same pack, and whoever comes back first wakes a task
//! on the transport's thread, which sends all of them. Nobody waits for another caller: a future that is not polled holds up no
//! call but its own.
//!
//! * **No room:** while the node takes no other stream, calls gather, and go in fuller packs; a caller that would rather ask another node
//!   is told that its call was not started.
//! * **Full:** callers wait for a place, within their deadlines, and those that would rather ask another node do. No place is kept for
//!   anybody: those who are polled would wait behind those who are not.
//! * **Cancelled:** a call that is given up while it waits is never sent. **Late:** one that has waited says how much less time it has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::wire::{Call, FrameKind, FrameLimits, LooseFrame};
use callboard_core::{CallError, Instant};
use futures_util::FutureExt;
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::fault::{no_room, not_started};
use super::pack::Pack;
use super::slot::{Carried, Received, slot};
use super::waking::{Waking, let_others_go};
use crate::convert;
use crate::endpoint::{Turn, begin_here};
use crate::stream::{Incoming, Outgoing};

/// Frames of at most so many bytes share a stream. Measured: beyond it nothing is gained.
pub(super) const MAX_PACKED_BYTES: usize = 16 << 10;

/// What one pack has room for, as nodes take it.
const MAX_PACK_ENTRIES: usize = 32;
const MAX_PACK_BYTES: usize = 64 << 10;

/// Calls that wait for one node.
const MAX_WAITING: usize = 1024;

/// From so many other calls under way on, calls gather before they are sent. Fewer gain nothing by it, and go sooner.
const COMPANY: usize = 4;

/// How long a call waits for room on one node's connection while another node may have some.
pub(crate) const ROOM_WAIT: Duration = Duration::from_millis(5);

const NO_ROOM: &str = "the peer has no room for another stream";

/// A call that waits.
#[derive(Debug)]
struct Entry {
    frame: LooseFrame,
    call: Carried,
    /// What its caller takes of an outcome.
    max_body_bytes: usize,
    /// Another node may have room.
    is_impatient: bool,
    /// When its frame was made.
    since: Instant,
    _held: Arc<()>,
}

/// The queue of one link. Its task ends with it.
#[derive(Debug)]
pub(super) struct Packer {
    queue: mpsc::Sender<Entry>,
    door: Arc<Door>,
    packing: Arc<Mutex<Packing>>,
    /// Cloned by each call that waits.
    held: Arc<()>,
}

/// Who sends what is in the queue.
#[derive(Debug, Default)]
struct Door {
    /// Calls have come for which nobody has rung yet.
    has_new: AtomicBool,
    is_closed: AtomicBool,
    /// Rung for the task.
    bell: Notify,
    /// Rung for callers that wait for a place in the queue.
    places: Notify,
    /// Calls without an outcome.
    under_way: AtomicUsize,
}

/// A call that has no outcome yet.
struct UnderWay<'a>(&'a Door);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Packer {
    /// Sends on this connection. `streams` is cloned for as long as a stream is open.
    pub(super) fn spawn(runtime: &Handle, connection: Connection, streams: Arc<()>) -> Self {
        let (queue, arriving) = mpsc::channel(MAX_WAITING);
        let door = Arc::<Door>::default();
        let packing = Packing {
            connection: connection.clone(),
            home: runtime.clone(),
            streams,
            waking: Arc::default(),
            arriving,
            waiting: VecDeque::new(),
            spare: None,
            awaits_room: false,
        };
        let packing = Arc::new(Mutex::new(packing));
        runtime.spawn(send_when_rung(Arc::clone(&packing), Arc::clone(&door), connection));
        Self { queue, door, packing, held: Arc::default() }
    }

    /// Sends a call with whatever goes at the same moment, and waits for its outcome.
    ///
    /// # Cancellation
    ///
    /// Dropped while it waits, the call is never sent; dropped later, it is cancelled where it runs.
    pub(super) async fn call(
        &self,
        frame: LooseFrame,
        max_body_bytes: usize,
        is_impatient: bool,
    ) -> Result<Received, CallError> {
        let (ticket, call) = slot();
        let entry =
            Entry { frame, call, max_body_bytes, is_impatient, since: Instant::now(), _held: Arc::clone(&self.held) };
        // Behind so many it would not be looked at in time.
        if is_impatient && self.waiting() > MAX_WAITING {
            return Err(no_room(NO_ROOM));
        }
        self.put(entry).await?;
        let others = self.door.under_way.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(&self.door);
        if others < COMPANY {
            self.send();
        } else {
            self.door.has_new.store(true, Ordering::Release);
            let_others_go().await;
            if self.door.has_new.swap(false, Ordering::AcqRel) {
                self.door.bell.notify_one();
            }
        }
        ticket.await
    }

    /// Leaves a call in the queue as soon as there is a place.
    async fn put(&self, mut entry: Entry) -> Result<(), CallError> {
        loop {
            // Heard from here on, also before it is first polled.
            let place = self.door.places.notified();
            match self.queue.try_send(entry) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(not_started("the link is closed".to_owned())),
                Err(TrySendError::Full(back)) => entry = back,
            }
            place.await;
        }
    }

    /// Sends what is there, here if nobody else is at it.
    fn send(&self) {
        // What is written is sent behind the lock.
        let _turn = Turn::begin();
        let sent = self.packing.try_lock().is_some_and(|mut packing| packing.send());
        self.door.places.notify_waiters();
        if !sent {
            self.door.bell.notify_one();
        }
    }

    /// Calls that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        Arc::strong_count(&self.held) - 1
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.door.is_closed.store(true, Ordering::Release);
        self.door.bell.notify_one();
    }
}

/// The other end of the queue.
#[derive(Debug)]
struct Packing {
    connection: Connection,
    /// Where answers are read.
    home: Handle,
    streams: Arc<()>,
    waking: Arc<Waking>,
    arriving: mpsc::Receiver<Entry>,
    /// Those that were looked at and have no stream yet.
    waiting: VecDeque<Entry>,
    /// A stream that was waited for, until the next look at the queue.
    spare: Option<(SendStream, RecvStream)>,
    /// The task waits until the node has room for a stream.
    awaits_room: bool,
}

/// Sends what callers could not send themselves, for want of a stream or because somebody else was at it.
async fn send_when_rung(packing: Arc<Mutex<Packing>>, door: Arc<Door>, connection: Connection) {
    let Closing { packing, door } = &Closing { packing, door };
    loop {
        door.bell.notified().await;
        if door.is_closed.load(Ordering::Acquire) {
            return;
        }
        loop {
            let is_sent = packing.lock().send_or_await_room();
            door.places.notify_waiters();
            if is_sent {
                break;
            }
            let room = room(packing, &connection).await;
            let mut packing = packing.lock();
            packing.awaits_room = false;
            match room {
                Ok(stream) => packing.spare = Some(stream),
                Err(error) => packing.refuse(&no_stream(&error), |_| true),
            }
        }
    }
}

/// The end of the task, by the link's or the thread's: nothing is sent any more.
struct Closing {
    packing: Arc<Mutex<Packing>>,
    door: Arc<Door>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let mut packing = self.packing.lock();
        packing.arriving.close();
        packing.refuse(&not_started("the link is closed".to_owned()), |_| true);
        self.door.places.notify_waiters();
    }
}

/// A stream, as soon as the node has room for one.
async fn room(packing: &Mutex<Packing>, connection: &Connection) -> Result<(SendStream, RecvStream), ConnectionError> {
    let opening = connection.open_bi();
    tokio::pin!(opening);
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            () = tokio::time::sleep(ROOM_WAIT) => {
                packing.lock().refuse(&no_room(NO_ROOM), |entry| entry.is_impatient);
            }
        }
    }
}

/// Takes back a stream that nobody needs. The node would wait for its first call, and take what comes on it later for late.
fn give_back((send, receive): (SendStream, RecvStream)) {
    drop((Outgoing::new(send), Incoming::new(receive, FrameLimits::default())));
}

fn no_stream(error: &ConnectionError) -> CallError {
    not_started(format!("no stream could be opened: {error}"))
}

impl Packing {
    /// The same by the task, who waits for room where there is none.
    fn send_or_await_room(&mut self) -> bool {
        let is_sent = self.send();
        self.awaits_room = !is_sent;
        is_sent
    }

    /// Sends all that waits; says whether nothing is left that nobody waits for room for.
    fn send(&mut self) -> bool {
        if self.awaits_room {
            // By the task, as soon as there is some.
            return true;
        }
        loop {
            let Some(first) = self.next() else {
                if let Some(stream) = self.spare.take() {
                    give_back(stream);
                }
                return true;
            };
            self.waiting.push_front(first);
            match self.spare.take().map(Ok).or_else(|| self.connection.open_bi().now_or_never()) {
                Some(Ok(stream)) => self.fill(stream),
                Some(Err(error)) => self.refuse(&no_stream(&error), |_| true),
                None => return false,
            }
        }
    }

    /// Gives a stream to those that are first, as many as go together.
    fn fill(&mut self, stream: (SendStream, RecvStream)) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < MAX_PACK_ENTRIES
            && let Some(entry) = self.next()
        {
            bytes += entry.frame.len();
            if bytes > MAX_PACK_BYTES && !entries.is_empty() {
                self.waiting.push_front(entry);
                break;
            }
            entries.push(entry);
        }
        if entries.is_empty() {
            return give_back(stream);
        }
        let (mut pack, now, count) =
            (Pack::new(stream, entries.len(), self.waking.join()), Instant::now(), entries.len());
        for (place, Entry { mut frame, call, max_body_bytes, since, .. }) in entries.into_iter().enumerate() {
            let passed = now.saturating_duration_since(since);
            if passed >= ROOM_WAIT {
                // As it was, it is no more than late.
                let _ = frame.change_header(FrameKind::Call, |call: &mut Call| convert::shorten(call, passed));
            }
            if count > 1 && place + 1 == count {
                // Else its stream is ended a round trip later.
                frame.add_flag("last");
            }
            pack.take(&frame, call, max_body_bytes);
        }
        let open = Arc::clone(&self.streams);
        begin_here(&self.home, async move {
            pack.run().await;
            drop(open);
        });
    }

    /// The next call that somebody waits for.
    fn next(&mut self) -> Option<Entry> {
        loop {
            let entry = self.waiting.pop_front().or_else(|| self.arriving.try_recv().ok())?;
            if !entry.call.is_left() {
                return Some(entry);
            }
        }
    }

    fn refuse(&mut self, error: &CallError, which: impl Fn(&Entry) -> bool) {
        let mut kept = VecDeque::new();
        // No more than there are, and than the queue has room for: it fills again meanwhile.
        for _ in 0..self.waiting.len() + self.arriving.len() {
            if kept.len() >= MAX_WAITING {
                break;
            }
            let Some(entry) = self.next() else { break };
            match which(&entry) {
                true => entry.call.end(Err(error.clone())),
                false => kept.push_back(entry),
            }
        }
        kept.append(&mut self.waiting);
        self.waiting = kept;
    }
}
