//! A whole cluster in virtual time: seeded, with latency, loss, partitions, silence, stops and deaths.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::remote::{NodeReport, StageReport};
use callboard_identity::{HeldList, HeldLists};
use foca::State;

use super::{MemberId, Membership, MembershipProfile, Output};

/// The headers of QUIC and UDP for one message.
const HEADER_BYTES: u64 = 64;

/// The most messages that wait for a connection.
const QUEUE: usize = 64;

/// How messages are lost.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// On streams: a lost packet is sent again after a probe timeout, which doubles.
    Delayed(f64),
    /// As datagrams: it is gone.
    Gone(f64),
}

#[derive(Debug)]
enum Event {
    Deliver { from: usize, to: usize, message: Bytes },
    Connected { a: usize, b: usize },
    Wake(usize),
    Resume(usize),
}

#[derive(Debug)]
struct At {
    at: Instant,
    order: u64,
    event: Event,
}

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) membership: Membership,
    pub(super) is_alive: bool,
    is_stopped: bool,
    /// What arrived while it was stopped.
    inbox: VecDeque<(usize, Bytes)>,
    wakes_at: Option<Instant>,
    /// When it learnt of each death, by number.
    pub(super) learnt: Vec<(usize, Instant)>,
    /// The identities that it took.
    pub(super) renewals: usize,
    /// The version of the signed list that it has.
    pub(super) list: u64,
}

pub(super) struct Sim {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    pub(super) loss: Loss,
    pub(super) latency: std::ops::Range<f64>,
    /// Whether two nodes can reach each other.
    cut: Box<dyn Fn(usize, usize) -> bool>,
    /// Living members that somebody called down.
    pub(super) false_deaths: usize,
    pub(super) bytes: u64,
    /// How often members were told that they are accused.
    pub(super) accused: usize,
    events: BinaryHeap<Reverse<At>>,
    made: u64,
    random: fastrand::Rng,
    connected: HashSet<(usize, usize)>,
    waiting: std::collections::HashMap<(usize, usize), VecDeque<Bytes>>,
    profile: MembershipProfile,
    /// Whether they tell each other of themselves.
    has_reports: bool,
    generation: u64,
    /// What a node has received, if that is recorded.
    pub(super) received: Option<(usize, Vec<Received>)>,
}

pub(super) fn name(number: usize) -> String {
    format!("node-{number:04}")
}

/// When a message came, from which node, and the message.
pub(super) type Received = (Instant, usize, Bytes);

fn number(name: &str) -> usize {
    name["node-".len()..].parse().expect("a name of the simulation")
}

pub(super) fn id(number: usize, generation: u64) -> MemberId {
    let address = SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 4433));
    MemberId { name: name(number).into(), address, generation, bump: 0 }
}

/// A usual report, which says this.
pub(super) fn report(version: &str) -> NodeReport {
    let mut report = NodeReport::default();
    report.version = version.to_owned();
    for name in ["decode", "classify", "encode"] {
        let mut stage = StageReport::default();
        (stage.name, stage.ready, stage.wanted) = (name.to_owned(), 4, 4);
        report.stages.push(stage);
    }
    report
}

/// Lists of these issuers, which have their versions as their bytes.
pub(super) fn lists(of: &[(&str, u64)]) -> HeldLists {
    let list = |(issuer, version): &(&str, u64)| {
        ((*issuer).to_owned(), HeldList::unverified(*version, &version.to_be_bytes()))
    };
    Arc::new(of.iter().map(list).collect())
}

impl Sim {
    /// Nodes that know nobody.
    pub(super) fn new(count: usize, seed: u64, loss: Loss, profile: MembershipProfile) -> Self {
        let now = Instant::now();
        let mut sim = Self {
            now,
            nodes: Vec::new(),
            loss,
            latency: 0.000_2..0.001,
            cut: Box::new(|_, _| false),
            false_deaths: 0,
            bytes: 0,
            accused: 0,
            events: BinaryHeap::new(),
            made: 0,
            random: fastrand::Rng::with_seed(seed),
            connected: HashSet::new(),
            waiting: std::collections::HashMap::new(),
            profile,
            has_reports: false,
            generation: 1,
            received: None,
        };
        (0..count).for_each(|_| {
            sim.add();
        });
        sim
    }

    /// Nodes of which all but the first have joined through the first, and know each other.
    pub(super) fn joined(count: usize, seed: u64, loss: Loss) -> Self {
        Self::new(count, seed, loss, MembershipProfile::Near).all_joined(seed)
    }

    /// The same, where each node has a report.
    pub(super) fn reporting(count: usize, seed: u64, loss: Loss) -> Self {
        let mut sim = Self::new(count, seed, loss, MembershipProfile::Near);
        sim.tell_of_themselves("1.0.0");
        sim.all_joined(seed)
    }

    /// Each node has a report, which says this.
    pub(super) fn tell_of_themselves(&mut self, version: &str) {
        self.has_reports = true;
        (0..self.nodes.len()).for_each(|node| self.report(node, version));
    }

    fn all_joined(mut self, seed: u64) -> Self {
        let (count, sim) = (self.nodes.len(), &mut self);
        (1..count).for_each(|node| sim.connect(node, 0));
        let took = sim.run_until(Duration::from_secs(30), Self::agrees);
        assert!(took.is_some(), "seed {seed}: {count} nodes do not find each other");
        sim.run(Duration::from_secs(5));
        (sim.bytes, sim.false_deaths) = (0, 0);
        self
    }

    /// One more node. Returns its number.
    pub(super) fn add(&mut self) -> usize {
        let number = self.nodes.len();
        let node = self.life(number);
        self.nodes.push(node);
        self.schedule(number);
        number
    }

    fn life(&mut self, number: usize) -> Node {
        self.generation += 1;
        let own = id(number, self.generation);
        Node {
            membership: Membership::new(own, self.profile, self.random.u64(..), self.now),
            is_alive: true,
            is_stopped: false,
            inbox: VecDeque::new(),
            wakes_at: None,
            learnt: Vec::new(),
            renewals: 0,
            list: 0,
        }
    }

    pub(super) fn kill(&mut self, number: usize) {
        self.nodes[number].is_alive = false;
        self.connected.retain(|(a, b)| *a != number && *b != number);
    }

    /// Starts a killed node again, with a higher generation.
    pub(super) fn restart(&mut self, number: usize) {
        self.nodes[number] = self.life(number);
        self.schedule(number);
    }

    /// Stops a process, as SIGSTOP does.
    pub(super) fn stop(&mut self, number: usize, lasting: Duration) {
        self.nodes[number].is_stopped = true;
        self.push(self.now + lasting, Event::Resume(number));
    }

    /// Cuts links from now on. Connections over them are lost.
    pub(super) fn cut(&mut self, cut: impl Fn(usize, usize) -> bool + 'static) {
        self.connected.retain(|(a, b)| !cut(*a, *b));
        self.cut = Box::new(cut);
    }

    /// A dial that may succeed.
    pub(super) fn connect(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        if a == b || pair.1 >= self.nodes.len() || self.connected.contains(&pair) || self.waiting.contains_key(&pair) {
            return;
        }
        if !self.nodes[a].is_alive || !self.nodes[b].is_alive || (self.cut)(a, b) {
            return;
        }
        self.waiting.insert(pair, VecDeque::new());
        let at = self.now + self.delay().unwrap_or_default() * 3;
        self.push(at, Event::Connected { a: pair.0, b: pair.1 });
    }

    /// A node finds the port of another one refused.
    pub(super) fn refused(&mut self, node: usize, dead: usize) {
        self.nodes[node].membership.refused(&name(dead), id(dead, 0).address, self.now);
        self.settle(node);
    }

    /// A message of this content arrives.
    pub(super) fn deliver(&mut self, from: usize, to: usize, message: &[u8]) {
        self.receive(from, to, message);
    }

    pub(super) fn run(&mut self, lasting: Duration) {
        self.run_until(lasting, |_| false);
    }

    /// Runs until the condition holds, which is looked at every 20 ms. Returns how long it took.
    pub(super) fn run_until(&mut self, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> Option<Duration> {
        let (start, end) = (self.now, self.now + limit);
        let mut looked = self.now;
        while let Some(Reverse(next)) = self.events.peek() {
            if next.at > end {
                break;
            }
            if next.at >= looked {
                looked = next.at + Duration::from_millis(20);
                if holds(self) {
                    return Some(self.now - start);
                }
            }
            let Some(Reverse(At { at, event, .. })) = self.events.pop() else { break };
            self.now = at;
            self.happen(event);
        }
        self.now = end;
        holds(self).then(|| self.now - start)
    }

    /// Whether all living nodes know exactly the living nodes as up.
    pub(super) fn agrees(&self) -> bool {
        let alive: Vec<_> = self.nodes.iter().filter(|node| node.is_alive).collect();
        let expected: HashSet<_> = alive.iter().map(|node| node.membership.own()).collect();
        alive.iter().all(|node| {
            let up = node.membership.members().filter(|(_, state)| *state != State::Down);
            let mut count = 1;
            up.into_iter().all(|(member, _)| {
                count += 1;
                expected.contains(member)
            }) && count == expected.len()
        })
    }

    /// A node tells something new of itself.
    pub(super) fn report(&mut self, number: usize, version: &str) {
        self.nodes[number].membership.set_report(report(version), self.now);
        self.schedule(number);
    }

    /// Whether all living nodes know this of another one.
    pub(super) fn know(&self, number: usize, version: &str) -> bool {
        let member = self.nodes[number].membership.own();
        let mut others = self.nodes.iter().filter(|node| node.is_alive && node.membership.own() != member);
        others.all(|node| node.membership.reports().of(member).is_some_and(|report| report.version == version))
    }

    /// How long after `since` the first and the last of the others learnt of the death of `dead`.
    pub(super) fn learnt(&self, dead: usize, since: Instant) -> Option<(Duration, Duration)> {
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        let mut times = Vec::new();
        for node in alive {
            let (_, at) = node.learnt.iter().find(|(number, at)| *number == dead && *at >= since)?;
            times.push(*at - since);
        }
        Some((*times.iter().min()?, *times.iter().max()?))
    }

    pub(super) fn renewals(&self) -> usize {
        self.nodes.iter().map(|node| node.renewals).sum()
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.made += 1;
        self.events.push(Reverse(At { at, order: self.made, event }));
    }

    /// The time that a message takes. `None`: it is lost.
    fn delay(&mut self) -> Option<Duration> {
        let latency = self.latency.start + self.random.f64() * (self.latency.end - self.latency.start);
        let (mut delay, mut timeout) = (latency, 0.03 + 2.0 * self.latency.end);
        match self.loss {
            Loss::Gone(part) => (self.random.f64() >= part).then(|| Duration::from_secs_f64(delay)),
            Loss::Delayed(part) => {
                while self.random.f64() < part {
                    delay += timeout;
                    timeout *= 2.0;
                }
                Some(Duration::from_secs_f64(delay))
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, message } => {
                if self.nodes[to].is_alive && !(self.cut)(from, to) {
                    if self.nodes[to].is_stopped {
                        self.nodes[to].inbox.push_back((from, message));
                    } else {
                        self.receive(from, to, &message);
                    }
                }
            }
            Event::Connected { a, b } => {
                let waiting = self.waiting.remove(&(a, b)).unwrap_or_default();
                if !self.nodes[a].is_alive || !self.nodes[b].is_alive || (self.cut)(a, b) {
                    return;
                }
                self.connected.insert((a, b));
                for (node, peer) in [(a, b), (b, a)] {
                    let features = (self.has_reports, self.has_reports);
                    self.nodes[node].membership.connected(&name(peer).into(), features, self.now);
                    self.settle(node);
                }
                for (number, message) in waiting.into_iter().enumerate() {
                    // The direction is the first byte.
                    let (from, to) = if message[0] == 0 { (a, b) } else { (b, a) };
                    let at = self.now + Duration::from_micros(number as u64);
                    self.push(at, Event::Deliver { from, to, message: message.slice(1..) });
                }
            }
            Event::Wake(number) => {
                let node = &mut self.nodes[number];
                if node.is_alive && !node.is_stopped && node.wakes_at == Some(self.now) {
                    node.wakes_at = None;
                    node.membership.wake(self.now);
                    self.settle(number);
                }
            }
            Event::Resume(number) => {
                let node = &mut self.nodes[number];
                node.is_stopped = false;
                node.wakes_at = None;
                // The worst order: timers before messages.
                node.membership.wake(self.now);
                self.settle(number);
                while let Some((from, message)) = self.nodes[number].inbox.pop_front() {
                    self.receive(from, number, &message);
                }
            }
        }
    }

    fn receive(&mut self, from: usize, to: usize, message: &[u8]) {
        if let Some((_, received)) = self.received.as_mut().filter(|(node, _)| *node == to) {
            received.push((self.now, from, Bytes::copy_from_slice(message)));
        }
        let received = self.nodes[to].membership.received(&name(from), message, self.now);
        if let Err(error) = received {
            assert!(error.to_string().contains("refused"), "an invalid message: {error}");
        }
        self.settle(to);
    }

    fn settle(&mut self, number: usize) {
        while let Some(output) = self.nodes[number].membership.poll_output() {
            match output {
                Output::Send { to, message } => self.send(number, self::number(&to), message),
                Output::Wanted(member) => self.connect(number, self::number(&member.name)),
                Output::Up(member) => self.connect(number, self::number(&member.name)),
                Output::Down { member, .. } => {
                    let dead = self::number(&member.name);
                    // Without a node, it is made up.
                    let node = self.nodes.get(dead);
                    self.false_deaths +=
                        usize::from(node.is_some_and(|node| node.is_alive && *node.membership.own() == member));
                    self.nodes[number].learnt.push((dead, self.now));
                }
                Output::Renewed(_) => self.nodes[number].renewals += 1,
                Output::Accused { .. } => self.accused += 1,
                // Each is valid here, and has its version as its bytes.
                Output::Removed { list, .. } => {
                    let version = u64::from_be_bytes((*list).try_into().expect("a list of the simulation"));
                    if self.nodes[number].list < version {
                        self.set_list(number, version);
                    }
                }
                Output::NameTaken(_) | Output::Suspected(_) => {}
            }
        }
        self.schedule(number);
    }

    /// A node has a list of this version, of one issuer.
    pub(super) fn set_list(&mut self, number: usize, version: u64) {
        let node = &mut self.nodes[number];
        node.list = version;
        node.membership.set_lists(lists(&[("", version)]), self.now);
        self.schedule(number);
    }

    fn send(&mut self, from: usize, to: usize, message: Bytes) {
        let pair = (from.min(to), from.max(to));
        if !self.connected.contains(&pair) {
            self.connect(from, to);
            if let Some(waiting) = self.waiting.get_mut(&pair) {
                let direction = [u8::from(from != pair.0)];
                waiting.push_back([&direction, &message[..]].concat().into());
                if waiting.len() > QUEUE {
                    waiting.pop_front();
                }
            }
            return;
        }
        self.bytes += message.len() as u64 + HEADER_BYTES;
        if let Some(delay) = self.delay().filter(|_| self.nodes[to].is_alive) {
            self.push(self.now + delay, Event::Deliver { from, to, message });
        }
    }

    fn schedule(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let at = node.membership.next_wakeup().max(self.now);
        if node.wakes_at.is_none_or(|planned| at < planned) {
            node.wakes_at = Some(at);
            self.push(at, Event::Wake(number));
        }
    }
}
