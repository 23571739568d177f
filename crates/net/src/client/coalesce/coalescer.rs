//! Decides which calls share a stream: the calls that wait for one node at the same moment.
//!
//! Callers put their calls into a bounded queue. If few other calls are in flight, the caller sends the queue itself.
//! Otherwise it first yields to the tasks that are ready on its thread, because their calls should share the stream.
//! The first caller that continues then wakes a task on the transport's thread, which sends all of them. No call waits
//! for another caller: a future that is not polled delays only its own call.
//!
//! * **No room:** while the node accepts no further stream, calls gather, and share streams with more calls. A caller
//!   that prefers another node gets the error that its call was not started.
//! * **Full:** a call waits for a place in the queue. No place is reserved: callers that are polled would wait for
//!   callers that are not.
//! * **Late:** a call that has waited is sent with less remaining time.
//! * **Cancelled:** a call that is cancelled while it waits is never sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::wire::{Call, FrameKind, FrameLimits, LooseFrame};
use callboard_core::Instant;
use futures_util::FutureExt;
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::super::fault::CallFault;
use super::shared_stream::SharedStream;
use super::slot::{ReceivedOutcome, ResponseSlot, slot};
use super::wake_batch::{WakeBatch, yield_to_ready_tasks};
use crate::counter::{CountGuard, GuardCounter};
use crate::endpoint::{FlushScope, start_inline};
use crate::link::Link;
use crate::stream::{FrameReceiver, FrameSender};
use crate::wire;

/// The longest frame that shares a stream. Measured: longer ones gain nothing.
pub(super) const MAX_SHARED_BYTES: usize = 16 << 10;

/// The limits of one shared stream, which nodes accept.
const MAX_CALLS_PER_STREAM: usize = 32;
const MAX_BYTES_PER_STREAM: usize = 64 << 10;

/// The most calls that wait for one node.
const MAX_WAITING: usize = 1024;

/// With this many other calls in flight, calls gather before they are sent. Fewer calls gain nothing by it.
const COALESCE_FROM: usize = 4;

/// How long a call waits for room on one connection while another node may have room.
pub(crate) const ROOM_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct QueuedCall {
    frame: LooseFrame,
    call: ResponseSlot,
    /// The longest body that its caller accepts.
    max_body_bytes: usize,
    /// Its caller prefers another node to waiting for room.
    fails_fast: bool,
    /// The time at which its frame was made.
    since: Instant,
    _waiting: CountGuard,
}

/// The queue of one connection. Its task ends with it.
#[derive(Debug)]
pub(crate) struct Coalescer {
    queue: mpsc::Sender<QueuedCall>,
    signals: Arc<Signals>,
    state: Arc<Mutex<CoalescerState>>,
    /// Counts the calls that wait.
    waiting: GuardCounter,
}

/// The signals between callers and the task.
#[derive(Debug, Default)]
struct Signals {
    /// Calls were queued, and the task was not woken for them yet.
    has_new: AtomicBool,
    is_closed: AtomicBool,
    /// Wakes the task.
    task: Notify,
    /// Wakes callers that wait for a place in the queue.
    places: Notify,
    /// The number of calls without an outcome.
    in_flight: AtomicUsize,
}

/// Counts a call without an outcome.
struct InFlightGuard<'a>(&'a Signals);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Coalescer {
    /// Sends on this connection, and counts its streams.
    pub(crate) fn spawn(runtime: &Handle, connection: Connection, link: Arc<Link>) -> Self {
        let (queue, arriving) = mpsc::channel(MAX_WAITING);
        let signals = Arc::<Signals>::default();
        let state = Arc::new(Mutex::new(CoalescerState {
            connection: connection.clone(),
            runtime: runtime.clone(),
            link,
            wake_batch: WakeBatch::default(),
            arriving,
            waiting: VecDeque::new(),
            spare: None,
            awaits_room: false,
        }));
        runtime.spawn(send_when_woken(Arc::clone(&state), Arc::clone(&signals), connection));
        Self { queue, signals, state, waiting: GuardCounter::default() }
    }

    /// Sends a call with other calls of the same moment, and waits for its outcome.
    ///
    /// # Cancellation
    ///
    /// Dropped while it waits, the call is never sent; dropped later, it is cancelled where it runs.
    pub(super) async fn call(
        &self,
        frame: LooseFrame,
        max_body_bytes: usize,
        fails_fast: bool,
    ) -> Result<ReceivedOutcome, CallFault> {
        let (response, call) = slot();
        let _waiting = self.waiting.guard();
        let queued = QueuedCall { frame, call, max_body_bytes, fails_fast, since: Instant::now(), _waiting };
        // In a queue this long, the call would not be looked at in time.
        if fails_fast && self.waiting() > MAX_WAITING {
            return Err(CallFault::no_room());
        }
        self.put(queued).await?;
        let others = self.signals.in_flight.fetch_add(1, Ordering::Relaxed);
        let _in_flight = InFlightGuard(&self.signals);
        if others < COALESCE_FROM {
            self.send();
        } else {
            self.signals.has_new.store(true, Ordering::Release);
            yield_to_ready_tasks().await;
            if self.signals.has_new.swap(false, Ordering::AcqRel) {
                self.signals.task.notify_one();
            }
        }
        response.await
    }

    /// Puts a call into the queue, as soon as there is a place.
    async fn put(&self, mut queued: QueuedCall) -> Result<(), CallFault> {
        loop {
            // Registered before the attempt, so that no notification is missed.
            let place = self.signals.places.notified();
            match self.queue.try_send(queued) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(connection_closed()),
                Err(TrySendError::Full(back)) => queued = back,
            }
            place.await;
        }
    }

    /// Sends the queue from this thread, unless another thread does.
    fn send(&self) {
        // Flushes after the lock is released.
        let _scope = FlushScope::begin();
        let is_sent = self.state.try_lock().is_some_and(|mut state| state.send());
        self.signals.places.notify_waiters();
        if !is_sent {
            self.signals.task.notify_one();
        }
    }

    /// The number of calls that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.count()
    }
}

impl Drop for Coalescer {
    fn drop(&mut self) {
        self.signals.is_closed.store(true, Ordering::Release);
        self.signals.task.notify_one();
    }
}

/// The receiving end of the queue.
#[derive(Debug)]
struct CoalescerState {
    connection: Connection,
    /// Reads the answers.
    runtime: Handle,
    link: Arc<Link>,
    wake_batch: WakeBatch,
    arriving: mpsc::Receiver<QueuedCall>,
    /// Calls that were taken from the queue and have no stream yet.
    waiting: VecDeque<QueuedCall>,
    /// A stream that the task has opened.
    spare: Option<(SendStream, RecvStream)>,
    /// Whether the task waits until the node accepts another stream.
    awaits_room: bool,
}

/// Sends the calls that callers could not send: the node had no room, or another thread held the lock.
async fn send_when_woken(state: Arc<Mutex<CoalescerState>>, signals: Arc<Signals>, connection: Connection) {
    let CloseOnDrop { state, signals } = &CloseOnDrop { state, signals };
    loop {
        signals.task.notified().await;
        if signals.is_closed.load(Ordering::Acquire) {
            return;
        }
        loop {
            let is_sent = state.lock().send_or_await_room();
            signals.places.notify_waiters();
            if is_sent {
                break;
            }
            let opened = open_stream(state, &connection).await;
            let mut state = state.lock();
            state.awaits_room = false;
            match opened {
                Ok(stream) => state.spare = Some(stream),
                Err(error) => state.refuse(&CallFault::no_stream(&error), |_| true),
            }
        }
    }
}

/// Refuses all waiting calls when the task ends, with the connection or with the thread.
struct CloseOnDrop {
    state: Arc<Mutex<CoalescerState>>,
    signals: Arc<Signals>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.arriving.close();
        state.refuse(&connection_closed(), |_| true);
        self.signals.places.notify_waiters();
    }
}

/// Opens a stream as soon as the node has room. Meanwhile refuses calls that prefer another node.
async fn open_stream(
    state: &Mutex<CoalescerState>,
    connection: &Connection,
) -> Result<(SendStream, RecvStream), ConnectionError> {
    // Calls that wait for a stream are watched, too.
    let _open = state.lock().link.begin();
    let opening = connection.open_bi();
    tokio::pin!(opening);
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            () = tokio::time::sleep(ROOM_WAIT) => {
                state.lock().refuse(&CallFault::no_room(), |queued| queued.fails_fast);
            }
        }
    }
}

/// Resets an unused stream. The node would wait for its first call, and treat a later one as late.
fn reset((send, receive): (SendStream, RecvStream)) {
    drop((FrameSender::new(send), FrameReceiver::new(receive, FrameLimits::default())));
}

fn connection_closed() -> CallFault {
    CallFault::not_started("the connection is closed")
}

impl CoalescerState {
    /// Sends by the task, which waits for room where there is none.
    fn send_or_await_room(&mut self) -> bool {
        let is_sent = self.send();
        self.awaits_room = !is_sent;
        is_sent
    }

    /// Sends all waiting calls. `false`: some are left, and the task has to wait for room.
    fn send(&mut self) -> bool {
        if self.awaits_room {
            // The task sends them as soon as there is room.
            return true;
        }
        loop {
            let Some(first) = self.next() else {
                if let Some(stream) = self.spare.take() {
                    reset(stream);
                }
                return true;
            };
            self.waiting.push_front(first);
            match self.spare.take().map(Ok).or_else(|| self.connection.open_bi().now_or_never()) {
                Some(Ok(stream)) => self.fill(stream),
                Some(Err(error)) => self.refuse(&CallFault::no_stream(&error), |_| true),
                None => return false,
            }
        }
    }

    /// Sends the first calls on a stream, as many as may share it.
    fn fill(&mut self, stream: (SendStream, RecvStream)) {
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while calls.len() < MAX_CALLS_PER_STREAM
            && let Some(call) = self.next()
        {
            bytes += call.frame.len();
            if bytes > MAX_BYTES_PER_STREAM && !calls.is_empty() {
                self.waiting.push_front(call);
                break;
            }
            calls.push(call);
        }
        if calls.is_empty() {
            return reset(stream);
        }
        let (now, count) = (Instant::now(), calls.len());
        let mut shared = SharedStream::new(stream, count, self.wake_batch.join(), &self.link);
        for (nth, QueuedCall { mut frame, call, max_body_bytes, since, .. }) in calls.into_iter().enumerate() {
            let wait = now.saturating_duration_since(since);
            if wait >= ROOM_WAIT {
                // If this fails, the header only has too much remaining time.
                let _ = frame.change_header(FrameKind::Call, |call: &mut Call| wire::shorten(call, wait));
            }
            if count > 1 && nth + 1 == count {
                // Lets the node end the stream a round trip earlier.
                frame.add_flag("last");
            }
            shared.add(&frame, call, max_body_bytes);
        }
        let open = self.link.begin();
        start_inline(&self.runtime, async move {
            shared.run().await;
            drop(open);
        });
    }

    /// The next call that is not cancelled.
    fn next(&mut self) -> Option<QueuedCall> {
        loop {
            let queued = self.waiting.pop_front().or_else(|| self.arriving.try_recv().ok())?;
            if !queued.call.is_cancelled() {
                return Some(queued);
            }
        }
    }

    fn refuse(&mut self, fault: &CallFault, which: impl Fn(&QueuedCall) -> bool) {
        let mut remaining = VecDeque::new();
        // Bounded by the calls that wait now, and by the queue's limit: the queue fills again meanwhile.
        for _ in 0..self.waiting.len() + self.arriving.len() {
            if remaining.len() >= MAX_WAITING {
                break;
            }
            let Some(queued) = self.next() else { break };
            if which(&queued) {
                queued.call.end(Err(fault.clone()));
            } else {
                remaining.push_back(queued);
            }
        }
        remaining.append(&mut self.waiting);
        self.waiting = remaining;
    }
}
