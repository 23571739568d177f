//! The thin shell around queue and policy: feeds them with messages and time, and hands batches to free workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::clock::{self, Instant};
use crate::error::CallError;
use crate::metrics::DiscardPlace;
use crate::pool::{BatchRun, BatcherMessage, FailedStart, Pool, ReplicaHandle, WorkerMessage};
use crate::queue::{Entry, EntryKey, QueueState, Release, SessionQueues, inbox};
use crate::timeline::{BatchFacts, ReleaseReason, RunEnd};

/// The actor of one stage's queue.
pub(crate) struct BatcherActor;

pub(crate) struct BatcherState {
    pool: Arc<Pool>,
    /// Why there is no replica.
    failed_start: Option<FailedStart>,
    /// Entries from the inbox; empty between two messages.
    arrived: Vec<Entry>,
    queue: SessionQueues<Box<Entry>>,
    /// Halves of batches that killed their worker. Each runs by itself, before the queue.
    suspects: VecDeque<PoisonSuspects>,
    workers: Vec<Arc<ReplicaHandle>>,
    /// Batches that were handed over.
    batches: u64,
    last_batch: usize,
    last_cost: u64,
    /// The batcher has yielded its turn: `Yielded` is on its way.
    is_yielding: bool,
    /// The number of waiting entries at the last yield.
    yielded_at: usize,
    /// Yields in a row during which no entry arrived; see [`QueueState`].
    empty_yields: u32,
    /// The armed delay, so that no second timer is armed for the same moment.
    due_at: Option<Instant>,
    is_draining: bool,
    /// The stage has failed: every entry is refused at once.
    is_closed: bool,
}

/// Entries that run together, and how often a single one has killed its worker: kept here rather than in each entry,
/// because many entries wait.
struct PoisonSuspects {
    entries: Vec<Entry>,
    lone_crashes: u32,
}

impl Actor for BatcherActor {
    type Msg = BatcherMessage;
    type State = BatcherState;
    type Arguments = Arc<Pool>;

    async fn pre_start(
        &self,
        _myself: ActorRef<BatcherMessage>,
        pool: Arc<Pool>,
    ) -> Result<BatcherState, ActorProcessingErr> {
        Ok(BatcherState {
            queue: SessionQueues::new(pool.policy().ageing),
            pool,
            failed_start: None,
            arrived: Vec::new(),
            suspects: VecDeque::new(),
            workers: Vec::new(),
            batches: 0,
            last_batch: 0,
            last_cost: 0,
            is_yielding: false,
            yielded_at: 0,
            empty_yields: 0,
            due_at: None,
            is_draining: false,
            is_closed: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<BatcherMessage>,
        message: BatcherMessage,
        state: &mut BatcherState,
    ) -> Result<(), ActorProcessingErr> {
        state.admit_arrived();
        match message {
            BatcherMessage::Submitted => {}
            BatcherMessage::Abandon(key) => {
                if let Some(entry) = state.remove(key) {
                    state.pool.discard(entry, clock::now(), DiscardPlace::Queue);
                }
            }
            // The order to leave may overtake this message.
            BatcherMessage::Join(handle) if handle.is_leaving() => {}
            BatcherMessage::Join(handle) => {
                state.workers.push(handle);
                state.failed_start = None;
                state.update_sessions();
            }
            BatcherMessage::Leave(handle) => {
                state.workers.retain(|worker| !Arc::ptr_eq(worker, &handle));
                state.update_sessions();
                // The replica reads it after the batch that it may have; an error means that it has ended.
                let _ = handle.actor().send_message(WorkerMessage::Leave);
            }
            BatcherMessage::Free => {}
            BatcherMessage::TakeBack(entries) => state.take_back(entries),
            BatcherMessage::Isolate { entries, lone_crashes } => state.isolate(entries, lone_crashes),
            BatcherMessage::Yielded => state.end_yield(),
            BatcherMessage::Due => state.due_at = None,
            BatcherMessage::RefuseUntil(failed) => {
                let (pool, now) = (Arc::clone(&state.pool), clock::now());
                state.answer_all(|| pool.not_started(&failed, now));
                state.failed_start = Some(failed);
            }
            BatcherMessage::Close => state.is_closed = true,
            BatcherMessage::Open => state.is_closed = false,
            BatcherMessage::Drain => state.is_draining = true,
        }
        if state.is_closed {
            let pool = Arc::clone(&state.pool);
            state.answer_all(|| pool.unavailable());
        }
        state.pool.note_queued(state.queue.load());
        // During a yield, entries only gather; `Yielded` handles them all.
        if !state.is_yielding && state.dispatch(&myself) {
            tokio::task::yield_now().await;
            // After all messages that arrived in that turn.
            myself.cast(BatcherMessage::Yielded)?;
        }
        Ok(())
    }
}

impl BatcherState {
    /// Queues the entries that arrived since the last look.
    fn admit_arrived(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.pool.entrance.inbox.take(&mut arrived);
        for entry in arrived.drain(..) {
            self.admit(entry);
        }
        self.arrived = inbox::worth_keeping(arrived);
    }

    /// Queues an entry, or refuses it at once if it would miss its deadline.
    fn admit(&mut self, entry: Entry) {
        match self.missing_replica().or_else(|| self.pool.refusal(&entry, &self.queue, self.last_cost)) {
            None => self.push(entry),
            Some(error) => {
                entry.note_end(self.pool.name(), entry.enqueued_at, RunEnd::Refused);
                entry.refuse(error);
            }
        }
    }

    /// The refusal of an entry while no replica is there and none is started.
    fn missing_replica(&self) -> Option<CallError> {
        let failed = self.failed_start.as_ref()?;
        let now = clock::now();
        (now < failed.until).then(|| self.pool.not_started(failed, now))
    }

    fn push(&mut self, entry: Entry) {
        // Boxed: the queue moves what it holds as it grows.
        self.queue.push(entry.flight.session, entry.key(), entry.enqueued_at, entry.cost, Box::new(entry));
    }

    /// The replicas have changed: assigns each session to a running replica.
    fn update_sessions(&mut self) {
        self.queue.set_replicas(self.workers.iter().map(|worker| worker.index()));
    }

    /// Hands out batches while the policy says so. Returns whether to yield first.
    fn dispatch(&mut self, myself: &ActorRef<BatcherMessage>) -> bool {
        self.forget_the_gone();
        if self.workers.is_empty() && self.pool.settings().scaling().may_be_zero() {
            self.ask_for_replica();
            return false;
        }
        while let Some(mut group) = self.suspects.pop_front() {
            let Some(worker) = self.workers.iter().find(|worker| worker.try_take()).cloned() else {
                self.suspects.push_front(group);
                return false;
            };
            for entry in &mut group.entries {
                entry.permit = None;
            }
            self.pool.metrics.isolations.inc();
            self.hand_over(&worker, group, clock::now(), None);
        }
        // With sessions each worker has its own entries: a worker that waits for more does not delay the others.
        let mut from = 0;
        while self.queue.len() > 0 {
            let Some((position, worker)) = self.take_free_worker(from) else {
                self.hand_ahead();
                return false;
            };
            let now = clock::now();
            let waiting = self.waiting(worker.index());
            match self.pool.policy().decide(now, &waiting) {
                Release::Now(reason) => {
                    self.release(&worker, now, reason);
                    self.empty_yields = 0;
                }
                Release::Yield => {
                    worker.give_back();
                    self.is_yielding = true;
                    self.yielded_at = self.queue.len();
                    return true;
                }
                Release::At(at) => {
                    worker.give_back();
                    self.arm(myself, now, at);
                    from = position + 1;
                }
                Release::Nothing => {
                    worker.give_back();
                    from = position + 1;
                }
            }
            if from > 0 && !self.queue.has_sessions() {
                return false;
            }
        }
        false
    }

    /// No replica is there: asks for one if entries wait.
    fn ask_for_replica(&self) {
        if self.queue.len() > 0 || !self.suspects.is_empty() {
            self.pool.demand.wake();
        }
    }

    /// Hands full batches to busy replicas that take them ahead.
    fn hand_ahead(&mut self) {
        if !self.pool.settings().hands_ahead() {
            return;
        }
        let (now, estimate) = (clock::now(), self.pool.cost.line().batch(self.last_cost));
        for index in 0..self.workers.len() {
            let worker = Arc::clone(&self.workers[index]);
            let replica = worker.index();
            let waiting =
                QueueState { first_deadline: self.queue.first_deadline(replica), estimate, ..self.waiting(replica) };
            if self.pool.policy().hands_ahead(now, &waiting, self.workers.len()) && worker.try_take_ahead() {
                self.release(&worker, now, ReleaseReason::Full);
            }
        }
    }

    /// The yield is over: counts it if no entry arrived meanwhile.
    fn end_yield(&mut self) {
        self.is_yielding = false;
        self.empty_yields = if self.queue.len() > self.yielded_at { 0 } else { self.empty_yields + 1 };
    }

    /// The entries that wait for this replica.
    fn waiting(&self, replica: usize) -> QueueState {
        let has_delay = !self.pool.policy().max_delay.is_zero();
        let load = self.queue.load_for(replica);
        QueueState {
            load,
            oldest_arrival: if has_delay { self.queue.oldest_arrival(replica) } else { None },
            first_deadline: if has_delay { self.queue.first_deadline(replica) } else { None },
            estimate: if has_delay { self.pool.cost.line().batch(load.cost) } else { Duration::ZERO },
            last_batch: self.last_batch,
            empty_yields: self.empty_yields,
            is_draining: self.is_draining,
        }
    }

    /// Takes a slot of a worker that has entries to run, from this position on.
    fn take_free_worker(&self, from: usize) -> Option<(usize, Arc<ReplicaHandle>)> {
        let sessions = self.queue.has_sessions();
        let mut workers = self.workers.iter().enumerate().skip(from);
        let (position, worker) = workers
            .find(|(_, worker)| (!sessions || self.queue.load_for(worker.index()).entries > 0) && worker.try_take())?;
        Some((position, Arc::clone(worker)))
    }

    fn forget_the_gone(&mut self) {
        if self.workers.iter().any(|worker| worker.is_gone()) {
            self.workers.retain(|worker| !worker.is_gone());
            self.update_sessions();
        }
    }

    /// Forms a batch for a worker whose slot was taken, and hands it over.
    fn release(&mut self, worker: &ReplicaHandle, now: Instant, reason: ReleaseReason) {
        let entries = self.form(worker.index(), now);
        if entries.is_empty() {
            worker.give_back();
            return;
        }
        self.last_batch = entries.len();
        self.last_cost = entries.iter().map(|entry| entry.cost).sum();
        self.pool.metrics.released(reason, entries.len());
        self.hand_over(worker, PoisonSuspects { entries, lone_crashes: 0 }, now, Some(reason));
    }

    /// Without a reason, the group is a part of a batch under bisection.
    fn hand_over(
        &mut self,
        worker: &ReplicaHandle,
        group: PoisonSuspects,
        now: Instant,
        reason: Option<ReleaseReason>,
    ) {
        let PoisonSuspects { entries, lone_crashes } = group;
        self.batches += 1;
        self.pool.demand.note_batch(now);
        let (id, size, replica) = (self.batches, entries.len(), worker.index());
        let facts = BatchFacts { id, size, replica, reason, span: None };
        for entry in &entries {
            entry.note_taken(self.pool.name(), now, facts);
        }
        let run = BatchRun::new(Arc::clone(&self.pool), entries, now, facts, lone_crashes);
        if worker.actor().send_message(WorkerMessage::Run(run)).is_err() {
            // The worker died after its slot was taken. The dropped run brings its entries back.
            worker.retire();
        }
    }

    /// Takes up to a full batch of entries for this replica; drops those without a waiting caller.
    fn form(&mut self, replica: usize, now: Instant) -> Vec<Entry> {
        let (max, max_cost) = self.pool.policy().bounds();
        let mut entries = Vec::with_capacity(max.min(self.queue.len()));
        let mut cost = 0;
        self.queue.age(replica, now);
        while entries.len() < max {
            let Some(head) = self.queue.head(replica) else { break };
            cost += head.cost();
            if cost > max_cost && !entries.is_empty() {
                break;
            }
            let mut entry = self.queue.take(head);
            entry.permit = None;
            if entry.flight.is_wanted(now) {
                entries.push(*entry);
            } else {
                cost -= entry.cost;
                self.pool.discard(*entry, now, DiscardPlace::Queue);
            }
        }
        entries
    }

    /// Removes a waiting entry from the queue or from the bisection.
    fn remove(&mut self, key: EntryKey) -> Option<Entry> {
        if let Some(entry) = self.queue.remove(key) {
            return Some(*entry);
        }
        let find = |group: &mut PoisonSuspects| {
            let position = group.entries.iter().position(|entry| entry.key() == key)?;
            Some(group.entries.remove(position))
        };
        let entry = self.suspects.iter_mut().find_map(find)?;
        self.suspects.retain(|group| !group.entries.is_empty());
        Some(entry)
    }

    /// Queues entries of a lost worker again.
    fn take_back(&mut self, entries: Vec<Entry>) {
        for entry in self.keep_wanted(entries) {
            self.push(entry);
        }
    }

    /// Gives returning entries a permit, and discards those whose callers have left: no message will name them again.
    fn keep_wanted(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let now = clock::now();
        let mut waiting = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if entry.flight.is_wanted(now) {
                entry.permit = Some(self.pool.entrance.permits.take_again());
                waiting.push(entry);
            } else {
                self.pool.discard(entry, now, DiscardPlace::Queue);
            }
        }
        waiting
    }

    /// Splits a batch that killed its worker in two. With repeated halving, one poison entry among n is alone after at
    /// most 2·⌈log₂ n⌉ + 1 runs, the first included. A single entry stays single.
    fn isolate(&mut self, entries: Vec<Entry>, lone_crashes: u32) {
        let mut entries = self.keep_wanted(entries);
        let second = entries.split_off(entries.len() / 2);
        let halves = [entries, second].into_iter().filter(|half| !half.is_empty());
        self.suspects.extend(halves.map(|entries| PoisonSuspects { entries, lone_crashes }));
    }

    /// Arms a timer that sends `Due` at `at`. An earlier timer that is already armed suffices: `Due` arms the next.
    fn arm(&mut self, myself: &ActorRef<BatcherMessage>, now: Instant, at: Instant) {
        if self.due_at.is_some_and(|due| due <= at) {
            return;
        }
        self.due_at = Some(at);
        myself.send_after(at.saturating_duration_since(now), || BatcherMessage::Due);
    }

    /// Refuses all waiting entries.
    fn answer_all(&mut self, error: impl Fn() -> CallError) {
        let refuse = |entry: Entry| {
            entry.note_end(self.pool.name(), clock::now(), RunEnd::Closed);
            entry.refuse(error());
        };
        self.suspects.drain(..).flat_map(|group| group.entries).for_each(refuse);
        while let Some(entry) = self.queue.pop_any() {
            refuse(*entry);
        }
    }
}

impl Drop for BatcherState {
    /// The actor has ended, for whatever reason: the inbox has no reader any more.
    fn drop(&mut self) {
        self.pool.entrance.inbox.close();
    }
}
