//! Trouble with children: each costs its replica and the batch in hand, is told with its reason, and leaves the stage
//! whole.

use std::num::NonZeroU32;
use std::time::Instant;

use callboard_core::CallOptions;
use callboard_process::{MemoryLimit, stream_stage};
use futures_util::future::join_all;
use tokio::time::interval;

use super::*;

fn up(node: &Node) -> usize {
    node.describe().stages[0].replicas.len()
}

#[tokio::test]
async fn a_child_that_breaks_the_protocol_is_killed_with_the_reason_and_the_stage_is_whole_again() {
    let node = started(worker().replicas(2)).await;
    for (item, reason) in [
        ("garbage", "a frame's head has 4294967295 bytes, more than 4194304"),
        ("two outcomes", "it answered 2 outcomes for 1 item"),
        ("unknown message", "it sent a message that is not known"),
        ("close the socket", "the process has closed its socket"),
        ("punch a hole", "cannot be read"),
    ] {
        // Each child counts its calls: a new one has had none.
        let own = match item {
            "two outcomes" => Some(started(worker()).await),
            // This one ends by itself, maybe during the next call.
            "punch a hole" => Some(started(worker().contract(Contract::Idempotent)).await),
            _ => None,
        };
        let node = own.as_ref().unwrap_or(&node);
        let error = call(node, item).await.unwrap_err();
        assert!(error.message().contains(reason), "{item}: {error}");
        let again = join_all((0..4).map(|number| call(node, number))).await;
        assert!(again.iter().all(Result::is_ok), "{item}: {again:?}");
    }
    until("both replicas are up", || up(&node) == 2).await;
    assert_eq!(restarts(&node), 3);
}

/// Requests that end their child or hang in it, one at a time, while another caller asks all the time.
#[tokio::test]
async fn inputs_that_end_or_hang_their_child_never_fail_a_stage_under_any_contract() {
    for contract in [Contract::AtMostOnce, Contract::Idempotent, Contract::Pure] {
        let node = Arc::new(started(worker().contract(contract).timeout(Duration::from_secs(2))).await);
        let over = Arc::new(AtomicBool::new(false));
        let honest = tokio::spawn({
            let (node, over) = (Arc::clone(&node), Arc::clone(&over));
            async move {
                let mut answered = 0;
                while !over.load(Ordering::SeqCst) {
                    let answer = call(&node, "echo").await;
                    assert!(answer.is_ok(), "{contract:?}, after {answered} answers: {answer:?}");
                    answered += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                answered
            }
        });
        for n in 0..12 {
            let (item, kind) =
                if n == 3 { ("hang", ErrorKind::DeadlineExceeded) } else { ("exit", ErrorKind::WorkerFailed) };
            let error = call(&node, item).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{contract:?}, call {n}: {error}");
            until("the node is ready", || node.health().ready).await;
        }
        over.store(true, Ordering::SeqCst);
        assert!(honest.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_child_of_another_version_is_refused_at_its_start() {
    let error = App::new().route("/child", stage("child", &config("version 2"))).start().await.unwrap_err();
    assert!(error.to_string().contains("it speaks version 2 of the protocol, not 1"), "{error}");
}

#[tokio::test]
async fn a_stream_of_several_items_needs_a_worker_that_knows_credit() {
    let several = ProcessConfig { concurrency: NonZeroU32::new(4), ..config("") };
    let app = App::new().route_streaming("/child", stream_stage("child", &several));
    let error = app.start().await.unwrap_err();
    assert!(error.to_string().contains("a concurrency of 4, and its worker streams one batch at a time"), "{error}");
    let one = ProcessConfig { concurrency: NonZeroU32::new(1), ..config("") };
    let node = started(stage("child", &one)).await;
    assert_eq!(call(&node, "echo").await.unwrap(), Value::from("echo"));
}

#[tokio::test]
async fn a_child_that_reaches_its_memory_limit_says_so() {
    let limited = ProcessConfig { memory_limit: MemoryLimit::Bytes(512 << 20), ..config("") };
    let node = started(stage("child", &limited)).await;
    let error = call(&node, "leak").await.unwrap_err();
    assert!(error.message().ends_with("it has reached its memory limit of 536870912 bytes"), "{error}");
    assert!(call(&node, "echo").await.is_ok());
}

/// With a million replicas each would have less than the least share. A forked child has what its fork server had
/// beside it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_without_a_memory_limit_that_holds_more_than_its_share_is_killed_and_says_so() {
    let forked = ProcessConfig { fork_server: Some(config("fork server").command), ..config("") };
    for config in [config(""), forked.clone()] {
        let stage = stage("child", &config).replicas_between(1, 1_000_000);
        let node = started(stage).await;
        assert!(call(&node, "hold 50 for 250").await.is_ok());
        let error = call(&node, "hold 300 for 10000").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed);
        let limit = "more than its memory limit of 268435456 bytes (memory_limit, by default a share";
        assert!(error.message().contains(limit), "{error}");
        assert!(call(&node, "echo").await.is_ok());
    }
    let unlimited = ProcessConfig { memory_limit: MemoryLimit::Unlimited, ..forked };
    let node = started(stage("child", &unlimited).replicas_between(1, 1_000_000)).await;
    assert!(call(&node, "hold 300 for 250").await.is_ok());
}

#[tokio::test]
async fn a_child_names_only_requests_that_it_works_on() {
    let (records, node) = (isolate::records(), started(worker()).await);
    let options = CallOptions::new().with_request_id("mine-7");
    node.client().call_with::<_, Value>("/child", Value::from("log"), options).await.unwrap();
    for expected in ["INFO of my own request_id=\"mine-7\"", "INFO of another call"] {
        until(expected, || records.lock().iter().any(|record| record == expected)).await;
    }
}

/// What it leaves behind has left its group, and keeps the pipe that both print to.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_that_a_child_leaves_behind_keeps_no_thread_of_the_node() {
    let node = started(stage("leaver", &config(""))).await;
    let readers = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.trim() == "leaver-0-log").count()
    };
    for _ in 0..3 {
        call(&node, "leave a process behind").await.unwrap_err();
    }
    call(&node, "echo").await.unwrap();
    until("one thread reads", || readers() == 1).await;
}

#[tokio::test]
async fn a_child_may_fill_its_standard_error() {
    let node = started(worker()).await;
    assert_eq!(call(&node, "fill standard error").await.unwrap(), Value::Null);
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_child_needs_no_temporary_directory() {
    let mut config = config("");
    config.env.insert("TMPDIR".to_owned(), "/no/such/directory".to_owned());
    let node = started(stage("child", &config)).await;
    let large = Value::Bytes(vec![7; 1 << 20].into());
    assert_eq!(call(&node, large.clone()).await.unwrap(), large);
}

/// The second part of the batch is in the child's socket when the child answers the first.
#[tokio::test]
async fn the_rest_of_a_divided_batch_is_unavailable_when_its_child_says_that_it_ends() {
    let large = Value::from("x".repeat(9_000));
    let bytes = large.to_envelope().unwrap().len() as u64;
    let small = ProcessConfig { max_batch_bytes: bytes, ..config("") };
    let node = started(stage("child", &small).max_batch_size(2).max_delay(Duration::from_secs(60))).await;
    let (first, second) = tokio::join!(call(&node, "leave"), call(&node, large));
    assert_eq!(first.unwrap(), Value::from("goodbye"));
    let error = second.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("the replica has ended before this item"), "{error}");
    let (first, second) = tokio::join!(call(&node, "one"), call(&node, "two"));
    assert!(first.is_ok() && second.is_ok());
}

/// As above, where the first part was a stream.
#[tokio::test]
async fn the_rest_of_a_divided_batch_of_streams_is_unavailable_when_its_child_says_that_it_ends() {
    let large = Value::from("x".repeat(9_000));
    let small = ProcessConfig { max_batch_bytes: large.to_envelope().unwrap().len() as u64, ..config("") };
    let stage = stream_stage("child", &small).max_batch_size(2);
    let node = App::new().route_streaming("/child", stage).start().await.unwrap();
    let next = async |item: Value| node.client().replies::<Value, Value>("/child", item).unwrap().next().await;
    let (first, second) = tokio::join!(next(Value::from("leave a stream")), next(large));
    assert!(first.is_none(), "{first:?}");
    let error = second.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("the replica has ended before this item"), "{error}");
}

#[tokio::test]
async fn a_child_is_pinned_to_the_core_of_its_replica() {
    let node = started(worker().replicas(2).pinned_to([1, 0])).await;
    let mut cores = std::collections::BTreeSet::new();
    while cores.len() < 2 {
        let all = join_all((0..8).map(|_| pid(&node))).await;
        for pid in all {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            cores.insert(allowed.trim().to_owned());
        }
    }
    assert_eq!(cores.into_iter().collect::<Vec<_>>(), ["0", "1"]);
}

/// The cores of all replicas are known before one starts.
#[tokio::test]
async fn a_child_that_is_given_a_core_that_is_not_there_does_not_start() {
    let missing = vec![vec![0, 1023]];
    let config = ProcessConfig { replica_cores: missing, ..config("") };
    let error = App::new().route("/child", stage("child", &config)).start().await.unwrap_err();
    assert!(error.to_string().contains("affinity: core 1023 is not there"), "{error}");
    let config = ProcessConfig { replica_cores: vec![vec![1], vec![0, 1]], ..config };
    let node = started(stage("child", &config).replicas(2)).await;
    assert!(call(&node, "echo").await.is_ok());
}

#[tokio::test]
async fn a_child_that_does_not_stop_is_killed_when_its_time_is_over() {
    let config = ProcessConfig { stop_timeout: Duration::from_millis(200), ..config("ignores stop") };
    let node = started(stage("child", &config)).await;
    assert!(call(&node, "echo").await.is_ok());
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
}

/// Calls 200 times a second for two seconds, and kills one of two replicas meanwhile: the errors, and the longest that
/// one took; and how long the stage lacked a replica.
async fn killed_under_load(contract: Contract) -> (Vec<CallError>, Duration) {
    let node = started(worker().contract(contract).replicas(2)).await;
    let victim = pid(&node).await;
    let (mut ticks, mut calls, mut killed_at) = (interval(Duration::from_millis(5)), Vec::new(), None);
    let mut lacked = Duration::ZERO;
    for tick in 0..400 {
        ticks.tick().await;
        let client = node.client();
        calls.push(tokio::spawn(async move { client.call::<Value, Value>("/child", Value::from(1)).await }));
        if tick == 100 {
            kill_process(victim, Signal::KILL).unwrap();
            killed_at = Some(Instant::now());
        }
        if let Some(killed_at) = killed_at
            && restarts(&node) == 1
            && lacked.is_zero()
        {
            lacked = killed_at.elapsed();
        }
    }
    assert_eq!(restarts(&node), 1);
    let answers = join_all(calls).await.into_iter().map(Result::unwrap);
    (answers.filter_map(Result::err).collect(), lacked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_under_load_costs_nothing_or_the_batch_in_hand() {
    let (errors, lacked) = killed_under_load(Contract::Idempotent).await;
    println!("idempotent: {} errors; full strength after {lacked:?}", errors.len());
    assert!(errors.is_empty(), "{errors:?}");
    let (errors, lacked) = killed_under_load(Contract::AtMostOnce).await;
    println!("at most once: {} errors; full strength after {lacked:?}", errors.len());
    assert!(errors.len() <= 1, "{errors:?}");
    assert!(errors.iter().all(|error| error.message().contains("was killed by signal 9")), "{errors:?}");
}
