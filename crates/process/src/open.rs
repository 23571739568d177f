//! The batches that a child has not answered, and whose turn it is. Shared by their callers and the reader.
//!
//! A child that works on one batch at a time begins with the next in order when it has answered the one before. So the
//! node knows without a message which batches it has not begun.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_core::{CallContext, Deadline, Instant, StartedCall, Turn};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::credit::CallCredit;
use crate::lost::LostReason;
use crate::message::{ItemError, ResponseHead, ToChild};
use crate::writer::OutgoingFrame;

/// All batches of a child, and the calls that it makes for them.
#[derive(Default)]
pub(crate) struct OpenBatches {
    /// Whether the child has one batch at a time.
    pub(crate) is_serial: bool,
    next_id: u64,
    /// By their ids, which are their order.
    batches: BTreeMap<u64, OpenBatch>,
    /// The calls of the child, by their ids.
    pub(crate) made: HashMap<u64, InnerCall>,
    /// Cancellations that the queue of frames had no place for.
    pending_cancels: Vec<ToChild>,
    /// The queue of frames is full: the child does not read.
    pub(crate) is_stuck: bool,
    /// The child announced its end, or ended: it gets no more batches.
    pub(crate) is_leaving: bool,
}

/// A batch that the child has.
pub(crate) struct OpenBatch {
    pub(crate) contexts: Arc<[CallContext]>,
    pub(crate) answers: mpsc::Sender<Answer>,
    turn: Turn,
    begun_at: Option<Instant>,
    /// The timeout of its stage.
    timeout: Option<Duration>,
    /// Whether its callers left, or were answered.
    is_given_up: bool,
    _room: OwnedSemaphorePermit,
}

/// A call of a child that has no result.
pub(crate) struct InnerCall {
    /// The batch that it belongs to.
    pub(crate) made_for: u64,
    /// `None`: it belongs to all items.
    pub(crate) item: Option<usize>,
    /// The arguments of a call for all items: it is made again if the caller of its item leaves before it begins.
    pub(crate) again: Option<RepeatableCall>,
    /// The outputs that may be sent, if the child takes a stream.
    pub(crate) credit: Option<Arc<CallCredit>>,
    /// Cancels the call when it is dropped.
    #[expect(dead_code, reason = "it is kept")]
    pub(crate) started: StartedCall,
}

/// Arguments of a call.
pub(crate) struct RepeatableCall {
    pub(crate) within: CallContext,
    pub(crate) route: String,
    pub(crate) input: Payload,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) credit: Option<Arc<CallCredit>>,
}

/// An answer of the child about a batch.
pub(crate) enum Answer {
    Output {
        item: usize,
        part: Bytes,
        response: Option<ResponseHead>,
        /// Its place among the outputs that are not read.
        _unread: Option<OwnedSemaphorePermit>,
    },
    Outcomes {
        errors: Vec<Option<ItemError>>,
        parts: Vec<Bytes>,
        /// Of each item; empty if none has one.
        responses: Vec<Option<ResponseHead>>,
    },
}

pub(crate) type SharedBatches = Mutex<OpenBatches>;

impl OpenBatch {
    pub(crate) fn new(
        contexts: Arc<[CallContext]>,
        answers: mpsc::Sender<Answer>,
        turn: Turn,
        timeout: Option<Duration>,
        room: OwnedSemaphorePermit,
    ) -> Self {
        Self { contexts, answers, turn, begun_at: None, timeout, is_given_up: false, _room: room }
    }

    fn begin(&mut self) {
        self.turn.begin();
        self.begun_at.get_or_insert_with(Instant::now);
    }

    /// Whether all of its items have the same caller.
    pub(crate) fn has_one_caller(&self) -> bool {
        self.contexts.windows(2).all(|pair| pair[0].has_caller_of(&pair[1]))
    }

    /// The call with the latest deadline whose caller still waits.
    pub(crate) fn latest(&self) -> Option<&CallContext> {
        let now = Instant::now();
        self.contexts.iter().filter(|context| context.is_wanted(now)).max_by_key(|context| context.deadline())
    }
}

impl OpenBatches {
    pub(crate) fn new(is_serial: bool) -> Self {
        Self { is_serial, ..Self::default() }
    }

    /// Adds a batch, the last in order.
    pub(crate) fn add(&mut self, batch: OpenBatch) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.batches.insert(id, batch);
        self.begin_next();
        id
    }

    /// The batch of this id, if it began.
    pub(crate) fn running(&self, id: u64) -> Option<&OpenBatch> {
        self.batches.get(&id).filter(|batch| batch.begun_at.is_some())
    }

    /// Whether a batch that began has a call with this request id.
    pub(crate) fn has_request(&self, id: &str) -> bool {
        let begun = self.batches.values().filter(|batch| batch.begun_at.is_some());
        begun.flat_map(|batch| &*batch.contexts).any(|context| context.request_id() == Some(id))
    }

    /// Ends a batch that the child answered; it had begun.
    pub(crate) fn end(&mut self, id: u64) -> Result<OpenBatch, LostReason> {
        self.running(id).ok_or_else(LostReason::unexpected_answer)?;
        let batch = self.batches.remove(&id).ok_or_else(LostReason::unexpected_answer)?;
        self.made.retain(|_, made| made.made_for != id);
        Ok(batch)
    }

    /// Begins with the batches whose turn it is.
    pub(crate) fn begin_next(&mut self) {
        let running = if self.is_serial { 1 } else { usize::MAX };
        self.batches.values_mut().take(running).for_each(OpenBatch::begin);
    }

    /// No caller waits for a batch any more.
    pub(crate) fn give_up(&mut self, id: u64) {
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.is_given_up = true;
        }
    }

    /// Whether the child began any batch: its first one begins at once.
    pub(crate) fn had_batch(&self) -> bool {
        self.next_id > 0
    }

    /// Whether the child has no batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// The longest time that the child may be silent: that of the batch which may last longest, which is `unlimited` of
    /// one without a timeout. `None`: no batch is open, or one has no limit.
    pub(crate) fn longest_silence(&self, unlimited: Option<Duration>) -> Option<Duration> {
        let limits = self.batches.values().map(|batch| batch.timeout.or(unlimited));
        limits.reduce(|one, other| Some(one?.max(other?))).flatten()
    }

    /// The timeout of a batch that runs for longer, and whose callers have been answered.
    pub(crate) fn overdue(&self) -> Option<Duration> {
        let late =
            |batch: &OpenBatch| batch.timeout.filter(|limit| batch.begun_at.is_some_and(|at| at.elapsed() >= *limit));
        self.batches.values().filter(|batch| batch.is_given_up).find_map(late)
    }

    /// Takes everything: the child has ended. Callers that wait find no answer.
    pub(crate) fn close(&mut self) -> impl Sized + use<> {
        self.is_leaving = true;
        (std::mem::take(&mut self.batches), std::mem::take(&mut self.made))
    }

    /// Takes the batches that were not begun.
    pub(crate) fn take_waiting(&mut self) -> impl Sized + use<> {
        let waiting: Vec<_> = self.batches.extract_if(.., |_, batch| batch.begun_at.is_none()).collect();
        waiting
    }

    /// Queues a frame. Without a writer the child ended, and its callers learn that from its end.
    pub(crate) fn send(&mut self, frames: &mpsc::Sender<OutgoingFrame>, frame: OutgoingFrame) {
        self.is_stuck |= matches!(frames.try_send(frame), Err(mpsc::error::TrySendError::Full(_)));
    }

    /// Tells the child that these callers left: later, if it does not read at the moment.
    pub(crate) fn cancel(&mut self, frames: &mpsc::Sender<OutgoingFrame>, id: u64, items: impl Iterator<Item = usize>) {
        self.pending_cancels.extend(items.map(|item| ToChild::Cancel { id, item }));
        self.send_cancels(frames);
    }

    /// Tells the child what had no place before. A quarter of the queue stays free for other frames.
    pub(crate) fn send_cancels(&mut self, frames: &mpsc::Sender<OutgoingFrame>) {
        let places = frames.capacity().saturating_sub(frames.max_capacity() / 4);
        let told = self.pending_cancels.drain(..places.min(self.pending_cancels.len()));
        for message in told {
            let _ = frames.try_send(OutgoingFrame::new(&message, Vec::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::CallOptions;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::testing::WaitingNode;

    /// A child with a batch of each of these timeouts, and the ids of its batches.
    fn with_timeouts(is_serial: bool, timeouts: &[Option<u64>]) -> (OpenBatches, Vec<u64>) {
        let mut open = OpenBatches::new(is_serial);
        let room = Arc::new(Semaphore::new(timeouts.len()));
        let ids = timeouts.iter().map(|seconds| {
            let (answers, room) = (mpsc::channel(1).0, Arc::clone(&room).try_acquire_owned().unwrap());
            let timeout = seconds.map(Duration::from_secs);
            open.add(OpenBatch::new(Arc::new([]), answers, Turn::default(), timeout, room))
        });
        let ids = ids.collect();
        (open, ids)
    }

    #[test]
    fn a_child_with_one_batch_at_a_time_begins_with_the_next_after_its_answer() {
        let (mut open, ids) = with_timeouts(true, &[None, None, None]);
        let begun = |open: &OpenBatches| ids.iter().map(|id| open.running(*id).is_some()).collect::<Vec<_>>();
        assert_eq!(begun(&open), [true, false, false]);
        assert!(open.end(ids[1]).is_err(), "it has not begun");
        assert!(open.end(ids[0]).is_ok() && open.end(ids[0]).is_err());
        assert_eq!(begun(&open), [false; 3]);
        open.begin_next();
        assert_eq!(begun(&open), [false, true, false]);
        drop(open.take_waiting());
        assert!(open.end(ids[1]).is_ok() && open.is_empty() && open.had_batch());
        assert_eq!(begun(&with_timeouts(false, &[None; 3]).0), [true; 3]);
    }

    #[test]
    fn a_child_that_has_ended_has_no_batch() {
        assert!(!OpenBatches::new(true).had_batch() && OpenBatches::new(true).is_empty());
        let (mut open, _) = with_timeouts(false, &[None; 2]);
        assert!(!open.is_empty());
        drop(open.close());
        assert!(open.is_empty() && open.is_leaving);
    }

    #[test]
    fn a_batch_is_overdue_after_its_timeout_once_its_callers_are_answered() {
        let (mut open, ids) = with_timeouts(false, &[Some(0), Some(3_600), None]);
        assert_eq!(open.overdue(), None);
        open.give_up(ids[1]);
        open.give_up(ids[2]);
        assert_eq!(open.overdue(), None);
        open.give_up(ids[0]);
        assert_eq!(open.overdue(), Some(Duration::ZERO));
        let (mut serial, ids) = with_timeouts(true, &[None, Some(0)]);
        serial.give_up(ids[1]);
        assert_eq!(serial.overdue(), None, "it has not begun");
    }

    /// The others have three quarters of the queue.
    #[test]
    fn cancellations_wait_for_a_place_in_the_queue_and_leave_a_quarter_of_it_free() {
        let (frames, mut written) = mpsc::channel(8);
        let mut open = OpenBatches::new(false);
        let mut count = || std::iter::from_fn(|| written.try_recv().ok()).count();
        open.cancel(&frames, 7, 0..10);
        assert_eq!((count(), open.pending_cancels.len()), (6, 4));
        open.send_cancels(&frames);
        assert_eq!((count(), open.pending_cancels.len()), (4, 0));
    }

    #[test]
    fn a_child_that_leaves_a_queue_full_is_stuck_and_one_that_has_ended_is_not() {
        let (frames, written) = mpsc::channel(1);
        let mut open = OpenBatches::new(false);
        let send = |open: &mut OpenBatches| {
            open.send(&frames, OutgoingFrame::new(&ToChild::Ping, Vec::new()));
            open.is_stuck
        };
        assert!(!send(&mut open) && send(&mut open) && send(&mut open));
        drop(written);
        assert!(!send(&mut OpenBatches::new(false)));
    }

    async fn batch_of(node: &mut WaitingNode, options: Vec<CallOptions>) -> OpenBatch {
        let mut contexts = Vec::new();
        for options in options {
            contexts.push(node.call_with(options).await);
        }
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        OpenBatch::new(contexts.into(), mpsc::channel(1).0, Turn::default(), None, room)
    }

    #[tokio::test]
    async fn a_batch_has_one_caller_if_all_its_calls_have_the_same() {
        let mut node = WaitingNode::start().await;
        let mut addresses = (1..).map(|n: u8| format!("10.0.0.{n}"));
        let mut by = |name: &str| CallOptions::new().with_caller(name).with_client_address(addresses.next().unwrap());
        for (callers, expected) in [
            (&["ada"][..], true),
            (&["ada", "ada", "ada"], true),
            (&["ada", "ada", "bob"], false),
            (&["bob", "ada"], false),
        ] {
            let batch = batch_of(&mut node, callers.iter().map(|name| by(name)).collect()).await;
            assert_eq!(batch.has_one_caller(), expected, "{callers:?}");
        }
    }

    #[tokio::test]
    async fn the_latest_call_is_the_one_that_waits_longest_of_those_whose_callers_wait() {
        let mut node = WaitingNode::start().await;
        let within = |seconds: u64| CallOptions::new().with_timeout(Duration::from_secs(seconds));
        let batch = batch_of(&mut node, vec![within(100), within(300), within(200)]).await;
        let latest = |batch: &OpenBatch| batch.latest().map(CallContext::deadline);
        assert_eq!(latest(&batch), Some(batch.contexts[1].deadline()));
        for (call, next) in [(1, Some(2)), (2, Some(0)), (0, None)] {
            node.leave(call);
            while !batch.contexts[call].is_cancelled() {
                tokio::task::yield_now().await;
            }
            assert_eq!(latest(&batch), next.map(|next: usize| batch.contexts[next].deadline()));
        }
    }

    #[tokio::test]
    async fn only_the_calls_of_batches_that_began_are_those_of_the_child() {
        let mut node = WaitingNode::start().await;
        let named = |id: &str| CallOptions::new().with_request_id(id);
        let mut open = OpenBatches::new(true);
        open.add(batch_of(&mut node, vec![CallOptions::new(), named("one")]).await);
        open.add(batch_of(&mut node, vec![named("two")]).await);
        assert_eq!(["one", "two", ""].map(|id| open.has_request(id)), [true, false, false]);
    }

    #[test]
    fn a_child_may_be_silent_as_long_as_the_slowest_of_its_methods() {
        let (mut open, ids) = with_timeouts(false, &[Some(1), Some(9), Some(3)]);
        assert_eq!(open.longest_silence(None), Some(Duration::from_secs(9)));
        open.end(ids[1]).ok().unwrap();
        assert_eq!(open.longest_silence(None), Some(Duration::from_secs(3)));
        assert_eq!(with_timeouts(false, &[Some(1), None]).0.longest_silence(None), None, "one may last for ever");
        let unlimited = Some(Duration::from_secs(5));
        assert_eq!(with_timeouts(false, &[Some(1), None]).0.longest_silence(unlimited), unlimited);
        assert_eq!(with_timeouts(false, &[]).0.longest_silence(unlimited), None);
    }
}
