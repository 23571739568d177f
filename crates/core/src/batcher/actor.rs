//! The thin shell around queue and policy: feeds them with messages and time, and hands batches to free workers.
//!
//! Quick code without batches, on the runtime, of the only replica, runs in the batcher's own turn: a message to the
//! replica and one back for each entry would cost more than the code.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::hosted::HostedStages;
use crate::clock::{self, Instant};
use crate::error::CallError;
use crate::metrics::DiscardPlace;
use crate::pool::{BatchRun, BatcherMessage, FailedStart, Finish, Pool, ReplicaHandle, WorkerMessage};
use crate::queue::{Entry, EntryKey, LifeId, Release, SuspectGroup, Suspects, Suspicion, inbox};
use crate::timeline::{ReleaseReason, RunEnd};

/// How long batches run in one turn of the batcher before other tasks get theirs: five of the slowest entries that
/// count as quick, beside which the wake-up of a turn is small, and a tenth of a timer's millisecond.
const MAX_TURN: Duration = Duration::from_micros(100);

/// The most batches of one turn, as many as Tokio's budget of a task. On a paused clock they take no time.
const MAX_BATCHES_PER_TURN: usize = 128;

/// The actor of the queue in front of a stage's replicas.
pub(crate) struct BatcherActor;

pub(crate) struct BatcherState {
    /// The pool with the replicas.
    pool: Arc<Pool>,
    /// Why there is no replica.
    failed_start: Option<FailedStart>,
    /// Entries from the inbox; empty between two messages.
    arrived: Vec<Entry>,
    stages: HostedStages,
    /// Entries that wait again; only where batches are handed ahead, and some may have left.
    returned: Vec<EntryKey>,
    /// `None` while there are none.
    isolation: Option<Box<Isolation>>,
    workers: Vec<Arc<ReplicaHandle>>,
    /// The stage for whose callers the batcher has yielded its turn: `Yielded` is on its way.
    yielding: Option<usize>,
    /// The turn is over: `NextTurn` is on its way.
    is_turn_over: bool,
    /// The armed delay, so that no second timer is armed for the same moment.
    due_at: Option<Instant>,
    is_draining: bool,
    /// The stage has failed: every entry is refused at once.
    is_closed: bool,
}

/// Entries that run again apart from others, before the queue, because a worker ended with them.
#[derive(Default)]
struct Isolation {
    suspects: Suspects<Entry>,
    held: Vec<Held>,
}

/// A replica that runs one group and nothing else, or finishes what it runs before that. It is not among the workers.
struct Held {
    worker: Arc<ReplicaHandle>,
    until: Instant,
}

/// How a look at the queue ended.
enum Dispatched {
    /// Nothing is left that may leave now.
    All,
    /// The policy gives the callers of the last batch a turn.
    Yield,
    /// The turn is over: batches have run in it for long enough.
    TurnOver,
}

/// What became of a batch that was to be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandedOver {
    /// It has run in this turn.
    Ran,
    /// It is on its way to its replica.
    Sent,
    /// No entry of it was wanted any more.
    Nothing,
}

/// What the policy of a stage says of a free replica.
enum Decision {
    Release(ReleaseReason),
    Yield,
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
            stages: HostedStages::new(&pool),
            pool,
            failed_start: None,
            arrived: Vec::new(),
            returned: Vec::new(),
            isolation: None,
            workers: Vec::new(),
            yielding: None,
            is_turn_over: false,
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
                    state.discard(entry, clock::now());
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
                if let Some(isolation) = &mut state.isolation {
                    isolation.held.retain(|held| !Arc::ptr_eq(&held.worker, &handle));
                }
                state.update_sessions();
                // The replica reads it after the batch that it may have; an error means that it has ended.
                let _ = handle.actor().send_message(WorkerMessage::Leave);
            }
            BatcherMessage::Free => {}
            BatcherMessage::TakeBack(entries) => state.take_back(entries),
            BatcherMessage::Isolate { entries, suspicion, life } => state.isolate(entries, suspicion, life),
            BatcherMessage::Yielded => state.end_yield(),
            BatcherMessage::NextTurn => state.is_turn_over = false,
            BatcherMessage::Due => state.due_at = None,
            BatcherMessage::RefuseUntil(failed) => {
                let now = clock::now();
                state.answer_all(|pool| pool.not_started(&failed, now));
                state.failed_start = Some(failed);
            }
            BatcherMessage::Close => state.is_closed = true,
            BatcherMessage::Open => state.is_closed = false,
            BatcherMessage::Ended(stage) => state.stages.end(stage),
            BatcherMessage::Drain => state.is_draining = true,
        }
        if state.is_closed {
            state.answer_all(Pool::unavailable);
        }
        state.stages.note_queued();
        // Until the message to itself comes, entries only gather: it handles them all. Else each message would add one
        // in a turn in which callers add another, and the mailbox would have no bound.
        if state.yielding.is_some() || state.is_turn_over {
            return Ok(());
        }
        let next = match state.dispatch(&myself) {
            Dispatched::All => return Ok(()),
            Dispatched::Yield => BatcherMessage::Yielded,
            Dispatched::TurnOver => BatcherMessage::NextTurn,
        };
        tokio::task::yield_now().await;
        // After all messages that arrived in that turn.
        myself.cast(next)?;
        Ok(())
    }
}

impl BatcherState {
    /// Queues the entries that arrived since the last look.
    fn admit_arrived(&mut self) {
        self.stages.note_ends();
        let mut arrived = std::mem::take(&mut self.arrived);
        self.pool.entrance.inbox().take(&mut arrived);
        for entry in arrived.drain(..) {
            self.admit(entry);
        }
        self.arrived = inbox::worth_keeping(arrived);
    }

    /// Queues an entry, or refuses it at once if it would miss its deadline.
    fn admit(&mut self, entry: Entry) {
        let Some(stage) = self.stages.find(&entry) else { return };
        self.stages.arrived(stage, entry.enqueued_at);
        match self.missing_replica(stage).or_else(|| self.stages.refusal(stage, &entry)) {
            None => self.push(stage, entry),
            Some(error) => {
                entry.note_end(self.stages.pool(stage).name(), entry.enqueued_at, RunEnd::Refused);
                entry.refuse(error);
            }
        }
    }

    /// The refusal of an entry while no replica is there and none is started.
    fn missing_replica(&self, stage: usize) -> Option<CallError> {
        let failed = self.failed_start.as_ref()?;
        let now = clock::now();
        (now < failed.until).then(|| self.stages.pool(stage).not_started(failed, now))
    }

    fn push(&mut self, stage: usize, entry: Entry) {
        // Boxed: the queue moves what it holds as it grows.
        let queue = self.stages.queues.of_mut(stage);
        queue.push(entry.flight.session, entry.key(), entry.enqueued_at, entry.cost, Box::new(entry));
    }

    /// The replicas have changed: assigns each session to a running replica.
    fn update_sessions(&mut self) {
        let held = self.isolation.iter().flat_map(|isolation| &isolation.held).map(|held| &held.worker);
        self.stages.queues.set_replicas(self.workers.iter().chain(held).map(|worker| worker.index()));
    }

    /// Hands out batches while the policy says so.
    fn dispatch(&mut self, myself: &ActorRef<BatcherMessage>) -> Dispatched {
        self.forget_the_gone();
        let is_queue_next = self.isolation.is_none() || self.dispatch_suspects(myself);
        // Suspects need a replica too, also where the queue is not next.
        if self.workers.is_empty() && self.pool.settings().scaling().may_be_zero() {
            self.ask_for_replica();
            return Dispatched::All;
        }
        if !is_queue_next {
            return Dispatched::All;
        }
        // With sessions each worker has its own entries: a worker that waits for more does not delay the others.
        let (mut from, mut begun, mut batches) = (0, None, 0);
        while self.stages.queues.len() > 0 {
            let Some((position, worker)) = self.take_free_worker(from) else {
                self.hand_ahead();
                return Dispatched::All;
            };
            let now = clock::now();
            let turn = now - *begun.get_or_insert(now);
            if batches > 0 && turn > MAX_TURN || batches == MAX_BATCHES_PER_TURN {
                worker.give_back();
                self.is_turn_over = true;
                return Dispatched::TurnOver;
            }
            match self.decide(myself, &worker, now) {
                Some((stage, Decision::Release(reason))) => {
                    let handed_over = self.release(stage, &worker, now, reason);
                    self.stages.decided(stage);
                    if handed_over == HandedOver::Ran {
                        self.stages.note_ends();
                        batches += 1;
                    }
                }
                Some((stage, Decision::Yield)) => {
                    worker.give_back();
                    self.yielding = Some(stage);
                    self.stages.begin_yield(stage);
                    return Dispatched::Yield;
                }
                None => {
                    worker.give_back();
                    from = position + 1;
                }
            }
            if from > 0 && !self.stages.queues.has_sessions() {
                return Dispatched::All;
            }
        }
        Dispatched::All
    }

    /// The first stage, in the order of their next entries, that does not wait for more of them. A timer is armed for
    /// those before it.
    fn decide(
        &mut self,
        myself: &ActorRef<BatcherMessage>,
        worker: &ReplicaHandle,
        now: Instant,
    ) -> Option<(usize, Decision)> {
        let mut stage = None;
        loop {
            let next = self.stages.queues.next(worker.index(), now, stage)?;
            // With several slots another one may be free when the callers return.
            let is_only = self.workers.len() == 1 && worker.slots() == 1 && !self.is_draining;
            let returns_at = if is_only { self.stages.returns_at(next, worker.index(), now) } else { None };
            let waiting = self.stages.waiting(next, worker.index(), self.is_draining, returns_at);
            match self.stages.pool(next).policy().decide(now, &waiting) {
                Release::Now(reason) => return Some((next, Decision::Release(reason))),
                Release::Yield => return Some((next, Decision::Yield)),
                Release::At(at) => self.arm(myself, now, at),
                Release::Nothing => {}
            }
            stage = Some(next);
        }
    }

    /// Hands out the groups under isolation. Returns whether the queue is next: false while a group waits that any
    /// replica may take.
    fn dispatch_suspects(&mut self, myself: &ActorRef<BatcherMessage>) -> bool {
        let Some(mut isolation) = self.isolation.take() else { return true };
        let (now, held) = (clock::now(), isolation.held.len());
        isolation.held.retain(|held| !held.worker.is_gone());
        let is_one_lost = isolation.held.len() < held;
        let is_free = |held: &mut Held| held.worker.running() == 0 || held.until <= now;
        self.workers.extend(isolation.held.extract_if(.., is_free).map(|held| held.worker));
        let mut is_queue_next = true;
        while let Some(mut group) = isolation.suspects.pop() {
            let until = now + group.suspicion().isolated_for();
            let mut found = self.workers.iter().position(|worker| worker.running() == 0);
            if found.is_none() && group.needs_replica() && isolation.held.is_empty() {
                if group.has_waited {
                    group.join_others();
                } else if let Some(least) = self.least_busy() {
                    // It gets nothing more, so that it has finished what it runs in that time.
                    isolation.held.push(Held { worker: self.workers.remove(least), until });
                    group.has_waited = true;
                }
            }
            let needs_replica = group.needs_replica();
            if !needs_replica {
                found = self.workers.iter().position(|worker| worker.free_slots() > 0);
            }
            if let Some(position) = found {
                let worker = Arc::clone(&self.workers[position]);
                if needs_replica {
                    isolation.held.push(Held { worker: self.workers.remove(position), until });
                }
                self.hand_over_group(&worker, group, now);
                continue;
            }
            is_queue_next = needs_replica;
            isolation.suspects.put_back(group);
            break;
        }
        if let Some(until) = isolation.held.iter().map(|held| held.until).min() {
            self.arm(myself, now, until);
        }
        let is_over = isolation.suspects.is_empty() && isolation.held.is_empty();
        self.pool.entrance.set_isolating(!is_over);
        self.isolation = (!is_over).then_some(isolation);
        if is_one_lost {
            self.update_sessions();
        }
        is_queue_next
    }

    /// The position of the worker that runs the fewest batches.
    fn least_busy(&self) -> Option<usize> {
        (0..self.workers.len()).min_by_key(|position| self.workers[*position].running())
    }

    /// Hands over all batches of a group. A batch that finds no slot waits again.
    fn hand_over_group(&self, worker: &Arc<ReplicaHandle>, group: SuspectGroup<Entry>, now: Instant) {
        let suspicion = group.suspicion();
        for mut entries in group.batches {
            if !worker.try_take() {
                self.pool.tell_batcher(BatcherMessage::Isolate { entries, suspicion, life: None });
                continue;
            }
            for entry in &mut entries {
                entry.permit = None;
            }
            self.pool_of(&entries).metrics.isolations.inc();
            self.hand_over(worker, entries, suspicion, now, None);
        }
    }

    /// No replica is there: asks for one if entries wait, and none is held.
    fn ask_for_replica(&self) {
        let is_one_held = self.isolation.as_ref().is_some_and(|isolation| !isolation.held.is_empty());
        if !is_one_held && (self.stages.queues.len() > 0 || self.isolation.is_some()) {
            self.pool.demand.wake();
        }
    }

    /// Hands full batches to busy replicas that take them ahead.
    fn hand_ahead(&mut self) {
        if !self.pool.settings().hands_ahead() {
            return;
        }
        let now = clock::now();
        self.forget_the_taken();
        for index in 0..self.workers.len() {
            let (worker, has_returned) = (Arc::clone(&self.workers[index]), !self.returned.is_empty());
            let replica = worker.index();
            let Some(stage) = self.stages.queues.next(replica, now, None) else { continue };
            if self.stages.hands_ahead(stage, replica, now, has_returned, self.workers.len()) && worker.try_take_ahead()
            {
                self.release(stage, &worker, now, ReleaseReason::Full);
            }
        }
    }

    fn end_yield(&mut self) {
        if let Some(stage) = self.yielding.take() {
            self.stages.end_yield(stage);
        }
    }

    /// Takes a slot of a worker that has entries to run, from this position on.
    fn take_free_worker(&self, from: usize) -> Option<(usize, Arc<ReplicaHandle>)> {
        let (sessions, queues) = (self.stages.queues.has_sessions(), &self.stages.queues);
        let mut workers = self.workers.iter().enumerate().skip(from);
        let (position, worker) =
            workers.find(|(_, worker)| (!sessions || queues.has_entries_for(worker.index())) && worker.try_take())?;
        Some((position, Arc::clone(worker)))
    }

    fn forget_the_gone(&mut self) {
        if self.workers.iter().any(|worker| worker.is_gone()) {
            self.workers.retain(|worker| !worker.is_gone());
            self.update_sessions();
        }
    }

    /// Forms a batch for a worker whose slot was taken, and hands it over.
    fn release(
        &mut self,
        stage: usize,
        worker: &Arc<ReplicaHandle>,
        now: Instant,
        reason: ReleaseReason,
    ) -> HandedOver {
        let entries = self.form(stage, worker.index(), now);
        if entries.is_empty() {
            worker.give_back();
            return HandedOver::Nothing;
        }
        self.hand_over(worker, entries, Suspicion::default(), now, Some(reason))
    }

    /// Without a reason, the batch is a part of a batch under bisection.
    fn hand_over(
        &self,
        worker: &Arc<ReplicaHandle>,
        entries: Vec<Entry>,
        suspicion: Suspicion,
        now: Instant,
        reason: Option<ReleaseReason>,
    ) -> HandedOver {
        self.pool.demand.note_batch(now);
        let pool = Arc::clone(self.pool_of(&entries));
        let cost = entries.iter().map(|entry| entry.cost).sum();
        let facts = pool.release(entries.len(), cost, worker.index(), reason);
        for entry in &entries {
            entry.note_taken(pool.name(), now, facts);
        }
        let is_direct = pool.hands_over_directly();
        // A part of a batch under bisection may end its worker.
        let is_here = !is_direct && reason.is_some() && pool.runs_in_batcher(self.workers.len());
        let finish = if is_here { Finish::AnswersInBatcher } else { Finish::AnswersFirst };
        let run = BatchRun::new(pool, entries, now, facts, suspicion, finish);
        if is_direct || is_here {
            worker.run(run);
        } else if worker.actor().send_message(WorkerMessage::Run(run)).is_err() {
            // The worker died after its slot was taken. The dropped run brings its entries back.
            worker.retire();
        }
        if is_here { HandedOver::Ran } else { HandedOver::Sent }
    }

    /// The stage of a batch.
    fn pool_of(&self, entries: &[Entry]) -> &Arc<Pool> {
        entries.first().map_or(&self.pool, |entry| self.stages.pool_of(entry))
    }

    /// Takes up to a full batch of a stage's entries for this replica; drops those without a waiting caller.
    fn form(&mut self, stage: usize, replica: usize, now: Instant) -> Vec<Entry> {
        let (pool, queue) = self.stages.of_mut(stage);
        let (max, max_cost) = pool.policy().bounds();
        let mut entries = Vec::with_capacity(max.min(queue.len()));
        let mut cost = 0;
        // An entry that waits alone overtakes no other.
        if queue.len() > 1 {
            queue.age(replica, now);
        }
        while entries.len() < max {
            let Some(head) = queue.head(replica) else { break };
            cost += head.cost();
            if cost > max_cost && !entries.is_empty() {
                break;
            }
            let mut entry = queue.take(head);
            entry.permit = None;
            if entry.flight.is_wanted(now) {
                entries.push(*entry);
            } else {
                cost -= entry.cost;
                pool.discard(*entry, now, DiscardPlace::Queue);
            }
        }
        entries
    }

    /// Removes a waiting entry from the queue or from the bisection.
    fn remove(&mut self, key: EntryKey) -> Option<Entry> {
        if let Some(entry) = self.stages.queues.remove(key) {
            return Some(*entry);
        }
        self.isolation.as_mut()?.suspects.remove(|entry| entry.key() == key)
    }

    /// Queues entries of a lost worker again.
    fn take_back(&mut self, entries: Vec<Entry>) {
        let entries = self.keep_wanted(entries);
        if self.pool.settings().hands_ahead() {
            self.forget_the_taken();
            self.returned.extend(entries.iter().map(Entry::key));
        }
        for entry in entries {
            if let Some(stage) = self.stages.find(&entry) {
                self.push(stage, entry);
            }
        }
    }

    /// Forgets entries that came back and have left the queue since.
    fn forget_the_taken(&mut self) {
        let Self { returned, stages, .. } = self;
        returned.retain(|key| stages.queues.contains(*key));
    }

    /// Gives returning entries a permit, and discards those whose callers have left: no message will name them again.
    fn keep_wanted(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let now = clock::now();
        let mut waiting = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if entry.flight.is_wanted(now) {
                entry.permit = Some(self.stages.pool_of(&entry).entrance.permits.take_again());
                waiting.push(entry);
            } else {
                self.discard(entry, now);
            }
        }
        waiting
    }

    /// Lets the entries of a batch that ended its worker run again apart from others.
    fn isolate(&mut self, entries: Vec<Entry>, suspicion: Suspicion, life: Option<LifeId>) {
        let entries = self.keep_wanted(entries);
        if !entries.is_empty() {
            self.pool.entrance.set_isolating(true);
            self.isolation.get_or_insert_default().suspects.add(entries, suspicion, life);
        }
    }

    /// Arms a timer that sends `Due` at `at`. An earlier timer that is already armed suffices: `Due` arms the next.
    fn arm(&mut self, myself: &ActorRef<BatcherMessage>, now: Instant, at: Instant) {
        if self.due_at.is_some_and(|due| due <= at) {
            return;
        }
        self.due_at = Some(at);
        myself.send_after(at.saturating_duration_since(now), || BatcherMessage::Due);
    }

    fn discard(&self, entry: Entry, now: Instant) {
        self.stages.pool_of(&entry).discard(entry, now, DiscardPlace::Queue);
    }

    /// Refuses all waiting entries.
    fn answer_all(&mut self, error: impl Fn(&Pool) -> CallError) {
        let refuse = |stages: &HostedStages, entry: Entry| {
            let pool = stages.pool_of(&entry);
            entry.note_end(pool.name(), clock::now(), RunEnd::Closed);
            entry.refuse(error(pool));
        };
        if let Some(isolation) = &mut self.isolation {
            isolation.suspects.drain().for_each(|entry| refuse(&self.stages, entry));
        }
        while let Some(entry) = self.stages.queues.pop_any() {
            refuse(&self.stages, *entry);
        }
    }
}

impl Drop for BatcherState {
    /// The actor has ended, for whatever reason: the inbox has no reader any more.
    fn drop(&mut self) {
        self.pool.entrance.inbox().close();
    }
}
