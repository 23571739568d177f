//! One attack from start to end, and the promises that must hold under it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::nice;

use crate::honest::{Book, Caller, base};
use crate::node::{BINARIES, Node, Served};

/// The default of `max_in_flight_bytes`.
const BUDGET_BYTES: u64 = 256 << 20;

/// The memory of a node beyond its budget: code, models, threads, connections and the allocator's reserve.
const CONSTANT_BYTES: u64 = 288 << 20;

/// The most resident memory under any attack.
const MOST_BYTES: u64 = BUDGET_BYTES * 3 / 2 + CONSTANT_BYTES;

/// An honest caller's p99 may be this many times its own without an attack,
const MOST_SLOWDOWN: u32 = 10;
/// or this, whichever is longer.
const HONEST_P99: Duration = Duration::from_millis(100);

/// The p99 of health in a release build, and in a debug build.
const HEALTH_P99: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(250)];

/// The factor on latency bounds, `CALLBOARD_HOSTILE_SLACK`, for a shared machine. No other bound has slack.
static SLACK: LazyLock<u32> = LazyLock::new(|| {
    let slack = std::env::var("CALLBOARD_HOSTILE_SLACK").ok();
    slack.map_or(1, |slack| slack.parse().expect("CALLBOARD_HOSTILE_SLACK is a whole number"))
});

/// The nice level of attackers: they give way to all others on this machine.
const MOST_PATIENT: i32 = 10;

/// The duration of the measurement of an honest caller alone.
const ALONE: Duration = Duration::from_millis(400);

/// The default duration of an attack.
const LASTS: Duration = Duration::from_millis(1000);

/// The time that honest callers continue after the last hostile client has left.
const AFTERMATH: Duration = Duration::from_millis(200);

/// The time for the gauges to return to zero after the last hostile client.
const REST: Duration = Duration::from_secs(2);

/// The limit of processor time per core that an idle node may take in [`QUIET`].
const REST_PER_CORE: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(1);

/// A node that takes no more than this in a part of [`QUIET`] is idle: no delayed work is left.
const AT_REST: (Duration, Duration) = (Duration::from_millis(400), Duration::from_millis(20));

/// Whether attacks run. They need a release build, so they run only if one is named.
pub(crate) fn is_wanted() -> bool {
    let is_wanted = std::env::var_os("CALLBOARD_HOSTILE_BINARY").is_some();
    if !is_wanted {
        println!("skipped: CALLBOARD_HOSTILE_BINARY names no binary to attack; `just hostile` builds one");
    }
    is_wanted
}

/// Held by each test while it runs: other attacks would distort its figures.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE_HERE: Mutex<()> = Mutex::new(());
    locked(&ALONE_HERE)
}

/// An attack and its target.
#[derive(Debug)]
pub(crate) struct Attack {
    name: &'static str,
    served: Served,
    words: Vec<String>,
    lasts: Duration,
    most_refused_percent: u64,
}

/// The node under attack, as a hostile client sees it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) http: SocketAddr,
    pub(crate) quic: SocketAddr,
    end: Instant,
    outcomes: Mutex<BTreeMap<String, u64>>,
}

impl Target {
    /// Whether the attack continues.
    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// The remaining time of the attack; never zero, which sockets take as no limit.
    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Counts the answers to hostile clients, so that the report shows whether the attack worked.
    pub(crate) fn met(&self, outcome: impl Into<String>) {
        *locked(&self.outcomes).entry(outcome.into()).or_default() += 1;
    }
}

impl Attack {
    /// An attack on the `callboard` binary.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, served: Served::Files, words: Vec::new(), lasts: LASTS, most_refused_percent: 100 }
    }

    /// Attacks the server of Rust types instead.
    pub(crate) fn on_types(self) -> Self {
        Self { served: Served::Types, ..self }
    }

    /// Attacks a gateway that has joined these nodes.
    pub(crate) fn joined_to(self, peers: &[SocketAddr]) -> Self {
        let peers: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
        Self { served: Served::Gateway, words: vec!["--join".to_owned(), peers.join(",")], ..self }
    }

    /// Sets the duration, for attacks whose work begins late.
    pub(crate) fn lasting(self, lasts: Duration) -> Self {
        Self { lasts, ..self }
    }

    /// For attacks that send almost nothing: they must not cost honest callers their permits.
    pub(crate) fn earns_no_permits(self) -> Self {
        Self { most_refused_percent: 5, ..self }
    }

    /// Runs the attack: `send` runs all hostile clients until the last one has left.
    ///
    /// Attackers have a lower priority on this machine: they stand for clients with their own machines, and the test
    /// measures the node.
    pub(crate) fn run(self, send: impl FnOnce(&Target) + Send) {
        if !is_wanted() {
            return;
        }
        let _alone = alone();
        let mut node = Node::start(self.served, &self.words);
        let base = base(node.http, ALONE);
        let (honest, health) = (Caller::honest(node.http), Caller::health(node.http));
        let end = Instant::now() + self.lasts;
        let target = Target { http: node.http, quic: node.quic, end, outcomes: Mutex::default() };
        let begun = Instant::now();
        thread::scope(|scope| {
            // Its threads inherit the nice level.
            let sent = scope.spawn(|| nice(MOST_PATIENT).map(|_| send(&target)));
            sent.join().expect("hostile clients do not panic").expect("a thread may always give way");
        });
        let (left, sent_for) = (Instant::now(), begun.elapsed());
        thread::sleep(AFTERMATH);
        let (honest, health) = (honest.end(), health.end());
        let rest = Rest::of(&mut node, left);
        let seen = Seen { base, honest, health, rest, peak_bytes: node.peak_bytes(), death: node.death() };
        let broken = seen.broken(self.most_refused_percent);
        let outcomes = target.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.report(&seen, &broken, sent_for, node.peak_threads(), &outcomes);
        assert!(broken.is_empty(), "{}: {}", self.name, broken.join("; "));
    }

    fn report(&self, seen: &Seen, broken: &[String], took: Duration, threads: u64, met: &BTreeMap<String, u64>) {
        let mut row = format!("| {} | {} ", self.name, if broken.is_empty() { "green" } else { "RED" });
        let _ = write!(
            row,
            "| {:.1} s | {} / {} / {} | {:.0} ms ({:.0}) | {:.0} ms | {} MiB, {threads} threads | {:?} | {} | {} |",
            took.as_secs_f64(),
            seen.honest.answered,
            seen.honest.refused,
            seen.honest.failures.len(),
            millis(seen.honest.p99()),
            millis(seen.base),
            millis(seen.health.p99()),
            seen.peak_bytes >> 20,
            seen.rest,
            met.iter().map(|(outcome, count)| format!("{count} × {outcome}")).collect::<Vec<_>>().join(", "),
            broken.join("; "),
        );
        println!("{row}");
        if let Some(path) = std::env::var_os("CALLBOARD_HOSTILE_REPORT") {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| writeln!(file, "{row}")).expect("the report can be written");
        }
    }
}

/// The measurements of the node and of the honest callers.
struct Seen {
    base: Duration,
    honest: Book,
    health: Book,
    rest: Option<Rest>,
    peak_bytes: u64,
    death: Option<String>,
}

impl Seen {
    /// Every broken promise, as text.
    fn broken(&self, most_refused_percent: u64) -> Vec<String> {
        let mut broken = Vec::new();
        let mut promise = |holds: bool, words: String| {
            if !holds {
                broken.push(words);
            }
        };
        promise(self.death.is_none(), format!("the process ended: {}", self.death.as_deref().unwrap_or_default()));
        let Self { honest, health, .. } = self;
        promise(
            honest.failures.is_empty(),
            format!("{} honest calls failed, the first: {:?}", honest.failures.len(), honest.failures.first()),
        );
        let (answered, refused) = (honest.answered, honest.refused);
        promise(answered > 0, "no honest call was answered".to_owned());
        promise(
            refused * 100 <= most_refused_percent * (answered + refused),
            format!("{refused} of {} honest calls were refused", answered + refused),
        );
        let most = (self.base * MOST_SLOWDOWN).max(HONEST_P99) * *SLACK;
        promise(honest.p99() <= most, format!("honest p99 {:.0?}, at most {most:.0?}", honest.p99()));
        promise(
            health.failures.is_empty() && health.refused == 0,
            format!("{} times no health, the first: {:?}", health.failures.len(), health.failures.first()),
        );
        let most = HEALTH_P99[usize::from(!BINARIES.is_release)] * *SLACK;
        promise(health.p99() <= most, format!("health p99 {:.0?}, at most {most:.0?}", health.p99()));
        let (peak, most) = (self.peak_bytes >> 20, MOST_BYTES >> 20);
        promise(self.peak_bytes <= MOST_BYTES, format!("{peak} MiB resident, at most {most}"));
        match &self.rest {
            Some(rest) => rest.broken(&mut promise),
            None => promise(self.death.is_some(), "its metrics did not say how many calls are in flight".to_owned()),
        }
        broken
    }
}

/// The return of the node to idle.
#[derive(Debug)]
struct Rest {
    in_flight: u64,
    in_flight_bytes: u64,
    /// The processor time of the node without requests.
    idle: Duration,
}

impl Rest {
    /// Waits until nothing is in flight, at most [`REST`] after the attackers left, and then measures the idle load.
    fn of(node: &mut Node, left: Instant) -> Option<Self> {
        let mut told = None;
        loop {
            told = node.in_flight().or(told);
            if told == Some((0, 0)) || left.elapsed() > REST || node.death().is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let before = node.processor_time()?;
        thread::sleep(AT_REST.0);
        let mut idle = node.processor_time()?.saturating_sub(before);
        if idle > AT_REST.1 {
            thread::sleep(QUIET - AT_REST.0);
            idle = node.processor_time()?.saturating_sub(before);
        }
        let (in_flight, in_flight_bytes) = told?;
        Some(Self { in_flight, in_flight_bytes, idle })
    }

    fn broken(&self, promise: &mut impl FnMut(bool, String)) {
        let Self { in_flight, in_flight_bytes, idle } = self;
        let is_free = *in_flight == 0 && *in_flight_bytes == 0;
        promise(is_free, format!("{in_flight} calls and {in_flight_bytes} bytes are in flight after {REST:?}"));
        let most = REST_PER_CORE * u32::try_from(thread::available_parallelism().map_or(1, usize::from)).unwrap_or(1);
        promise(*idle <= most, format!("{idle:?} of processor time in {QUIET:?} of rest, at most {most:?}"));
    }
}

/// The address of an attacker's connections.
pub(crate) const HOSTILE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A failed test does not invalidate the state behind the lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
