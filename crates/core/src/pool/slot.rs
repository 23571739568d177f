//! What a worker and the batcher know about each other without sending a message.
//!
//! The slot is one replica's life from start to end; a restarted replica gets a new one. Its count of free seats is the only
//! truth on whether the worker takes a batch: the batcher takes one when it hands over a batch, the worker puts it back.
//! Messages are only hints to look again. Most workers have one seat; an asynchronous one has as many as batches that it
//! works on at once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use ractor::ActorRef;

use super::hand::Hand;
use super::message::WorkerMessage;
use crate::clock::{self, Instant};

/// In place of the count of free seats: the replica is over.
const GONE: u32 = u32::MAX;

/// Why a replica ended, where that decides what its supervisor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// User code panicked, or something that is not told apart.
    Crash,
    /// User code panicked in a batch that is being searched for the entry that does it.
    Poison,
    /// A call did not come back in time; its thread was let go.
    Hung,
}

/// One running replica, as the batcher sees it.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    index: usize,
    generation: u64,
    actor: ActorRef<WorkerMessage>,
    seats: u32,
    free: AtomicU32,
    batches: AtomicU64,
    /// It gets no more batches: the stage was scaled down.
    leaving: AtomicBool,
    death: AtomicU8,
    /// The batch that runs on the worker's own thread or in its actor.
    hand: Mutex<Option<Hand>>,
    since: Instant,
}

impl WorkerSlot {
    pub(crate) fn new(index: usize, generation: u64, seats: u32, actor: ActorRef<WorkerMessage>) -> Self {
        let seats = seats.clamp(1, GONE - 1);
        Self {
            index,
            generation,
            actor,
            seats,
            free: AtomicU32::new(seats),
            batches: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            death: AtomicU8::new(Death::Crash as u8),
            hand: Mutex::default(),
            since: clock::now(),
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

    /// Takes a seat if one is free. Only the batcher does this.
    pub(crate) fn try_take(&self) -> bool {
        self.change(|free| free.checked_sub(1))
    }

    /// Gives a seat back that was taken and then not needed.
    pub(crate) fn give_back(&self) {
        self.change(|free| Some((free + 1).min(self.seats)));
    }

    /// The worker has finished a batch. Sequentially consistent with the pool's count of queued entries, so that either the
    /// batcher sees the free seat or the worker sees the waiting entry.
    pub(crate) fn release(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.give_back();
    }

    /// The replica is over: it will never be free again.
    pub(crate) fn retire(&self) {
        self.free.store(GONE, Ordering::SeqCst);
    }

    /// When this life began.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Notes that the replica was told to leave.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.free.load(Ordering::SeqCst) == GONE
    }

    /// How many batches it works on at most.
    pub(crate) fn seats(&self) -> usize {
        self.seats as usize
    }

    /// How many batches it would take now.
    pub(crate) fn free_seats(&self) -> u32 {
        match self.free.load(Ordering::Relaxed) {
            GONE => 0,
            free => free,
        }
    }

    /// How many batches it works on now.
    pub(crate) fn running(&self) -> u32 {
        match self.free.load(Ordering::Relaxed) {
            GONE => 0,
            free => self.seats - free,
        }
    }

    /// How many batches this life of the replica completed.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Says why the replica is about to end.
    pub(crate) fn note_death(&self, death: Death) {
        self.death.store(death as u8, Ordering::Release);
    }

    pub(crate) fn death(&self) -> Death {
        match self.death.load(Ordering::Acquire) {
            death if death == Death::Poison as u8 => Death::Poison,
            death if death == Death::Hung as u8 => Death::Hung,
            _ => Death::Crash,
        }
    }

    /// Puts down what the batch in hand owes its callers, while user code has their inputs.
    pub(crate) fn put_hand(&self, hand: Hand) {
        *self.hand.lock() = Some(hand);
    }

    /// Takes it up again. `None`: it was taken away meanwhile, because the call was given up as hung.
    pub(crate) fn take_hand(&self) -> Option<Hand> {
        self.hand.lock().take()
    }

    /// Takes it if it still is the hand of this run.
    pub(crate) fn take_hand_of(&self, run: u64) -> Option<Hand> {
        self.hand.lock().take_if(|hand| hand.run() == run)
    }

    fn change(&self, change: impl Fn(u32) -> Option<u32>) -> bool {
        let changed = self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| match free {
            GONE => None,
            free => change(free),
        });
        changed.is_ok()
    }
}
