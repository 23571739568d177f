//! Whether a choice of peers that looks at their batches beats the power of two choices: a simulation in virtual time.
//!
//! Callers send calls at random times (Poisson) to three nodes with one replica each. A batch leaves when it is full or
//! its oldest call has waited for the delay, as `decide` of the core does; its time is a part for the batch and a part
//! for each call. The choice of today has the statistics of the product; the others see the true queues of all nodes,
//! which no node could, so that they bound what any exchange of that knowledge can win. The decision is ADR 047.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use callboard_core::Instant;

use super::load_balance::{PeerLoad, better_of_two, two_of};
use super::peer_stats::PeerStats;

const NODES: usize = 3;
const DELAY: Duration = Duration::from_millis(5);
/// One way, with the work of both ends.
const LATENCY: Duration = Duration::from_micros(200);
const CALLS: usize = 40_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    /// The better of two random peers, by its statistics: the choice of the product.
    TwoChoices,
    /// The best of all peers, by the same statistics.
    BestOfAll,
    /// Of two random peers the one whose batch is filling, else as today.
    FillingOfTwo,
    /// Of all peers the one whose batch is filling and the fullest, else as today.
    FillingOfAll,
    /// The peer at which the call ends first, as far as it can be known.
    EarliestEnd,
}

/// A stage whose batches take `base` and `each` for each call.
#[derive(Clone, Copy, Debug)]
struct Stage {
    max_batch: usize,
    base: Duration,
    each: Duration,
}

impl Stage {
    fn service(&self, batch: usize) -> Duration {
        self.base + self.each * batch as u32
    }

    /// The most calls a second of all nodes.
    fn capacity(&self) -> f64 {
        (NODES * self.max_batch) as f64 / self.service(self.max_batch).as_secs_f64()
    }
}

#[derive(Debug, Default)]
struct Node {
    /// When each waiting call came, and its number.
    queue: VecDeque<(Instant, usize)>,
    busy_until: Option<Instant>,
}

impl Node {
    /// When the next batch leaves, if no further call comes.
    fn leaves_at(&self, stage: &Stage, now: Instant) -> Option<Instant> {
        let (oldest, _) = self.queue.front()?;
        let is_full = self.queue.len() >= stage.max_batch;
        let ready = if is_full { now } else { (*oldest + DELAY).max(now) };
        Some(self.busy_until.map_or(ready, |until| until.max(ready)))
    }

    /// Whether its replica waits for more calls.
    fn is_filling(&self, stage: &Stage) -> bool {
        self.busy_until.is_none() && (1..stage.max_batch).contains(&self.queue.len())
    }

    /// When a call that comes now ends.
    fn end(&self, stage: &Stage, now: Instant) -> Instant {
        let (full, rest) = (self.queue.len() / stage.max_batch, self.queue.len() % stage.max_batch);
        let after = self.busy_until.unwrap_or(now) + stage.service(stage.max_batch) * full as u32;
        let oldest = if rest == 0 { now } else { self.queue[full * stage.max_batch].0 };
        let starts = if rest + 1 == stage.max_batch { after } else { after.max(oldest + DELAY) };
        starts + stage.service(rest + 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Arrive { call: usize, node: usize },
    Look(usize),
    Ends(usize),
    Answer { call: usize, node: usize, queued: usize },
}

struct Sim {
    stage: Stage,
    choice: Choice,
    nodes: [Node; NODES],
    /// The statistics of each caller.
    callers: Vec<[PeerStats; NODES]>,
    running: [Vec<usize>; NODES],
    sent: Vec<Instant>,
    took: Vec<Duration>,
    batches: Vec<usize>,
    events: BinaryHeap<Reverse<(Instant, usize, Event)>>,
    made: usize,
    random: fastrand::Rng,
}

/// What became of all calls.
#[derive(Debug)]
struct Figures {
    p50: Duration,
    p99: Duration,
    mean_batch: f64,
    per_second: f64,
}

/// Sends calls at this rate.
fn run(stage: Stage, choice: Choice, callers: usize, rate: f64, seed: u64) -> Figures {
    let now = Instant::now();
    let callers = std::iter::repeat_with(Default::default).take(callers).collect();
    let random = fastrand::Rng::with_seed(seed);
    let (nodes, running, events) = Default::default();
    let (sent, took, batches) = (vec![now; CALLS], Vec::new(), Vec::new());
    let mut sim = Sim { stage, choice, nodes, callers, running, sent, took, batches, events, made: 0, random };
    let mut at = now;
    for call in 0..CALLS {
        at += Duration::from_secs_f64(-(1.0 - sim.random.f64()).ln() / rate);
        sim.push(at, Event::Send(call));
    }
    let mut last = now;
    while let Some(Reverse((at, _, event))) = sim.events.pop() {
        sim.happen(at, event);
        last = at;
    }
    sim.took.sort();
    let part = |part: f64| sim.took[(sim.took.len() as f64 * part) as usize];
    Figures {
        p50: part(0.5),
        p99: part(0.99),
        mean_batch: CALLS as f64 / sim.batches.len() as f64,
        per_second: CALLS as f64 / (last - now).as_secs_f64(),
    }
}

impl Sim {
    fn push(&mut self, at: Instant, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event)));
    }

    fn happen(&mut self, now: Instant, event: Event) {
        match event {
            Event::Send(call) => {
                let node = self.choose(call, now);
                self.sent[call] = now;
                self.stats(call)[node].began(now);
                self.push(now + LATENCY, Event::Arrive { call, node });
            }
            Event::Arrive { call, node } => {
                self.nodes[node].queue.push_back((now, call));
                self.look(node, now);
            }
            Event::Look(node) => self.look(node, now),
            Event::Ends(node) => {
                self.nodes[node].busy_until = None;
                let queued = self.nodes[node].queue.len();
                for call in std::mem::take(&mut self.running[node]) {
                    self.push(now + LATENCY, Event::Answer { call, node, queued });
                }
                self.look(node, now);
            }
            Event::Answer { call, node, queued } => {
                let took = now - self.sent[call];
                let stats = &mut self.stats(call)[node];
                stats.answered(now, took, Some(queued));
                stats.ended(false);
                self.took.push(took);
            }
        }
    }

    /// Begins a batch if one is to leave.
    fn look(&mut self, node: usize, now: Instant) {
        if self.nodes[node].busy_until.is_some() {
            return;
        }
        let Some(at) = self.nodes[node].leaves_at(&self.stage, now) else { return };
        if at > now {
            self.push(at, Event::Look(node));
            return;
        }
        let size = self.nodes[node].queue.len().min(self.stage.max_batch);
        self.running[node] = self.nodes[node].queue.drain(..size).map(|(_, call)| call).collect();
        self.batches.push(size);
        let ends = now + self.stage.service(size);
        self.nodes[node].busy_until = Some(ends);
        self.push(ends, Event::Ends(node));
    }

    fn stats(&mut self, call: usize) -> &mut [PeerStats; NODES] {
        let callers = self.callers.len();
        &mut self.callers[call % callers]
    }

    fn choose(&mut self, call: usize, now: Instant) -> usize {
        let chances = (self.random.usize(..), self.random.usize(..));
        let loads = std::array::from_fn::<_, NODES, _>(|node| {
            let stats = &self.stats(call)[node];
            PeerLoad { in_flight: stats.in_flight(now), latency_micros: stats.latency_micros(now), key: node as u64 }
        });
        let two = better_of_two(&loads, chances).expect("there are three");
        let filling = |nodes: &[usize]| {
            let filling = nodes.iter().filter(|node| self.nodes[**node].is_filling(&self.stage));
            filling.copied().max_by_key(|node| self.nodes[*node].queue.len())
        };
        match self.choice {
            Choice::TwoChoices => two,
            Choice::BestOfAll => {
                // Rotated, so that equal peers take turns.
                let nodes = (0..NODES).map(|node| (node + call) % NODES);
                nodes.min_by(|one, other| loads[*one].cost().total_cmp(&loads[*other].cost())).expect("there are three")
            }
            Choice::FillingOfTwo => {
                let (first, second) = two_of(NODES, chances).expect("there are three");
                filling(&[first, second]).unwrap_or(two)
            }
            Choice::FillingOfAll => filling(&[0, 1, 2]).unwrap_or(two),
            Choice::EarliestEnd => {
                let nodes = (0..NODES).map(|node| (node + call) % NODES);
                nodes.min_by_key(|node| self.nodes[*node].end(&self.stage, now + LATENCY)).expect("there are three")
            }
        }
    }
}

const CHOICES: [Choice; 5] =
    [Choice::TwoChoices, Choice::BestOfAll, Choice::FillingOfTwo, Choice::FillingOfAll, Choice::EarliestEnd];

/// The figures of ADR 047: `cargo test --release -p callboard-net --lib -- --ignored --nocapture batch_sim`.
#[test]
#[ignore = "prints figures"]
fn batches_of_each_choice() {
    let micros = Duration::from_micros;
    for (max_batch, base, each) in [(8, 4_000, 250), (32, 4_000, 250), (8, 1_000, 1_000), (32, 1_000, 1_000)] {
        let stage = Stage { max_batch, base: micros(base), each: micros(each) };
        for callers in [1, 3] {
            for load in [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 1.2] {
                for choice in CHOICES {
                    let Figures { p50, p99, mean_batch, per_second } =
                        run(stage, choice, callers, load * stage.capacity(), 1);
                    println!(
                        "batch {max_batch}, {base} + {each} µs, {callers} callers, load {load}, {choice:?}: p50 {p50:.1?}, \
                         p99 {p99:.1?}, batch {mean_batch:.1}, {per_second:.0}/s"
                    );
                }
            }
        }
    }
}
