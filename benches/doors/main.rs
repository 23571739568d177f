//! The cost of each door compared with the shortest way to the same work, both in one run:
//!
//! ```text
//!  grpc-small, grpc-large   ModelInfer of a tensor of 100 B and of 1 MiB   bare tonic, same messages; our OIP over HTTP
//!  embeddings               /v1/embeddings                                 the same route as plain JSON
//!  chat                     /v1/chat/completions, a stream of 512 tokens   the same route as server-sent events
//!  mcp                      tools/call                                     the same route as plain JSON
//!  load-page                GET /metrics/load                              /livez, and a time
//!  cancelled                a chat whose client leaves: when its worker knows
//! ```
//!
//! Run with `cargo bench --bench doors`, which takes four minutes; `-- --quick` takes half a minute. `-- --cases
//! grpc-small,mcp` runs some, `-- --callers 64 --connections 8 --rounds 9 --seconds 3` are the others. HTTP/2 shares
//! its connections among the callers; over HTTP/1.1 each caller has one.
//!
//! One binary: it starts itself as each server, which tells the CPU time of its own process. The load is a closed loop
//! on one thread, with the same client for both sides. Rounds are interleaved and change their order. A ratio is the
//! median of the ratios within rounds, so that other load of the machine affects both sides. Where the load is the
//! bottleneck, requests/s say little, and the CPU of the server is the figure.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

mod cancelled;
mod case;
mod load;
mod messages;
mod served;
mod server;
mod tonic_server;

use std::time::Duration;

use case::{Case, Comparison};
use load::{Load, Measured};
use server::{Kind, ServerProcess};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(kind) = arguments.strip_prefix(&["serve".to_owned()]).and_then(|rest| rest.first()) {
        return server::run(Kind::from_name(kind).expect("a kind of server"));
    }
    let plan = Plan::from_arguments(&arguments);
    let servers = [Kind::Tonic, Kind::Callboard].map(ServerProcess::start);
    for case in &plan.cases {
        let rounds: Vec<Vec<Measured>> = (0..plan.rounds).map(|round| plan.run_round(*case, &servers, round)).collect();
        plan.report(*case, &rounds);
    }
    if plan.cancels {
        cancelled::measure(plan.rounds * 100);
    }
}

/// The name of the case that has no sides.
const CANCELLED: &str = "cancelled";

/// The measurements of a run.
struct Plan {
    cases: Vec<Case>,
    /// Whether a chat is cancelled.
    cancels: bool,
    callers: usize,
    /// Those of HTTP/2.
    connections: usize,
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
        let (rounds, seconds) = if is_quick { (3, 0.5) } else { (7, 2.0) };
        let number = |flag, default| value_of(flag).map_or(default, |number| number.parse().unwrap());
        let names: Option<Vec<&str>> = value_of("--cases").map(|names| names.split(',').collect());
        let cancels = names.as_ref().is_none_or(|names| names.contains(&CANCELLED));
        let cases = names.map_or_else(
            || Case::ALL.to_vec(),
            |names| {
                let cases = names.into_iter().filter(|name| *name != CANCELLED);
                cases.map(|name| Case::from_name(name).expect("a case")).collect()
            },
        );
        Self {
            cases,
            cancels,
            callers: number("--callers", 64),
            connections: number("--connections", 8),
            rounds: number("--rounds", rounds),
            duration: Duration::from_secs_f64(value_of("--seconds").map_or(seconds, |number| number.parse().unwrap())),
        }
    }

    /// Measures each side once; every other round in the opposite order.
    fn run_round(&self, case: Case, servers: &[ServerProcess], round: usize) -> Vec<Measured> {
        let sides = case.sides();
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut measured: Vec<Option<Measured>> = sides.iter().map(|_| None).collect();
        for index in order {
            let side = &sides[index];
            let server = servers.iter().find(|server| server.kind == side.server).unwrap();
            let load = Load::new(server, side, self.callers, self.connections);
            measured[index] = Some(load.run(server, self.duration));
        }
        measured.into_iter().flatten().collect()
    }

    fn report(&self, case: Case, rounds: &[Vec<Measured>]) {
        let Self { callers, connections, duration, .. } = self;
        let sides = case.sides();
        println!(
            "\n{}: {callers} callers, {connections} connections of HTTP/2, {} rounds of {duration:?}\n{:<34} {:>10} \
             {:>9} {:>9} {:>16} {:>14}",
            case.title(),
            rounds.len(),
            "",
            "requests/s",
            "p50 µs",
            "p99 µs",
            "server CPU µs/rq",
            "load CPU µs/rq"
        );
        for (index, side) in sides.iter().enumerate() {
            let figure = |metric: fn(&Measured) -> f64| median(rounds.iter().map(|round| metric(&round[index])));
            println!(
                "  {:<32} {:>10.0} {:>9.1} {:>9.1} {:>16.2} {:>14.2}",
                side.name,
                figure(Measured::requests_per_second),
                figure(Measured::p50),
                figure(Measured::p99),
                figure(Measured::server_cpu),
                figure(Measured::load_cpu),
            );
        }
        if let Some(most) = case.most_cpu_micros() {
            let cpu = median(rounds.iter().map(|round| round[sides.len() - 1].server_cpu()));
            let holds = asked("at most", Some(most), |most| cpu <= most);
            println!("  {}: server CPU {cpu:.1} µs{holds}", sides[sides.len() - 1].name);
        }
        for Comparison { of, with, least_speed, most_cpu } in case.comparisons() {
            let ratio = |metric: fn(&Measured) -> f64| {
                median(rounds.iter().map(|round| metric(&round[of]) / metric(&round[with])))
            };
            let (speed, cpu) = (ratio(Measured::requests_per_second), ratio(Measured::server_cpu));
            println!("  {} of {}:", sides[of].name, sides[with].name);
            println!("    requests/s {speed:.3}{}", asked("at least", least_speed, |least| speed >= least));
            println!("    server CPU {cpu:.3}{}", asked("at most", most_cpu, |most| cpu <= most));
        }
    }
}

/// What was asked of a figure, and whether it holds.
fn asked(words: &str, bound: Option<f64>, holds: impl Fn(f64) -> bool) -> String {
    bound.map_or_else(String::new, |bound| {
        format!("   asked {words} {bound}: {}", if holds(bound) { "kept" } else { "MISSED" })
    })
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
