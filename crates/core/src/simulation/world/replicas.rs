//! The events of replicas: they start, die, are scaled, and give up together.

use super::super::invariants;
use super::state::ModelReplica;
use super::{Event, ModelLife, ModelWorld, Outcome, Place};
use crate::pool::StageState;
use crate::restart::{BackoffPolicy, LifeEnd, NextStart, RestartDecision as AfterCrash};

impl ModelWorld {
    pub(super) fn crashed(&mut self, id: u64, end: LifeEnd) {
        let Some(ModelLife { index, leaving, .. }) = self.lives.remove(&id) else { return };
        self.note(format!("{id} is dead, replica {index}"));
        self.lanes.set_replicas(self.lives.values().filter(|life| !life.leaving).map(|life| life.index));
        if leaving || index >= self.target || !self.life.state().accepts_entries() {
            return;
        }
        self.life.enter(StageState::Degraded, Some("a replica died".to_owned()));
        self.counts.restarts += 1;
        let NextStart { attempt, counts } = self.replicas[index].crash_loop.ended(end);
        if counts {
            self.crashes.push(self.now);
            let verdict = self.window.record(self.instant());
            invariants::check_intensity(self, verdict == AfterCrash::GiveUp);
            if verdict == AfterCrash::GiveUp {
                return self.fail();
            }
        }
        let delay = BackoffPolicy::default().delay(attempt, self.chance.share());
        self.replicas[index].restart_due = true;
        self.at(self.now + delay.as_nanos() as u64, Event::Restart(index));
    }

    /// The stage has given up.
    pub(super) fn fail(&mut self) {
        self.note("the stage has failed".to_owned());
        self.counts.failed_stages += 1;
        self.life.enter(StageState::Failed, None);
        self.target = 0;
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

    pub(super) fn start(&mut self, index: usize) {
        let life = ModelLife { index, leaving: false, batch: None, batches: 0 };
        self.lives.insert(self.next_life, life);
        self.note(format!("replica {index} is up as {}", self.next_life));
        self.next_life += 1;
        self.lanes.set_replicas(self.lives.values().filter(|life| !life.leaving).map(|life| life.index));
        let up = self.lives.values().filter(|life| !life.leaving).count();
        if up == self.target {
            self.life.enter(StageState::Ready, None);
        }
    }

    pub(super) fn scale(&mut self, replicas: usize) {
        if self.life.state() == StageState::Failed {
            return;
        }
        self.note(format!("scaled to {replicas}"));
        let before = std::mem::replace(&mut self.target, replicas);
        self.replicas.resize(self.replicas.len().max(replicas), ModelReplica::default());
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

    /// A replica is killed from outside: its calls run again if allowed, within the budget.
    pub(super) fn die(&mut self, index: usize) {
        let found = self.lives.iter().find(|(_, life)| life.index == index && !life.leaving);
        let Some((id, batch, batches)) = found.map(|(id, life)| (*id, life.batch.clone(), life.batches)) else {
            return;
        };
        let end = if batches > 0 || batch.is_some() { LifeEnd::Worked } else { LifeEnd::Unused };
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
        self.crashed(id, end);
    }
}
