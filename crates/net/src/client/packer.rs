//! Which calls go together: those that are waiting for one node at the same moment.
//!
//! Callers leave their calls in a bounded queue; a task on the transport's thread takes what is there, gives it a stream, and looks
//! again. A call that comes alone goes alone and at once. While the node has no room for another stream, calls gather, and go in fuller
//! packs; a caller that would rather ask another node is then told that its call was not started. When the queue is full, callers
//! wait at its end, within their deadlines, and those that would rather ask another node do. A call that is given up while it waits is
//! never sent, and one that has waited says how much less time it has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{Call, FrameKind, LooseFrame};
use callboard_core::{CallError, Instant};
use futures_util::FutureExt;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::fault::{no_room, not_started};
use super::pack::Pack;
use super::slot::{Carried, Received, slot};
use crate::convert;

/// Frames of at most so many bytes share a stream. Measured: beyond it nothing is gained.
pub(super) const MAX_PACKED_BYTES: usize = 16 << 10;

/// What one pack has room for, as nodes take it.
const MAX_PACK_ENTRIES: usize = 32;
const MAX_PACK_BYTES: usize = 64 << 10;

/// Calls that wait for one node. What is beyond waits at the end of the queue.
const MAX_WAITING: usize = 1024;

/// How long a call waits for room on one node's connection while another node may have some.
pub(crate) const ROOM_WAIT: Duration = Duration::from_millis(5);

const NO_ROOM: &str = "the peer has no room for another stream";

/// A call that waits.
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
    /// Cloned by each call that waits.
    held: Arc<()>,
}

impl Packer {
    /// Sends on this connection. `streams` is cloned for as long as a stream is open.
    pub(super) fn spawn(runtime: &Handle, connection: Connection, streams: Arc<()>) -> Self {
        let (queue, arriving) = mpsc::channel(MAX_WAITING);
        runtime.spawn(Packing { connection, streams, arriving, waiting: VecDeque::new(), spare: None }.run());
        Self { queue, held: Arc::default() }
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
        if self.queue.send(entry).await.is_err() {
            return Err(not_started("the link is closed".to_owned()));
        }
        ticket.await
    }

    /// Calls that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        Arc::strong_count(&self.held) - 1
    }
}

/// The other end of the queue.
struct Packing {
    connection: Connection,
    streams: Arc<()>,
    arriving: mpsc::Receiver<Entry>,
    /// Those that were looked at and have no stream yet.
    waiting: VecDeque<Entry>,
    /// A stream that was opened for calls that were given up meanwhile.
    spare: Option<(SendStream, RecvStream)>,
}

impl Packing {
    async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                let Some(entry) = self.arriving.recv().await else { return };
                self.waiting.push_back(entry);
            }
            match self.room().await {
                Ok(stream) => self.send(stream),
                Err(error) => {
                    let error = not_started(format!("no stream could be opened: {error}"));
                    self.refuse(&error, |_| true);
                }
            }
        }
    }

    /// A stream, as soon as the node has room for one.
    async fn room(&mut self) -> Result<(SendStream, RecvStream), ConnectionError> {
        if let Some(stream) = self.spare.take() {
            return Ok(stream);
        }
        let connection = self.connection.clone();
        let opening = connection.open_bi();
        tokio::pin!(opening);
        if let Some(opened) = (&mut opening).now_or_never() {
            return opened;
        }
        loop {
            tokio::select! {
                biased;
                opened = &mut opening => return opened,
                () = tokio::time::sleep(ROOM_WAIT) => {
                    self.refuse(&no_room(NO_ROOM), |entry| entry.is_impatient);
                }
            }
        }
    }

    /// Gives a stream to those that are first, as many as go together.
    fn send(&mut self, stream: (SendStream, RecvStream)) {
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
            self.spare = Some(stream);
            return;
        }
        let (mut pack, now) = (Pack::new(stream, entries.len()), Instant::now());
        for Entry { mut frame, call, max_body_bytes, since, .. } in entries {
            let passed = now.saturating_duration_since(since);
            if passed >= ROOM_WAIT {
                // As it was, it is no more than late.
                let _ = frame.change_header(FrameKind::Call, |call: &mut Call| convert::shorten(call, passed));
            }
            pack.take(frame, call, max_body_bytes);
        }
        let open = Arc::clone(&self.streams);
        tokio::spawn(async move {
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
        while let Some(entry) = self.next() {
            match which(&entry) {
                true => entry.call.end(Err(error.clone())),
                // As many as the queue has room for at most: it fills again while they wait here.
                false if kept.len() < MAX_WAITING => kept.push_back(entry),
                false => {
                    kept.push_back(entry);
                    break;
                }
            }
        }
        self.waiting = kept;
    }
}
