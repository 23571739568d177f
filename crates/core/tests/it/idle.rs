//! A call that finds a free replica and nothing before it is run without an actor, and keeps every promise.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use callboard_core::{
    AsyncWorker, BackoffPolicy, Batch, Contract, ErrorKind, Failure, LocalClient, Node, Pipeline, Replica, RouteSpec,
    Stage, Worker,
};
use futures_util::FutureExt;

use super::support::{Gate, gated, hide_panics, serve, until};

fn echo(name: &str) -> Stage<u64, u64> {
    Stage::each(name, |n: &u64| Ok(*n))
}

fn batches(node: &Node, stage: &str) -> u64 {
    let stages = node.describe().stages;
    stages.iter().find(|described| described.health.name.as_str() == stage).unwrap().batches
}

/// Calls until the code is known to be quick. On a paused clock it takes no time.
async fn warm_up(client: &LocalClient, calls: u64) {
    for n in 0..calls {
        assert_eq!(client.call::<u64, u64>("/route", n).await.unwrap(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn quick_code_on_the_runtime_answers_in_the_first_poll() {
    let node = serve(Pipeline::from(echo("one")).then(echo("two"))).await;
    let client = node.client();
    warm_up(&client, 8).await;
    for n in 0..3u64 {
        assert_eq!(client.call::<u64, u64>("/route", n).now_or_never().expect("nothing is waited for").unwrap(), n);
    }
    let ensemble = serve(Pipeline::ensemble_of((0..5).map(|n| Pipeline::from(echo(&format!("echo{n}")))))).await;
    for _ in 0..8 {
        ensemble.client().call::<u64, Vec<u64>>("/route", 7).await.unwrap();
    }
    let answers = ensemble.client().call::<u64, Vec<u64>>("/route", 7).now_or_never().expect("nothing is waited for");
    assert_eq!(answers.unwrap(), [7; 5]);
}

/// Its caller has other calls, which would wait with it. On the only thread nothing else runs between the two.
#[tokio::test]
async fn code_that_is_not_quick_runs_beside_its_caller() {
    let stage = Stage::each("slow", |n: &u64| {
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        Ok(*n)
    });
    let node = serve(stage).await;
    warm_up(&node.client(), 20).await;
    assert!(node.client().call::<u64, u64>("/route", 1).now_or_never().is_none());
}

/// Who does not wait for a call does not run it either.
#[tokio::test(start_paused = true)]
async fn a_detached_call_runs_no_code_in_its_caller() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let node = serve(Stage::each("counts", move |n: &u64| {
        seen.fetch_add(1, Ordering::SeqCst);
        Ok(*n)
    }))
    .await;
    let client = node.client();
    warm_up(&client, 8).await;
    client.call_detached("/route", 1u64).unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 8);
    until("it has run", || runs.load(Ordering::SeqCst) == 9).await;
}

/// Polls the call twice. Between them the runtime runs nothing, so no actor has had a turn.
#[tokio::test]
async fn a_thread_is_woken_by_the_call_itself() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let mut call = Box::pin(client.call::<u64, u64>("/route", 5));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    let started = std::time::Instant::now();
    while gate.arrived() == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "the thread has not heard of it");
        std::thread::yield_now();
    }
    gate.open();
    let answer = loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(answer) => break answer,
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert_eq!(answer.unwrap(), 5);
}

#[tokio::test]
async fn many_callers_still_meet_in_batches() {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let stage = Stage::batch("sizes", move |batch: Batch<u64>| {
        seen.lock().unwrap().push(batch.len());
        batch.iter().map(|n| Ok(*n)).collect()
    });
    let node = serve(stage.max_batch_size(16)).await;
    let callers = (0..16u64).map(|caller| {
        let client = node.client();
        tokio::spawn(async move {
            for n in 0..200u64 {
                assert_eq!(client.call::<u64, u64>("/route", caller * 1000 + n).await.unwrap(), caller * 1000 + n);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let sizes = sizes.lock().unwrap();
    let full = sizes.iter().filter(|size| **size == 16).count();
    assert!(full >= 190, "{full} of {} batches are full", sizes.len());
}

/// Records the sizes of its batches.
struct Sizes(Arc<Mutex<Vec<usize>>>);

impl AsyncWorker for Sizes {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.0.lock().unwrap().push(batch.len());
        tokio::task::yield_now().await;
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

/// The entries of one caller that come at once are one batch, although the first of them finds the replica free.
#[tokio::test]
async fn a_burst_is_one_batch() {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (seen, of_futures) = (Arc::clone(&sizes), Arc::clone(&sizes));
    let stage = Stage::batch("sizes", move |batch: Batch<u64>| {
        seen.lock().unwrap().push(batch.len());
        batch.iter().map(|n| Ok(*n)).collect()
    });
    let futures = Stage::async_worker("sizes", move |_: &Replica| Ok(Sizes(Arc::clone(&of_futures))));
    for stage in [stage.clone().as_tasks(), stage.on_threads(), futures] {
        let node = serve(stage.max_batch_size(32)).await;
        let client = node.client();
        for lone in [0, 8] {
            warm_up(&client, lone).await;
            sizes.lock().unwrap().clear();
            for _ in 0..10 {
                let burst = (0..32u64).map(|n| client.call::<u64, u64>("/route", n));
                futures_util::future::try_join_all(burst).await.unwrap();
            }
            assert_eq!(std::mem::take(&mut *sizes.lock().unwrap()), [32; 10], "after {lone} lone calls");
        }
    }
}

#[tokio::test]
async fn what_waits_comes_first() {
    let gate = Gate::default();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (held, seen) = (gate.clone(), Arc::clone(&order));
    let stage = Stage::each("ordered", move |n: &u64| {
        held.pass();
        seen.lock().unwrap().push(*n);
        Ok(*n)
    });
    let node = serve(stage.on_threads()).await;
    let call = |n: u64| {
        let client = node.client();
        tokio::spawn(async move { client.call::<u64, u64>("/route", n).await.unwrap() })
    };
    let first = call(0);
    until("the first runs", || gate.arrived() == 1).await;
    let mut rest = Vec::new();
    for n in 1..20 {
        rest.push(call(n));
        until("it waits", || node.describe().stages[0].queued == n as usize).await;
    }
    gate.open();
    // Later calls find a free replica at times, and never before an earlier one has left.
    for n in 20..40 {
        rest.push(call(n));
        tokio::task::yield_now().await;
    }
    first.await.unwrap();
    for call in rest {
        call.await.unwrap();
    }
    assert!(order.lock().unwrap().is_sorted(), "{:?}", order.lock().unwrap());
}

/// Panics at 666, and counts what it runs at once.
struct Careful {
    inside: Arc<AtomicUsize>,
    runs: Arc<AtomicU64>,
}

impl Worker for Careful {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        assert!(batch.iter().all(|n| *n != 666), "meant to panic");
        let inside = self.inside.fetch_add(1, Ordering::SeqCst);
        let outcome = if inside == 0 { Ok(()) } else { Err(Failure::new("two at once")) };
        std::hint::spin_loop();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        batch.iter().map(|n| outcome.clone().map(|()| *n)).collect()
    }
}

fn careful(runs: &Arc<AtomicU64>) -> Stage<u64, u64> {
    let runs = Arc::clone(runs);
    let inside = Arc::new(AtomicUsize::new(0));
    let stage = Stage::worker("careful", move |_: &Replica| {
        Ok(Careful { inside: Arc::clone(&inside), runs: Arc::clone(&runs) })
    });
    let fast = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    stage.as_tasks().map_settings(|settings| settings.with_backoff(fast))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_race_for_one_slot_run_one_by_one() {
    let runs = Arc::new(AtomicU64::new(0));
    let node = serve(careful(&runs)).await;
    let callers = (0..4u64).map(|caller| {
        let client = node.client();
        tokio::spawn(async move {
            for n in 0..25_000u64 {
                assert_eq!(
                    client.call::<u64, u64>("/route", (caller + 1) << 32 | n).await.unwrap(),
                    (caller + 1) << 32 | n
                );
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 100_000);
    assert_eq!(batches(&node, "careful"), 100_000, "the replica has counted each of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_callers_poll_costs_this_call_and_the_replica_comes_back() {
    hide_panics();
    for (contract, expected) in [(Contract::AtMostOnce, 1), (Contract::Pure, 2)] {
        let runs = Arc::new(AtomicU64::new(0));
        let stage = careful(&runs).contract(contract).map_settings(|settings| settings.with_crash_retries(1));
        let node = serve(stage).await;
        let error = node.client().call::<u64, u64>("/route", 666).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "{error}");
        assert_eq!(runs.load(Ordering::SeqCst), expected, "{contract:?}");
        assert_eq!(node.client().call::<u64, u64>("/route", 1).await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_may_be_replaced_while_callers_run_it_themselves() {
    let node = serve(echo("echo")).await;
    let over = Arc::new(AtomicUsize::new(0));
    let callers = (0..4).map(|_| {
        let (client, over) = (node.client(), Arc::clone(&over));
        tokio::spawn(async move {
            let mut answered = 0u64;
            while over.load(Ordering::SeqCst) == 0 {
                assert_eq!(client.call::<u64, u64>("/route", answered).await.unwrap(), answered);
                answered += 1;
            }
            answered
        })
    });
    let callers: Vec<_> = callers.collect();
    for _ in 0..20 {
        node.replace_route(RouteSpec::new("/route", echo("echo"))).await.unwrap();
    }
    over.store(1, Ordering::SeqCst);
    for caller in callers {
        assert!(caller.await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_call_from_another_runtime_runs_on_that_of_the_node() {
    let workers = || tokio::runtime::Handle::current().metrics().num_workers() as u64;
    let node = serve(Stage::each("workers", move |_: &u64| Ok(workers()))).await;
    let client = node.client();
    let other = std::thread::spawn(move || {
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let call = |n| client.call::<u64, u64>("/route", n);
        other.block_on(async { futures_util::future::try_join_all((0..20).map(call)).await.unwrap() })
    });
    assert_eq!(other.join().unwrap(), [3; 20]);
}

/// Makes calls that no caller runs itself, one after the other. Returns the tasks that ran them.
async fn tasks_of_queued_calls(settings: impl Fn(Stage<u64, u64>) -> Stage<u64, u64>) -> Vec<tokio::task::Id> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tasks = Arc::clone(&seen);
    let stage = Stage::each("tasks", move |n: &u64| {
        tasks.lock().unwrap().push(tokio::task::id());
        Ok(*n)
    });
    let node = serve(settings(stage)).await;
    for n in 0..16u64 {
        node.client().call_detached("/route", n).unwrap();
        until("it has run", || seen.lock().unwrap().len() > n as usize).await;
        until("it is over", || node.describe().in_flight == 0).await;
    }
    std::mem::take(&mut *seen.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn quick_code_that_waited_runs_in_the_batchers_turn() {
    let tasks = tasks_of_queued_calls(|stage| stage).await;
    assert_ne!(tasks[0], tasks[15], "{tasks:?}");
    assert_eq!(tasks[8..], [tasks[15]; 8]);
    let shared = tasks_of_queued_calls(|stage| stage.max_batch_size(4)).await;
    assert_eq!(shared, [shared[0]; 16], "entries of one batch gather while another one runs");
    let two = tasks_of_queued_calls(|stage| stage.replicas(2)).await;
    assert!(two.iter().all(|task| two[..2].contains(task)), "each replica in its own task: {two:?}");
}

/// Each message that the batcher reads while the stage is saturated takes a turn.
#[tokio::test(start_paused = true)]
async fn the_mailbox_of_the_batcher_stays_short_while_quick_code_is_saturated() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let node = serve(Stage::each("quick", move |n: &u64| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(*n)
    }))
    .await;
    for n in 0..256u64 {
        let client = node.client();
        tokio::spawn(async move { while client.call::<u64, u64>("/route", n).await.is_ok() {} });
    }
    while runs.load(Ordering::SeqCst) < 50_000 {
        tokio::task::yield_now().await;
    }
    // The replica that leaves has read an order of the batcher.
    let before = runs.load(Ordering::SeqCst);
    node.scale_stage("quick", 2).await.unwrap();
    node.scale_stage("quick", 1).await.unwrap();
    let meanwhile = runs.load(Ordering::SeqCst) - before;
    assert!(meanwhile < 10_000, "the batcher read its mailbox after {meanwhile} more runs");
}

/// All other tasks of the thread wait while the batcher runs code.
#[tokio::test]
async fn other_tasks_have_turns_while_a_long_queue_runs() {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let stage = Stage::each("busy", move |n: &u64| {
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_micros(5) {
            std::hint::spin_loop();
        }
        seen.fetch_add(1, Ordering::SeqCst);
        Ok(*n)
    });
    let node = serve(stage).await;
    warm_up(&node.client(), 40).await;
    for n in 0..1000u64 {
        node.client().call_detached("/route", n).unwrap();
    }
    let mut turns = 0;
    while runs.load(Ordering::SeqCst) < 1040 {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns >= 10, "{turns} turns in 5 ms");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_batchers_turn_costs_its_call_and_the_replica_comes_back() {
    hide_panics();
    for (contract, expected) in [(Contract::AtMostOnce, 1), (Contract::Pure, 2)] {
        let runs = Arc::new(AtomicU64::new(0));
        let stage = careful(&runs).contract(contract).map_settings(|settings| settings.with_crash_retries(1));
        let node = serve(stage).await;
        warm_up(&node.client(), 16).await;
        node.client().call_detached("/route", 666u64).unwrap();
        until("it is over", || node.describe().in_flight == 0).await;
        assert_eq!(runs.load(Ordering::SeqCst) - 16, expected, "{contract:?}");
        assert_eq!(node.client().call::<u64, u64>("/route", 1).await.unwrap(), 1);
    }
}
