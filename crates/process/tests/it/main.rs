//! Stages of real child processes: what their callers see, and what is left of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod ahead;
mod calls;
mod concurrent;
mod encoded;
mod forked;
mod helper;
mod isolate;
mod isolated_calls;
mod isolated_streams;
mod spare;
mod trouble;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_codec::{DType, Tensor, Value};
use callboard_core::{App, CallError, Contract, Drained, ErrorKind, Node, Stage};
use callboard_process::{ForkServers, ProcessConfig, stage};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

fn config(mode: &str) -> ProcessConfig {
    ProcessConfig::new([env!("CARGO_BIN_EXE_misbehaving-worker"), mode])
}

fn worker() -> Stage<Value, Value> {
    stage("child", &config(""))
}

async fn started(stage: Stage<Value, Value>) -> Node {
    App::new().route("/child", stage).start().await.unwrap()
}

async fn call(node: &Node, item: impl Into<Value>) -> Result<Value, CallError> {
    node.client().call("/child", item.into()).await
}

async fn pid(node: &Node) -> Pid {
    let pid = call(node, "pid").await.unwrap();
    Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap()
}

/// Waits until no process has this number. A zombie is still one.
async fn until_gone(pid: Pid) {
    until("the process is gone", || test_kill_process(pid).is_err()).await;
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}

fn restarts(node: &Node) -> u64 {
    node.describe().stages[0].restarts
}

#[tokio::test]
async fn values_of_all_kinds_go_there_and_back_with_shared_memory_and_without() {
    for (shared_memory, memories) in [(true, 2), (false, 0)] {
        let mut config = config("");
        config.shared_memory = shared_memory;
        let node = started(stage("child", &config)).await;
        values_of_all_kinds_go_there_and_back(&node).await;
        // One in each direction.
        assert_eq!(call(&node, "memories").await.unwrap(), Value::from(memories));
    }
}

async fn values_of_all_kinds_go_there_and_back(node: &Node) {
    // More than the body limit of the edges: a stage may make it.
    let tensor = Tensor::try_new(DType::F32, &[65, 1 << 18], vec![1; 65 << 20].into()).unwrap();
    let map = Value::Map([("text", Value::from("x")), ("tensor", Value::from(tensor))].into_iter().collect());
    for item in [Value::Null, Value::from(7), Value::List(vec![Value::from("a"), Value::Float(0.5)]), map] {
        assert_eq!(call(node, item.clone()).await.unwrap(), item);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_process_of_a_replica_is_measured_when_the_node_is_asked() {
    let inner = Stage::each("inner", |value: &Value| Ok(value.clone()));
    let node = App::new().route("/child", worker()).route("/inner", inner).start().await.unwrap();
    let process = |stage: usize| node.describe().stages[stage].replicas.first().and_then(|replica| replica.process);
    let first = pid(&node).await;
    let usage = process(0).unwrap();
    assert_eq!(usage.pid, first.as_raw_pid().unsigned_abs());
    assert!(usage.memory_bytes > 0 && usage.cpu < Duration::from_secs(3600), "{usage:?}");
    assert_eq!(process(1), None, "its code runs in the node");
    let metrics = node.metrics();
    let value = |family: &str| metrics.lines().find_map(|line| line.strip_prefix(family)).map(str::to_owned);
    let cpu: f64 =
        value("callboard_replica_cpu_seconds_total{stage=\"child\",replica=\"0\"} ").unwrap().parse().unwrap();
    assert!(cpu >= usage.cpu.as_secs_f64() && cpu < 3600.0, "{cpu}");
    let memory = value("callboard_replica_memory_bytes{stage=\"child\",replica=\"0\"} ").unwrap();
    assert!(memory.parse::<u64>().unwrap() > 0);
    assert!(!metrics.contains("callboard_replica_memory_bytes{stage=\"inner\""));

    kill_process(first, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 1 && process(0).is_some()).await;
    let second = pid(&node).await;
    assert_eq!(process(0).unwrap().pid, second.as_raw_pid().unsigned_abs());
    assert_eq!(node.metrics().matches("callboard_replica_memory_bytes{").count(), 1);
}

#[tokio::test]
async fn a_bad_item_fails_alone_and_the_worker_keeps_its_state() {
    let node = started(worker().max_batch_size(8)).await;
    let items = ["one", "invalid", "two", "fail", "three"];
    let answers = futures(items.map(|item| call(&node, item))).await;
    assert_eq!(answers[0].as_ref().unwrap(), &Value::from("one"));
    let invalid = answers[1].as_ref().unwrap_err();
    assert_eq!((invalid.kind(), invalid.message()), (ErrorKind::InvalidInput, "`invalid` is not a text that it takes"));
    assert_eq!(answers[3].as_ref().unwrap_err().kind(), ErrorKind::Failed);
    assert!(answers[2].is_ok() && answers[4].is_ok());
    assert_eq!(call(&node, "calls").await.unwrap(), Value::from(6));
    assert_eq!(restarts(&node), 0);
}

async fn futures<F: Future>(all: [F; 5]) -> Vec<F::Output> {
    futures_util::future::join_all(all).await
}

#[tokio::test]
async fn the_end_of_a_child_during_a_call_is_explained_and_the_replica_starts_again() {
    let node = started(worker()).await;
    for (item, reason) in [("exit", "exited with code 7"), ("abort", "was killed by signal 6 (SIGABRT)")] {
        let error = call(&node, item).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed);
        assert!(
            error.message().starts_with("the worker ended: the process ") && error.message().contains(reason),
            "{error}"
        );
        assert!(!error.is_retryable(), "the default contract is at most once");
        assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    }
    assert_eq!(restarts(&node), 2);
}

#[tokio::test]
async fn an_idempotent_call_survives_the_death_of_its_child() {
    let node = started(worker().contract(Contract::Idempotent)).await;
    let hanging = tokio::spawn({
        let client = node.client();
        async move { client.call::<Value, Value>("/child", Value::from("calls")).await }
    });
    let first = pid(&node).await;
    kill_process(first, Signal::KILL).unwrap();
    assert!(hanging.await.unwrap().is_ok());
    assert!(call(&node, "again").await.is_ok());
    assert_ne!(pid(&node).await, first);
}

#[tokio::test]
async fn a_child_that_dies_while_it_is_idle_is_started_again_before_the_next_call() {
    let node = started(worker()).await;
    let first = pid(&node).await;
    kill_process(first, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 1).await;
    assert_ne!(pid(&node).await, first);
    until_gone(first).await;
}

/// Its stage runs nothing twice: a call that reached the old child would fail.
#[tokio::test]
async fn a_child_that_says_that_it_leaves_is_replaced_before_the_next_call() {
    for item in ["leave", "leave and stay"] {
        let mut config = config("");
        config.stop_timeout = Duration::from_millis(500);
        let node = started(stage("child", &config)).await;
        assert_eq!(call(&node, item).await.unwrap(), Value::from("goodbye"));
        assert_eq!(call(&node, "next").await.unwrap(), Value::from("next"), "{item}");
        assert_eq!(restarts(&node), 1, "{item}");
    }
}

#[tokio::test]
async fn a_child_that_leaves_has_the_time_of_a_stop_for_its_work_after_the_answer() {
    let mut config = config("");
    config.stop_timeout = Duration::from_secs(60);
    let node = started(stage("child", &config)).await;
    let path = std::env::temp_dir().join(format!("callboard-leaves-{}", std::process::id()));
    let item = format!("leave and write {}", path.display());
    assert_eq!(call(&node, item).await.unwrap(), Value::from("goodbye"));
    assert_eq!(call(&node, "next").await.unwrap(), Value::from("next"));
    std::fs::remove_file(path).expect("the child has written it");
}

#[tokio::test]
async fn a_child_that_hangs_is_killed_after_the_timeout_of_its_stage() {
    for item in ["hang", "hang and log"] {
        let node = started(worker().timeout(Duration::from_millis(300))).await;
        let first = pid(&node).await;
        let error = call(&node, item).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{item}: {error}");
        until_gone(first).await;
        assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"), "{item}");
    }
}

#[tokio::test]
async fn a_child_that_does_not_read_is_killed_after_the_timeout_of_its_stage() {
    let node = started(worker().timeout(Duration::from_millis(300))).await;
    let first = pid(&node).await;
    kill_process(first, Signal::STOP).unwrap();
    let error = call(&node, Value::Bytes(vec![0; 16 << 20].into())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    until_gone(first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_idempotent_call_fails_while_children_are_killed() {
    let stage = worker().contract(Contract::Idempotent).replicas(2).crash_retries(100);
    let node = started(stage).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (client, stop) = (node.client(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    client.call::<Value, Value>("/child", Value::from("echo")).await.unwrap();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for _ in 0..20 {
        let killed = pid(&node).await;
        kill_process(killed, Signal::KILL).unwrap();
        until_gone(killed).await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
}

/// The entries of this process in a directory of `/proc/self`.
fn own(directory: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{directory}")).unwrap().count()
}

#[tokio::test]
async fn children_that_are_killed_leave_no_descriptor_thread_or_process() {
    let node = started(worker()).await;
    let (descriptors, threads) = (own("fd"), own("task"));
    // `KILLS=1000` for a longer run.
    let kills = std::env::var("KILLS").map_or(100, |kills| kills.parse().unwrap());
    for _ in 0..kills {
        let killed = pid(&node).await;
        kill_process(killed, Signal::KILL).unwrap();
        until_gone(killed).await;
    }
    pid(&node).await;
    until("descriptors and threads are as before", || own("fd") <= descriptors && own("task") <= threads).await;
}

#[tokio::test]
async fn a_thousand_batches_in_shared_memory_leave_no_descriptor() {
    let node = started(worker()).await;
    let item = Value::Bytes(vec![7; 300 << 10].into());
    for _ in 0..10 {
        assert_eq!(call(&node, item.clone()).await.unwrap(), item);
    }
    let of_child = async || call(&node, "descriptors").await.unwrap().as_i64().unwrap();
    // Other tests of this process have descriptors of their own.
    let memories = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter_map(|link| std::fs::read_link(link.path()).ok()).filter(|to| is_memory(to)).count()
    };
    // Each side has a second memory if the first was still in use once.
    let (descriptors, most_of_child) = (memories() + 2, of_child().await + 2);
    for _ in 0..1000 {
        call(&node, item.clone()).await.unwrap();
    }
    assert!(of_child().await <= most_of_child);
    until("descriptors are as before", || memories() <= descriptors).await;
}

fn is_memory(link: &std::path::Path) -> bool {
    link.to_string_lossy().contains("memfd:callboard")
}

#[tokio::test]
async fn a_child_that_breaks_the_rules_of_shared_memory_is_killed_with_the_reason() {
    let node = started(worker()).await;
    for (item, reason) in [
        ("stray descriptor", "a descriptor came that belongs to no frame"),
        ("unsealed memory", "a descriptor is not memory that is sealed against shrinking"),
    ] {
        let error = call(&node, item).await.unwrap_err();
        assert!(error.message().ends_with(&format!("the process was killed: {reason}")), "{error}");
        assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    }
    assert_eq!(restarts(&node), 2);
}

#[tokio::test]
async fn a_batch_that_exceeds_a_frame_is_divided_and_an_item_that_does_fails_alone() {
    let mut small = config("");
    small.max_batch_bytes = 10_000;
    let node = started(stage("child", &small).max_batch_size(8)).await;
    let text = |bytes: usize| "x".repeat(bytes);
    let answers = futures([4_000, 4_000, 20_000, 4_000, 4_000].map(|bytes| call(&node, text(bytes)))).await;
    for (index, answer) in answers.iter().enumerate() {
        match answer {
            Ok(answer) => assert_eq!(answer.as_str().map(str::len), Some(4_000)),
            Err(error) => {
                assert_eq!((index, error.kind()), (2, ErrorKind::InvalidInput));
                assert!(error.message().ends_with("more than 10000 (max_batch_bytes)"), "{error}");
            }
        }
    }
    assert_eq!((answers.iter().filter(|answer| answer.is_err()).count(), restarts(&node)), (1, 0));
}

#[tokio::test]
async fn a_hung_child_does_not_outlive_its_node() {
    let node = started(worker()).await;
    let child = pid(&node).await;
    let hanging = tokio::spawn({
        let client = node.client();
        async move { client.call::<Value, Value>("/child", Value::from("hang")).await }
    });
    until("the call runs", || node.describe().in_flight == 1 && node.describe().stages[0].replicas[0].busy).await;
    assert_ne!(node.shutdown(Duration::from_millis(100)).await, Drained::Completely);
    assert!(hanging.await.unwrap().is_err());
    until_gone(child).await;
}

#[tokio::test]
async fn the_end_of_a_child_is_noticed_although_another_process_has_its_socket() {
    let node = started(worker()).await;
    let error = call(&node, "exit with a socket").await.unwrap_err();
    assert!(error.message().contains("exited with code 7"), "{error}");
    assert!(call(&node, "again").await.is_ok());
}

#[tokio::test]
async fn nothing_is_left_of_a_node_that_shuts_down() {
    let node = started(worker().replicas(2)).await;
    let grandchild = call(&node, "grandchild").await.unwrap().as_i64().unwrap();
    let (child, grandchild) = (pid(&node).await, Pid::from_raw(i32::try_from(grandchild).unwrap()).unwrap());
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    until_gone(child).await;
    until_gone(grandchild).await;
}

#[tokio::test]
async fn a_start_that_fails_tells_its_reason() {
    let mut slow = config("silent");
    slow.start_timeout = Some(Duration::from_millis(200));
    let mut missing = config("");
    missing.command = vec!["/no/such/program".into(), "".into()];
    let mut empty = config("");
    empty.command.clear();
    for (config, reason) in [
        (config("exits"), "worker exits`: the process exited with code 3: no licence was found"),
        (config("fails"), "worker fails`: no weights"),
        (config("garbage"), "a frame's head has 4294967295 bytes"),
        (slow, "it was not ready within 200ms (start_timeout)"),
        (missing, "`/no/such/program ` cannot be started: No such file or directory"),
        (empty, "the command of the stage is empty"),
    ] {
        let error = App::new().route("/child", stage("child", &config)).start().await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}
