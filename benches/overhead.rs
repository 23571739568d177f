//! The cost of Callboard over HTTP: a no-op echo through edge, gateway, router, batcher and worker, compared with a
//! bare axum handler that echoes the same JSON on the same accept loop with the same headers.
//!
//! A wait of a server is a voluntary context switch of one of its threads, which instructions do not show.
//!
//! Run with `cargo bench --bench overhead`; `-- --quick` takes half a minute, `-- --rounds 9 --seconds 3` is thorough,
//! `-- --connections 64 --pipelines task` runs one case. `-- --workload tensor` sends an array of a mebibyte in
//! MessagePack both ways, `-- --workload events` reads a hundred server-sent events, `-- --workload oip
//! --second-workload oip-json` sends the array by the Open Inference Protocol, in binary and in JSON. `-- --pipelines
//! peer` runs the stage on another node, over QUIC: one more hop on the same cores. `-- --pipelines cached` answers
//! from the cache of the stage.
//!
//! One binary: it starts itself as each server, so that a server's CPU time can be read from `/proc/<pid>/stat` apart
//! from the load's. The load is a closed loop of keep-alive HTTP/1.1 connections on one thread, with as little work as
//! possible, because it takes CPU from the servers on a small machine. Rounds are interleaved and change their order. A
//! ratio is the median of the ratios within rounds, so that other load of the machine affects both sides.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

mod overhead_parts {
    pub(crate) mod load;
    pub(crate) mod peer;
    pub(crate) mod server;
    pub(crate) mod workload;
}

use std::sync::mpsc;
use std::time::{Duration, Instant};

use overhead_parts::load::{self, Measured};
use overhead_parts::server::{Kind, ServerProcess};
use overhead_parts::workload::Workload;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(kind) = arguments.strip_prefix(&["serve".to_owned()]).and_then(|rest| rest.first()) {
        return overhead_parts::server::run(Kind::from_name(kind).expect("a kind of server"));
    }
    let plan = Plan::from_arguments(&arguments);
    let servers: Vec<ServerProcess> = plan.kinds.iter().map(|kind| ServerProcess::start(*kind)).collect();
    let length = plan.workload.request().len();
    println!(
        "{}: {} rounds of {:?} each; a request is {length} bytes",
        plan.workload.name(),
        plan.rounds,
        plan.duration
    );
    let mut targets: Vec<Target<'_>> = servers.iter().map(|server| (server, plan.workload)).collect();
    targets.extend(plan.second_workload.map(|workload| (&servers[1], workload)));
    for connections in &plan.connections {
        let rounds: Vec<Vec<Measured>> =
            (0..plan.rounds).map(|round| run_round(&targets, *connections, plan.duration, round)).collect();
        report(*connections, &targets, &rounds);
    }
    report_wake_up(bare_wake_up());
}

/// The measurements of a run.
struct Plan {
    workload: Workload,
    /// Another workload of the first pipeline, measured in the same rounds.
    second_workload: Option<Workload>,
    kinds: Vec<Kind>,
    connections: Vec<usize>,
    rounds: usize,
    duration: Duration,
}

impl Plan {
    fn from_arguments(arguments: &[String]) -> Self {
        let value_of = |flag: &str| {
            let position = arguments.iter().position(|argument| argument == flag)?;
            arguments.get(position + 1).map(String::as_str)
        };
        let is_quick = arguments.iter().any(|argument| argument == "--quick");
        let (rounds, seconds) = if is_quick { (3, 0.8) } else { (7, 2.0) };
        let list = |flag: &str, default: &str| -> Vec<String> {
            value_of(flag).unwrap_or(default).split(',').map(str::to_owned).collect()
        };
        let mut kinds = vec![Kind::Bare];
        kinds.extend(
            list("--pipelines", "task,thread")
                .iter()
                .map(|name| Kind::from_name(name).expect("task, thread, cached or peer")),
        );
        Self {
            workload: value_of("--workload")
                .map_or(Workload::Echo, |name| Workload::from_name(name).expect("a workload")),
            second_workload: value_of("--second-workload").map(|name| Workload::from_name(name).expect("a workload")),
            kinds,
            connections: list("--connections", "1,64,256").iter().map(|number| number.parse().unwrap()).collect(),
            rounds: value_of("--rounds").map_or(rounds, |number| number.parse().unwrap()),
            duration: Duration::from_secs_f64(value_of("--seconds").map_or(seconds, |number| number.parse().unwrap())),
        }
    }
}

/// A server and its workload.
type Target<'a> = (&'a ServerProcess, Workload);

/// Measures each target once; every other round in the opposite order.
fn run_round(targets: &[Target<'_>], connections: usize, duration: Duration, round: usize) -> Vec<Measured> {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    let mut measured: Vec<Option<Measured>> = targets.iter().map(|_| None).collect();
    for index in order {
        let (server, workload) = targets[index];
        measured[index] = Some(load::run(server, workload, connections, duration));
    }
    measured.into_iter().flatten().collect()
}

fn report(connections: usize, targets: &[Target<'_>], rounds: &[Vec<Measured>]) {
    println!(
        "\n{connections} connections      requests/s   p50 µs   p99 µs   server CPU µs/request   its waits/request"
    );
    for (index, (server, workload)) in targets.iter().enumerate() {
        let of_server: Vec<&Measured> = rounds.iter().map(|round| &round[index]).collect();
        let figure = |metric: fn(&Measured) -> f64| median(of_server.iter().map(|measured| metric(measured)));
        let ratio =
            |metric: fn(&Measured) -> f64| median(rounds.iter().map(|round| metric(&round[index]) / metric(&round[0])));
        println!(
            "  {:<12} {:<9} {:>11.0} {:>8.1} {:>8.1} {:>10.2} {:>23.2}",
            server.kind.name(),
            workload.name(),
            figure(Measured::requests_per_second),
            figure(Measured::p50),
            figure(Measured::p99),
            figure(Measured::cpu_per_request),
            figure(Measured::waits_per_request),
        );
        if index > 0 {
            let added = median(rounds.iter().map(|round| round[index].p50() - round[0].p50()));
            println!(
                "    of bare axum       {:>9.3}×                     {:>10.3}×   p50 {added:+.1} µs",
                ratio(Measured::requests_per_second),
                ratio(Measured::cpu_per_request),
            );
        }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A bare wake-up of a thread and back: the cost of any hand-over to a thread on this machine.
fn bare_wake_up() -> Duration {
    let (to_thread, inbox) = mpsc::sync_channel::<()>(1);
    let (to_main, answers) = mpsc::sync_channel::<()>(1);
    let thread = std::thread::spawn(move || while inbox.recv().is_ok() && to_main.send(()).is_ok() {});
    let mut round_trips: Vec<Duration> = (0..20_000)
        .map(|_| {
            let start = Instant::now();
            to_thread.send(()).unwrap();
            answers.recv().unwrap();
            start.elapsed()
        })
        .collect();
    drop(to_thread);
    thread.join().unwrap();
    round_trips.sort();
    round_trips[round_trips.len() / 2]
}

fn report_wake_up(round_trip: Duration) {
    println!("\nbare wake-up of a thread and back: p50 {:.1} µs", round_trip.as_secs_f64() * 1e6);
}
