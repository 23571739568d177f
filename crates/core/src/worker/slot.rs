//! What a worker and the batcher know about each other without sending a message.
//!
//! The slot is one replica's life from start to end; a restarted replica gets a new one. Its status is the only truth on
//! whether the worker is free: the batcher takes it from `Idle` to `Busy` when it hands over a batch, the worker puts it
//! back. Messages are only hints to look again.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use ractor::ActorRef;

use super::message::WorkerMessage;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const GONE: u8 = 2;

/// One running replica, as the batcher sees it.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    index: usize,
    generation: u64,
    actor: ActorRef<WorkerMessage>,
    status: AtomicU8,
    batches: AtomicU64,
    /// It gets no more batches: the stage was scaled down.
    leaving: AtomicBool,
}

impl WorkerSlot {
    pub(crate) fn new(index: usize, generation: u64, actor: ActorRef<WorkerMessage>) -> Self {
        Self {
            index,
            generation,
            actor,
            status: AtomicU8::new(IDLE),
            batches: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn actor(&self) -> &ActorRef<WorkerMessage> {
        &self.actor
    }

    /// Takes the worker if it is free. Only the batcher does this.
    pub(crate) fn try_take(&self) -> bool {
        self.status.compare_exchange(IDLE, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Gives a worker back that was taken and then not needed.
    pub(crate) fn give_back(&self) {
        let _ = self.status.compare_exchange(BUSY, IDLE, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The worker has finished a batch and is free again. Sequentially consistent with the pool's count of queued entries, so that either the
    /// batcher sees the free worker or the worker sees the waiting entry.
    pub(crate) fn release(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.give_back();
    }

    /// The replica is over: it will never be free again.
    pub(crate) fn retire(&self) {
        self.status.store(GONE, Ordering::SeqCst);
    }

    /// Notes that the replica was told to leave.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.status.load(Ordering::SeqCst) == GONE
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.status.load(Ordering::Relaxed) == BUSY
    }

    /// How many batches this life of the replica completed.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }
}
