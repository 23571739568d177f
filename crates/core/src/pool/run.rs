//! One batch, from a free worker's hands to its callers.
//!
//! Runs wherever the worker's seat is. Whatever happens to user code, every entry is answered exactly once and the worker
//! is marked free or gone before this returns. A batch that is dropped before it began goes back to the queue.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use super::hand::Hand;
use super::handle::Pool;
use super::message::BatcherMessage;
use super::slot::{Death, WorkerSlot};
use crate::clock::{self, Instant};
use crate::containment::{Panicked, contain, contain_future, drop_contained};
use crate::queue::Entry;
use crate::timeline::{BatchFacts, RunEnd};
use crate::worker::{DynAsyncWorker, DynWorker, Item, ItemOutcome, WrongCount, span};

/// A formed batch on its way to a worker.
#[derive(Debug)]
pub(crate) struct BatchRun {
    pool: Arc<Pool>,
    entries: Vec<Entry>,
    formed_at: Instant,
    facts: BatchFacts,
    /// How often its one entry was alone when a worker died.
    lone_crashes: u32,
    /// Which run of its worker this is; told by the worker's actor.
    pub(crate) number: u64,
}

/// Why a replica cannot go on after a batch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// User code panicked.
    #[error("the worker panicked: {0}")]
    Panicked(Panicked),
    /// The callers were answered while user code ran: it came back after its stage's timeout.
    #[error("the worker came back after it was given up")]
    Abandoned,
}

impl BatchRun {
    pub(crate) fn new(
        pool: Arc<Pool>,
        entries: Vec<Entry>,
        formed_at: Instant,
        facts: BatchFacts,
        lone_crashes: u32,
    ) -> Self {
        Self { pool, entries, formed_at, facts, lone_crashes, number: 0 }
    }

    /// Runs the batch and answers every entry.
    pub(crate) fn execute(self, worker: &mut dyn DynWorker, slot: &WorkerSlot) -> Result<(), RunError> {
        let pool = Arc::clone(&self.pool);
        let (taken_at, started_at) = (self.formed_at, clock::now());
        let (mut items, hand) = self.begin(started_at);
        if items.is_empty() {
            pool.give_back_worker(slot);
            return Ok(());
        }

        let cost = hand.cost();
        slot.put_hand(hand);
        let mut outcomes = Vec::with_capacity(items.len());
        let span = span::of_run(pool.name(), slot.index(), &items);
        let ran = contain(|| span.in_scope(|| worker.run(pool.name(), &mut items, &mut outcomes)));
        let Some(hand) = slot.take_hand() else {
            drop_contained((items, outcomes));
            return Err(RunError::Abandoned);
        };
        let finished_at = clock::now();
        pool.record_run(cost, taken_at, started_at, finished_at);
        let ran = match ran {
            Ok(ran) => Ok(ran.map(|()| outcomes)),
            Err(words) => {
                drop_contained((items, outcomes));
                Err(words)
            }
        };
        finish(&pool, slot, hand, ran, finished_at - started_at, finished_at)
    }

    /// Runs the batch on an asynchronous worker. When all of its callers have gone, its future is dropped.
    pub(crate) async fn execute_async(
        self,
        worker: Arc<dyn DynAsyncWorker>,
        slot: &WorkerSlot,
    ) -> Result<(), RunError> {
        let pool = Arc::clone(&self.pool);
        let (taken_at, started_at) = (self.formed_at, clock::now());
        let (items, mut hand) = self.begin(started_at);
        if items.is_empty() {
            pool.give_back_worker(slot);
            return Ok(());
        }

        let cost = hand.cost();
        let span = span::of_run(pool.name(), slot.index(), &items);
        let running = while_wanted(worker.run(pool.name(), items).instrument(span), &mut hand);
        let ran = match pool.settings().timeout() {
            Some(timeout) => match tokio::time::timeout(timeout, running).await {
                Ok(ran) => ran,
                Err(_) => {
                    pool.metrics().hung();
                    pool.give_back_worker(slot);
                    hand.give_up_waiting(timeout);
                    return Ok(());
                }
            },
            None => running.await,
        };
        let Some(ran) = ran else {
            // All callers have gone; the worker is as good as before.
            pool.give_back_worker(slot);
            hand.answer_nobody(clock::now());
            return Ok(());
        };
        let finished_at = clock::now();
        pool.record_run(cost, taken_at, started_at, finished_at);
        finish(&pool, slot, hand, ran, finished_at - started_at, finished_at)
    }

    fn begin(mut self, now: Instant) -> (Vec<Item>, Hand) {
        let entries = std::mem::take(&mut self.entries);
        let (items, hand) = Hand::take(&self.pool, entries, self.number, self.formed_at, now, self.facts);
        (items, hand.after_crashes(self.lone_crashes))
    }
}

impl Drop for BatchRun {
    /// Nothing of it has begun: a worker that ends takes no batch with it that it only had been told of.
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            let entries = std::mem::take(&mut self.entries);
            entries.iter().for_each(|entry| entry.note_again(self.pool.name(), RunEnd::NotBegun));
            // Suspects stay apart from the others.
            let back = match self.facts.is_isolating() {
                true => BatcherMessage::Isolate { entries, lone_crashes: self.lone_crashes },
                false => BatcherMessage::TakeBack(entries),
            };
            self.pool.tell_batcher(back);
        }
    }
}

type Ran = Result<Result<Vec<ItemOutcome>, WrongCount>, Panicked>;

/// Drives the worker's future for as long as one of the callers is there. `None`: all of them have gone.
async fn while_wanted(
    running: impl Future<Output = Result<Vec<ItemOutcome>, WrongCount>>,
    hand: &mut Hand,
) -> Option<Ran> {
    let mut running = pin!(contain_future(running));
    poll_fn(|context| {
        if let Poll::Ready(ran) = running.as_mut().poll(context) {
            return Poll::Ready(Some(ran));
        }
        let mut entries = hand.entries_mut().iter_mut();
        // Registers with the first caller that is still there; when that one goes, the next is asked.
        let all_gone = entries.all(|entry| entry.reply.poll_closed(context).is_ready());
        if all_gone { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Answers the callers and frees the worker, or sees to what follows from a panic.
fn finish(
    pool: &Pool,
    slot: &WorkerSlot,
    hand: Hand,
    ran: Ran,
    compute: Duration,
    now: Instant,
) -> Result<(), RunError> {
    match ran {
        // A full batch waits: the batcher can hand it over while this one's callers are woken.
        Ok(Ok(outcomes)) if pool.has_full_batch() => {
            pool.release_worker(slot);
            hand.answer(outcomes, compute, now);
            Ok(())
        }
        // Else the callers first, so that their next requests can join the next batch.
        Ok(Ok(outcomes)) => {
            hand.answer(outcomes, compute, now);
            pool.release_worker(slot);
            Ok(())
        }
        Ok(Err(wrong)) => {
            pool.release_worker(slot);
            hand.refuse_wrong_count(&wrong);
            Ok(())
        }
        Err(words) => {
            slot.retire();
            if hand.after_panic(&words) {
                slot.note_death(Death::Poison);
            }
            Err(RunError::Panicked(words))
        }
    }
}
