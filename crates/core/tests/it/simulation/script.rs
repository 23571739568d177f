//! The script of a seed: the stages, the routes, and the times of the events.

use std::time::Duration;

use callboard_core::testing::Chance;
use callboard_core::{Contract, Limits, Priority};

/// One run, generated before it begins.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) limits: Limits,
    pub(super) stages: Vec<StagePlan>,
    pub(super) routes: Vec<RoutePlan>,
    /// In the order of time.
    pub(super) steps: Vec<(Duration, Step)>,
    pub(super) ending: Ending,
}

/// The form of a stage's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A closure over a batch, as a task: takes no virtual time.
    Task,
    /// An asynchronous closure over an item.
    EachAsync,
    /// An asynchronous worker over a batch.
    AsyncWorker,
}

#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) contract: Contract,
    pub(super) max_batch_size: usize,
    pub(super) max_cost: Option<u64>,
    pub(super) max_delay: Duration,
    pub(super) queue: usize,
    pub(super) replicas: usize,
    pub(super) concurrency: u32,
    pub(super) ageing: Duration,
    pub(super) timeout: Option<Duration>,
    /// The mean duration of one item.
    pub(super) pace: Duration,
    /// Some items panic.
    pub(super) dangerous: bool,
    /// The restart of a replica may fail.
    pub(super) hard_to_build: bool,
    /// The restart intensity allows one crash that counts, instead of any number: a stage that is also hard to build
    /// may fail, for a while.
    pub(super) is_strict: bool,
}

impl StagePlan {
    /// Inputs alone never fail a stage.
    pub(super) fn may_fail(&self) -> bool {
        self.is_strict && self.hard_to_build
    }
}

#[derive(Clone, Debug)]
pub(super) struct RoutePlan {
    pub(super) name: &'static str,
    /// Positions in [`Script::stages`].
    pub(super) stages: Vec<usize>,
    pub(super) max_in_flight: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Call(CallPlan),
    Stream(StreamPlan),
    Scale {
        stage: usize,
        replicas: usize,
    },
    /// A new revision of every route and stage.
    Replace,
    Remove {
        route: usize,
    },
    Add {
        route: usize,
    },
}

#[derive(Clone, Debug)]
pub(super) struct CallPlan {
    pub(super) id: u64,
    pub(super) route: usize,
    pub(super) priority: Priority,
    pub(super) timeout: Duration,
    /// The time after which its caller leaves.
    pub(super) leaves_after: Option<Duration>,
    pub(super) session: Option<u64>,
    /// Whether it is a detached call.
    pub(super) is_cast: bool,
}

#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    /// The number of its first call.
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) route: usize,
    pub(super) look_ahead: usize,
    /// The count of results after which the consumer drops it.
    pub(super) stops_after: Option<u64>,
    /// The consumer's pause between two results.
    pub(super) pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Every call is awaited.
    Calm,
    /// The node drains from this time on; admitted calls are awaited.
    Drain { at: Duration },
    /// The node shuts down at this time, with this grace.
    Shutdown { at: Duration, grace: Duration },
    /// The node is dropped at this time.
    Abort { at: Duration },
}

/// The effect of an item on a stage's user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    Good,
    Fails,
    /// Panics in every run.
    Kills,
    /// Panics in the first run.
    KillsOnce,
    /// Hangs.
    Hangs,
}

impl Script {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let limits = Limits {
            max_in_flight: chance.pick(&[20, 60, 10_000, 10_000]),
            max_in_flight_bytes: if chance.one_in(4) { 800 } else { 1 << 20 },
            ..Limits::default()
        };
        let stages: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .take(chance.within(1..4) as usize)
            .map(|name| stage(&mut chance, name))
            .collect();
        let routes: Vec<_> = ["/x", "/y", "/z"]
            .into_iter()
            .take(chance.within(1..4) as usize)
            .map(|name| route(&mut chance, name, stages.len()))
            .collect();
        let span = chance.millis(200..2_500);
        let mut steps = Vec::new();
        let mut next_id = 0;
        calls(&mut chance, span, routes.len(), &mut next_id, &mut steps);
        for _ in 0..chance.pick(&[0, 0, 1, 3]) {
            let at = span.mul_f64(chance.within(0..100) as f64 / 100.0);
            steps.push((at, Step::Stream(stream(&mut chance, routes.len(), &mut next_id))));
        }
        changes(&mut chance, span, stages.len(), &routes, &mut steps);
        steps.sort_by_key(|(at, _)| *at);
        let at = span.mul_f64(chance.within(20..110) as f64 / 100.0);
        let ending = match chance.within(0..8) {
            0 => Ending::Drain { at },
            1 => Ending::Shutdown { at, grace: chance.millis(0..300) },
            2 => Ending::Abort { at },
            _ => Ending::Calm,
        };
        Self { seed, limits, stages, routes, steps, ending }
    }

    /// The effect of a call on a stage, by any route.
    pub(super) fn nature(&self, call: u64, stage: usize) -> Nature {
        let dangerous = self.stages[stage].dangerous;
        match Chance::for_thing(self.seed, &[1, call, stage as u64]).within(0..100) {
            0..4 => Nature::Fails,
            4..7 if dangerous => Nature::Kills,
            7..9 if dangerous => Nature::KillsOnce,
            9..11 if self.stages[stage].form != Form::Task => Nature::Hangs,
            _ => Nature::Good,
        }
    }

    /// The duration of a call in a stage.
    pub(super) fn service(&self, call: u64, stage: usize) -> Duration {
        let mut chance = Chance::for_thing(self.seed, &[2, call, stage as u64]);
        if chance.one_in(50) { 20 * self.stages[stage].pace } else { chance.gap(self.stages[stage].pace) }
    }

    /// The result of a stage's cost function.
    pub(super) fn cost(seed: u64, call: u64) -> u64 {
        Chance::for_thing(seed, &[3, call]).within(1..5)
    }

    /// Whether this life of a replica fails to start.
    pub(super) fn fails_to_start(&self, stage: usize, replica: usize, generation: u64) -> bool {
        let mut chance = Chance::for_thing(self.seed, &[4, stage as u64, replica as u64, generation]);
        self.stages[stage].hard_to_build && generation > 0 && chance.one_in(3)
    }

    pub(super) fn changes_revisions(&self) -> bool {
        self.steps.iter().any(|(_, step)| matches!(step, Step::Replace | Step::Remove { .. }))
    }

    pub(super) fn scales(&self, stage: usize) -> bool {
        self.steps.iter().any(|(_, step)| matches!(step, Step::Scale { stage: scaled, .. } if *scaled == stage))
    }
}

fn stage(chance: &mut Chance, name: &'static str) -> StagePlan {
    let form = chance.pick(&[Form::Task, Form::EachAsync, Form::AsyncWorker, Form::AsyncWorker]);
    let dangerous = chance.one_in(2);
    StagePlan {
        name,
        form,
        contract: chance.pick(&[Contract::AtMostOnce, Contract::Idempotent, Contract::Pure]),
        max_batch_size: chance.pick(&[1, 2, 5, 8, 32]),
        max_cost: chance.one_in(4).then(|| chance.within(4..20)),
        max_delay: if chance.one_in(3) { chance.millis(1..40) } else { Duration::ZERO },
        queue: chance.pick(&[2, 10, 50, 1_000, 1_000]),
        replicas: chance.within(1..4) as usize,
        concurrency: chance.pick(&[1, 1, 2, 4]),
        ageing: chance.pick(&[20, 100, 5_000].map(Duration::from_millis)),
        timeout: if chance.one_in(2) { Some(chance.millis(30..400)) } else { None },
        pace: Duration::from_micros(chance.pick(&[0, 1_000, 4_000, 15_000])),
        dangerous,
        hard_to_build: dangerous && form == Form::AsyncWorker && chance.one_in(3),
        is_strict: dangerous && chance.one_in(5),
    }
}

fn route(chance: &mut Chance, name: &'static str, stages: usize) -> RoutePlan {
    let mut order: Vec<usize> = (0..stages).collect();
    for last in (1..stages).rev() {
        order.swap(last, chance.within(0..last as u64 + 1) as usize);
    }
    order.truncate(chance.within(1..stages as u64 + 1) as usize);
    RoutePlan { name, stages: order, max_in_flight: chance.one_in(6).then(|| chance.within(3..20) as usize) }
}

/// Independent arrivals, with bursts of related ones among them.
fn calls(chance: &mut Chance, span: Duration, routes: usize, next_id: &mut u64, steps: &mut Vec<(Duration, Step)>) {
    let mean = chance.pick(&[3, 10, 25].map(Duration::from_millis));
    let mut at = Duration::ZERO;
    while at < span && *next_id < 180 {
        at += chance.gap(mean);
        let together = if chance.one_in(25) { chance.within(5..40) } else { 1 };
        for _ in 0..together {
            let id = *next_id;
            *next_id += 1;
            let timeout = match chance.within(0..4) {
                0 => chance.millis(1..40),
                1 => chance.millis(1_000..4_000),
                _ => chance.millis(40..800),
            };
            let leaves = chance.one_in(7);
            steps.push((
                at,
                Step::Call(CallPlan {
                    id,
                    route: chance.within(0..routes as u64) as usize,
                    priority: chance.pick(&[Priority::High, Priority::Normal, Priority::Normal, Priority::Low]),
                    timeout,
                    leaves_after: leaves.then(|| chance.millis(0..60)),
                    session: chance.one_in(8).then(|| chance.within(0..5)),
                    is_cast: !leaves && chance.one_in(12),
                }),
            ));
        }
    }
}

fn stream(chance: &mut Chance, routes: usize, next_id: &mut u64) -> StreamPlan {
    let (first, count) = (*next_id, chance.within(1..40));
    *next_id += count;
    StreamPlan {
        first,
        count,
        route: chance.within(0..routes as u64) as usize,
        look_ahead: chance.within(1..12) as usize,
        stops_after: chance.one_in(3).then(|| chance.within(0..count)),
        pause: if chance.one_in(3) { chance.millis(1..20) } else { Duration::ZERO },
    }
}

fn changes(
    chance: &mut Chance,
    span: Duration,
    stages: usize,
    routes: &[RoutePlan],
    steps: &mut Vec<(Duration, Step)>,
) {
    let at = |chance: &mut Chance| span.mul_f64(chance.within(0..100) as f64 / 100.0);
    if chance.one_in(3) {
        for _ in 0..chance.within(1..6) {
            let stage = chance.within(0..stages as u64) as usize;
            steps.push((at(chance), Step::Scale { stage, replicas: chance.within(1..6) as usize }));
        }
    }
    if chance.one_in(6) {
        steps.push((at(chance), Step::Replace));
    }
    if chance.one_in(8) {
        let route = chance.within(0..routes.len() as u64) as usize;
        let removed = at(chance);
        steps.push((removed, Step::Remove { route }));
        steps.push((removed + chance.millis(0..200), Step::Add { route }));
    }
}
