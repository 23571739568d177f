//! Runs a script: passes events to the decisions and carries them out, as the actors would.

mod batches;
mod calls;
mod replicas;
mod state;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(super) use self::state::{Counts, ModelCall, ModelLife, Outcome, Place};
use self::state::{Family, ModelReplica};
use super::invariants;
use super::script::Script;
use super::trace::Trace;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::gateway::Ledger;
use crate::pool::{Lifecycle, PoisonShare, RerunBudget, StageState};
use crate::queue::{EntryKey, SessionQueues, SharedCost};
use crate::restart::RestartWindow;
use crate::testing::Chance;

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Leave(usize),
    Late(usize),
    /// The batch of this life ends, in any way.
    Over(u64),
    Restart(usize),
    Due,
    Yielded,
    Scale(usize),
    Die(usize),
    Drain,
}

pub(super) struct ModelWorld {
    pub(super) script: Script,
    pub(super) trace: Trace,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
    pub(super) calls: Vec<ModelCall>,
    pub(super) ledger: Ledger,
    pub(super) lanes: SessionQueues<usize>,
    pub(super) suspects: VecDeque<(usize, Vec<usize>)>,
    pub(super) lives: BTreeMap<u64, ModelLife>,
    pub(super) families: Vec<Family>,
    pub(super) is_yielding: bool,
    pub(super) crashes: Vec<u64>,
    base: Instant,
    pub(super) now: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_life: u64,
    replicas: Vec<ModelReplica>,
    target: usize,
    cost: SharedCost,
    window: RestartWindow,
    culprits: PoisonShare,
    budget: RerunBudget,
    pub(super) life: Lifecycle,
    last_batch: usize,
    last_cost: u64,
    yielded_at: usize,
    empty_yields: u32,
    due_at: Option<u64>,
    is_draining: bool,
    chance: Chance,
}

impl ModelWorld {
    pub(super) fn new(script: Script) -> Self {
        let base = clock::now();
        let calls = script.calls.iter().enumerate().map(|(sequence, plan)| {
            let deadline = Deadline::at(base + Duration::from_nanos(plan.at + plan.timeout));
            let key = EntryKey { priority: plan.priority, deadline, sequence: sequence as u64 };
            ModelCall {
                key,
                arrived_at: plan.at,
                place: Place::Outside,
                starts: 0,
                lone_crashes: 0,
                outcome: None,
                line: None,
            }
        });
        let mut world = Self {
            trace: Trace::new(),
            violations: Vec::new(),
            counts: Counts::default(),
            calls: calls.collect(),
            ledger: Ledger::new(script.limits.clone()),
            lanes: SessionQueues::new(script.policy.ageing),
            suspects: VecDeque::new(),
            lives: BTreeMap::new(),
            families: Vec::new(),
            is_yielding: false,
            crashes: Vec::new(),
            base,
            now: 0,
            events: BTreeMap::new(),
            next_event: 0,
            next_life: 0,
            replicas: Vec::new(),
            target: 0,
            cost: SharedCost::default(),
            window: RestartWindow::new(script.intensity),
            culprits: PoisonShare::default(),
            budget: RerunBudget::default(),
            life: Lifecycle::default(),
            last_batch: 0,
            last_cost: 0,
            yielded_at: 0,
            empty_yields: 0,
            due_at: None,
            is_draining: false,
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
                if index < self.target && std::mem::take(&mut self.replicas[index].restart_due) {
                    self.start(index);
                }
            }
            Event::Due => self.due_at = None,
            Event::Yielded => {
                self.is_yielding = false;
                let brought = self.lanes.len() > self.yielded_at;
                self.empty_yields = if brought { 0 } else { self.empty_yields + 1 };
            }
            Event::Scale(replicas) => self.scale(replicas),
            Event::Die(index) => self.die(index),
            Event::Drain => {
                self.ledger.drain();
                self.is_draining = true;
                self.note("drain".to_owned());
            }
        }
        if !self.is_yielding {
            self.dispatch();
        }
    }
}
