//! Runs one batch and answers its callers.
//!
//! Whatever user code does, every entry is answered exactly once, and the replica is marked free or gone before this
//! returns. A batch that is dropped before it began goes back to the queue.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::Instrument;

use super::handle::Pool;
use super::in_flight::InFlightBatch;
use super::message::BatcherMessage;
use super::replica::ReplicaHandle;
use crate::clock::{self, Instant};
use crate::containment::{CaughtPanic, contain, contain_future, drop_contained};
use crate::metrics::DiscardPlace;
use crate::queue::{Entry, Suspicion};
use crate::timeline::{BatchFacts, RunEnd};
use crate::worker::{DynAsyncWorker, DynWorker, Item, ItemOutcome, Turn, WrongCount, span};

/// A formed batch on its way to a worker.
#[derive(Debug)]
pub(crate) struct BatchRun {
    pool: Arc<Pool>,
    entries: Vec<Entry>,
    formed_at: Instant,
    facts: BatchFacts,
    suspicion: Suspicion,
    /// The number of this run among those of its replica; set by the replica's actor.
    pub(crate) number: u64,
    /// What comes first after it, if its code is on the runtime.
    finish_on_runtime: Finish,
}

/// What comes first after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The answers. Whoever takes the slot next finds the worker idle.
    AnswersFirst,
    /// The slot, if a full batch waits.
    MayRelease,
    /// The answers. The batcher runs the batch in its own turn, and needs no message of the free slot.
    AnswersInBatcher,
}

impl Finish {
    /// A slot is free.
    fn tell_batcher(self, pool: &Pool) {
        if self != Self::AnswersInBatcher {
            pool.tell_of_free_slot();
        }
    }
}

/// Why a replica cannot go on after a batch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// User code panicked.
    #[error("{}", .0.in_worker())]
    Panicked(CaughtPanic),
    /// User code came back after the stage's timeout, when its callers had been answered.
    #[error("the worker came back after it was given up")]
    Abandoned,
}

/// How the wait of a batch for its turn ended.
enum AheadEnd {
    /// Its worker has begun, and may have ended it already.
    Begun(Option<RunResult>),
    /// Its worker ended before.
    Lost(CaughtPanic),
    /// All callers have left before.
    WithoutCallers,
}

impl BatchRun {
    pub(crate) fn new(
        pool: Arc<Pool>,
        entries: Vec<Entry>,
        formed_at: Instant,
        facts: BatchFacts,
        suspicion: Suspicion,
        finish_on_runtime: Finish,
    ) -> Self {
        Self { pool, entries, formed_at, facts, suspicion, number: 0, finish_on_runtime }
    }

    /// Whether its stage is tested on virtual time.
    pub(crate) fn has_virtual_time(&self) -> bool {
        self.pool.settings().has_virtual_time()
    }

    /// What comes first after this batch of code on the runtime.
    pub(crate) fn finish_on_runtime(&self) -> Finish {
        self.finish_on_runtime
    }

    /// Runs the batch and answers every entry.
    pub(crate) fn execute(
        mut self,
        worker: &mut dyn DynWorker,
        handle: &ReplicaHandle,
        order: Finish,
    ) -> Result<(), RunError> {
        let pool = Arc::clone(&self.pool);
        let started_at = clock::now();
        let (mut items, batch) = self.begin(started_at);
        if items.is_empty() {
            handle.give_back();
            order.tell_batcher(&pool);
            return Ok(());
        }

        handle.put_batch(batch);
        let mut outcomes = Vec::with_capacity(items.len());
        let span = span::for_run(pool.name(), handle.index(), &items);
        let result = contain(|| span.in_scope(|| worker.run(pool.name(), &mut items, &mut outcomes)));
        let Some(batch) = handle.take_batch() else {
            drop_contained((items, outcomes));
            return Err(RunError::Abandoned);
        };
        let finished_at = clock::now();
        let compute = finished_at - started_at;
        batch.record_run(compute, finished_at);
        let result = match result {
            Ok(result) => Ok(result.map(|()| outcomes)),
            Err(words) => {
                drop_contained((items, outcomes));
                Err(words)
            }
        };
        finish(&pool, handle, batch, result, (compute, finished_at), order)
    }

    /// Runs the batch on an asynchronous worker. When all of its callers have gone, its future is dropped. Where
    /// batches are handed over ahead, this one begins when its worker says so.
    pub(crate) async fn execute_async(
        mut self,
        worker: Arc<dyn DynAsyncWorker>,
        handle: &ReplicaHandle,
    ) -> Result<(), RunError> {
        let pool = Arc::clone(&self.pool);
        let mut started_at = clock::now();
        let (items, mut batch) = if pool.settings().hands_ahead() {
            (InFlightBatch::lend(&pool, &mut self.entries, started_at), None)
        } else {
            let (items, batch) = self.begin(started_at);
            (items, Some(batch))
        };
        if items.is_empty() {
            pool.give_back_worker(handle);
            return Ok(());
        }

        let span = span::for_run(pool.name(), handle.index(), &items);
        let (turn, begun) = Turn::pair();
        let mut running = pin!(contain_future(worker.run(pool.name(), items, turn).instrument(span)));
        let mut batch = match batch.take() {
            Some(batch) => batch,
            None => match self.until_turn(running.as_mut(), begun).await {
                AheadEnd::Begun(result) => {
                    started_at = clock::now();
                    let (batch, result) = (self.begin_lent(started_at), result);
                    if let Some(result) = result {
                        return finish_run(&pool, handle, batch, result, started_at);
                    }
                    batch
                }
                // The entries go back to the queue.
                AheadEnd::Lost(words) => {
                    handle.retire();
                    return Err(RunError::Panicked(words));
                }
                AheadEnd::WithoutCallers => {
                    for entry in std::mem::take(&mut self.entries) {
                        pool.discard(entry, clock::now(), DiscardPlace::Worker);
                    }
                    pool.give_back_worker(handle);
                    return Ok(());
                }
            },
        };
        let running = while_callers_wait(running, batch.entries_mut());
        let result = match pool.settings().timeout() {
            Some(timeout) => match tokio::time::timeout(timeout, running).await {
                Ok(result) => result,
                Err(_) => {
                    pool.metrics.hung.inc();
                    pool.give_back_worker(handle);
                    batch.give_up_waiting(timeout);
                    return Ok(());
                }
            },
            None => running.await,
        };
        let Some(result) = result else {
            // All callers have left; the worker itself is sound.
            pool.give_back_worker(handle);
            batch.record_without_callers(clock::now());
            return Ok(());
        };
        finish_run(&pool, handle, batch, result, started_at)
    }

    /// Waits for the turn of a batch that was handed over ahead.
    async fn until_turn(
        &mut self,
        mut running: Pin<&mut impl Future<Output = RunResult>>,
        mut begun: oneshot::Receiver<()>,
    ) -> AheadEnd {
        let (mut is_begun, mut is_dropped) = (false, false);
        poll_fn(|context| {
            let result = running.as_mut().poll(context);
            if !is_begun && !is_dropped {
                match Pin::new(&mut begun).poll(context) {
                    Poll::Ready(turn) => (is_begun, is_dropped) = (turn.is_ok(), turn.is_err()),
                    Poll::Pending => {}
                }
            }
            match result {
                Poll::Ready(Err(words)) if !is_begun => Poll::Ready(AheadEnd::Lost(words)),
                Poll::Ready(result) => Poll::Ready(AheadEnd::Begun(Some(result))),
                Poll::Pending if is_begun => Poll::Ready(AheadEnd::Begun(None)),
                Poll::Pending if have_callers_left(&mut self.entries, context) => Poll::Ready(AheadEnd::WithoutCallers),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn begin_lent(&mut self, now: Instant) -> InFlightBatch {
        let entries = std::mem::take(&mut self.entries);
        let Self { pool, number, formed_at, facts, suspicion, .. } = self;
        InFlightBatch::begin(pool, entries, *number, *formed_at, now, *facts, *suspicion)
    }

    fn begin(&mut self, now: Instant) -> (Vec<Item>, InFlightBatch) {
        let entries = std::mem::take(&mut self.entries);
        let Self { pool, number, formed_at, facts, suspicion, .. } = self;
        InFlightBatch::take(pool, entries, *number, *formed_at, now, *facts, *suspicion)
    }
}

impl Drop for BatchRun {
    /// The batch has not begun: its entries go back to the queue.
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            let entries = std::mem::take(&mut self.entries);
            entries.iter().for_each(|entry| entry.note_again(self.pool.name(), RunEnd::NotBegun));
            // Entries under bisection stay apart from the others.
            let back = if self.facts.is_isolating() {
                BatcherMessage::Isolate { entries, suspicion: self.suspicion, life: None }
            } else {
                BatcherMessage::TakeBack(entries)
            };
            self.pool.tell_batcher(back);
        }
    }
}

type RunResult = Result<Result<Vec<ItemOutcome>, WrongCount>, CaughtPanic>;

/// Drives the worker's future while at least one caller waits. `None`: all callers have left.
async fn while_callers_wait(
    mut running: Pin<&mut impl Future<Output = RunResult>>,
    entries: &mut [Entry],
) -> Option<RunResult> {
    poll_fn(|context| {
        if let Poll::Ready(result) = running.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if have_callers_left(entries, context) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Whether no caller waits any more. Registers with the first that is still there; when it leaves, with the next.
fn have_callers_left(entries: &mut [Entry], context: &mut Context<'_>) -> bool {
    entries.iter_mut().all(|entry| entry.reply.poll_closed(context).is_ready())
}

fn finish_run(
    pool: &Pool,
    handle: &ReplicaHandle,
    batch: InFlightBatch,
    result: RunResult,
    started_at: Instant,
) -> Result<(), RunError> {
    let finished_at = clock::now();
    let compute = finished_at - started_at;
    batch.record_run(compute, finished_at);
    finish(pool, handle, batch, result, (compute, finished_at), Finish::MayRelease)
}

/// Answers the callers and frees the replica, or handles the panic.
fn finish(
    pool: &Pool,
    handle: &ReplicaHandle,
    batch: InFlightBatch,
    result: RunResult,
    (compute, now): (Duration, Instant),
    order: Finish,
) -> Result<(), RunError> {
    match result {
        // A full batch waits: the batcher can hand it over while the callers of this one are woken.
        Ok(Ok(outcomes)) if order == Finish::MayRelease && pool.queued() >= pool.policy().max_batch_size.get() => {
            pool.release_worker(handle);
            batch.answer(outcomes, compute, now);
            Ok(())
        }
        // Otherwise the callers first, so that their next requests can join the next batch.
        Ok(Ok(outcomes)) => {
            batch.answer(outcomes, compute, now);
            handle.release();
            order.tell_batcher(pool);
            Ok(())
        }
        Ok(Err(wrong)) => {
            batch.refuse_wrong_count(&wrong);
            handle.release();
            order.tell_batcher(pool);
            Ok(())
        }
        Err(words) => {
            handle.retire();
            handle.note_end_in_batch();
            batch.after_panic(&words, handle);
            Err(RunError::Panicked(words))
        }
    }
}
