//! What a call to another node costs: ours beside bare quinn and beside tonic, all under mutual TLS 1.3.
//!
//! Run with `cargo bench -p callboard-net --bench hop`; `-- --quick` takes half a minute, `-- --only "64 callers"` one
//! table, `-- --ways route,tonic` some ways, `-- --rounds 9 --seconds 2` its time. Both sides are in this process, on
//! the same cores, each with a tokio runtime of its own; every QUIC endpoint has a thread of its own, with the same
//! tuning: the bare ones are ours without the rest. Tonic has the two runtimes and no other thread, so a call of its
//! passes two wake-ups where the others pass four (ours) or six (the bare ones).
//!
//! | way | what it is |
//! |---|---|
//! | route | `Client` calls a route whose stage echoes |
//! | stage | a node's own route, whose stage runs on a peer |
//! | ask | a question to an actor on a peer, of the same bytes |
//! | local | the same with the stage on the node itself: what a stage on a peer adds is the difference |
//! | bare stream | quinn, a stream for each request |
//! | bare frames | quinn, frames with a length and a number, multiplexed on one stream; written in batches |
//! | tonic | a gRPC echo of raw bytes |
//!
//! Beside the figures of each way stand how often a thread gave way for each request (`switches`) and, for ours, how
//! many calls shared a stream. Rounds are interleaved and change their order; a ratio is the median of the ratios
//! within rounds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

mod hop_parts {
    pub(crate) mod bare;
    pub(crate) mod frames;
    pub(crate) mod ours;
    pub(crate) mod tonic_echo;
    pub(crate) mod way;
}

use std::time::{Duration, Instant};

use hop_parts::way::{Measured, Way, Ways};
use tokio::runtime::Runtime;

/// A table: what is asked, by how many, of which ways.
struct Table {
    name: &'static str,
    bytes: usize,
    callers: usize,
    ways: &'static [Way],
}

impl Table {
    /// With those of its ways that were asked for.
    fn asked(&self, plan: &Plan) -> Vec<Way> {
        let is_asked =
            |way: &&Way| plan.ways.as_ref().is_none_or(|ways| ways.split(',').any(|name| name == way.name()));
        self.ways.iter().filter(is_asked).copied().collect()
    }
}

const TABLES: [Table; 5] = [
    Table {
        name: "100 B, 1 caller",
        bytes: 100,
        callers: 1,
        ways: &[Way::BareStream, Way::BareFrames, Way::Route, Way::Stage, Way::Ask, Way::Local, Way::Tonic],
    },
    Table {
        name: "100 B, 64 callers",
        bytes: 100,
        callers: 64,
        ways: &[Way::BareStream, Way::BareFrames, Way::Route, Way::Stage, Way::Ask, Way::Local, Way::Tonic],
    },
    Table {
        name: "1 MiB, 1 caller",
        bytes: 1 << 20,
        callers: 1,
        ways: &[Way::BareStream, Way::Route, Way::Stage, Way::Ask, Way::Tonic],
    },
    Table {
        name: "1 MiB, 4 callers",
        bytes: 1 << 20,
        callers: 4,
        ways: &[Way::BareStream, Way::Route, Way::Stage, Way::Tonic],
    },
    Table {
        name: "1 MiB, 16 callers",
        bytes: 1 << 20,
        callers: 16,
        ways: &[Way::BareStream, Way::Route, Way::Stage, Way::Tonic],
    },
];

fn main() {
    let plan = Plan::of(&std::env::args().skip(1).collect::<Vec<_>>());
    // As `#[tokio::main]` has it.
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (there, here) = (runtime(), runtime());
    let ways = here.block_on(Ways::start(there.handle()));
    println!("{} rounds of {:?} each", plan.rounds, plan.duration);
    for table in TABLES.iter().filter(|table| plan.only.as_ref().is_none_or(|only| table.name.contains(only.as_str())))
    {
        let mut rounds: Vec<Vec<Measured>> = Vec::new();
        let asked = table.asked(&plan);
        measure(&here, &ways, (table, &asked), 0, plan.duration / 4);
        for round in 0..plan.rounds {
            rounds.push(measure(&here, &ways, (table, &asked), round, plan.duration));
        }
        report((table, &asked), &rounds);
    }
    if plan.only.as_ref().is_none_or(|only| "cancel".contains(only.as_str())) {
        report_cancel(here.block_on(ways.cancelled_after(plan.cancels)));
    }
    // Whatever still runs is not waited for.
    here.shutdown_background();
    there.shutdown_background();
}

struct Plan {
    rounds: usize,
    duration: Duration,
    cancels: usize,
    only: Option<String>,
    ways: Option<String>,
}

impl Plan {
    fn of(arguments: &[String]) -> Self {
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| argument == flag)?;
            arguments.get(at + 1).map(String::as_str)
        };
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let (rounds, seconds, cancels) = if quick { (3, 0.3, 200) } else { (7, 1.0, 5_000) };
        Self {
            rounds: after("--rounds").map_or(rounds, |number| number.parse().unwrap()),
            duration: Duration::from_secs_f64(after("--seconds").map_or(seconds, |number| number.parse().unwrap())),
            cancels,
            only: after("--only").map(str::to_owned),
            ways: after("--ways").map(str::to_owned),
        }
    }
}

/// Each way once; every other round in the opposite order.
fn measure(
    here: &Runtime,
    ways: &Ways,
    (table, asked): (&Table, &[Way]),
    round: usize,
    duration: Duration,
) -> Vec<Measured> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    let mut measured: Vec<Option<Measured>> = asked.iter().map(|_| None).collect();
    for index in order {
        measured[index] = Some(here.block_on(ways.load(asked[index], table.bytes, table.callers, duration)));
    }
    measured.into_iter().flatten().collect()
}

fn report((table, asked): (&Table, &[Way]), rounds: &[Vec<Measured>]) {
    println!("\n{:<18} requests/s   p50 µs   p99 µs  CPU µs  switches  calls/stream", table.name);
    let place = |way: Way| asked.iter().position(|other| *other == way);
    for (index, way) in asked.iter().enumerate() {
        let figure = |of: fn(&Measured) -> f64| median(rounds.iter().map(|round| of(&round[index])));
        println!(
            "  {:<15} {:>11.0} {:>8.1} {:>8.1} {:>7.1} {:>9.2} {:>13.1}",
            way.name(),
            figure(Measured::per_second),
            figure(|measured| measured.p50),
            figure(|measured| measured.p99),
            figure(|measured| measured.cpu),
            figure(|measured| measured.switches),
            figure(|measured| measured.per_stream),
        );
    }
    for ours in [Way::Route, Way::Stage] {
        for other in [Way::BareStream, Way::BareFrames, Way::Tonic] {
            let (Some(ours_at), Some(other_at)) = (place(ours), place(other)) else { continue };
            let ratio = |of: fn(&Measured) -> f64| {
                median(rounds.iter().map(|round| of(&round[ours_at]) / of(&round[other_at])))
            };
            println!(
                "  {} of {}: requests/s {:.2}×, p50 {:.2}×",
                ours.name(),
                other.name(),
                ratio(Measured::per_second),
                ratio(|measured| measured.p50)
            );
        }
    }
    if let (Some(stage), Some(local), Some(bare)) = (place(Way::Stage), place(Way::Local), place(Way::BareStream)) {
        let added = median(rounds.iter().map(|round| (round[stage].p50 - round[local].p50) / round[bare].p50));
        println!("  stage − local, of bare stream: p50 {added:.2}×");
    }
    if let (Some(stage), Some(ask)) = (place(Way::Stage), place(Way::Ask)) {
        let ratio = |of: fn(&Measured) -> f64| median(rounds.iter().map(|round| of(&round[ask]) / of(&round[stage])));
        let (rate, p50) = (ratio(Measured::per_second), ratio(|measured| measured.p50));
        println!("  ask of stage: requests/s {rate:.2}×, p50 {p50:.2}×");
    }
}

fn report_cancel(mut after: Vec<Duration>) {
    after.sort();
    let at = |quantile: f64| after[((after.len() - 1) as f64 * quantile) as usize].as_secs_f64() * 1e3;
    println!(
        "\ncancel reaches a running worker on a peer: p50 {:.3} ms, p99 {:.3} ms, {} cancels",
        at(0.5),
        at(0.99),
        after.len()
    );
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// User and system time of this process, in which both ends run.
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}

/// How often the threads of this process gave way to others, or waited.
pub(crate) fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of_task = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    tasks.map(|task| of_task(task.unwrap().path())).sum()
}

/// The current time of the system, not of tokio.
pub(crate) fn now() -> Instant {
    Instant::now()
}
