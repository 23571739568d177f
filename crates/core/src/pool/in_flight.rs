//! The batch that a replica runs: it owns the reply ports of its entries while user code has their inputs.
//!
//! The run answers as soon as user code returns. If it does not return, the replica's actor takes the batch and answers
//! instead. So every entry has exactly one outcome.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Pool;
use super::message::BatcherMessage;
use super::replica::ReplicaHandle;
use crate::clock::{self, Instant};
use crate::containment::CaughtPanic;
use crate::error::{CallError, ErrorKind};
use crate::metrics::DiscardPlace;
use crate::queue::{Entry, EntryReply, Suspicion};
use crate::timeline::{BatchFacts, BatchObserver, EndedBatch, RunEnd, SpanId, Timing};
use crate::worker::{Item, ItemOutcome, WrongCount};

/// The entries of one batch that runs, and the replies that it owes.
#[derive(Debug)]
pub(crate) struct InFlightBatch {
    pool: Arc<Pool>,
    run: u64,
    entries: Vec<Entry>,
    /// From the forming of the batch until user code began, the same for all.
    batch: Duration,
    formed_at: Instant,
    facts: BatchFacts,
    suspicion: Suspicion,
    /// Present if a member is traced.
    trace: Option<Box<BatchTrace>>,
}

impl InFlightBatch {
    /// Drops entries without a waiting caller, and splits the rest into inputs for user code and replies to send.
    pub(crate) fn take(
        pool: &Arc<Pool>,
        mut entries: Vec<Entry>,
        run: u64,
        formed_at: Instant,
        now: Instant,
        facts: BatchFacts,
        suspicion: Suspicion,
    ) -> (Vec<Item>, Self) {
        discard_unwanted(pool, &mut entries, now);
        let keeps_inputs = pool.spec.contract().may_run_again();
        let mut items = Vec::with_capacity(entries.len());
        entries.retain_mut(|entry| {
            let payload = if keeps_inputs { entry.payload.get().cloned() } else { entry.payload.take() };
            // Always present: only a run takes the input, and a run without kept inputs is not repeated.
            let Some(payload) = payload else { return false };
            items.push(Item { payload, flight: entry.flight.clone(), outputs: entry.outputs.take() });
            true
        });
        (items, Self::begin(pool, entries, run, formed_at, now, facts, suspicion))
    }

    /// What a worker gets of a batch before its turn: the entries keep all, because they may go back to the queue.
    pub(crate) fn lend(pool: &Pool, entries: &mut Vec<Entry>, now: Instant) -> Vec<Item> {
        discard_unwanted(pool, entries, now);
        let lend = |entry: &Entry| {
            let (flight, outputs) = (Arc::clone(&entry.flight), entry.outputs.clone());
            Some(Item { payload: entry.payload.get()?.clone(), flight, outputs })
        };
        // Each entry has its input: no run has taken it.
        entries.iter().filter_map(lend).collect()
    }

    /// User code begins with entries whose inputs it has.
    pub(crate) fn begin(
        pool: &Arc<Pool>,
        mut entries: Vec<Entry>,
        run: u64,
        formed_at: Instant,
        now: Instant,
        mut facts: BatchFacts,
        suspicion: Suspicion,
    ) -> Self {
        for entry in &mut entries {
            entry.outputs = None;
            if !pool.spec.contract().may_run_again() {
                drop(std::mem::take(&mut entry.payload));
            }
        }
        facts.size = entries.len();
        let trace = BatchTrace::for_entries(&entries, now);
        facts.span = trace.as_ref().map(|trace| trace.span);
        for entry in &entries {
            entry.note_started(pool.name(), now, facts);
        }
        let batch = now.saturating_duration_since(formed_at);
        Self { pool: Arc::clone(pool), run, entries, batch, formed_at, facts, suspicion, trace }
    }

    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// User code took this long.
    pub(crate) fn record_run(&self, compute: Duration, finished_at: Instant) {
        let cost = self.entries.iter().map(|entry| entry.cost).sum();
        self.pool.record_run(self.entries.len(), cost, self.batch, compute, finished_at);
    }

    /// Answers each entry with its own outcome.
    pub(crate) fn answer(mut self, outcomes: Vec<ItemOutcome>, compute: Duration, now: Instant) {
        self.tell_observer(now, RunEnd::Done);
        let entries = self.take_entries();
        let pool = &self.pool;
        let panicked_alone = outcomes.iter().filter(|outcome| matches!(outcome, ItemOutcome::Panicked(_))).count();
        pool.record_outcomes(entries.len() - panicked_alone);
        for (mut entry, outcome) in entries.into_iter().zip(outcomes) {
            drop(std::mem::take(&mut entry.payload));
            let queue = self.formed_at.saturating_duration_since(entry.enqueued_at);
            let timing = Timing { queue, batch: self.batch, compute };
            pool.metrics.record_wait(&timing);
            match outcome {
                ItemOutcome::Done(_) => entry.note_end(pool.name(), now, RunEnd::Done),
                ItemOutcome::Failed(_) => entry.note_end(pool.name(), now, RunEnd::Failed),
                ItemOutcome::Panicked(_) => entry.note_end(pool.name(), now, RunEnd::Panicked),
                ItemOutcome::Late => entry.note_end(pool.name(), now, RunEnd::Late),
                // `discard` records it.
                ItemOutcome::NotRun => {}
            }
            match outcome {
                ItemOutcome::Done(payload) => entry.reply.send(Ok(EntryReply::new(payload, timing))),
                ItemOutcome::Failed(failure) => {
                    let error = CallError::from_failure(failure, pool.name());
                    entry.reply.send(Err(error.in_run(pool.spec.contract().may_run_again())));
                }
                ItemOutcome::Panicked(words) => {
                    pool.found_poison();
                    pool.log_crash(|| {
                        tracing::error!(
                            parent: None, stage = %pool.name(), panic = %words, "an input makes its function panic"
                        )
                    });
                    entry.refuse(panicked(pool, &words));
                }
                ItemOutcome::Late => {
                    entry
                        .refuse(CallError::deadline_exceeded("before its last output was there").at_stage(pool.name()));
                }
                ItemOutcome::NotRun => pool.discard(entry, now, DiscardPlace::Worker),
            }
        }
    }

    /// All callers have left: only records the outcome.
    pub(crate) fn record_without_callers(mut self, now: Instant) {
        self.tell_observer(now, RunEnd::Cancelled);
        for entry in self.take_entries() {
            self.pool.discard(entry, now, DiscardPlace::Worker);
        }
    }

    /// The worker returned a wrong number of results: they cannot be matched to their items.
    pub(crate) fn refuse_wrong_count(self, wrong: &WrongCount) {
        let pool = Arc::clone(&self.pool);
        pool.log_crash(|| {
            tracing::error!(
                parent: None,
                stage = %pool.name(),
                expected = wrong.expected,
                got = wrong.got,
                "wrong number of results"
            );
        });
        self.fail(RunEnd::WrongCount, || {
            CallError::new(ErrorKind::WorkerFailed, wrong.to_string()).at_stage(pool.name())
        });
    }

    /// User code panicked. Where the contract allows it, each half of the batch runs again by itself, so that in the
    /// end only the poison entry fails. An entry that was alone is retried as often as the stage says: the machine may
    /// be at fault. Under `AtMostOnce` all entries fail at once. An exit of a worker that runs several batches may have
    /// been caused by any of them: an entry was alone only if nothing else ran in its replica.
    pub(crate) fn after_panic(mut self, words: &CaughtPanic, handle: &ReplicaHandle) {
        let pool = Arc::clone(&self.pool);
        let may_run_again = pool.spec.contract().may_run_again();
        let is_shared = words.is_exit() && handle.slots() > 1;
        let Suspicion { lone_crashes, shared_crashes, is_only } = self.suspicion;
        let is_isolated = || is_only && clock::now() < self.formed_at + self.suspicion.isolated_for();
        let is_alone = self.entries.len() == 1 && (!is_shared || is_isolated());
        let suspicion = Suspicion {
            lone_crashes: lone_crashes.saturating_add(is_alone.into()),
            shared_crashes: shared_crashes.saturating_add(is_shared.into()),
            is_only: false,
        };
        let suffices = is_alone && suspicion.exceeds(pool.settings().crash_retries());
        if may_run_again && !suffices {
            self.tell_observer(clock::now(), RunEnd::Panicked);
            let entries = self.take_entries();
            entries.iter().for_each(|entry| entry.note_again(pool.name(), RunEnd::Panicked));
            let life = is_shared.then(|| handle.life());
            pool.tell_batcher(BatcherMessage::Isolate { entries, suspicion, life });
            return;
        }
        if is_alone {
            pool.found_poison();
        } else {
            // Under `AtMostOnce` it is not found out which of them it was.
            pool.health.record_culprit();
        }
        if may_run_again {
            let isolated = self.facts.is_isolating();
            pool.log_crash(|| {
                tracing::error!(
                    parent: None, stage = %pool.name(), panic = %words, isolated, "an input kills its worker"
                );
            });
        }
        self.fail(RunEnd::Panicked, || panicked(&pool, words));
    }

    /// User code has not come back within the stage's timeout.
    pub(crate) fn give_up_waiting(self, timeout: Duration) {
        let pool = Arc::clone(&self.pool);
        pool.health.record_culprit();
        self.fail(RunEnd::Hung, || {
            let message = format!("stage `{}` did not answer within its timeout of {timeout:?}", pool.name());
            CallError::new(ErrorKind::DeadlineExceeded, message).at_stage(pool.name()).after_start(true)
        });
    }

    /// The stage ends while user code still runs.
    pub(crate) fn give_up(self) {
        let pool = Arc::clone(&self.pool);
        let has_begun = !pool.spec.contract().may_run_again();
        self.fail(RunEnd::Closed, || pool.unavailable().after_start(has_begun));
    }

    fn fail(mut self, end: RunEnd, error: impl Fn() -> CallError) {
        let now = clock::now();
        self.tell_observer(now, end);
        for entry in self.take_entries() {
            entry.note_end(self.pool.name(), now, end);
            entry.refuse(error());
        }
    }

    /// Tells the observer, once, before any caller has its outcome.
    fn tell_observer(&mut self, ended_at: Instant, end: RunEnd) {
        if let Some(trace) = self.trace.take() {
            let BatchTrace { observer, started_at, members, .. } = *trace;
            let (stage, facts, formed_at) = (self.pool.name().clone(), self.facts, self.formed_at);
            observer.ended(EndedBatch { stage, facts, formed_at, started_at, ended_at, end, members });
        }
    }

    fn take_entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

fn discard_unwanted(pool: &Pool, entries: &mut Vec<Entry>, now: Instant) {
    for entry in entries.extract_if(.., |entry| !entry.flight.is_wanted(now)) {
        pool.discard(entry, now, DiscardPlace::Worker);
    }
}

fn panicked(pool: &Pool, words: &CaughtPanic) -> CallError {
    let error = CallError::new(ErrorKind::WorkerFailed, words.in_worker());
    error.at_stage(pool.name()).with_trace(words.trace())
}

/// The observer of a batch with traced members.
#[derive(Debug)]
struct BatchTrace {
    observer: Arc<dyn BatchObserver>,
    span: SpanId,
    started_at: Instant,
    members: Vec<SpanId>,
}

impl BatchTrace {
    /// A batch has a separate trace, because it belongs to all of its members equally.
    fn for_entries(entries: &[Entry], started_at: Instant) -> Option<Box<Self>> {
        let mut traced = entries.iter().filter_map(|entry| entry.flight.recorder()?.traced());
        let (first, observer) = traced.next()?;
        let members = std::iter::once(*first).chain(traced.map(|(span, _)| *span)).collect();
        Some(Box::new(Self { observer: Arc::clone(observer), span: SpanId::begin(), started_at, members }))
    }
}

impl Drop for InFlightBatch {
    /// The worker was lost, and these inputs are not the cause. Entries run again within contract and retry budget. The
    /// others get an error; under `AtMostOnce` it says that they had begun.
    fn drop(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        self.tell_observer(clock::now(), RunEnd::Lost);
        let (mut again, may_run_again) = (self.take_entries(), self.pool.spec.contract().may_run_again());
        let retries = if may_run_again { self.pool.take_retries(again.len()) } else { 0 };
        for entry in again.split_off(retries) {
            entry.note_end(self.pool.name(), clock::now(), RunEnd::Lost);
            entry.refuse(self.pool.lost().after_start(!may_run_again));
        }
        if !again.is_empty() {
            again.iter().for_each(|entry| entry.note_again(self.pool.name(), RunEnd::Lost));
            self.pool.tell_batcher(BatcherMessage::TakeBack(again));
        }
    }
}
