//! The thin shell around queue and policy: feeds them with messages and time, and hands batches to free workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::clock::{self, Instant};
use crate::metrics::Place;
use crate::pool::{BatchRun, BatcherMessage, Pool, WorkerMessage, WorkerSlot};
use crate::queue::{Entry, EntryKey, Lanes, Release, Waiting, inbox};
use crate::timeline::{BatchFacts, ReleaseReason, RunEnd};

/// The actor of one stage's queue.
pub(crate) struct BatcherActor;

pub(crate) struct BatcherArgs {
    pub(crate) pool: Arc<Pool>,
}

pub(crate) struct BatcherState {
    pool: Arc<Pool>,
    /// What was taken from the inbox; empty between two messages.
    arrived: Vec<Entry>,
    queue: Lanes<Box<Entry>>,
    /// Halves of batches that killed their worker. Each runs alone, before anything else.
    suspects: VecDeque<Suspects>,
    workers: Vec<Arc<WorkerSlot>>,
    last_batch: usize,
    last_cost: u64,
    /// The turn is given away: `Settled` is on its way.
    settling: bool,
    /// How many entries waited when the turn was last given away.
    settled_at: usize,
    /// Turns in a row that brought nobody; see [`Waiting`].
    fruitless_turns: u32,
    /// The armed delay, so that no second timer is armed for the same moment.
    due_at: Option<Instant>,
    draining: bool,
    /// The stage has given up: whatever comes is answered at once.
    closed: bool,
}

/// Entries that run together, and how often the one that is alone has killed its worker: kept here and not with each
/// entry, of which many wait.
struct Suspects {
    entries: Vec<Entry>,
    lone_crashes: u32,
}

impl Actor for BatcherActor {
    type Msg = BatcherMessage;
    type State = BatcherState;
    type Arguments = BatcherArgs;

    async fn pre_start(
        &self,
        _myself: ActorRef<BatcherMessage>,
        args: BatcherArgs,
    ) -> Result<BatcherState, ActorProcessingErr> {
        Ok(BatcherState {
            queue: Lanes::new(args.pool.policy().ageing),
            pool: args.pool,
            arrived: Vec::new(),
            suspects: VecDeque::new(),
            workers: Vec::new(),
            last_batch: 0,
            last_cost: 0,
            settling: false,
            settled_at: 0,
            fruitless_turns: 0,
            due_at: None,
            draining: false,
            closed: false,
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
                    state.pool.discard(entry, clock::now(), Place::Queue);
                }
            }
            // News of its leaving may overtake that of its coming.
            BatcherMessage::Join(slot) if slot.is_leaving() => {}
            BatcherMessage::Join(slot) => {
                state.workers.push(slot);
                state.settle_sessions();
            }
            BatcherMessage::Part(slot) => {
                state.workers.retain(|worker| !Arc::ptr_eq(worker, &slot));
                state.settle_sessions();
                // Behind the batch it may have been handed; one that is gone has left already.
                let _ = slot.actor().send_message(WorkerMessage::Leave);
            }
            BatcherMessage::Free => {}
            BatcherMessage::TakeBack(entries) => state.take_back(entries),
            BatcherMessage::Isolate { entries, lone_crashes } => state.isolate(entries, lone_crashes),
            BatcherMessage::Settled => state.settle(),
            BatcherMessage::Due => state.due_at = None,
            BatcherMessage::Close => state.closed = true,
            BatcherMessage::Drain => state.draining = true,
        }
        if state.closed {
            state.answer_all_unavailable();
        }
        state.pool.note_queued(state.queue.load());
        // While the turn is given away, entries only gather; `Settled` will look at them all.
        if !state.settling && state.dispatch(&myself) {
            tokio::task::yield_now().await;
            // Behind whatever arrived in that turn.
            myself.cast(BatcherMessage::Settled)?;
        }
        Ok(())
    }
}

impl BatcherState {
    /// Queues what callers have put down since the last look.
    fn admit_arrived(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.pool.inbox.take(&mut arrived);
        for entry in arrived.drain(..) {
            self.admit(entry);
        }
        self.arrived = inbox::worth_keeping(arrived);
    }

    /// Queues an entry, or answers it at once when it would wait for nothing.
    fn admit(&mut self, entry: Entry) {
        match self.pool.refusal(&entry, &self.queue, self.last_cost) {
            None => self.push(entry),
            Some(error) => {
                entry.note_end(self.pool.name(), entry.enqueued_at, RunEnd::Refused);
                entry.refuse(error);
            }
        }
    }

    fn push(&mut self, entry: Entry) {
        // Boxed: the queue moves what it holds as it grows.
        self.queue.push(entry.flight.session, entry.key(), entry.enqueued_at, entry.cost, Box::new(entry));
    }

    /// The replicas have changed: each session waits for one that is up.
    fn settle_sessions(&mut self) {
        self.queue.set_replicas(self.workers.iter().map(|worker| worker.index()));
    }

    /// Hands out batches while the policy says so. Returns whether the turn is to be given away first.
    fn dispatch(&mut self, myself: &ActorRef<BatcherMessage>) -> bool {
        self.forget_the_gone();
        while let Some(mut group) = self.suspects.pop_front() {
            let Some(worker) = self.workers.iter().find(|worker| worker.try_take()).cloned() else {
                self.suspects.push_front(group);
                return false;
            };
            for entry in &mut group.entries {
                entry.place = None;
            }
            self.pool.metrics().isolating();
            self.hand_over(&worker, group, clock::now(), None);
        }
        // Where sessions make what waits differ from worker to worker, one that waits for more does not hold up the others.
        let mut from = 0;
        while self.queue.len() > 0 {
            let Some((position, worker)) = self.take_free_worker(from) else { return false };
            let now = clock::now();
            let waiting = self.waiting(worker.index());
            match self.pool.policy().decide(now, &waiting) {
                Release::Now(reason) => {
                    self.release(&worker, now, reason);
                    self.fruitless_turns = 0;
                }
                Release::Settle => {
                    worker.give_back();
                    self.settling = true;
                    self.settled_at = self.queue.len();
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

    /// The turn is back: has it brought anybody?
    fn settle(&mut self) {
        self.settling = false;
        self.fruitless_turns = if self.queue.len() > self.settled_at { 0 } else { self.fruitless_turns + 1 };
    }

    /// What waits for this replica.
    fn waiting(&self, replica: usize) -> Waiting {
        let has_delay = !self.pool.policy().max_delay.is_zero();
        let load = self.queue.load_for(replica);
        Waiting {
            load,
            oldest_arrival: if has_delay { self.queue.oldest_arrival(replica) } else { None },
            first_deadline: if has_delay { self.queue.first_deadline(replica) } else { None },
            estimate: if has_delay { self.pool.cost().line().batch(load.cost) } else { Duration::ZERO },
            last_batch: self.last_batch,
            fruitless_turns: self.fruitless_turns,
            draining: self.draining,
        }
    }

    /// Takes a worker that is free and has something to do, from this position on.
    fn take_free_worker(&self, from: usize) -> Option<(usize, Arc<WorkerSlot>)> {
        let sessions = self.queue.has_sessions();
        let mut workers = self.workers.iter().enumerate().skip(from);
        let (position, worker) = workers
            .find(|(_, worker)| (!sessions || self.queue.load_for(worker.index()).entries > 0) && worker.try_take())?;
        Some((position, Arc::clone(worker)))
    }

    fn forget_the_gone(&mut self) {
        if self.workers.iter().any(|worker| worker.is_gone()) {
            self.workers.retain(|worker| !worker.is_gone());
            self.settle_sessions();
        }
    }

    /// Forms a batch and gives it to a worker that was taken for it.
    fn release(&mut self, worker: &WorkerSlot, now: Instant, reason: ReleaseReason) {
        let entries = self.form(worker.index(), now);
        if entries.is_empty() {
            worker.give_back();
            return;
        }
        self.last_batch = entries.len();
        self.last_cost = entries.iter().map(|entry| entry.cost).sum();
        self.pool.record_release(reason, entries.len());
        self.hand_over(worker, Suspects { entries, lone_crashes: 0 }, now, Some(reason));
    }

    /// Without a reason it is a part of a batch that killed its worker.
    fn hand_over(&self, worker: &WorkerSlot, group: Suspects, now: Instant, reason: Option<ReleaseReason>) {
        let Suspects { entries, lone_crashes } = group;
        let (id, size, replica) = (self.pool.next_batch(), entries.len(), worker.index());
        let facts = BatchFacts { id, size, replica, reason, span: None };
        for entry in &entries {
            entry.note_taken(self.pool.name(), now, facts);
        }
        let run = BatchRun::new(Arc::clone(&self.pool), entries, now, facts, lone_crashes);
        if worker.actor().send_message(WorkerMessage::Run(run)).is_err() {
            // The worker died between being free and being told. The run comes back, because nothing of it has started.
            worker.retire();
        }
    }

    /// Takes up to a full batch of entries that this replica may run and somebody still wants.
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
            entry.place = None;
            if entry.flight.is_wanted(now) {
                entries.push(*entry);
            } else {
                cost -= entry.cost;
                self.pool.discard(*entry, now, Place::Queue);
            }
        }
        entries
    }

    /// Takes out an entry that waits, in line or among the suspects.
    fn remove(&mut self, key: EntryKey) -> Option<Entry> {
        if let Some(entry) = self.queue.remove(key) {
            return Some(*entry);
        }
        let find = |group: &mut Suspects| {
            let position = group.entries.iter().position(|entry| entry.key() == key)?;
            Some(group.entries.remove(position))
        };
        let entry = self.suspects.iter_mut().find_map(find)?;
        self.suspects.retain(|group| !group.entries.is_empty());
        Some(entry)
    }

    /// Puts entries back in line that nobody has begun.
    fn take_back(&mut self, entries: Vec<Entry>) {
        for entry in self.keep_wanted(entries) {
            self.push(entry);
        }
    }

    /// Gives entries that come back their places. Whoever has gone meanwhile has said so already, and will not say it again.
    fn keep_wanted(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let now = clock::now();
        let mut wanted = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if entry.flight.is_wanted(now) {
                entry.place = Some(self.pool.take_place_again());
                wanted.push(entry);
            } else {
                self.pool.discard(entry, now, Place::Queue);
            }
        }
        wanted
    }

    /// Splits a batch that killed its worker in two. Halving again what dies again, one culprit among n entries is
    /// alone in at most 2·log₂(n) + 1 runs, the first included. One that is alone already comes back alone.
    fn isolate(&mut self, entries: Vec<Entry>, lone_crashes: u32) {
        let mut entries = self.keep_wanted(entries);
        let second = entries.split_off(entries.len() / 2);
        let halves = [entries, second].into_iter().filter(|half| !half.is_empty());
        self.suspects.extend(halves.map(|entries| Suspects { entries, lone_crashes }));
    }

    /// Sees to it that `Due` comes at `at`. A timer that is armed for an earlier moment serves: it will look again.
    fn arm(&mut self, myself: &ActorRef<BatcherMessage>, now: Instant, at: Instant) {
        if self.due_at.is_some_and(|due| due <= at) {
            return;
        }
        self.due_at = Some(at);
        myself.send_after(at.saturating_duration_since(now), || BatcherMessage::Due);
    }

    fn answer_all_unavailable(&mut self) {
        let refuse = |entry: Entry| {
            entry.note_end(self.pool.name(), clock::now(), RunEnd::Closed);
            entry.refuse(self.pool.unavailable());
        };
        self.suspects.drain(..).flat_map(|group| group.entries).for_each(refuse);
        while let Some(entry) = self.queue.pop_any() {
            refuse(*entry);
        }
    }
}

impl Drop for BatcherState {
    /// The actor is over, whatever ended it: nobody will look again.
    fn drop(&mut self) {
        self.pool.inbox.close();
    }
}
