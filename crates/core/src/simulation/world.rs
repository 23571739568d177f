//! Plays a script: hands events to the decisions and does what they say, as the actors would.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::invariants;
use super::script::{Chance, Nature, Script};
use super::trace::Trace;
use crate::batcher::{EntryKey, Lanes, Prospect, Release, ReleaseReason, SharedCost, Verdict, Waiting};
use crate::call::SessionKey;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::gateway::Ledger;
use crate::id::RouteIndex;
use crate::stage::Contract;
use crate::supervisor::Verdict as AfterCrash;
use crate::supervisor::{BackoffPolicy, CulpritShare, Lifecycle, RestartWindow, RetryBudget, StageState};

/// What happens at a moment.
#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Leave(usize),
    Late(usize),
    /// The batch of this life ends, one way or another.
    Over(u64),
    Restart(usize),
    Due,
    Settled,
    Scale(usize),
    Die(usize),
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed,
    WorkerFailed,
    Late,
    Cancelled,
    Overloaded,
    Unavailable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Outside,
    Queue,
    Suspects,
    Running,
}

/// One call, as the world knows it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) key: EntryKey,
    pub(super) arrived_at: u64,
    pub(super) place: Place,
    pub(super) starts: u32,
    pub(super) outcome: Option<Outcome>,
    line: Option<usize>,
}

/// One life of a replica.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) index: usize,
    pub(super) leaving: bool,
    pub(super) batch: Option<Batch>,
    batches: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) calls: Vec<usize>,
    /// The batch that died first, where this is a part of it.
    family: Option<usize>,
    started_at: u64,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Returns,
    Panics,
    Hangs,
}

/// A batch that killed its worker, and the search for who did it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) size: usize,
    pub(super) runs: usize,
    /// Some of them may leave before they are found.
    pub(super) culprits: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReplicaState {
    attempt: u32,
    restart_due: bool,
}

/// How often what happened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) outcomes: [u64; 7],
    pub(super) reasons: [u64; ReleaseReason::ALL.len()],
    pub(super) batches: u64,
    pub(super) isolations: u64,
    pub(super) restarts: u64,
    pub(super) failed_stages: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(sum, more)| *sum += more);
        self.reasons.iter_mut().zip(other.reasons).for_each(|(sum, more)| *sum += more);
        self.batches += other.batches;
        self.isolations += other.isolations;
        self.restarts += other.restarts;
        self.failed_stages += other.failed_stages;
    }

    pub(super) fn has_everything(&self) -> bool {
        let all = self.outcomes.iter().chain(&self.reasons);
        all.chain([&self.isolations, &self.restarts, &self.failed_stages]).all(|count| *count > 0)
    }
}

pub(super) struct World {
    pub(super) script: Script,
    pub(super) trace: Trace,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
    pub(super) calls: Vec<Call>,
    pub(super) ledger: Ledger,
    pub(super) lanes: Lanes<usize>,
    pub(super) suspects: VecDeque<(usize, Vec<usize>)>,
    pub(super) lives: BTreeMap<u64, Life>,
    pub(super) families: Vec<Family>,
    pub(super) settling: bool,
    pub(super) crashes: Vec<u64>,
    base: Instant,
    pub(super) now: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_life: u64,
    replicas: Vec<ReplicaState>,
    wanted: usize,
    cost: SharedCost,
    window: RestartWindow,
    culprits: CulpritShare,
    budget: RetryBudget,
    pub(super) life: Lifecycle,
    last_batch: usize,
    last_cost: u64,
    settled_at: usize,
    fruitless_turns: u32,
    due_at: Option<u64>,
    draining: bool,
    chance: Chance,
}

impl World {
    pub(super) fn of(script: Script) -> Self {
        let base = clock::now();
        let calls = script.calls.iter().enumerate().map(|(sequence, plan)| {
            let deadline = Deadline::at(base + Duration::from_nanos(plan.at + plan.timeout));
            let key = EntryKey { priority: plan.priority, deadline, sequence: sequence as u64 };
            Call { key, arrived_at: plan.at, place: Place::Outside, starts: 0, outcome: None, line: None }
        });
        let mut world = Self {
            trace: Trace::new(),
            violations: Vec::new(),
            counts: Counts::default(),
            calls: calls.collect(),
            ledger: Ledger::new(script.limits.clone()),
            lanes: Lanes::new(script.policy.ageing),
            suspects: VecDeque::new(),
            lives: BTreeMap::new(),
            families: Vec::new(),
            settling: false,
            crashes: Vec::new(),
            base,
            now: 0,
            events: BTreeMap::new(),
            next_event: 0,
            next_life: 0,
            replicas: Vec::new(),
            wanted: 0,
            cost: SharedCost::default(),
            window: RestartWindow::new(script.intensity),
            culprits: CulpritShare::default(),
            budget: RetryBudget::default(),
            life: Lifecycle::default(),
            last_batch: 0,
            last_cost: 0,
            settled_at: 0,
            fruitless_turns: 0,
            due_at: None,
            draining: false,
            chance: Chance::new(!script.seed),
            script,
        };
        for call in 0..world.calls.len() {
            world.at(world.script.calls[call].at, Event::Arrive(call));
        }
        for (at, replicas) in world.script.scales.clone() {
            world.at(at, Event::Scale(replicas));
        }
        for (at, index) in world.script.deaths.clone() {
            world.at(at, Event::Die(index));
        }
        if let Some(at) = world.script.drains_at {
            world.at(at, Event::Drain);
        }
        world
    }

    pub(super) fn play(mut self) -> Self {
        self.scale(self.script.replicas);
        self.life.enter(StageState::Ready, None);
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.happen(event);
            invariants::check(&mut self);
        }
        invariants::check_end(&mut self);
        self
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    fn note(&mut self, what: String) {
        self.trace.note(self.now, what);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(call) => self.arrive(call),
            Event::Leave(call) => self.give_up(call, Outcome::Cancelled),
            Event::Late(call) => self.give_up(call, Outcome::Late),
            Event::Over(life) => self.batch_over(life),
            Event::Restart(index) => {
                if index < self.wanted && std::mem::take(&mut self.replicas[index].restart_due) {
                    self.start(index);
                }
            }
            Event::Due => self.due_at = None,
            Event::Settled => {
                self.settling = false;
                let brought = self.lanes.len() > self.settled_at;
                self.fruitless_turns = if brought { 0 } else { self.fruitless_turns + 1 };
            }
            Event::Scale(replicas) => self.scale(replicas),
            Event::Die(index) => self.die(index),
            Event::Drain => {
                self.ledger.drain();
                self.draining = true;
                self.note("drain".to_owned());
            }
        }
        if !self.settling {
            self.dispatch();
        }
    }

    fn arrive(&mut self, call: usize) {
        let plan = self.script.calls[call].clone();
        match self.ledger.admit(self.instant(), RouteIndex(0), plan.bytes) {
            Err(refusal) => {
                self.note(format!("call {call} refused: {refusal}"));
                let outcome = if self.ledger.is_draining() { Outcome::Unavailable } else { Outcome::Overloaded };
                return self.end(call, outcome);
            }
            Ok((line, id)) => {
                self.note(format!("call {call} admitted as {id}"));
                self.calls[call].line = Some(line);
            }
        }
        if !self.life.state().accepts_entries() {
            return self.end(call, Outcome::Unavailable);
        }
        if self.queued() >= self.script.queue {
            return self.end(call, Outcome::Overloaded);
        }
        match self.verdict(call) {
            Verdict::Queue => {}
            verdict => {
                self.note(format!("call {call}: {verdict:?}"));
                let too_late = matches!(verdict, Verdict::TooLate { .. });
                return self.end(call, if too_late { Outcome::Late } else { Outcome::Overloaded });
            }
        }
        self.push(call);
        self.at(self.now + plan.timeout, Event::Late(call));
        if let Some(patience) = plan.leaves_after {
            self.at(self.now + patience, Event::Leave(call));
        }
    }

    fn verdict(&self, call: usize) -> Verdict {
        let Some(line) = self.cost.warm_line() else { return Verdict::Queue };
        let plan = &self.script.calls[call];
        let (before, only) = self.lanes.before(self.session(call), self.calls[call].key);
        let working = || self.lives.values().filter(|life| !life.leaving);
        let free = working().any(|life| life.batch.is_none());
        let prospect = Prospect {
            line,
            remaining: Duration::from_nanos(plan.timeout),
            cost: plan.cost,
            before,
            running: (!free).then_some(self.last_cost),
            seats: only.unwrap_or_else(|| working().count()),
        };
        let verdict = prospect.judge(&self.script.policy);
        let confirmed = || self.cost.is_confirmed_since(self.instant() - Duration::from_secs(1));
        if verdict != Verdict::Queue && prospect.is_first() && !confirmed() { Verdict::Queue } else { verdict }
    }

    pub(super) fn session(&self, call: usize) -> Option<SessionKey> {
        self.script.calls[call].session.map(|session| SessionKey::new(&session.to_string()))
    }

    pub(super) fn queued(&self) -> usize {
        self.lanes.len() + self.suspects.iter().map(|(_, group)| group.len()).sum::<usize>()
    }

    fn push(&mut self, call: usize) {
        let Call { key, arrived_at, .. } = self.calls[call];
        let arrival = self.base + Duration::from_nanos(arrived_at);
        self.calls[call].place = Place::Queue;
        self.lanes.push(self.session(call), key, arrival, self.script.calls[call].cost, call);
    }

    /// Its caller does not wait any more.
    fn give_up(&mut self, call: usize, outcome: Outcome) {
        if self.calls[call].outcome.is_some() {
            return;
        }
        let found = match self.calls[call].place {
            Place::Queue => self.lanes.remove(self.calls[call].key) == Some(call),
            Place::Suspects => {
                self.suspects.iter_mut().for_each(|(_, group)| group.retain(|other| *other != call));
                self.suspects.retain(|(_, group)| !group.is_empty());
                true
            }
            Place::Running | Place::Outside => true,
        };
        if !found {
            self.violations.push(format!("call {call} was not found in its lane"));
        }
        if self.calls[call].place != Place::Running {
            self.calls[call].place = Place::Outside;
        }
        self.end(call, outcome);
    }

    fn end(&mut self, call: usize, outcome: Outcome) {
        self.note(format!("call {call}: {outcome:?}"));
        if let Some(earlier) = self.calls[call].outcome.replace(outcome) {
            self.violations.push(format!("call {call} is told {earlier:?} and {outcome:?}"));
        }
        if let Some(line) = self.calls[call].line.take() {
            self.ledger.close(line);
        }
        self.counts.outcomes[outcome as usize] += 1;
    }

    fn dispatch(&mut self) {
        while let Some((family, group)) = self.suspects.pop_front() {
            let Some(life) = self.free_life(|_| true) else {
                return self.suspects.push_front((family, group));
            };
            self.counts.isolations += 1;
            self.run(life, group, Some(family));
        }
        let mut from = 0;
        while self.lanes.len() > 0 {
            let sessions = self.lanes.has_sessions();
            let found =
                self.free_life(|life| life.0 >= from && (!sessions || self.lanes.load_for(life.1.index).entries > 0));
            let Some(life) = found else { return };
            let waiting = self.waiting(self.lives[&life].index);
            match self.script.policy.decide(self.instant(), &waiting) {
                Release::Now(reason) => {
                    self.fruitless_turns = 0;
                    self.release(life, reason);
                }
                Release::Settle => {
                    self.settling = true;
                    self.settled_at = self.lanes.len();
                    return self.at(self.now, Event::Settled);
                }
                Release::At(at) => {
                    let at = at.duration_since(self.base).as_nanos() as u64;
                    if self.due_at.is_none_or(|due| due > at) {
                        self.due_at = Some(at);
                        self.at(at, Event::Due);
                    }
                    from = life + 1;
                }
                Release::Nothing => from = life + 1,
            }
            if from > 0 && !sessions {
                return;
            }
        }
    }

    fn free_life(&self, suits: impl Fn((u64, &Life)) -> bool) -> Option<u64> {
        let mut free = self.lives.iter().filter(|(_, life)| life.batch.is_none() && !life.leaving);
        free.find(|(id, life)| suits((**id, life))).map(|(id, _)| *id)
    }

    fn waiting(&self, replica: usize) -> Waiting {
        let load = self.lanes.load_for(replica);
        Waiting {
            load,
            oldest_arrival: self.lanes.oldest_arrival(replica),
            first_deadline: self.lanes.first_deadline(replica),
            estimate: self.cost.line().batch(load.cost),
            last_batch: self.last_batch,
            fruitless_turns: self.fruitless_turns,
            draining: self.draining,
        }
    }

    fn release(&mut self, life: u64, reason: ReleaseReason) {
        let expected = invariants::in_order(self);
        let (max, max_cost) = self.script.policy.bounds();
        let (now, replica) = (self.instant(), self.lives[&life].index);
        let (mut batch, mut taken, mut cost) = (Vec::new(), Vec::new(), 0);
        self.lanes.age(replica, now);
        while batch.len() < max {
            let Some(head) = self.lanes.head(replica) else { break };
            cost += head.cost();
            if cost > max_cost && !batch.is_empty() {
                break;
            }
            let call = self.lanes.take(head);
            taken.push(call);
            self.calls[call].place = Place::Outside;
            if self.calls[call].outcome.is_none() && !self.calls[call].key.deadline.is_expired(now) {
                batch.push(call);
            } else {
                // Its own timer comes in the same moment.
                cost -= self.script.calls[call].cost;
            }
        }
        if let Some(expected) = expected
            && !expected.starts_with(&taken)
        {
            self.violations.push(format!("took {taken:?} where {expected:?} was the order"));
        }
        if batch.is_empty() {
            return;
        }
        let spent: u64 = batch.iter().map(|call| self.script.calls[*call].cost).sum();
        if batch.len() > 1 && spent > max_cost {
            self.violations.push(format!("a batch of {} costs {spent}", batch.len()));
        }
        (self.last_batch, self.last_cost) = (batch.len(), spent);
        self.counts.reasons[reason as usize] += 1;
        self.counts.batches += 1;
        self.note(format!("released {batch:?} to {life}: {reason:?}"));
        self.run(life, batch, None);
    }

    fn run(&mut self, life: u64, calls: Vec<usize>, family: Option<usize>) {
        let now = self.instant();
        for call in &calls {
            let call_state = &mut self.calls[*call];
            call_state.starts += 1;
            call_state.place = Place::Running;
            let again = call_state.starts > 1 && self.script.contract == Contract::AtMostOnce;
            if call_state.outcome.is_some() || call_state.key.deadline.is_expired(now) || again {
                self.violations.push(format!("call {call} starts: {:?}", self.calls[*call]));
            }
        }
        if let Some(family) = family {
            self.families[family].runs += 1;
        }
        let cost: u64 = calls.iter().map(|call| self.script.calls[*call].cost).sum();
        let time = (self.script.per_batch + self.script.per_unit * cost) as f64 * (1.0 + 0.5 * self.chance.share());
        let has = |nature| calls.iter().any(|call| self.script.calls[*call].nature == nature);
        let (time, end) = match time as u64 {
            time if has(Nature::Kills) => (time / 2, End::Panics),
            time if has(Nature::Hangs) || time >= self.script.timeout => (self.script.timeout, End::Hangs),
            time => (time, End::Returns),
        };
        self.note(format!("{life} runs {calls:?} for {time}: {end:?}"));
        let batch = Batch { calls, family, started_at: self.now, end };
        self.lives.get_mut(&life).expect("it was found free").batch = Some(batch);
        self.at(self.now + time, Event::Over(life));
    }

    fn batch_over(&mut self, id: u64) {
        // A life that died meanwhile has taken its batch along.
        let Some(life) = self.lives.get_mut(&id) else { return };
        let Some(batch) = life.batch.take() else { return };
        let open: Vec<usize> = batch.calls.iter().copied().filter(|call| self.calls[*call].outcome.is_none()).collect();
        for call in &batch.calls {
            self.calls[*call].place = Place::Outside;
        }
        match batch.end {
            End::Returns => {
                life.batches += 1;
                let (leaving, index) = (life.leaving, life.index);
                self.returned(&batch, &open);
                self.replicas[index].attempt = 0;
                if leaving {
                    self.lives.remove(&id);
                }
            }
            End::Panics => self.panicked(id, &batch, open),
            End::Hangs => {
                for call in open {
                    self.end(call, Outcome::Late);
                }
                self.crashed(id, false);
            }
        }
    }

    fn returned(&mut self, batch: &Batch, open: &[usize]) {
        let cost = batch.calls.iter().map(|call| self.script.calls[*call].cost).sum();
        self.cost.observe(self.instant(), cost, Duration::from_nanos(self.now - batch.started_at));
        self.budget.completed(batch.calls.len());
        self.culprits.ran(batch.calls.len());
        for call in open {
            let fails = self.script.calls[*call].nature == Nature::Fails;
            self.end(*call, if fails { Outcome::Failed } else { Outcome::Done });
        }
    }

    fn panicked(&mut self, id: u64, batch: &Batch, open: Vec<usize>) {
        let may_run_again = self.script.contract.may_run_again();
        if may_run_again && batch.calls.len() > 1 {
            let family = batch.family.unwrap_or_else(|| {
                let kills = |call: &&usize| self.script.calls[**call].nature == Nature::Kills;
                let culprits = batch.calls.iter().filter(kills).count();
                self.families.push(Family { size: batch.calls.len(), runs: 1, culprits });
                self.families.len() - 1
            });
            self.isolate(family, open);
            return self.crashed(id, true);
        }
        if may_run_again {
            self.culprits.found();
        }
        for call in open {
            if may_run_again && self.script.calls[call].nature != Nature::Kills {
                self.violations.push(format!("call {call} answers for another's crash"));
            }
            self.end(call, Outcome::WorkerFailed);
        }
        self.crashed(id, may_run_again);
    }

    fn isolate(&mut self, family: usize, mut calls: Vec<usize>) {
        let now = self.instant();
        calls.retain(|call| !self.calls[*call].key.deadline.is_expired(now));
        for call in &calls {
            self.calls[*call].place = Place::Suspects;
        }
        let second = calls.split_off(calls.len() / 2);
        self.suspects.extend([calls, second].into_iter().filter(|half| !half.is_empty()).map(|half| (family, half)));
    }

    /// A life ends by itself. One that is searched for a culprit is sound, and starts again at once.
    fn crashed(&mut self, id: u64, poison: bool) {
        let Some(Life { index, leaving, batches, .. }) = self.lives.remove(&id) else { return };
        self.note(format!("{id} is dead, replica {index}"));
        self.lanes.set_replicas(self.lives.values().filter(|life| !life.leaving).map(|life| life.index));
        if leaving || index >= self.wanted || !self.life.state().accepts_entries() {
            return;
        }
        self.life.enter(StageState::Degraded, Some("a replica died".to_owned()));
        self.counts.restarts += 1;
        if poison {
            return self.start(index);
        }
        if batches == 0 {
            self.crashes.push(self.now);
            let verdict = self.window.record(self.instant());
            invariants::check_intensity(self, verdict == AfterCrash::GiveUp);
            if verdict == AfterCrash::GiveUp {
                return self.fail();
            }
        }
        let delay = BackoffPolicy::default().delay(self.replicas[index].attempt, self.chance.share());
        self.replicas[index].attempt += 1;
        self.replicas[index].restart_due = true;
        self.at(self.now + delay.as_nanos() as u64, Event::Restart(index));
    }

    /// The stage has given up.
    fn fail(&mut self) {
        self.note("the stage has failed".to_owned());
        self.counts.failed_stages += 1;
        self.life.enter(StageState::Failed, None);
        self.wanted = 0;
        let suspects = std::mem::take(&mut self.suspects).into_iter().flat_map(|(_, group)| group);
        let mut waiting: Vec<usize> = suspects.collect();
        while let Some(call) = self.lanes.pop_any() {
            waiting.push(call);
        }
        for call in waiting {
            self.calls[call].place = Place::Outside;
            self.end(call, Outcome::Unavailable);
        }
        self.lives.values_mut().for_each(|life| life.leaving = true);
        self.lives.retain(|_, life| life.batch.is_some());
    }

    fn start(&mut self, index: usize) {
        let life = Life { index, leaving: false, batch: None, batches: 0 };
        self.lives.insert(self.next_life, life);
        self.note(format!("replica {index} is up as {}", self.next_life));
        self.next_life += 1;
        self.lanes.set_replicas(self.lives.values().filter(|life| !life.leaving).map(|life| life.index));
        let up = self.lives.values().filter(|life| !life.leaving).count();
        if up == self.wanted {
            self.life.enter(StageState::Ready, None);
        }
    }

    fn scale(&mut self, replicas: usize) {
        if self.life.state() == StageState::Failed {
            return;
        }
        self.note(format!("scaled to {replicas}"));
        let before = std::mem::replace(&mut self.wanted, replicas);
        self.replicas.resize(self.replicas.len().max(replicas), ReplicaState::default());
        for index in replicas..self.replicas.len() {
            self.replicas[index].restart_due = false;
        }
        self.lives.values_mut().filter(|life| life.index >= replicas).for_each(|life| life.leaving = true);
        self.lives.retain(|_, life| !life.leaving || life.batch.is_some());
        self.lanes.set_replicas(self.lives.values().filter(|life| !life.leaving).map(|life| life.index));
        for index in before..replicas {
            self.start(index);
        }
    }

    /// A replica is killed from outside: what may be run again is, within the budget.
    fn die(&mut self, index: usize) {
        let found = self.lives.iter().find(|(_, life)| life.index == index && !life.leaving);
        let Some((id, batch)) = found.map(|(id, life)| (*id, life.batch.clone())) else { return };
        if let Some(batch) = batch {
            let now = self.instant();
            let is_wanted = |call: &usize| !self.calls[*call].key.deadline.is_expired(now);
            let open = batch.calls.iter().copied().filter(|call| self.calls[*call].outcome.is_none());
            let (mut again, late): (Vec<usize>, Vec<usize>) = open.partition(is_wanted);
            let retries = if self.script.contract.may_run_again() { self.budget.take(again.len()) } else { 0 };
            let lost = again.split_off(retries);
            for call in &batch.calls {
                self.calls[*call].place = Place::Outside;
            }
            again.into_iter().for_each(|call| self.push(call));
            lost.into_iter().chain(late).for_each(|call| self.end(call, Outcome::WorkerFailed));
        }
        self.crashed(id, false);
    }
}
