//! The stages of one batcher: that of its pool, and the stages that it hosts. For each: how often a yield brought no
//! entry. The costs and the last batch come from its pool.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::CallError;
use crate::pool::Pool;
use crate::queue::{CostLine, Entry, HostedId, HostedQueues, NextBatch, QueueState, Returns, SessionQueues};

/// The stages, by their indices. The first is that of the batcher's pool, which also stands in the places that are
/// free.
pub(super) struct HostedStages {
    pub(super) queues: HostedQueues<Box<Entry>>,
    states: Vec<HostedStage>,
}

struct HostedStage {
    pool: Arc<Pool>,
    /// The number of waiting entries at the last yield.
    yielded_at: usize,
    /// Yields in a row during which no entry arrived; see [`QueueState`].
    empty_yields: u32,
    returns: Returns,
}

impl HostedStage {
    fn new(pool: Arc<Pool>) -> Self {
        Self { pool, yielded_at: 0, empty_yields: 0, returns: Returns::default() }
    }
}

impl HostedStages {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        let queues = HostedQueues::new(pool.policy().ageing);
        Self { queues, states: vec![HostedStage::new(Arc::clone(pool))] }
    }

    /// The stage of an index.
    pub(super) fn pool(&self, stage: usize) -> &Arc<Pool> {
        &self.states[stage].pool
    }

    /// The stage of an index, with its queue.
    pub(super) fn of_mut(&mut self, stage: usize) -> (&Pool, &mut SessionQueues<Box<Entry>>) {
        (&self.states[stage].pool, self.queues.of_mut(stage))
    }

    /// The stage of an entry that was [found](Self::find) before.
    pub(super) fn pool_of(&self, entry: &Entry) -> &Arc<Pool> {
        self.pool(self.known(entry).unwrap_or(0))
    }

    fn known(&self, entry: &Entry) -> Option<usize> {
        self.place_of(entry.hosted_id())
    }

    fn place_of(&self, id: HostedId) -> Option<usize> {
        if id == 0 {
            return Some(0);
        }
        self.states.iter().position(|state| state.pool.hosted_id == id)
    }

    /// The stage and the cost of the last batch.
    fn last(&self) -> (usize, u64) {
        let (stage, cost) = self.pool(0).entrance.last_batch();
        (self.place_of(stage).unwrap_or(0), cost)
    }

    /// The index of an entry's stage. `None`: the stage has ended, and with it the caller.
    pub(super) fn find(&mut self, entry: &Entry) -> Option<usize> {
        self.known(entry).or_else(|| {
            let pool = self.states[0].pool.hosted(entry.hosted_id())?;
            let (ageing, state) = (pool.policy().ageing, HostedStage::new(pool));
            if let Some(free) = (0..self.states.len()).find(|stage| self.is_free(*stage)) {
                self.queues.renew(free, ageing);
                self.states[free] = state;
                return Some(free);
            }
            self.states.push(state);
            Some(self.queues.add(ageing))
        })
    }

    fn is_free(&self, stage: usize) -> bool {
        stage > 0 && self.pool(stage).hosted_id == 0
    }

    /// A hosted stage has ended, and all its calls before it: its place is free for another one.
    pub(super) fn end(&mut self, id: HostedId) {
        let ended = (1..self.states.len()).find(|stage| self.states[*stage].pool.hosted_id == id);
        if let Some(stage) = ended.filter(|stage| self.queues.of(*stage).len() == 0) {
            self.states[stage] = HostedStage::new(Arc::clone(self.pool(0)));
        }
    }

    /// The refusal of an entry that would miss its deadline behind what waits and runs.
    pub(super) fn refusal(&self, stage: usize, entry: &Entry) -> Option<CallError> {
        let (last, cost) = self.last();
        let running = (self.pool(last).cost.line(), cost);
        self.pool(stage).refusal(entry, self.queues.of(stage), running, self.others(stage, entry))
    }

    /// How long the entries of other stages take that leave before this one.
    fn others(&self, stage: usize, entry: &Entry) -> Duration {
        if self.states.len() == 1 {
            return Duration::ZERO;
        }
        let slots = self.pool(0).replicas.slots();
        let others = self.states.iter().enumerate().filter(|(other, _)| *other != stage);
        let drain = |(other, state): (usize, &HostedStage)| {
            let (before, _) = self.queues.of(other).before(entry.flight.session, entry.key());
            state.pool.cost.line().drain(before, state.pool.policy(), slots)
        };
        others.map(drain).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Notes which batches have ended. Before the entries that came since are queued.
    pub(super) fn note_ends(&mut self) {
        for state in &mut self.states {
            if let Some(end) = state.pool.take_end() {
                state.returns.answered(end);
            }
        }
    }

    /// An entry of a stage has come.
    pub(super) fn arrived(&mut self, stage: usize, at: Instant) {
        self.states[stage].returns.arrived(at);
    }

    /// Until when the only slot of a stage waits for the callers of its last batch.
    pub(super) fn returns_at(&mut self, stage: usize, replica: usize, now: Instant) -> Option<Instant> {
        let (state, queue) = (&mut self.states[stage], self.queues.of(stage));
        let pool = &state.pool;
        if !pool.policy().waits_for_returns() {
            return None;
        }
        let load = queue.load_for(replica);
        // Who finds no place in the queue is refused.
        let places = pool.settings().queue().get().saturating_sub(pool.queued());
        let room = pool.policy().max_batch_size.get().saturating_sub(load.entries).min(places);
        let (line, deadline) = (pool.cost.line(), queue.first_deadline(replica));
        state.returns.wait(now, NextBatch { load, room, line, deadline })
    }

    /// What waits of a stage for this replica, and until when that waits for others.
    pub(super) fn waiting(
        &self,
        stage: usize,
        replica: usize,
        is_draining: bool,
        returns_at: Option<Instant>,
    ) -> QueueState {
        let (state, queue) = (&self.states[stage], self.queues.of(stage));
        let has_delay = !state.pool.policy().max_delay.is_zero();
        let load = queue.load_for(replica);
        QueueState {
            load,
            oldest_arrival: if has_delay { queue.oldest_arrival(replica) } else { None },
            first_deadline: if has_delay { queue.first_deadline(replica) } else { None },
            estimate: if has_delay { state.pool.cost.line().batch(load.cost) } else { Duration::ZERO },
            returns_at,
            has_waited: state.returns.has_waited(),
            last_batch: state.pool.last_batch(),
            empty_yields: state.empty_yields,
            is_draining,
            has_returned: false,
        }
    }

    /// Whether a busy replica gets the next batch of this stage ahead.
    pub(super) fn hands_ahead(
        &self,
        stage: usize,
        replica: usize,
        now: Instant,
        has_returned: bool,
        replicas: usize,
    ) -> bool {
        let pool = self.pool(stage);
        let (last, cost) = self.last();
        let running = self.pool(last).cost.line().batch(cost);
        // The batch that would run after it is of this stage, and may take longer.
        let estimate = if stage == last { running } else { running.max(self.longest(pool.cost.line(), stage)) };
        let first_deadline = self.queues.of(stage).first_deadline(replica);
        let waiting =
            QueueState { first_deadline, estimate, has_returned, ..self.waiting(stage, replica, false, None) };
        pool.policy().hands_ahead(now, &waiting, replicas)
    }

    /// The duration of a batch of all that waits of a stage, up to a full one.
    fn longest(&self, line: CostLine, stage: usize) -> Duration {
        line.batch(self.queues.of(stage).load().of_next_batch(self.pool(stage).policy()))
    }

    /// A decision to form a batch was carried out.
    pub(super) fn decided(&mut self, stage: usize) {
        self.states[stage].empty_yields = 0;
    }

    pub(super) fn begin_yield(&mut self, stage: usize) {
        self.states[stage].yielded_at = self.queues.of(stage).len();
    }

    /// The yield is over: counts it if no entry arrived meanwhile.
    pub(super) fn end_yield(&mut self, stage: usize) {
        let (state, waiting) = (&mut self.states[stage], self.queues.of(stage).len());
        state.empty_yields = if waiting > state.yielded_at { 0 } else { state.empty_yields + 1 };
    }

    /// Notes the load of each queue.
    pub(super) fn note_queued(&self) {
        for (stage, state) in self.states.iter().enumerate().filter(|(stage, _)| !self.is_free(*stage)) {
            state.pool.note_queued(self.queues.of(stage).load());
        }
    }
}
