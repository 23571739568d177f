//! The events of one call: it arrives, is admitted or refused, waits, is given up, gets its one outcome.

use std::time::Duration;

use super::{Event, ModelCall, ModelWorld, Outcome, Place};
use crate::call::SessionKey;
use crate::id::RouteIndex;
use crate::queue::{AdmissionDecision, DeadlineCheck};

impl ModelWorld {
    pub(super) fn arrive(&mut self, call: usize) {
        let plan = self.script.calls[call].clone();
        match self.ledger.admit(self.instant(), RouteIndex(0), plan.bytes, false) {
            Err(refusal) => {
                self.note(format!("call {call} refused: {refusal}"));
                let outcome = if self.ledger.is_draining() { Outcome::Unavailable } else { Outcome::Overloaded };
                return self.end(call, outcome);
            }
            Ok(line) => {
                let line = line as usize;
                self.note(format!("call {call} admitted as {}", self.ledger.id_of(line)));
                self.calls[call].line = Some(line);
            }
        }
        if !self.life.state().accepts_entries() {
            return self.end(call, Outcome::Unavailable);
        }
        if self.queued() >= self.script.queue {
            return self.end(call, Outcome::Overloaded);
        }
        match self.decision(call) {
            AdmissionDecision::Queue => {}
            decision => {
                self.note(format!("call {call}: {decision:?}"));
                let too_late = matches!(decision, AdmissionDecision::DeadlineTooShort { .. });
                return self.end(call, if too_late { Outcome::Late } else { Outcome::Overloaded });
            }
        }
        self.push(call);
        self.at(self.now + plan.timeout, Event::Late(call));
        if let Some(patience) = plan.leaves_after {
            self.at(self.now + patience, Event::Leave(call));
        }
    }

    pub(super) fn decision(&self, call: usize) -> AdmissionDecision {
        let Some(line) = self.cost.warm_line() else { return AdmissionDecision::Queue };
        let plan = &self.script.calls[call];
        let (before, only) = self.lanes.before(self.session(call), self.calls[call].key);
        let working = || self.lives.values().filter(|life| !life.leaving);
        let free = working().any(|life| life.batch.is_none());
        let check = DeadlineCheck {
            line,
            remaining: Duration::from_nanos(plan.timeout),
            cost: plan.cost,
            before,
            running: (!free).then_some((line, self.last_cost)),
            others: Duration::ZERO,
            slots: only.unwrap_or_else(|| working().count()),
        };
        let decision = check.judge(&self.script.policy);
        let confirmed = || self.cost.is_confirmed_since(self.instant() - Duration::from_secs(1));
        if decision != AdmissionDecision::Queue && check.is_first() && !confirmed() {
            AdmissionDecision::Queue
        } else {
            decision
        }
    }

    pub(in crate::simulation) fn session(&self, call: usize) -> Option<SessionKey> {
        self.script.calls[call].session.map(|session| SessionKey::new(&session.to_string()))
    }

    pub(in crate::simulation) fn queued(&self) -> usize {
        self.lanes.len() + self.suspects.iter().map(|(_, group)| group.len()).sum::<usize>()
    }

    pub(super) fn push(&mut self, call: usize) {
        let ModelCall { key, arrived_at, .. } = self.calls[call];
        let arrival = self.base + Duration::from_nanos(arrived_at);
        self.calls[call].place = Place::Queue;
        self.lanes.push(self.session(call), key, arrival, self.script.calls[call].cost, call);
    }

    /// Its caller stops waiting.
    pub(super) fn give_up(&mut self, call: usize, outcome: Outcome) {
        if self.calls[call].outcome.is_some() {
            return;
        }
        let found = match self.calls[call].place {
            Place::Queue => self.lanes.remove(self.calls[call].key) == Some(call),
            Place::PoisonSuspects => {
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

    pub(super) fn end(&mut self, call: usize, outcome: Outcome) {
        self.note(format!("call {call}: {outcome:?}"));
        if let Some(earlier) = self.calls[call].outcome.replace(outcome) {
            self.violations.push(format!("call {call} has two outcomes, {earlier:?} and {outcome:?}"));
        }
        if let Some(line) = self.calls[call].line.take() {
            self.ledger.close(line);
            self.ledger.remove(line);
        }
        self.counts.outcomes[outcome as usize] += 1;
    }
}
