//! What a child process costs: the same echo on a thread of the node, in a child in Rust, and in a child in Python;
//! both children also without shared memory, by the socket.
//!
//! Run with `cargo bench -p callboard-process --bench children`; `-- --python PATH` adds the interpreter of an
//! environment that has the package `callboard`, `-- --rounds 9 --seconds 2` its time. Rounds are interleaved; a
//! difference or ratio is the median of those within rounds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use callboard_codec::{DType, Tensor, Value};
use callboard_core::{App, Batch, Failure, LocalClient, Node, Stage, Worker};
use callboard_process::{ProcessConfig, PythonConfig, stage};
use tokio::runtime::Runtime;

const APP: &str = "from typing import Any\n\nimport callboard as cb\n\n\n@cb.service\nclass Echo:\n    @cb.batched(max_batch_size=32)\n    \
                   def predict(self, items: list[Any]) -> list[Any]:\n        return items\n";

/// Echoes on its thread.
struct Echo;

impl Worker for Echo {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        batch.into_inputs().into_iter().map(Ok).collect()
    }
}

struct Way {
    name: &'static str,
    node: Node,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value_of = |flag: &str| args.iter().position(|arg| arg == flag).map(|at| args[at + 1].clone());
    let rounds: usize = value_of("--rounds").map_or(5, |rounds| rounds.parse().unwrap());
    let time = Duration::from_secs_f64(value_of("--seconds").map_or(1.0, |seconds| seconds.parse().unwrap()));
    let runtime = Runtime::new().unwrap();
    let ways = runtime.block_on(ways(value_of("--python").map(PathBuf::from)));

    println!("100 B, 1 caller: p50 in microseconds, and above the thread");
    let small = Value::Bytes(vec![7; 100].into());
    table(
        &ways,
        rounds,
        |way| median(runtime.block_on(sorted_micros(way.node.client(), &small, time))),
        |own, thread| own - thread,
    );
    println!("100 B, 64 callers, batches of up to 32: calls each second, and of the thread's");
    table(&ways, rounds, |way| runtime.block_on(calls_each_second(way, &small, time)), |own, thread| own / thread);
    for (bytes, name) in [(256 << 10, "256 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")] {
        let large = Value::from(Tensor::try_new(DType::U8, &[bytes], vec![7; bytes].into()).unwrap());
        let run = |way: &Way| runtime.block_on(sorted_micros(way.node.client(), &large, time));
        println!("a tensor of {name} there and back, 1 caller: milliseconds of the fastest call, and above the thread");
        // Other work on the machine makes a call slower, and never faster.
        let fastest = table(&ways, rounds, |way| run(way)[0] / 1000.0, |own, thread| own - thread);
        print_ratios(&ways, &fastest);
        println!("the same: milliseconds of CPU in both processes for each call, and above the thread");
        let cpu = |way: &Way| {
            let before = cpu_millis();
            let calls = run(way).len();
            (cpu_millis() - before) / calls as f64
        };
        let cpu = table(&ways, rounds, cpu, |own, thread| own - thread);
        print_ratios(&ways, &cpu);
    }
}

/// Compares each child with the next way, which is the same child without shared memory.
fn print_ratios(ways: &[Way], measured: &[Vec<f64>]) {
    for (index, way) in ways.iter().enumerate().skip(1).step_by(2) {
        let ratios = measured[index + 1].iter().zip(&measured[index]).map(|(socket, shared)| socket / shared);
        println!("  {}: {:.1} times as fast by shared memory", way.name, median(ratios.collect()));
    }
}

/// What this process and its children have used.
fn cpu_millis() -> f64 {
    let ticks = |pid: &str| -> f64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields.get(11..13).map_or(0.0, |ticks| ticks.iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum())
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let children = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    let children: f64 = children.map(|all| all.split_whitespace().map(ticks).sum::<f64>()).sum();
    // Linux counts in hundredths of a second.
    10.0 * (ticks("self") + children)
}

async fn ways(python: Option<PathBuf>) -> Vec<Way> {
    let started = async |name, stage: Stage<Value, Value>| {
        let node = App::new().route("/echo", stage.max_batch_size(32)).start().await.unwrap();
        Way { name, node }
    };
    let by_socket = |mut config: ProcessConfig| {
        config.shared_memory = false;
        stage("echo", &config)
    };
    let rust = ProcessConfig::new([env!("CARGO_BIN_EXE_misbehaving-worker")]);
    let mut ways = vec![
        started("thread", Stage::worker("echo", |_| Ok(Echo))).await,
        started("child in Rust", stage("echo", &rust)).await,
        started("  by the socket", by_socket(rust)).await,
    ];
    if let Some(python) = python {
        let directory = std::env::temp_dir().join(format!("callboard-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("app.py"), APP).unwrap();
        let config = PythonConfig { app: "app.py:Echo".to_owned(), python: Some(python) };
        let python = config.process(&directory);
        ways.push(started("child in Python", stage("echo", &python)).await);
        ways.push(started("  by the socket", by_socket(python)).await);
        fs::remove_dir_all(&directory).unwrap();
    }
    ways
}

/// Prints the median of each way, and the median of its comparisons with the first. Returns all rounds of each way.
fn table(
    ways: &[Way],
    rounds: usize,
    mut measure: impl FnMut(&Way) -> f64,
    compare: impl Fn(f64, f64) -> f64,
) -> Vec<Vec<f64>> {
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, measured) in ways.iter().zip(&mut measured) {
            measured.push(measure(way));
        }
    }
    for (way, own) in ways.iter().zip(&measured) {
        let compared = own.iter().zip(&measured[0]).map(|(own, thread)| compare(*own, *thread)).collect();
        println!("  {:<16} {:>12.2} {:>12.2}", way.name, median(own.clone()), median(compared));
    }
    measured
}

async fn sorted_micros(client: LocalClient, item: &Value, time: Duration) -> Vec<f64> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while start.elapsed() < time || all.len() < 3 {
        let began = Instant::now();
        client.call::<Value, Value>("/echo", item.clone()).await.unwrap();
        all.push(began.elapsed().as_secs_f64() * 1e6);
    }
    all.sort_by(f64::total_cmp);
    all
}

async fn calls_each_second(way: &Way, item: &Value, time: Duration) -> f64 {
    let start = Instant::now();
    let callers = (0..64).map(|_| {
        let (client, item) = (way.node.client(), item.clone());
        tokio::spawn(async move {
            let mut calls = 0_u32;
            while start.elapsed() < time {
                client.call::<Value, Value>("/echo", item.clone()).await.unwrap();
                calls += 1;
            }
            calls
        })
    });
    let calls: Vec<_> = callers.collect();
    let mut all = 0;
    for calls in calls {
        all += calls.await.unwrap();
    }
    f64::from(all) / start.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
