//! One batch, from a free worker's hands to its callers.
//!
//! Runs wherever the worker's seat is. Whatever happens to user code, every entry is answered exactly once and the worker
//! is marked free or gone before this returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::erased::{DynWorker, Item, ItemOutcome, WrongCount};
use super::slot::WorkerSlot;
use crate::batcher::{Entry, Pool, ReplyPort, StageReply};
use crate::call::Timing;
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::metrics::Place;

/// A formed batch on its way to a worker.
pub(crate) struct BatchRun {
    pub(crate) entries: Vec<Entry>,
    pub(crate) formed_at: Instant,
}

/// An entry that is about to run: who gets the answer, and how long it waited.
struct Seated {
    reply: ReplyPort,
    timing: Timing,
}

/// User code panicked; the replica is over. Holds the panic's message.
#[derive(Debug, thiserror::Error)]
#[error("the worker panicked: {0}")]
pub(crate) struct Panicked(pub(crate) String);

impl BatchRun {
    /// Runs the batch and answers every entry.
    pub(crate) fn execute(
        self,
        worker: &mut dyn DynWorker,
        pool: &Arc<Pool>,
        slot: &WorkerSlot,
    ) -> Result<(), Panicked> {
        let started_at = clock::now();
        let (mut items, seated, cost) = self.seat(pool, started_at);
        if items.is_empty() {
            pool.release_worker(slot);
            return Ok(());
        }

        let mut outcomes = Vec::with_capacity(items.len());
        let ran = catch_unwind(AssertUnwindSafe(|| worker.run(&mut items, &mut outcomes)));
        let finished_at = clock::now();
        pool.record_run(cost, started_at, finished_at);

        match ran {
            // A full batch waits: the batcher can hand it over while this one's callers are woken.
            Ok(Ok(())) if pool.has_full_batch() => {
                pool.release_worker(slot);
                answer(pool, seated, outcomes, finished_at - started_at);
                Ok(())
            }
            // Else the callers first, so that their next requests can join the next batch.
            Ok(Ok(())) => {
                answer(pool, seated, outcomes, finished_at - started_at);
                pool.release_worker(slot);
                Ok(())
            }
            Ok(Err(wrong)) => {
                pool.release_worker(slot);
                refuse_wrong_count(pool, seated, &wrong);
                Ok(())
            }
            Err(panic) => {
                let panicked = Panicked(panic_message(panic.as_ref()));
                slot.retire();
                for entry in seated {
                    let error = CallError::new(ErrorKind::WorkerFailed, panicked.to_string())
                        .at_stage(pool.name())
                        .with_trace(&panicked.0);
                    entry.reply.send(Err(error));
                }
                Err(panicked)
            }
        }
    }

    /// Leaves out what nobody wants any more, and splits the rest into input and answer. Also gives what it costs together.
    fn seat(self, pool: &Pool, now: Instant) -> (Vec<Item>, Vec<Seated>, u64) {
        let mut items = Vec::with_capacity(self.entries.len());
        let mut seated = Vec::with_capacity(self.entries.len());
        let mut cost = 0;
        let batch = now.saturating_duration_since(self.formed_at);
        for entry in self.entries {
            if !entry.flight.is_wanted(now) {
                pool.discard(entry, now, Place::Worker);
                continue;
            }
            let queue = self.formed_at.saturating_duration_since(entry.enqueued_at);
            let timing = Timing { queue, batch, ..Timing::default() };
            cost += entry.cost;
            items.push(Item { payload: entry.payload, flight: entry.flight });
            seated.push(Seated { reply: entry.reply, timing });
        }
        (items, seated, cost)
    }
}

fn answer(pool: &Pool, seated: Vec<Seated>, outcomes: Vec<ItemOutcome>, compute: std::time::Duration) {
    for (entry, outcome) in seated.into_iter().zip(outcomes) {
        let timing = Timing { compute, ..entry.timing };
        pool.record_waits(&timing);
        entry.reply.send(match outcome {
            Ok(payload) => Ok(StageReply { payload, timing }),
            Err(failure) => Err(CallError::from_failure(failure, pool.name())),
        });
    }
}

fn refuse_wrong_count(pool: &Pool, seated: Vec<Seated>, wrong: &WrongCount) {
    tracing::error!(stage = %pool.name(), expected = wrong.expected, got = wrong.got, "wrong number of results");
    for entry in seated {
        let error = CallError::new(ErrorKind::WorkerFailed, wrong.to_string()).at_stage(pool.name());
        entry.reply.send(Err(error));
    }
}

/// The text of a panic, as far as it has one.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
