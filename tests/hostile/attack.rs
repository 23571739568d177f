//! One attack from start to end, and the bounds that must hold under it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::nice;

use crate::honest::{CallStats, Caller, baseline_p99};
use crate::http1::{self, Request};
use crate::node::{BINARIES, Node, Served};

/// The default of `max_in_flight_bytes`.
const BUDGET_BYTES: u64 = 256 << 20;

/// The memory of a node beyond its budget: code, models, threads, connections and the allocator's reserve.
const CONSTANT_BYTES: u64 = 288 << 20;

/// The limit of resident memory under any attack.
const MAX_BYTES: u64 = BUDGET_BYTES * 3 / 2 + CONSTANT_BYTES;

/// An honest caller's p99 may be its baseline times this,
const MAX_SLOWDOWN: u32 = 10;
/// or this, whichever is longer.
const HONEST_P99: Duration = Duration::from_millis(100);

/// The p99 of health in a release build, and in a debug build.
const HEALTH_P99: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(250)];

/// The factor on latency bounds, `CALLBOARD_HOSTILE_SLACK`, for a shared machine. No other bound has slack.
static SLACK: LazyLock<u32> = LazyLock::new(|| {
    let slack = std::env::var("CALLBOARD_HOSTILE_SLACK").ok();
    slack.map_or(1, |slack| slack.parse().expect("CALLBOARD_HOSTILE_SLACK is a whole number"))
});

/// The nice level of attackers, so that the node and the honest callers run first.
const ATTACKER_NICE: i32 = 10;

/// The duration of the measurement of an honest caller alone.
const BASELINE_DURATION: Duration = Duration::from_millis(400);

/// The most bytes that the log of one attack may have, at the default level.
const MAX_LOG_BYTES: usize = 1 << 20;

/// The most address space: what a child hands over is mapped as far as it is needed.
const MAX_ADDRESS_SPACE: u64 = 64 << 30;

/// The default duration of an attack.
const DURATION: Duration = Duration::from_millis(1000);

/// The time that honest callers continue after the last hostile client has left.
const CALLS_AFTERWARDS: Duration = Duration::from_millis(200);

/// The time for the gauges to return to zero after the last hostile client.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The processor time per core that an idle node may take in [`IDLE_WINDOW`].
const IDLE_TIME_PER_CORE: Duration = Duration::from_millis(50);
const IDLE_WINDOW: Duration = Duration::from_secs(1);

/// The same of a node that still has to find out that members are gone which liars made up.
const PROBING_TIME_PER_CORE: Duration = Duration::from_millis(150);

/// A node that takes at most this time in the first part of [`IDLE_WINDOW`] is idle.
const IDLE_CHECK: (Duration, Duration) = (Duration::from_millis(400), Duration::from_millis(20));

/// Whether attacks run. They need a release build, so they run only if one is named.
pub(crate) fn is_enabled() -> bool {
    let is_enabled = std::env::var_os("CALLBOARD_HOSTILE_BINARY").is_some();
    if !is_enabled {
        println!("skipped: CALLBOARD_HOSTILE_BINARY names no binary to attack; `just hostile` builds one");
    }
    is_enabled
}

/// Each test holds this lock while it runs: other attacks would distort its figures.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static ATTACK_LOCK: Mutex<()> = Mutex::new(());
    locked(&ATTACK_LOCK)
}

/// An attack and its target.
#[derive(Debug)]
pub(crate) struct Attack {
    name: &'static str,
    served: Served,
    args: Vec<String>,
    honest: Request,
    duration: Duration,
    max_refused_percent: u64,
    idle_time_per_core: Duration,
    required_status: Option<u16>,
}

/// The node under attack, as a hostile client sees it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) http: SocketAddr,
    pub(crate) quic: SocketAddr,
    admin: SocketAddr,
    end: Instant,
    outcomes: Mutex<BTreeMap<String, u64>>,
}

impl Target {
    /// The same attack, at the admin listener.
    pub(crate) fn on_admin(&mut self) -> &Self {
        self.http = self.admin;
        self
    }

    /// The answer to an operator's request at the admin listener.
    pub(crate) fn operator(&self, request: &Request) -> (u16, String) {
        let answer = http1::exchange(self.admin, HOSTILE, request, Duration::from_secs(10));
        answer.expect("the admin listener answers its operator")
    }

    /// The answer to a hostile request, while the attack lasts.
    pub(crate) fn ask(&self, request: &Request) -> Option<(u16, String)> {
        let (status, body) = http1::exchange(self.http, HOSTILE, request, self.remaining()).ok()?;
        self.record(status.to_string());
        Some((status, body))
    }

    /// Whether the attack continues.
    pub(crate) fn is_running(&self) -> bool {
        Instant::now() < self.end
    }

    /// The remaining time of the attack; never zero, which sockets take as no limit.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Counts the answers to hostile clients, so that the report shows whether the attack worked.
    pub(crate) fn record(&self, outcome: impl Into<String>) {
        *locked(&self.outcomes).entry(outcome.into()).or_default() += 1;
    }
}

impl Attack {
    /// An attack on the `callboard` binary.
    pub(crate) fn new(name: &'static str) -> Self {
        let honest = Request::post("/honest", "application/json", "[0.9,0.1]");
        Self {
            name,
            served: Served::Files,
            args: Vec::new(),
            honest,
            duration: DURATION,
            max_refused_percent: 100,
            idle_time_per_core: IDLE_TIME_PER_CORE,
            required_status: None,
        }
    }

    /// Attacks the server of Rust types instead.
    pub(crate) fn on_types(self) -> Self {
        Self { served: Served::Types, ..self }
    }

    /// Attacks by the children of a node, or the children themselves.
    #[cfg(target_os = "linux")]
    pub(crate) fn on_children(self) -> Self {
        Self { served: Served::Children, ..self }
    }

    /// Attacks services in Python.
    #[cfg(target_os = "linux")]
    pub(crate) fn on_python(self) -> Self {
        Self { served: Served::Python, ..self }
    }

    /// Attacks a directory of models.
    pub(crate) fn on_models(self) -> Self {
        Self { served: Served::Models, ..self }
    }

    /// Attacks a directory of models with two versions of one.
    pub(crate) fn on_versions(self) -> Self {
        Self { served: Served::Versions, ..self }
    }

    /// Sets the honest caller's call.
    pub(crate) fn honest_at(self, honest: Request) -> Self {
        Self { honest, ..self }
    }

    /// Attacks a gateway that has joined these nodes.
    pub(crate) fn joined_to(self, peers: &[SocketAddr]) -> Self {
        let peers: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
        Self { served: Served::Gateway, args: vec!["--join".to_owned(), peers.join(",")], ..self }
    }

    /// Attacks a node that answers gateways of evaluations as well.
    pub(crate) fn relayed(self) -> Self {
        Self { args: vec!["--relay".to_owned(), "true".to_owned()], ..self }
    }

    /// Sets the duration, for attacks that act late.
    pub(crate) fn lasting(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// For attacks that send almost nothing: at most 5 % of honest calls may be refused.
    pub(crate) fn must_not_block_callers(self) -> Self {
        Self { max_refused_percent: 5, ..self }
    }

    /// For attacks that leave members which the node probes until they count as gone.
    pub(crate) fn leaving_members(self) -> Self {
        Self { idle_time_per_core: PROBING_TIME_PER_CORE, ..self }
    }

    /// For attacks whose every answer must have this status.
    #[cfg(target_os = "linux")]
    pub(crate) fn must_be_answered_with(self, status: u16) -> Self {
        Self { required_status: Some(status), ..self }
    }

    /// Runs the attack: `send` runs all hostile clients until the last one has left.
    ///
    /// Attackers have a lower priority, because real attackers have their own machines.
    pub(crate) fn run(self, send: impl FnOnce(&mut Target) + Send) {
        if !is_enabled() {
            return;
        }
        let _alone = exclusive();
        let mut node = Node::start(self.served, &self.args);
        let baseline_p99 = baseline_p99(node.http, &self.honest, BASELINE_DURATION);
        let (honest, health) = (Caller::honest(node.http, self.honest.clone()), Caller::health(node.http));
        let end = Instant::now() + self.duration;
        let mut target =
            Target { http: node.http, quic: node.quic, admin: node.admin, end, outcomes: Mutex::default() };
        let start = Instant::now();
        thread::scope(|scope| {
            // Threads that it starts inherit the nice level.
            let sent = scope.spawn(|| nice(ATTACKER_NICE).map(|_| send(&mut target)));
            sent.join().expect("hostile clients do not panic").expect("a thread may lower its priority");
        });
        let (attack_end, sent_for) = (Instant::now(), start.elapsed());
        thread::sleep(CALLS_AFTERWARDS);
        let (honest, health) = (honest.end(), health.end());
        let idle_state = IdleState::measure(&mut node, attack_end);
        let measurements = Measurements {
            baseline_p99,
            honest,
            health,
            idle_state,
            peak_bytes: node.peak_bytes(),
            address_space: node.peak_address_space(),
            log: node.log(),
            death: node.death(),
        };
        let mut violations = measurements.violations(self.max_refused_percent, self.idle_time_per_core);
        let outcomes = target.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = self.required_status.map(|status| status.to_string())
            && !outcomes.keys().all(|outcome| *outcome == status || outcome == LEFT_WAITING)
        {
            violations.push(format!("answers other than {status}"));
        }
        self.report(&measurements, &violations, sent_for, node.peak_threads(), &outcomes);
        assert!(violations.is_empty(), "{}: {}", self.name, violations.join("; "));
    }

    fn report(
        &self,
        measurements: &Measurements,
        violations: &[String],
        elapsed: Duration,
        threads: u64,
        outcomes: &BTreeMap<String, u64>,
    ) {
        let mut row = format!("| {} | {} ", self.name, if violations.is_empty() { "green" } else { "RED" });
        let _ = write!(
            row,
            "| {:.1} s | {} / {} / {} | {:.0} ms ({:.0}) | {:.0} ms | {} MiB, {threads} threads | {:?} | {} | {} |",
            elapsed.as_secs_f64(),
            measurements.honest.answered,
            measurements.honest.refused,
            measurements.honest.failures.len(),
            millis(measurements.honest.p99()),
            millis(measurements.baseline_p99),
            millis(measurements.health.p99()),
            measurements.peak_bytes >> 20,
            measurements.idle_state,
            outcomes.iter().map(|(outcome, count)| format!("{count} × {outcome}")).collect::<Vec<_>>().join(", "),
            violations.join("; "),
        );
        println!("{row}");
        if let Some(path) = std::env::var_os("CALLBOARD_HOSTILE_REPORT") {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| writeln!(file, "{row}")).expect("the report can be written");
        }
    }
}

/// The measurements of the node and of the honest callers.
struct Measurements {
    baseline_p99: Duration,
    honest: CallStats,
    health: CallStats,
    idle_state: Option<IdleState>,
    peak_bytes: u64,
    address_space: u64,
    log: Vec<String>,
    death: Option<String>,
}

impl Measurements {
    /// Every exceeded bound, as text.
    fn violations(&self, max_refused_percent: u64, idle_time_per_core: Duration) -> Vec<String> {
        let mut violations = Vec::new();
        let mut require = |holds: bool, text: String| {
            if !holds {
                violations.push(text);
            }
        };
        require(self.death.is_none(), format!("the process ended: {}", self.death.as_deref().unwrap_or_default()));
        let Self { honest, health, .. } = self;
        require(
            honest.failures.is_empty(),
            format!("{} honest calls failed, the first: {:?}", honest.failures.len(), honest.failures.first()),
        );
        let (answered, refused) = (honest.answered, honest.refused);
        require(answered > 0, "no honest call was answered".to_owned());
        require(
            refused * 100 <= max_refused_percent * (answered + refused),
            format!("{refused} of {} honest calls were refused", answered + refused),
        );
        let most = (self.baseline_p99 * MAX_SLOWDOWN).max(HONEST_P99) * *SLACK;
        require(honest.p99() <= most, format!("honest p99 {:.0?}, at most {most:.0?}", honest.p99()));
        require(
            health.failures.is_empty() && health.refused == 0,
            format!("{} health requests failed, the first: {:?}", health.failures.len(), health.failures.first()),
        );
        let most = HEALTH_P99[usize::from(!BINARIES.is_release)] * *SLACK;
        require(health.p99() <= most, format!("health p99 {:.0?}, at most {most:.0?}", health.p99()));
        let (peak, most) = (self.peak_bytes >> 20, MAX_BYTES >> 20);
        require(self.peak_bytes <= MAX_BYTES, format!("{peak} MiB resident, at most {most}"));
        let (peak, most) = (self.address_space >> 30, MAX_ADDRESS_SPACE >> 30);
        require(self.address_space <= MAX_ADDRESS_SPACE, format!("{peak} GiB of address space, at most {most}"));
        let log_bytes: usize = self.log.iter().map(String::len).sum();
        require(log_bytes <= MAX_LOG_BYTES, format!("{log_bytes} bytes of log, at most {MAX_LOG_BYTES}"));
        let forged = self.log.iter().find(|line| line.starts_with("2030-"));
        require(forged.is_none(), format!("a line of the log is a caller's: {:.80}", forged.map_or("", |line| line)));
        match &self.idle_state {
            Some(idle_state) => idle_state.violations(idle_time_per_core, &mut require),
            None => require(self.death.is_some(), "its metrics did not say how many calls are in flight".to_owned()),
        }
        violations
    }
}

/// The return of the node to idle.
#[derive(Debug)]
struct IdleState {
    in_flight: u64,
    in_flight_bytes: u64,
    /// The processor time of the node without requests.
    idle: Duration,
}

impl IdleState {
    /// Waits until nothing is in flight, at most [`IDLE_TIMEOUT`] after the attackers left. Then measures the idle
    /// load.
    fn measure(node: &mut Node, attack_end: Instant) -> Option<Self> {
        let mut gauges = None;
        loop {
            gauges = node.in_flight().or(gauges);
            if gauges == Some((0, 0)) || attack_end.elapsed() > IDLE_TIMEOUT || node.death().is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let before = node.processor_time()?;
        thread::sleep(IDLE_CHECK.0);
        let mut idle = node.processor_time()?.saturating_sub(before);
        if idle > IDLE_CHECK.1 {
            thread::sleep(IDLE_WINDOW - IDLE_CHECK.0);
            idle = node.processor_time()?.saturating_sub(before);
        }
        let (in_flight, in_flight_bytes) = gauges?;
        Some(Self { in_flight, in_flight_bytes, idle })
    }

    fn violations(&self, time_per_core: Duration, require: &mut impl FnMut(bool, String)) {
        let Self { in_flight, in_flight_bytes, idle } = self;
        let is_free = *in_flight == 0 && *in_flight_bytes == 0;
        require(is_free, format!("{in_flight} calls and {in_flight_bytes} bytes are in flight after {IDLE_TIMEOUT:?}"));
        let most = time_per_core * u32::try_from(thread::available_parallelism().map_or(1, usize::from)).unwrap_or(1);
        require(
            *idle <= most,
            format!("{idle:?} of processor time in {IDLE_WINDOW:?} without requests, at most {most:?}"),
        );
    }
}

/// The outcome of a client that leaves at the end of the attack.
pub(crate) const LEFT_WAITING: &str = "left waiting";

/// The address of an attacker's connections.
pub(crate) const HOSTILE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A failed test does not invalidate the state behind the lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
