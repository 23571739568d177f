//! One life of a replica, as batcher, replica and supervisor share it without a message.
//!
//! A restarted replica gets a new handle. The count of free slots alone decides whether the replica takes a batch:
//! a slot is taken to hand over a batch, and the replica gives it back. Messages are only hints to look again.
//! Most replicas have one slot; an asynchronous one has a slot for each batch that it may run at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ractor::ActorRef;

use super::in_flight::InFlightBatch;
use super::message::WorkerMessage;
use super::run::BatchRun;
use crate::clock::{self, Instant};
use crate::metrics::{ProcessUsage, UsagePort};
use crate::queue::LifeId;
use crate::restart::LifeEnd;
use crate::worker::Replica;

/// In place of the count of free slots: the replica has ended.
const GONE: u32 = u32::MAX;

/// Runs a batch on the replica whose handle it gets, or hands it to its thread or future: for a caller that has taken a
/// slot itself.
pub(crate) struct BatchPort(Box<RunBatch>);

type RunBatch = dyn Fn(BatchRun, &Arc<ReplicaHandle>) + Send + Sync;

impl BatchPort {
    pub(crate) fn new(run: impl Fn(BatchRun, &Arc<ReplicaHandle>) + Send + Sync + 'static) -> Self {
        Self(Box::new(run))
    }
}

impl fmt::Debug for BatchPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchPort")
    }
}

/// One life of a replica.
#[derive(Debug)]
pub(crate) struct ReplicaHandle {
    index: usize,
    generation: u64,
    actor: ActorRef<WorkerMessage>,
    slots: u32,
    /// Slots beside these, for batches that wait in the replica for their turn.
    ahead: u32,
    free: AtomicU32,
    /// The batches that it got.
    runs: AtomicU64,
    /// The batches that it has completed.
    batches: AtomicU64,
    /// Set before it is known to others.
    port: OnceLock<BatchPort>,
    /// The stage was scaled down: the replica gets no more batches.
    leaving: AtomicBool,
    /// A batch had begun that the life did not complete.
    ended_in_batch: AtomicBool,
    /// The batch that runs on the replica's thread or in its actor.
    batch: Mutex<Option<InFlightBatch>>,
    since: Instant,
    usage: UsagePort,
}

impl ReplicaHandle {
    pub(crate) fn new(replica: &Replica, slots: u32, ahead: u32, actor: ActorRef<WorkerMessage>) -> Self {
        let slots = slots.clamp(1, GONE - 1 - ahead);
        Self {
            index: replica.index(),
            generation: replica.generation(),
            actor,
            slots,
            ahead,
            free: AtomicU32::new(slots + ahead),
            runs: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            port: OnceLock::new(),
            leaving: AtomicBool::new(false),
            ended_in_batch: AtomicBool::new(false),
            batch: Mutex::default(),
            since: clock::now(),
            usage: replica.usage.clone(),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// This life among those of the stage.
    pub(crate) fn life(&self) -> LifeId {
        LifeId { replica: self.index, generation: self.generation }
    }

    pub(crate) fn actor(&self) -> &ActorRef<WorkerMessage> {
        &self.actor
    }

    /// Takes a slot if one is free.
    pub(crate) fn try_take(&self) -> bool {
        self.change(|free| (free > self.ahead).then(|| free - 1))
    }

    /// Takes the slot of a batch that waits for its turn, if there is one. Only the batcher calls this.
    pub(crate) fn try_take_ahead(&self) -> bool {
        self.change(|free| free.checked_sub(1))
    }

    /// Gives back a slot whose batch was not completed.
    pub(crate) fn give_back(&self) {
        self.change(|free| Some((free + 1).min(self.slots + self.ahead)));
    }

    /// Gives back the slot of a completed batch. Sequentially consistent with the pool's count of queued entries:
    /// either the batcher sees the free slot, or the replica sees the waiting entry.
    pub(crate) fn release(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.give_back();
    }

    /// The replica has ended: it will never be free again.
    pub(crate) fn retire(&self) {
        self.free.store(GONE, Ordering::SeqCst);
    }

    /// When this life began.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Measures its process, if it has one of its own.
    pub(crate) fn usage(&self) -> Option<ProcessUsage> {
        self.usage.measure()
    }

    /// Notes that the replica is leaving.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.free.load(Ordering::SeqCst) == GONE
    }

    /// The most batches that it runs at once.
    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }

    /// The number of batches that it would take now.
    pub(crate) fn free_slots(&self) -> u32 {
        match self.free.load(Ordering::SeqCst) {
            GONE => 0,
            free => free.saturating_sub(self.ahead),
        }
    }

    /// The number of batches that it runs now.
    pub(crate) fn running(&self) -> u32 {
        match self.free.load(Ordering::SeqCst) {
            GONE => 0,
            free => (self.slots + self.ahead - free).min(self.slots),
        }
    }

    pub(crate) fn set_port(&self, port: BatchPort) {
        let _ = self.port.set(port);
    }

    /// Runs a batch, or hands it to the replica's thread or future, without its actor. The slot was taken. A batch that
    /// a replica at its end does not take goes back to the queue.
    pub(crate) fn run(self: &Arc<Self>, run: BatchRun) {
        if let Some(port) = self.port.get() {
            (port.0)(run, self);
        }
    }

    /// The number of the next batch among those of this life, from 1.
    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of batches that this life got.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// The number of batches that this life has completed.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Notes that the replica is about to end with a batch that had begun, whatever its contract.
    pub(crate) fn note_end_in_batch(&self) {
        self.ended_in_batch.store(true, Ordering::Release);
    }

    /// How this life has ended, for its supervisor.
    pub(crate) fn end(&self) -> LifeEnd {
        let has_worked = self.batches() > 0 || self.ended_in_batch.load(Ordering::Acquire);
        if has_worked { LifeEnd::Worked } else { LifeEnd::Unused }
    }

    /// Keeps the batch here while user code has its inputs.
    pub(crate) fn put_batch(&self, batch: InFlightBatch) {
        *self.batch.lock() = Some(batch);
    }

    /// Takes the batch back. `None`: it was taken before, because the call was given up as hung.
    pub(crate) fn take_batch(&self) -> Option<InFlightBatch> {
        self.batch.lock().take()
    }

    /// Takes the batch if it is still that of this run.
    pub(crate) fn take_batch_of(&self, run: u64) -> Option<InFlightBatch> {
        self.batch.lock().take_if(|batch| batch.run() == run)
    }

    fn change(&self, change: impl Fn(u32) -> Option<u32>) -> bool {
        let changed = self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| match free {
            GONE => None,
            free => change(free),
        });
        changed.is_ok()
    }
}
