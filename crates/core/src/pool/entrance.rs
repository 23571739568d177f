//! The entrance of a stage's queue: the permits that bound it, the inbox, and the address of the batcher.

use std::sync::atomic::{AtomicU64, Ordering};
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

    pub(super) fn queued_cost(&self) -> u64 {
        self.queued_cost.load(Ordering::Relaxed)
    }

    pub(super) fn set_queued_cost(&self, cost: u64) {
        self.queued_cost.store(cost, Ordering::Relaxed);
    }
}
