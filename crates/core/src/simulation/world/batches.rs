//! The events of batches: they are formed, run, end, and run again in parts to find a culprit.

use std::time::Duration;

use super::super::invariants;
use super::super::script::Nature;
use super::state::{End, Family, ModelBatch};
use super::{Event, ModelLife, ModelWorld, Outcome, Place};
use crate::contract::Contract;
use crate::queue::{QueueState, Release};
use crate::restart::LifeEnd;
use crate::timeline::ReleaseReason;

impl ModelWorld {
    pub(super) fn dispatch(&mut self) {
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
                    self.empty_yields = 0;
                    self.release(life, reason);
                }
                Release::Yield => {
                    self.is_yielding = true;
                    self.yielded_at = self.lanes.len();
                    return self.at(self.now, Event::Yielded);
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

    pub(super) fn free_life(&self, suits: impl Fn((u64, &ModelLife)) -> bool) -> Option<u64> {
        let mut free = self.lives.iter().filter(|(_, life)| life.batch.is_none() && !life.leaving);
        free.find(|(id, life)| suits((**id, life))).map(|(id, _)| *id)
    }

    pub(super) fn waiting(&self, replica: usize) -> QueueState {
        let load = self.lanes.load_for(replica);
        QueueState {
            load,
            oldest_arrival: self.lanes.oldest_arrival(replica),
            first_deadline: self.lanes.first_deadline(replica),
            estimate: self.cost.line().batch(load.cost),
            last_batch: self.last_batch,
            empty_yields: self.empty_yields,
            is_draining: self.is_draining,
            ..QueueState::default()
        }
    }

    pub(super) fn release(&mut self, life: u64, reason: ReleaseReason) {
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
                // Its own timer fires at the same moment.
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

    pub(super) fn run(&mut self, life: u64, calls: Vec<usize>, family: Option<usize>) {
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
        let batch = ModelBatch { calls, family, started_at: self.now, end };
        self.lives.get_mut(&life).expect("it was found free").batch = Some(batch);
        self.at(self.now + time, Event::Over(life));
    }

    pub(super) fn batch_over(&mut self, id: u64) {
        // If the life has died meanwhile, its batch has ended with it.
        let Some(life) = self.lives.get_mut(&id) else { return };
        let Some(batch) = life.batch.take() else { return };
        let open: Vec<usize> = batch.calls.iter().copied().filter(|call| self.calls[*call].outcome.is_none()).collect();
        for call in &batch.calls {
            self.calls[*call].place = Place::Outside;
        }
        match batch.end {
            End::Returns => {
                life.batches += 1;
                let leaving = life.leaving;
                self.returned(&batch, &open);
                if leaving {
                    self.lives.remove(&id);
                }
            }
            End::Panics => self.panicked(id, &batch, open),
            End::Hangs => {
                for call in open {
                    self.end(call, Outcome::Late);
                }
                self.crashed(id, LifeEnd::Worked);
            }
        }
    }

    pub(super) fn returned(&mut self, batch: &ModelBatch, open: &[usize]) {
        let cost = batch.calls.iter().map(|call| self.script.calls[*call].cost).sum();
        self.cost.observe(self.instant(), cost, Duration::from_nanos(self.now - batch.started_at));
        self.budget.completed(batch.calls.len());
        self.culprits.record_runs(batch.calls.len());
        for call in open {
            let fails = self.script.calls[*call].nature == Nature::Fails;
            self.end(*call, if fails { Outcome::Failed } else { Outcome::Done });
        }
    }

    pub(super) fn panicked(&mut self, id: u64, batch: &ModelBatch, open: Vec<usize>) {
        let may_run_again = self.script.contract.may_run_again();
        let suffices = match batch.calls.as_slice() {
            [alone] => {
                self.calls[*alone].lone_crashes += 1;
                self.calls[*alone].lone_crashes > self.script.crash_retries
            }
            _ => false,
        };
        if may_run_again && !suffices {
            let family = batch.family.unwrap_or_else(|| {
                let kills = |call: &&usize| self.script.calls[**call].nature == Nature::Kills;
                let culprits = batch.calls.iter().filter(kills).count();
                self.families.push(Family { size: batch.calls.len(), runs: 1, culprits });
                self.families.len() - 1
            });
            self.isolate(family, open);
            return self.crashed(id, LifeEnd::Worked);
        }
        self.culprits.record_poison();
        for call in open {
            if may_run_again && self.script.calls[call].nature != Nature::Kills {
                self.violations.push(format!("call {call} answers for another's crash"));
            }
            self.end(call, Outcome::WorkerFailed);
        }
        self.crashed(id, LifeEnd::Worked);
    }

    pub(super) fn isolate(&mut self, family: usize, mut calls: Vec<usize>) {
        let now = self.instant();
        calls.retain(|call| !self.calls[*call].key.deadline.is_expired(now));
        for call in &calls {
            self.calls[*call].place = Place::PoisonSuspects;
        }
        let second = calls.split_off(calls.len() / 2);
        self.suspects.extend([calls, second].into_iter().filter(|half| !half.is_empty()).map(|half| (family, half)));
    }
}
