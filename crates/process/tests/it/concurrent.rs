//! Children that work on several calls at once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_codec::Value;
use callboard_core::{App, CallError, Contract, Drained, ErrorKind, Failure, Node, Stage};
use callboard_process::{ProcessConfig, stage, stream_stage};
use futures_util::future::join_all;
use rustix::process::{Signal, kill_process};

use crate::ahead::new_path;
use crate::{call, pid, restarts, until, until_gone};

fn config(calls: u32) -> ProcessConfig {
    let mut config = ProcessConfig::new([env!("CARGO_BIN_EXE_concurrent-worker")]);
    config.concurrency = NonZeroU32::new(calls);
    config
}

fn worker() -> Stage<Value, Value> {
    stage("child", &config(64))
}

async fn started(stage: Stage<Value, Value>) -> Node {
    App::new().route("/child", stage).start().await.unwrap()
}

async fn streaming() -> Node {
    let stream = stream_stage("child", &config(64)).credit(1);
    App::new().route_streaming("/child", stream).start().await.unwrap()
}

fn spawn_call(node: &Node, item: &'static str) -> tokio::task::JoinHandle<Result<Value, CallError>> {
    let client = node.client();
    tokio::spawn(async move { client.call("/child", Value::from(item)).await })
}

/// The threads of this process that have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|own| own.trim() == name)).count()
}

/// Linux ends a child that asks for it with the thread that has started it.
#[test]
fn a_child_outlives_the_thread_that_its_replica_was_started_on() {
    let name = "short-lived";
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).thread_name(name).thread_keep_alive(Duration::from_millis(1)).enable_all();
    runtime.build().unwrap().block_on(async {
        let node =
            started(stage("child", &ProcessConfig { concurrency: NonZeroU32::new(2), ..crate::config("") })).await;
        let first = pid(&node).await;
        until("only the runtime's worker is left", || threads(name) == 1).await;
        assert_eq!((pid(&node).await, restarts(&node)), (first, 0));
    });
}

/// Waits until the child has this many open calls, of the one that asks apart.
async fn until_open(node: &Node, count: u64) {
    while call(node, "open").await.unwrap() != Value::from(count) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_is_answered_while_another_waits() {
    let node = started(worker()).await;
    let waiting = [spawn_call(&node, "wait"), spawn_call(&node, "wait")];
    until_open(&node, 2).await;
    assert_eq!(call(&node, "go").await.unwrap(), Value::from("go"));
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap(), Value::from("gone"));
    }
    let answers = join_all((0..200).map(|number| call(&node, number))).await;
    for (number, answer) in (0..).zip(answers) {
        assert_eq!(answer.unwrap(), Value::from(number));
    }
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_child_has_no_more_open_calls_than_the_stage_says() {
    let node = started(stage("child", &config(2))).await;
    let waiting = spawn_call(&node, "wait");
    until_open(&node, 1).await;
    let second = spawn_call(&node, "wait");
    until("the second call has its slot", || node.describe().stages[0].replicas[0].busy).await;
    // Both slots are taken, so this call waits in the queue.
    let third = spawn_call(&node, "go");
    until("the third call waits", || node.describe().in_flight == 3).await;
    waiting.abort();
    // The first slot is free, and the third call lets the second go.
    assert!(third.await.unwrap().is_ok());
    assert_eq!(second.await.unwrap().unwrap(), Value::from("gone"));
}

#[tokio::test]
async fn a_call_whose_caller_leaves_is_cancelled_in_the_child() {
    let node = started(worker()).await;
    let leaving = spawn_call(&node, "wait");
    until_open(&node, 1).await;
    let left_at = Instant::now();
    leaving.abort();
    until_open(&node, 0).await;
    println!("the child was told within {:?}", left_at.elapsed());
    assert_eq!(call(&node, "cancelled").await.unwrap(), Value::from(1));
}

#[tokio::test]
async fn the_end_of_a_child_is_told_to_all_its_callers_and_a_new_one_starts() {
    let node = started(worker()).await;
    let waiting = spawn_call(&node, "wait");
    until_open(&node, 1).await;
    for error in [call(&node, "abort").await.unwrap_err(), waiting.await.unwrap().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::WorkerFailed);
        assert!(error.message().contains("was killed by signal 6 (SIGABRT)"), "{error}");
    }
    assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    assert_eq!(restarts(&node), 1);
}

#[tokio::test]
async fn idempotent_calls_survive_the_death_of_their_child() {
    let node = started(worker().contract(Contract::Idempotent)).await;
    let waiting = spawn_call(&node, "wait");
    until_open(&node, 1).await;
    kill_process(pid(&node).await, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 1).await;
    until_open(&node, 1).await;
    assert!(call(&node, "go").await.is_ok());
    assert_eq!(waiting.await.unwrap().unwrap(), Value::from("gone"));
}

/// The child does not say which of its calls has ended it: each runs again apart from the others before it is charged.
#[tokio::test]
async fn the_calls_beside_a_deadly_one_are_answered_and_it_alone_is_poison() {
    let node = started(stage("child", &config(4)).contract(Contract::Idempotent)).await;
    for _ in 0..5 {
        let file = new_path();
        let calls = ["deadly", "beside", "beside", "beside"].map(|what| format!("{what} {}", file.display()));
        let answers = join_all(calls.iter().map(|item| call(&node, item.clone()))).await;
        std::fs::remove_file(file).unwrap();
        let error = answers[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "{error}");
        assert!(error.message().contains("was killed by signal 6 (SIGABRT)"), "{error}");
        for (item, answer) in calls.iter().zip(&answers).skip(1) {
            assert_eq!(answer.as_ref().unwrap(), &Value::from(item.clone()));
        }
    }
    assert!(node.metrics().contains("callboard_stage_poison_entries_total{stage=\"child\"} 5"), "{}", node.metrics());
    assert!(restarts(&node) <= 5 * 5);
}

#[tokio::test]
async fn a_child_that_dies_while_it_is_idle_is_started_again() {
    let node = started(worker()).await;
    let first = pid(&node).await;
    kill_process(first, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 1).await;
    assert_ne!(pid(&node).await, first);
    until_gone(first).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_and_its_child_lives() {
    let node = started(worker().timeout(Duration::from_millis(300))).await;
    let child = pid(&node).await;
    let error = call(&node, "wait").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    until_open(&node, 0).await;
    assert_eq!(pid(&node).await, child);
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_child_that_answers_no_ping_is_killed_also_if_another_thread_of_it_logs_and_counts() {
    for item in ["block", "block beside a thread"] {
        let node = started(worker().timeout(Duration::from_millis(300))).await;
        let first = pid(&node).await;
        let error = call(&node, item).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        until_gone(first).await;
        until("the replica is back", || restarts(&node) == 1).await;
        assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    }
}

#[tokio::test]
async fn a_child_whose_work_has_stopped_is_killed_without_a_timeout_of_its_stage() {
    let mut config = config(64);
    config.silence_timeout = Some(Duration::from_millis(300));
    let node = started(stage("child", &config)).await;
    let first = pid(&node).await;
    // A call may take any time, as long as the child answers pings.
    let waiting = spawn_call(&node, "wait");
    until_open(&node, 1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!waiting.is_finished());
    let error = call(&node, "block").await.unwrap_err();
    assert!(error.to_string().contains("it has said nothing for 300ms"), "{error}");
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::WorkerFailed);
    until_gone(first).await;
    assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
}

#[tokio::test]
async fn children_call_routes_of_their_node_for_several_callers_at_once() {
    let echo = Stage::each("echo", |item: &Value| Ok(item.clone()));
    let never = Stage::each_async("never", |_: Arc<Value>| std::future::pending::<Result<Value, Failure>>());
    let app = App::new().route("/child", worker()).route("/echo", echo).route("/never", never);
    let node = app.start().await.unwrap();
    let waiting = spawn_call(&node, "/never");
    until_open(&node, 1).await;
    assert_eq!(call(&node, "/echo").await.unwrap(), Value::from("from a child"));
    assert_eq!(call(&node, "/missing").await.unwrap(), Value::from("not_found"));
    // The inner call ends with the call that it is made for.
    waiting.abort();
    until("no call is left", || node.describe().in_flight == 0).await;
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_slow_reader_pauses_its_own_stream_only() {
    let node = streaming().await;
    let replies = || node.client().replies::<Value, Value>("/child", Value::from("stream")).unwrap();
    let mut slow = replies();
    slow.next().await.unwrap().unwrap();
    let mut count = 0;
    let mut quick = replies();
    while let Some(output) = quick.next().await {
        output.unwrap();
        count += 1;
    }
    assert_eq!(count, 100);
    let mut count = 1;
    while let Some(output) = slow.next().await {
        output.unwrap();
        count += 1;
    }
    assert_eq!((count, restarts(&node)), (100, 0));
}

#[tokio::test]
async fn a_child_that_sends_more_outputs_than_it_may_is_killed() {
    let node = streaming().await;
    let mut replies = node.client().replies::<Value, Value>("/child", Value::from("flood")).unwrap();
    let error = loop {
        if let Err(error) = replies.next().await.unwrap() {
            break error;
        }
    };
    assert!(error.message().contains("it sent more than 16 outputs of an item that were not asked for"), "{error}");
}

/// Its sixteen outputs of 1 MiB have credit, and the node has room for four that are not read.
#[tokio::test]
async fn outputs_that_are_not_read_pause_their_child_by_their_bytes() {
    let small = ProcessConfig { max_batch_bytes: 4 << 20, ..config(64) };
    let stream = stream_stage("child", &small).credit(1);
    let node = App::new().route_streaming("/child", stream).start().await.unwrap();
    let replies = |item: &str| node.client().replies::<Value, Value>("/child", Value::from(item)).unwrap();
    let mut slow = replies("large");
    slow.next().await.unwrap().unwrap();
    let mut other = replies("stream");
    let early = tokio::time::timeout(Duration::from_millis(300), other.next()).await;
    assert!(early.is_err(), "the child waits for the reader of the large outputs");
    let mut count = 1;
    while let Some(output) = slow.next().await {
        output.unwrap();
        count += 1;
    }
    assert_eq!(count, 16);
    assert!(other.next().await.unwrap().is_ok());
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_node_stops_its_child_in_good_order() {
    let node = started(worker()).await;
    let child = pid(&node).await;
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    until_gone(child).await;
}
