//! What a restart of a replica in Python costs whose service takes long to import: with a fork server, and without.
//!
//! Run with `cargo bench -p callboard-process --bench restarts -- --python PATH`, the interpreter of an environment
//! that has the packages `callboard` and `numpy`. `-- --restarts 100` and `--import-seconds 5` set its size.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use callboard_codec::Value;
use callboard_core::{App, Node};
use callboard_process::{PythonConfig, stage};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

/// Its import takes seconds, and loads a model of 64 MiB of weights and 300,000 words, if its setup does not.
const APP: &str = r#"
import os
import time

import numpy as np

import callboard as cb

time.sleep(SECONDS)


def load():
    return np.ones(8 << 20), {str(number): [number] for number in range(300_000)}


MODEL = None if SHARED else load()


@cb.service(share_setup=SHARED)
class Model:
    def setup(self) -> None:
        self.weights, self.words = load() if SHARED else MODEL

    def predict(self, item: str) -> int:
        self.weights[:100_000].sum()
        self.words[str(len(item))]
        return os.getpid()
"#;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value_of = |flag: &str| args.iter().position(|arg| arg == flag).map(|at| args[at + 1].clone());
    let python = PathBuf::from(value_of("--python").expect("--python PATH"));
    let seconds: f64 = value_of("--import-seconds").map_or(5.0, |seconds| seconds.parse().unwrap());
    let restarts: usize = value_of("--restarts").map_or(100, |restarts| restarts.parse().unwrap());
    let runtime = Runtime::new().unwrap();
    println!("an import of {seconds} s, and a model of 64 MiB of weights and 300,000 words");
    runtime.block_on(measure("each replica imports", &python, seconds, restarts.min(3), false, false));
    runtime.block_on(measure(
        "forked after the import, which loads the model",
        &python,
        seconds,
        restarts,
        true,
        false,
    ));
    runtime.block_on(measure("forked after the setup, which loads the model", &python, seconds, restarts, true, true));
}

async fn measure(name: &str, python: &Path, seconds: f64, restarts: usize, is_warm: bool, is_shared: bool) {
    let directory = std::env::temp_dir().join(format!("callboard-bench-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let shared = if is_shared { "True" } else { "False" };
    let app = APP.replace("SECONDS", &seconds.to_string()).replace("SHARED", shared);
    fs::write(directory.join("app.py"), app).unwrap();
    let config = PythonConfig { app: "app.py:Model".to_owned(), python: Some(python.to_owned()) };
    let mut process = config.process(&directory);
    if !is_warm {
        process.fork_server = None;
    }
    println!("{name}");
    let start = Instant::now();
    let node = App::new().route("/model", stage("model", &process)).start().await.unwrap();
    pid(&node).await;
    println!("  start to the first answer      {:>8.0} ms", millis(start.elapsed()));
    let mut times = Vec::new();
    for _ in 0..restarts {
        let killed = pid(&node).await;
        let start = Instant::now();
        kill_process(killed, Signal::KILL).unwrap();
        while answered(&node).await.is_none_or(|pid| pid == killed) {}
        times.push(millis(start.elapsed()));
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    println!("  a kill to the next answer      {:>8.1} ms p50, {:.1} p99, {:.1} max", at(0.5), at(0.99), at(1.0));
    let start = Instant::now();
    node.scale_stage("model", 4).await.unwrap();
    println!("  one to four replicas           {:>8.0} ms", millis(start.elapsed()));
    for _ in 0..64 {
        pid(&node).await;
    }
    for child in descendants(std::process::id()) {
        let (private, proportional) = memory(child);
        println!("  process {child:>8} {private:>8} KiB private, {proportional:>8} KiB proportional");
    }
    drop(node);
    fs::remove_dir_all(&directory).unwrap();
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn answered(node: &Node) -> Option<Pid> {
    let pid = node.client().call::<Value, Value>("/model", Value::from("x")).await.ok()?;
    Pid::from_raw(i32::try_from(pid.as_i64()?).ok()?)
}

async fn pid(node: &Node) -> Pid {
    loop {
        if let Some(pid) = answered(node).await {
            return pid;
        }
    }
}

/// The processes below this one, parents first.
fn descendants(of: u32) -> Vec<u32> {
    let children = |of: u32| -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
    };
    let mut found = children(of);
    let mut at = 0;
    while at < found.len() {
        found.extend(children(found[at]));
        at += 1;
    }
    found
}

/// The private dirty and the proportional memory of a process in KiB.
fn memory(pid: u32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |kib| kib.parse().unwrap())
    };
    (of("Private_Dirty:"), of("Pss:"))
}
