//! The entrance of a stage's queue: the permits that bound it, the inbox, and the address of the batcher.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ractor::ActorRef;

use super::message::BatcherMessage;
use crate::queue::{Entry, HOSTED_BITS, HostedId, Inbox, QueuePermits};

/// The entrance of one stage's queue. The queue itself is the batcher's own.
#[derive(Debug)]
pub(crate) struct QueueEntrance {
    pub(crate) permits: QueuePermits,
    /// What the stages of the same replicas share.
    line: Arc<WaitingLine>,
    /// The cost of the queue, as the batcher last reported it; only where the stage has a cost function.
    queued_cost: AtomicU64,
}

/// The way of entries to one batcher.
#[derive(Debug, Default)]
struct WaitingLine {
    inbox: Inbox,
    /// Set before the stage accepts its first entry.
    batcher: OnceLock<ActorRef<BatcherMessage>>,
    sequence: AtomicU64,
    /// Batches that were handed over.
    batches: AtomicU64,
    /// The stage and the cost of the last of them.
    last_stage: AtomicU32,
    last_cost: AtomicU64,
    /// Entries run apart from others: only the batcher knows which replica is free.
    is_isolating: AtomicBool,
}

impl QueueEntrance {
    /// For this many entries. With the entrance of another stage, they wait for the same batcher.
    pub(super) fn new(entries: usize, of: Option<&Self>) -> Self {
        let line = of.map_or_else(Arc::default, |entrance| Arc::clone(&entrance.line));
        Self { permits: QueuePermits::new(entries), line, queued_cost: AtomicU64::new(0) }
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.line.inbox
    }

    pub(crate) fn set_batcher(&self, batcher: ActorRef<BatcherMessage>) {
        let _ = self.line.batcher.set(batcher);
    }

    /// Sends a message to the batcher. False: it is gone, and its queue with it.
    pub(super) fn tell_batcher(&self, message: BatcherMessage) -> bool {
        self.line.batcher.get().is_some_and(|batcher| batcher.send_message(message).is_ok())
    }

    /// The number of the next entry of a stage.
    pub(super) fn next_sequence(&self, stage: HostedId) -> u64 {
        self.line.sequence.fetch_add(1 << HOSTED_BITS, Ordering::Relaxed) | u64::from(stage)
    }

    /// Puts an entry into the inbox; the first one there sends a message. False: the batcher is gone.
    pub(super) fn put(&self, entry: Entry) -> bool {
        match self.line.inbox.put(entry) {
            Ok(true) => self.tell_batcher(BatcherMessage::Submitted),
            Ok(false) => true,
            Err(_unqueued) => false,
        }
    }

    /// A batch of a stage, of this cost, is about to be handed over. Returns its number.
    pub(crate) fn next_batch(&self, stage: HostedId, cost: u64) -> u64 {
        self.line.last_stage.store(stage, Ordering::Relaxed);
        self.line.last_cost.store(cost, Ordering::Relaxed);
        self.line.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The stage and the cost of the last batch.
    pub(crate) fn last_batch(&self) -> (HostedId, u64) {
        (self.line.last_stage.load(Ordering::Relaxed), self.line.last_cost.load(Ordering::Relaxed))
    }

    /// Sequentially consistent with the replicas' slots: either a caller that takes one sees this, or the batcher sees
    /// the taken slot.
    pub(crate) fn set_isolating(&self, is_isolating: bool) {
        self.line.is_isolating.store(is_isolating, Ordering::SeqCst);
    }

    pub(super) fn is_isolating(&self) -> bool {
        self.line.is_isolating.load(Ordering::SeqCst)
    }

    pub(super) fn queued_cost(&self) -> u64 {
        self.queued_cost.load(Ordering::Relaxed)
    }

    pub(super) fn set_queued_cost(&self, cost: u64) {
        self.queued_cost.store(cost, Ordering::Relaxed);
    }
}
